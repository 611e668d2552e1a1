"""Parses answers of ListObjectsV2 into `ListPage`; the only place that reads listings.

botocore's own parser walks the service's model for every key: about 16,000 keys per CPU second. It is
kept for all other answers; for this one the client passes the body here. `s3_source.plain_items` reads
the usual form in a seventeenth of that time, the standard library's XML parser any other form in a
seventh (measured by `benchmarks/listing_cpu.py`). The layout is that of the S3 API reference,
ListObjectsV2, with `encoding-type=url`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from sys import intern
from urllib.parse import unquote_plus

# The standard library's parser refuses what makes XML dangerous (external entities, expansion bombs since expat 2.4).
from xml.etree.ElementTree import Element, ParseError, fromstring

from framework.errors import ListingError, ObjectChangedError, ObjectError, StoreUnavailableError
from framework.model.objects import MAX_SIZE, NativeObject
from framework.storage.checksum import Checksum, checksum_of
from framework.storage.http.body import announces_length, other_bytes
from framework.storage.timestamps import milliseconds, server_time_ms
from framework.store import ListPage
from s3_source.plain_items import PlainItems, plain_items

Decode = Callable[[str], str]

ROUNDING_MS = 1000
"""Tolerance of times: a listing may have milliseconds, an answer's headers have seconds, rounded either way."""

REPLACEMENT = "\ufffd"
"""In a key: stands for bytes that are not UTF-8, or for what XML cannot show, of a server that ignores `encoding-type=url`."""

_CHECKSUMS = {f"x-amz-checksum-{name}": name for name in ("crc64nvme", "crc32c", "crc32")}

_CHECKSUM_TYPE = "x-amz-checksum-type"
CHECKSUM_HEADERS = (_CHECKSUM_TYPE, *_CHECKSUMS)

_TRUTH = {"true": True, "1": True, "false": False, "0": False}

_REPEATED = re.compile(rb"<(?:\w+:)?(StartAfter|Prefix)>[^<]*</(?:\w+:)?\1>")

EMPTY_ANSWER = b"<ListBucketResult/>"
"""Body for botocore's parser, instead of the real one."""


def parse_page(body: bytes, headers: Mapping[str, str], bucket: str) -> ListPage:
    """Parse the body of an answer to a request with `encoding-type=url`.

    Keys are decoded once, and only when the answer says that they are encoded. The plus sign means a
    space, as in botocore: S3 sends `+` for a space and `%2B` for a plus. A page with a key that is not
    UTF-8 is not exact.

    Raises:
        ListingError: there are more pages, but no continuation.
        StoreUnavailableError: the body is truncated, or not a listing.
    """
    try:
        plain = plain_items(body)
        fields, items = _fields_of(body if plain is None else plain.rest)
        if plain is not None and len(items) != 1:  # the run of items lies in a comment, or deeper than items do
            plain = None
            fields, items = _fields_of(body)
        encoded = fields.get("EncodingType") == "url"
        try:
            objects = _objects(plain or items, bucket, _unquote if encoded else None)
            exact = encoded or not any(REPLACEMENT in native.key for native in objects)
        except UnicodeDecodeError:  # a gateway over files shows their names, and those need not be UTF-8
            objects, exact = _objects(plain or items, bucket, _unquote_anything), False
        truncated = _truth(fields["IsTruncated"])
        _check_count(fields.get("KeyCount"), len(objects) + int(fields.get("CommonPrefixes", "0")))
    except (ParseError, LookupError, TypeError, ValueError) as exc:  # LookupError: also an encoding that there is not
        missing = f"no {exc.args[0]}" if isinstance(exc, KeyError) else str(exc)
        raise StoreUnavailableError(
            f"s3://{bucket}: a page of the listing cannot be read ({missing}); when that stays so, check s3.endpoint and s3.proxy"
        ) from exc
    continuation = fields.get("NextContinuationToken") if truncated else None
    if truncated and not continuation:
        raise ListingError(
            f"s3://{bucket}: a page says that more follows but not how to get it; the store's paging is broken"
        )
    return ListPage(
        objects=objects,
        continuation=continuation,
        server_time_ms=server_time_ms(headers.get("date")),
        exact=exact,
    )


