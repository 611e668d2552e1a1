"""Versions of S3 objects: what a request asks for, and whether an answer is of the version that was listed."""

from __future__ import annotations

from collections.abc import Mapping

from framework.errors import ObjectChangedError, ObjectError
from framework.model.objects import NativeObject
from framework.storage.checksum import Checksum, checksum_of
from framework.storage.http.body import announces_length, other_bytes
from framework.storage.timestamps import server_time_ms

ROUNDING_MS = 1000
"""Tolerance of times: a listing may have milliseconds, an answer's headers have seconds, rounded either way."""

_CHECKSUMS = {f"x-amz-checksum-{name}": name for name in ("crc64nvme", "crc32c", "crc32")}


def version_of(etag: str, modified_ms: int, size: int) -> str:
    """Return the version of an object's content. The same bytes stored again have the same ETag and are a new version.

    Without an ETag it has the size: `@1717156800000-1024`. See `framework.model.objects.is_older_form`.
    """
    bare = bare_etag(etag)
    return f"{bare}@{modified_ms}" if bare else f"@{modified_ms}-{size}"


def bare_etag(etag: str) -> str:
    """Return an ETag without quotes and without the weak prefix."""
    return etag.removeprefix("W/").strip('"')


def listed_etag(native: NativeObject) -> str:
    """Return the listed ETag; empty without one."""
    return native.version.rpartition("@")[0]


def etag_of(native: NativeObject) -> str:
    """Return the listed ETag for a request; empty without one.

    Raises:
        ObjectError: no request can name it.
    """
    etag = listed_etag(native)
    if not _may_be_sent(etag):
        raise ObjectError(
            f"its ETag {etag!a} has characters other than printable ASCII, so that no request can ask for this version; "
            f"check s3.endpoint, or write it again",
            location=native.location,
        )
    return etag


def _may_be_sent(etag: str) -> bool:
    return etag.isascii() and etag.isprintable()


def may_be_unpacked(headers: Mapping[str, str]) -> bool:
    """Return whether an answer without a length tells that it has another form than the stored object."""
    encodings = headers.get("content-encoding"), headers.get("x-goog-stored-content-encoding")
    return (headers.get("etag") or "").startswith("W/") or any(
        encoding not in {None, "", "identity", "aws-chunked"} for encoding in encodings
    )


def check_version(native: NativeObject, etag: str, headers: Mapping[str, str]) -> None:
    """Compare an answer with the listed object, for stores that ignore conditions: by ETag, or by time where one is missing.

    Raises:
        ObjectChangedError: they differ.
        ObjectError: the answer is another form of the object: it has a weak ETag, or an encoding without
            an announced length. With the listed length the bytes are the stored ones, whatever their
            encoding.
    """
    answer_etag = headers.get("etag") or ""
    encoding = headers.get("content-encoding") or "identity"
    if (answer_etag.startswith("W/") or encoding not in ("identity", "aws-chunked")) and not announces_length(headers):
        raise other_bytes(native, f"the answer has ETag {answer_etag or 'none'} and encoding {encoding}")
    if etag and answer_etag and bare_etag(answer_etag) != etag:
        raise ObjectChangedError(
            f"it was overwritten after it was listed (ETag {bare_etag(answer_etag)}, listed {etag})",
            location=native.location,
        )
    modified_ms = server_time_ms(headers.get("last-modified")) if not (etag and answer_etag) else None
    if modified_ms is not None and abs(modified_ms - native.modified_ms) > ROUNDING_MS:
        raise ObjectChangedError(
            f"it was overwritten after it was listed (last modified {headers.get('last-modified')})",
            location=native.location,
        )


def checksum_in(headers: Mapping[str, str]) -> Checksum | None:
    """Return the checksum of the whole object in an answer's headers; None without one of a supported kind."""
    if (headers.get("x-amz-checksum-type") or "FULL_OBJECT") != "FULL_OBJECT":
        return None
    for header, name in _CHECKSUMS.items():
        encoded = headers.get(header)
        if encoded:
            return checksum_of(name, encoded)
    return None


def condition_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the condition that restricts the next request to the version of this answer; empty without a version."""
    etag = headers.get("etag") or ""
    if etag and not etag.startswith("W/") and _may_be_sent(etag):  # a weak one never matches
        return {"If-Match": f'"{bare_etag(etag)}"'}
    modified = headers.get("last-modified")
    return {"If-Unmodified-Since": modified} if modified else {}
