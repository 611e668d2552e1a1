"""What a listed key costs: boto3 with its own parser against the S3 store's pages, over one canned answer of 1,000 keys.

    python benchmarks/listing_cpu.py

No server: a local socket would add the same to both. Rounds are interleaved; printed are keys per CPU second, medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from botocore.parsers import create_parser
from botocore.session import Session

from s3_source.pages import parse_page

KEYS, ROUNDS, PAGES = 1000, 5, 10


def canned() -> bytes:
    """One page as S3 sends it."""
    items = "".join(
        f"<Contents><Key>events/2026/01/{number % 28 + 1:02d}/part-{number:06d}.jsonl.gz</Key>"
        f"<LastModified>2026-01-{number % 28 + 1:02d}T12:{number % 60:02d}:05.000Z</LastModified>"
        f"<ETag>&quot;{number:032x}&quot;</ETag><Size>{number * 77}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for number in range(KEYS)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>b</Name><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
    ).encode()


def rate(parse: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(PAGES):
        parse()
    return KEYS * PAGES / (time.process_time() - began)


def main() -> None:
    body = canned()
    shape = Session().get_service_model("s3").operation_model("ListObjectsV2").output_shape
    theirs = create_parser("rest-xml")
    answer = {"status_code": 200, "headers": {}, "body": body}
    rates: dict[str, list[float]] = {"botocore": [], "s3_source.pages": []}
    for _ in range(ROUNDS):
        rates["botocore"].append(rate(lambda: theirs.parse(answer, shape)))
        rates["s3_source.pages"].append(rate(lambda: parse_page(body, {}, "b")))
    for name, found in rates.items():
        print(f"{name:<16} {statistics.median(found):>10,.0f} keys per CPU second")


if __name__ == "__main__":
    main()
