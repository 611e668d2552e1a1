"""What a listed key costs: the vendors' own ways against the pages of our stores, over one canned answer of 1,000 keys.

    python benchmarks/listing_cpu.py

No server: a local socket would add the same to both; `listing_client.py` has one, and counts everything. Rounds are
interleaved; printed are keys per CPU second, medians. "any form" is the same page with a comment before it, which leaves it to
the XML parser whole.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from botocore.parsers import create_parser
from botocore.session import Session
from google.cloud.storage import Blob, Bucket

from gcs_source.pages import parse_page as parse_gcs_page
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


def canned_gcs() -> bytes:
    """The same as Google sends it, only with the fields that are asked for."""
    items = [
        {
            "name": f"events/2026/01/{number % 28 + 1:02d}/part-{number:06d}.jsonl.gz",
            "size": str(number * 77),
            "generation": str(1_767_225_600_000_000 + number),
            "timeCreated": f"2026-01-{number % 28 + 1:02d}T12:{number % 60:02d}:05.123Z",
            "storageClass": "STANDARD",
        }
        for number in range(KEYS)
    ]
    return json.dumps({"nextPageToken": "more", "items": items}).encode()


def blobs(body: bytes, bucket: Bucket) -> list[object]:
    """What google-cloud-storage makes of a page: decoded, then an object for each key, and what a source reads of it."""
    made: list[object] = []
    for item in json.loads(body)["items"]:
        blob = Blob(item["name"], bucket)
        blob._set_properties(item)  # noqa: SLF001 - as the library's own listing does
        made.append((blob.name, blob.size, blob.generation, blob.time_created))
    return made


def rate(parse: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(PAGES):
        parse()
    return KEYS * PAGES / (time.process_time() - began)


def main() -> None:
    body = canned()
    commented = body.replace(b"<ListBucketResult ", b"<!-- a page --><ListBucketResult ")
    shape = Session().get_service_model("s3").operation_model("ListObjectsV2").output_shape
    theirs = create_parser("rest-xml")
    answer = {"status_code": 200, "headers": {}, "body": body}
    google, bucket = canned_gcs(), Bucket(None, "b")
    rates: dict[str, list[float]] = {
        "botocore": [], "s3_source.pages": [], "the same, any form": [], "google-cloud-storage": [], "gcs_source.pages": []
    }  # fmt: skip
    for _ in range(ROUNDS):
        rates["botocore"].append(rate(lambda: theirs.parse(answer, shape)))
        rates["s3_source.pages"].append(rate(lambda: parse_page(body, {}, "b")))
        rates["the same, any form"].append(rate(lambda: parse_page(commented, {}, "b")))
        rates["google-cloud-storage"].append(rate(lambda: blobs(google, bucket)))
        rates["gcs_source.pages"].append(rate(lambda: parse_gcs_page(google, {}, "b")))
    for name, found in rates.items():
        print(f"{name:<20} {statistics.median(found):>10,.0f} keys per CPU second")


if __name__ == "__main__":
    main()
