"""Parses answers of ListObjectsV2 into `ListPage`; the only place that reads listings.

botocore's own parser walks the service's model for every key: about 16,000 keys per CPU second. It is
kept for all other answers; for this one the client passes the body here. `s3_source.page_pattern` reads
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

# What makes XML dangerous does not come here: see `s3_source.xml_limits`.
from xml.etree.ElementTree import Element, ParseError, fromstring

from framework.errors import ListingError, StoreUnavailableError
from framework.model.objects import MAX_SIZE, NativeObject, size_of
from framework.storage.timestamps import milliseconds, server_time_ms
from framework.store import ListPage
from s3_source.object_version import version_of
from s3_source.page_pattern import PlainItems, plain_items

Decode = Callable[[str], str]

REPLACEMENT = "\ufffd"
"""In a key: stands for bytes that are not UTF-8, or for what XML cannot show, of a server that ignores `encoding-type=url`."""

_TRUTH = {"true": True, "1": True, "false": False, "0": False}

_REPEATED = re.compile(rb"<(?:\w+:)?(StartAfter|Prefix)>[^<]*</(?:\w+:)?\1>")

EMPTY_ANSWER = b"<ListBucketResult/>"
"""Body for botocore's parser, instead of the real one."""


def parse_page(
    body: bytes, headers: Mapping[str, str], bucket: str, *, check: Callable[[Mapping[str, str]], None] | None = None
) -> ListPage:
    """Parse the body of an answer to a request with `encoding-type=url`.

    Args:
        body: XML.
        headers: headers of the answer, looked up in lower case.
        bucket: name of the bucket.
        check: takes the page's own fields, and raises when they are those of another request (`s3_source.repeated_fields`).

    Keys are decoded once, and only when the answer says that they are encoded. The plus sign means a
    space, as in botocore: S3 sends `+` for a space and `%2B` for a plus. A page with a key that is not
    UTF-8 is not exact.

    Raises:
        ListingError: there are more pages, but no continuation.
        StoreUnavailableError: the body is truncated, or not a listing, or that of another request.
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
    if check is not None:
        check(fields)
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
            version=f"{etag}@{modified_ms}" if etag else version_of("", modified_ms, size),  # these are bare
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
    modified_ms, size = milliseconds(fields["LastModified"]), size_of(fields["Size"], key)
    return NativeObject(
        scheme="s3",
        bucket=bucket,
        key=key,
        size=size,
        version=version_of(fields.get("ETag", ""), modified_ms, size),
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
