"""The data that is measured: rows of about 200 bytes of JSON in four formats, and large objects made piece by piece.

Everything comes from one fixed random sequence, so that every run reads the same bytes. Large objects repeat a block of a
few megabytes and go up in parts: no more than a part is ever held.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "bench"
PART_BYTES = 16 << 20
READABLE_SECONDS = 60.0
FORMATS = ("jsonl", "avro", "csv", "parquet")
SUFFIX = {
    "jsonl": "jsonl",
    "avro": "avro",
    "csv": "csv",
    "parquet": "parquet",
    "archive": "jsonl",
    "archive-headers": "jsonl",
}
NAMES = ("object", "n", "id", "user", "amount", "ok", "city", "pad")
AVRO_TYPES = ("long", "long", "long", "string", "double", "boolean", "string", "string")
CITIES = ("Amsterdam", "Berlin", "København", "Lisboa", "Wien")
LINE_BYTES = 200


@attrs.frozen(kw_only=True)
class Store:
    """An S3-compatible server."""

    endpoint: str
    access_key: str
    secret_key: str = attrs.field(repr=False)

    def client(self, connections: int = 64) -> S3Client:
        """The plain client of the AWS library, with as many connections as a pool of threads wants."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(max_pool_connections=connections),
        )

    def section(self, prefix: str) -> dict[str, Any]:
        """The `[s3]` section of a configuration that reads what is below a prefix of the bucket."""
        return {
            "bucket": BUCKET,
            "prefix": prefix,
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }


def rows(number: int, count: int) -> Iterator[dict[str, Any]]:
    """The rows of one object; each about `LINE_BYTES` long as a line of JSON."""
    chance = random.Random(number)
    for n in range(count):
        row = {
            "object": number,
            "n": n,
            "id": chance.getrandbits(60),
            "user": f"user-{chance.randrange(10**6)}",
            "amount": chance.random(),
            "ok": n % 3 > 0,
            "city": CITIES[chance.randrange(5)],
        }
        used = len(json.dumps(row, ensure_ascii=False).encode()) + len(', "pad": ""') + 1
        row["pad"] = f"{chance.getrandbits(256):064x}"[: max(0, LINE_BYTES - used)]
        yield row


def encode(kind: str, content: Iterable[dict[str, Any]]) -> bytes:
    """An object of one of the four formats."""
    return _ENCODERS[kind](content)


def _jsonl(content: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in content)


def _csv(content: Iterable[dict[str, Any]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(NAMES)
    writer.writerows(list(row.values()) for row in content)
    return out.getvalue().encode()


def _avro(content: Iterable[dict[str, Any]], codec: str = "deflate") -> bytes:
    import fastavro

    fields = [{"name": name, "type": kind} for name, kind in zip(NAMES, AVRO_TYPES, strict=True)]
    schema = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})
    out = io.BytesIO()
    fastavro.writer(out, schema, content, codec=codec, sync_interval=64_000, sync_marker=b"0123456789abcdef")
    return out.getvalue()


def _parquet(content: Iterable[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(content)), out)
    return out.getvalue()


def _archive(content: Iterable[dict[str, Any]], *, headers: bool = False) -> bytes:
    """Lines as Iggy's S3 sink writes them, with messages of about `LINE_BYTES`."""
    lines = []
    for row in content:
        n = row["n"]
        line: dict[str, Any] = {
            "offset": n,
            "timestamp": f"2026-03-16T14:{n // 60 % 60:02}:{n % 60:02}Z",
            "stream": "src",
            "topic": "events",
            "partition_id": 0,
        }
        if headers:
            line["headers"] = {"attempt": n % 3, "trace": f"trace-{n % 100}"}
        lines.append(json.dumps({**line, "payload": row}, separators=(",", ":"), ensure_ascii=False))
    return "\n".join([*lines, ""]).encode()


_ENCODERS = {
    "jsonl": _jsonl,
    "csv": _csv,
    "avro": _avro,
    "parquet": _parquet,
    "archive": _archive,
    "archive-headers": partial(_archive, headers=True),
}


def ensure_bucket(store: Store) -> None:
    """Make the bucket, if it is not there; else wait until what it holds can be read.

    A SeaweedFS that was started again lists its objects some seconds before it finds their bytes.
    """
    client = store.client()
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket=BUCKET)
    limit = time.monotonic() + READABLE_SECONDS
    for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        while True:
            try:
                client.get_object(Bucket=BUCKET, Key=entry["Key"], Range="bytes=0-0")["Body"].read()
                break
            except client.exceptions.ClientError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.5)
    client.close()


