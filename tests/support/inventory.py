"""S3 inventories as S3 writes them, made without any of the code that reads them: by hand, and with pyarrow."""

import gzip
import hashlib
import io
import json
from datetime import datetime, timezone

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = (
    "Bucket",
    "Key",
    "VersionId",
    "IsLatest",
    "IsDeleteMarker",
    "Size",
    "LastModifiedDate",
    "ETag",
    "StorageClass",
)
FOLDER = "inventories/source/all/2024-05-31T01-00Z"
DATA = "inventories/source/all/data"

PARQUET = pa.schema(
    [
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("version_id", pa.string()),
        pa.field("is_latest", pa.bool_()),
        pa.field("is_delete_marker", pa.bool_()),
        pa.field("size", pa.int64()),
        pa.field("last_modified_date", pa.timestamp("ms", "UTC")),
        pa.field("e_tag", pa.string()),
        pa.field("storage_class", pa.string()),
    ]
)


@attrs.frozen(kw_only=True)
class Line:
    """A line of an inventory; what is None stands for an optional field that is empty."""

    key: str
    size: int | None = None
    etag: str | None = None
    modified_ms: int | None = None
    version_id: str | None = None
    latest: bool | None = None
    delete_marker: bool | None = None
    bucket: str | None = None
    storage_class: str | None = "STANDARD"


def line_of(native, **changed):
    """A line about an object as a listing shows it."""
    etag = native.version.rpartition("@")[0] or native.version
    given = {"key": native.key, "size": native.size, "etag": etag, "modified_ms": native.modified_ms}
    return Line(**(given | changed))


def percent(text):
    """URL encoding, byte by byte: a space as `+`."""
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._*"
    return "".join("+" if byte == 32 else chr(byte) if byte in safe else f"%{byte:02X}" for byte in text.encode())


def quoted(value):
    return '"' + value.replace('"', '""') + '"'


def moment(modified_ms):
    whole = datetime.fromtimestamp(modified_ms // 1000, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{modified_ms % 1000:03d}Z"


def text_fields(line, bucket):
    def truth(value):
        return "" if value is None else str(value).lower()

    return (
        line.bucket or bucket,
        percent(line.key),
        line.version_id or "",
        truth(line.latest),
        truth(line.delete_marker),
        "" if line.size is None else str(line.size),
        "" if line.modified_ms is None else moment(line.modified_ms),
        line.etag or "",
        line.storage_class or "",
    )


def csv_data(lines, bucket):
    rows = "".join(",".join(map(quoted, text_fields(line, bucket))) + "\n" for line in lines)
    return gzip.compress(rows.encode())


def parquet_data(lines, bucket, *, group=7):
    table = pa.Table.from_pylist(
        [
            {
                "bucket": line.bucket or bucket,
                "key": line.key,
                "version_id": line.version_id,
                "is_latest": line.latest,
                "is_delete_marker": line.delete_marker,
                "size": line.size,
                "last_modified_date": line.modified_ms,
                "e_tag": line.etag,
                "storage_class": line.storage_class,
            }
            for line in lines
        ],
        schema=PARQUET,
    )
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=group)
    return out.getvalue()


def manifest(source, destination, files, form):
    """`files`: key -> bytes."""
    return {
        "sourceBucket": source,
        "destinationBucket": f"arn:aws:s3:::{destination}",
        "version": "2016-11-30",
        "creationTimestamp": "1717113600000",
        "fileFormat": form,
        "fileSchema": ", ".join(COLUMNS)
        if form == "CSV"
        else "message s3.inventory { required binary bucket (STRING); }",
        "files": [
            {"key": key, "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()} for key, data in files.items()
        ],
    }


def write_inventory(put, lines, *, source, destination, form="CSV", parts=2, folder=FOLDER, **changed):
    """Puts an inventory with `put(key, bytes)`; returns the key of its manifest."""
    make, suffix = {"CSV": (csv_data, "csv.gz"), "Parquet": (parquet_data, "parquet")}[form]
    files = {f"{DATA}/part-{part}.{suffix}": make(lines[part::parts], source) for part in range(parts)}
    for key, data in files.items():
        put(key, data)
    told = manifest(source, destination, files, form) | changed
    put(f"{folder}/manifest.json", json.dumps(told).encode())
    return f"{folder}/manifest.json"