def _fields_of(body: bytes) -> tuple[dict[str, str], list[Element]]:
    """Return a page's own fields, and its items. By local names: a gateway may omit a namespace, or add one."""
    try:
        root = fromstring(body)  # noqa: S314 - see the import
    except ParseError:
        # Some servers repeat in it, unencoded, the key and prefix that were asked for, and XML takes no control characters.
        bare = _REPEATED.sub(b"", body)
        if bare == body:
            raise
        root = fromstring(bare)  # noqa: S314
    if _local(root.tag) != "ListBucketResult":
        raise ValueError(f"it is a {_local(root.tag)[:40]}")
    fields: dict[str, str] = {}
    items: list[Element] = []
    for part in root:
        name = _local(part.tag)
        if name == "Contents":
            items.append(part)
        elif name == "CommonPrefixes":
            fields[name] = str(int(fields.get(name, "0")) + 1)
        else:
            fields[name] = part.text or ""
    return fields, items


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _truth(text: str) -> bool:
    """Parse a boolean of XML.

    Raises:
        ValueError: it is invalid. A missing one must not end a listing in its middle.
    """
    word = text.strip().lower()
    if word not in _TRUTH:
        raise ValueError(f"IsTruncated is {text[:40]!r}")
    return _TRUTH[word]


def _check_count(key_count: str | None, found: int) -> None:
    """Compare a page's announced count with its objects.

    Raises:
        ValueError: they differ.
    """
    if key_count is not None and key_count.strip() and int(key_count) != found:
        raise ValueError(f"KeyCount says {key_count.strip()}, {found} objects are shown")


_unquote = partial(unquote_plus, errors="strict")
_unquote_anything = partial(unquote_plus, errors="replace")


def _objects(items: PlainItems | list[Element], bucket: str, decode: Decode | None) -> list[NativeObject]:
    if isinstance(items, PlainItems):
        return _plain_objects(items, bucket, decode)
    return [_object(item, bucket, decode) for item in items]


def _plain_objects(items: PlainItems, bucket: str, decode: Decode | None) -> list[NativeObject]:
    keys = items.keys
    if decode is not None:
        keys = [decode(key) if "%" in key or "+" in key else key for key in keys]
    times = map(milliseconds, items.times)
    rows = zip(keys, times, items.etags, map(int, items.sizes), items.storage_classes, strict=True)
    return [
        NativeObject(
            scheme="s3",
            bucket=bucket,
            key=key,
            size=size,
            version=f"{etag}@{modified_ms}",  # as of `version_of`: these are bare
            modified_ms=modified_ms,
            storage_class=intern(storage_class),
        )
        for key, modified_ms, etag, size, storage_class in rows
    ]


def _object(item: Element, bucket: str, decode: Decode | None) -> NativeObject:
    """Parse an item in any form that XML allows."""
    fields = {_local(part.tag): part.text or "" for part in item}
    key = fields["Key"]
    if not key:
        raise ValueError("an object without a key")
    if decode is not None and ("%" in key or "+" in key):
        key = decode(key)
    modified_ms = milliseconds(fields["LastModified"])
    return NativeObject(
        scheme="s3",
        bucket=bucket,
        key=key,
        size=checked_size(int(fields["Size"])),
        version=version_of(fields.get("ETag", ""), modified_ms),
        modified_ms=modified_ms,
        storage_class=intern(fields.get("StorageClass", "")),
    )


def checked_size(size: int) -> int:
    """Return the size of an object.

    Raises:
        ValueError: none has that many bytes.
    """
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"an object of {str(size)[:20]} bytes")
    return size


def text_of(header: str) -> str:
    """Return the text of a header that was read as Latin-1. Some stores send metadata in UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def version_of(etag: str, modified_ms: int) -> str:
    """Return the version of an object's content. The same bytes stored again have the same ETag and are a new version."""
    return f"{bare_etag(etag)}@{modified_ms}"


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
    if (headers.get(_CHECKSUM_TYPE) or "FULL_OBJECT") != "FULL_OBJECT":
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
