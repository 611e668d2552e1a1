"""One answer of ListObjectsV2 -> a `ListPage`. All that is read from a listing is read here.

botocore's own parser walks the service's model for every key: about 16,000 keys per CPU second. It is kept for everything
else; for this one answer the client hands the body over, and it is read here: by `s3_source.plain_items` where it is written
as usual, which takes a seventeenth of the time, else by the standard library's XML parser, which takes a seventh (measured by
`benchmarks/listing_cpu.py`). The layout is that of the S3 API reference, ListObjectsV2, with `encoding-type=url`.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from urllib.parse import unquote_plus

# The standard library's parser refuses what makes XML dangerous (external entities, expansion bombs since expat 2.4).
from xml.etree.ElementTree import Element, ParseError, fromstring

from framework.errors import ListingError, ObjectChangedError, StoreUnavailableError
from framework.records import NativeObject
from framework.store import ListPage
from framework.store_time import milliseconds, server_time_ms
from s3_source.plain_items import PlainItems, plain_items

EMPTY_ANSWER = b"<ListBucketResult/>"
"""What botocore's parser is given in place of the body."""


def parse_page(body: bytes, headers: Mapping[str, str], bucket: str) -> ListPage:
    """The page in the body of an answer that was asked for with `encoding-type=url`.

    Keys are decoded once, and only when the answer says that they are encoded. The plus sign stands for a space, as in
    botocore: S3 sends `+` for a space and `%2B` for a plus.

    Raises:
        ListingError: more is promised but not how to get there.
        StoreUnavailableError: the body is cut short, or no listing.
    """
    try:
        plain = plain_items(body)
        root = fromstring(body if plain is None else plain.rest)  # noqa: S314 - see the import
        items, namespace = _items_of(root)
        if plain is not None and len(items) != 1:  # the run of items lies in a comment, or deeper than items do
            plain, root = None, fromstring(body)  # noqa: S314
            items, namespace = _items_of(root)
        encoded = root.findtext(f"{namespace}EncodingType") == "url"
        if plain is None:
            objects = [_object(item, namespace, bucket, encoded=encoded) for item in items]
        else:
            objects = _plain_objects(plain, bucket, encoded=encoded)
        truncated = root.findtext(f"{namespace}IsTruncated") == "true"
        continuation = root.findtext(f"{namespace}NextContinuationToken") if truncated else None
    except (ParseError, KeyError, TypeError, ValueError) as exc:
        raise StoreUnavailableError(f"s3://{bucket}: a page of the listing cannot be read ({exc})") from exc
    if truncated and not continuation:
        raise ListingError(
            f"s3://{bucket}: a page says that more follows but not how to get it; the store's paging is broken"
        )
    return ListPage(objects=objects, continuation=continuation, server_time_ms=server_time_ms(headers.get("date")))


def _items_of(root: Element) -> tuple[list[Element], str]:
    """The items of a page, and its namespace as it stands before every tag."""
    namespace = root.tag[: root.tag.rindex("}") + 1] if root.tag.startswith("{") else ""
    return root.findall(f"{namespace}Contents"), namespace


def _plain_objects(items: PlainItems, bucket: str, *, encoded: bool) -> list[NativeObject]:
    keys = items.keys
    if encoded:
        keys = [unquote_plus(key) if "%" in key or "+" in key else key for key in keys]
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


def _object(item: Element, namespace: str, bucket: str, *, encoded: bool) -> NativeObject:
    """The same from an item of any form that XML allows."""
    start = len(namespace)
    fields = {part.tag[start:]: part.text or "" for part in item}
    key = fields["Key"]
    if encoded and ("%" in key or "+" in key):
        key = unquote_plus(key)
    modified_ms = milliseconds(fields["LastModified"])
    return NativeObject(
        scheme="s3",
        bucket=bucket,
        key=key,
        size=int(fields["Size"]),
        version=version_of(fields.get("ETag", ""), modified_ms),
        modified_ms=modified_ms,
        storage_class=intern(fields.get("StorageClass", "")),
    )


def version_of(etag: str, modified_ms: int) -> str:
    """What tells two contents under one key apart. The same bytes put again have the same ETag and are a new version."""
    return f"{bare_etag(etag)}@{modified_ms}"


def bare_etag(etag: str) -> str:
    """An ETag without quotes and without the mark of a weak one."""
    return etag.removeprefix("W/").strip('"')


def check_etag(native: NativeObject, etag: str, headers: Mapping[str, str]) -> None:
    """Compares the ETag of an answer with the listed one, for stores that ignore `If-Match`.

    Raises:
        ObjectChangedError: they differ.
    """
    theirs = bare_etag(headers.get("etag") or "")
    if etag and theirs and theirs != etag:
        raise ObjectChangedError(
            f"it was overwritten after it was listed (ETag {theirs}, listed {etag})", location=native.location
        )