def ensure_many(store: Store, kind: str, objects: int, lines: int) -> str:
    """Put the objects of one format unless they are there; return their prefix."""
    prefix = f"{kind}-{objects}x{lines}/"
    client = store.client()
    if not _complete(client, prefix):
        with ThreadPoolExecutor(8) as pool:

            def put(number: int) -> None:
                body = encode(kind, rows(number, lines))
                client.put_object(Bucket=BUCKET, Key=f"{prefix}{number:05}.{SUFFIX[kind]}", Body=body)

            list(pool.map(put, range(objects)))
        _mark(client, prefix)
    client.close()
    return prefix


def _complete(client: S3Client, name: str) -> bool:
    try:
        client.head_object(Bucket=BUCKET, Key=f"done/{name}")
    except client.exceptions.ClientError:
        return False
    return True


def _mark(client: S3Client, name: str) -> None:
    client.put_object(Bucket=BUCKET, Key=f"done/{name}", Body=b"1")


# ---- large objects


@attrs.frozen(kw_only=True)
class Large:
    """One large object.

    Attributes:
        name: says what it is.
        kind: the value of `input.format`.
        suffix: of its key.
        size_bytes: about how long it is; for gzip, unpacked.
        longest: for lines of very different length, the longest one's bytes.
    """

    name: str
    kind: str
    suffix: str
    size_bytes: int
    longest: int = LINE_BYTES

    @property
    def prefix(self) -> str:
        """Below which it lies alone."""
        return f"large-{self.name.replace(' ', '-')}-{self.size_bytes}/"

    @property
    def key(self) -> str:
        """Its key."""
        return f"{self.prefix}object.{self.suffix}"


def ensure_large(store: Store, large: Large) -> None:
    """Put a large object unless it is there."""
    client = store.client()
    if not _complete(client, large.prefix):
        if large.kind == "parquet":
            with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
                _write_parquet(file.name, large.size_bytes)
                _upload(client, large.key, iter(lambda: file.read(PART_BYTES), b""))
        else:
            _upload(client, large.key, _pieces(large))
        _mark(client, large.prefix)
    client.close()


def forget_large(store: Store, large: Large) -> None:
    """Delete it."""
    client = store.client()
    client.delete_object(Bucket=BUCKET, Key=large.key)
    client.delete_object(Bucket=BUCKET, Key=f"done/{large.prefix}")
    client.close()


def _pieces(large: Large) -> Iterator[bytes]:
    if large.kind == "jsonl":
        block = _jsonl(rows(1, 20_000)) if large.longest == LINE_BYTES else _long_lines(large.longest)
        whole = _repeat(b"", block, large.size_bytes)
        return _gzip(whole) if large.suffix.endswith("gz") else whole
    if large.kind == "csv":
        head, body = _csv(rows(1, 20_000)).split(b"\n", 1)
        return _repeat(head + b"\n", body, large.size_bytes)
    data = _avro(rows(1, 20_000), "null")
    start = data.index(b"0123456789abcdef") + 16  # behind the header's sync marker: blocks that end with the same one
    return _repeat(data[:start], data[start:], large.size_bytes)


def _long_lines(longest: int) -> bytes:
    """Lines from a few bytes to the longest, whose sizes no block or batch divides."""
    chance = random.Random(7)
    return b"".join(
        json.dumps({"n": n, "pad": chance.randbytes(chance.randrange(longest // 2 - 20)).hex()}).encode() + b"\n"
        for n in range(40)
    )


def _repeat(head: bytes, block: bytes, size: int) -> Iterator[bytes]:
    yield head
    for _ in range(max(1, size // len(block))):
        yield block


def _gzip(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One member, as gzip writes it."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _write_parquet(path: str, size: int) -> None:
    """Row groups of 128 MB each, whose text neither a dictionary nor snappy makes much smaller."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(3)
    group_bytes = min(128_000_000, size)
    count = group_bytes // LINE_BYTES
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for group in range(max(1, size // group_bytes)):
            data = chance.randbytes(count * 180)
            table = pa.table(
                {
                    "group": pa.repeat(pa.scalar(group), count),
                    "n": pa.array(range(count)),
                    "amount": pa.array([chance.random() for _ in range(count)]),
                    "pad": pa.array([data[at : at + 90].hex() for at in range(0, count * 180, 180)]),
                }
            )
            writer = writer or stack.enter_context(
                pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="snappy")
            )
            writer.write_table(table, row_group_size=count)


def _upload(client: S3Client, key: str, pieces: Iterator[bytes]) -> None:
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    parts: list[Any] = []

    def part(body: bytes) -> None:
        answer = client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=len(parts) + 1, Body=body)
        parts.append({"PartNumber": len(parts) + 1, "ETag": answer["ETag"]})

    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= PART_BYTES:
            part(bytes(held[:PART_BYTES]))
            del held[:PART_BYTES]
    if held or not parts:
        part(bytes(held))
    client.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
