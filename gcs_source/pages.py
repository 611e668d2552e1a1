"""Parses answers of listings (JSON API, Objects: list) into `ListPage`; the only place that reads listings.

The library creates an object of some forty properties for every key. Here only the needed fields are
requested (`FIELDS`), and decoded directly into values of the framework (measured by
`benchmarks/listing_cpu.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import msgspec

from framework.errors import ListingError, ObjectChangedError, StoreUnavailableError
from framework.model.objects import NativeObject, size_of
from framework.storage.listing.keyspace import MAX_KEY_BYTES
from framework.storage.timestamps import milliseconds, server_time_ms
from framework.store import ListPage

ITEM_FIELDS = "name,size,generation,timeCreated,storageClass"

APPENDABLE = "RAPID"

_CHECK = "check gcs.endpoint and gcs.proxy"
_BY_KEY, _BY_TOKEN = "k", "t"

FIELDS = f"kind,nextPageToken,items({ITEM_FIELDS})"
_LISTING = "storage#objects"


class Item(msgspec.Struct, rename="camel"):
    """An object in a listing: https://cloud.google.com/storage/docs/json_api/v1/objects#resource."""

    name: str
    generation: str
    time_created: str
    size: str = ""
    storage_class: str = ""


class _Page(msgspec.Struct, rename="camel"):
    kind: str = ""
    items: list[Item] = []
    next_page_token: str | None = None


_decode_page = msgspec.json.Decoder(_Page).decode
_decode_item = msgspec.json.Decoder(Item).decode


def parse_page(body: bytes, headers: Mapping[str, str], bucket: str, *, after: str = "", most: int = 5000) -> ListPage:
    """Parse the body of an answer.

    Args:
        body: JSON.
        headers: headers of the answer, looked up in lower case.
        bucket: name of the bucket.
        after: dropped when it is the first key: the store's `startOffset` is inclusive.
        most: maximum number of objects; the rest is left to the next call.

    Returns:
        The page; its continuation is the store's token, which needs no order; or the last key, where some are left to
            the next call: see `resume`.

    Raises:
        StoreUnavailableError: the body is truncated, or not a listing.
        ListingError: the objects belong to a zonal bucket.
    """
    with _readable(f"gs://{bucket}: a page of the listing"):
        page = _decode_page(body)
        items = page.items
        if not items and page.kind != _LISTING:  # any other JSON document would be an empty bucket
            raise ValueError("it shows no objects, and is no list of objects")
        if after and items and items[0].name == after:
            items = items[1:]
        objects = [_native(item, bucket) for item in items[:most]]
        token, continuation = page.next_page_token, None
        if len(items) > most:  # the token goes on behind the rest
            continuation = f"{_BY_KEY}{objects[-1].key}"
        elif token:
            continuation = f"{_BY_TOKEN}{len(after)} {after}{token}"
    return ListPage(objects=objects, continuation=continuation, server_time_ms=server_time_ms(headers.get("date")))


def check_window(page: ListPage, bucket: str, asked: Mapping[str, str], after: str) -> None:
    """Compare the keys of a page with the window that was asked for; nothing else ties it to its request.

    Args:
        page: of a store that takes both offsets.
        bucket: name of the bucket.
        asked: as of `offsets`.
        after: the key that the page must lie behind.

    Raises:
        StoreUnavailableError: it shows others.
    """
    objects, end = page.objects, asked.get("endOffset")
    if objects and (objects[0].key <= after or (end is not None and objects[-1].key >= end)):
        raise StoreUnavailableError(
            f"gs://{bucket}: a page of the listing answers another request: keys behind {after!r} and before {end!r} were asked "
            f"for, it shows {objects[0].key!r} to {objects[-1].key!r}; when that stays so, {_CHECK}"
        )


def offsets(after: str, until: str | None) -> dict[str, str]:
    """Return the parameters for the keys `after .. until`, both inclusive; a few later keys may be listed too.

    `endOffset` is exclusive. A space appended to the key makes it inclusive. Keys in between begin with
    the key and a control character, and the caller drops them. No offset may be longer than a key can be.
    """
    asked = {"startOffset": after} if after else {}
    if until is not None and len(until.encode()) < MAX_KEY_BYTES:
        asked["endOffset"] = f"{until} "
    return asked


def resume(continuation: str | None, after: str) -> tuple[str, str]:
    """Return (key to continue after, token of the store) for the next request; empty = none. A token takes precedence."""
    if continuation is None:
        return after, ""
    if continuation[0] == _BY_KEY:
        return continuation[1:], ""
    length, _, rest = continuation[1:].partition(" ")
    return rest[: int(length)], rest[int(length) :]


def parse_object(body: bytes, bucket: str, key: str) -> NativeObject:
    """Parse the description of the object of that key.

    Raises:
        StoreUnavailableError: the body is truncated, or not its description.
    """
    with _readable(f"gs://{bucket}: the description of an object"):
        item = _decode_item(body)
        if item.name != key:
            raise ValueError(f"asked was for {key!r}, described is {item.name[:MAX_KEY_BYTES]!r}")
        return _native(item, bucket)


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata of an object's description."""

    generation: str
    content_type: str = ""
    metadata: dict[str, str] = {}


def parse_metadata(body: bytes, native: NativeObject) -> dict[str, str]:
    """Parse the metadata in the description of an object, as `ObjectStore.metadata` names them.

    Raises:
        ObjectChangedError: it is the description of another generation.
        StoreUnavailableError: the body is truncated, or not a description.
    """
    with _readable(f"{native.location}: its description"):
        found = msgspec.json.decode(body, type=Metadata)
    if found.generation != native.version:
        raise other_generation(native, found.generation)
    own = {f"meta:{name.lower()}": value for name, value in found.metadata.items()}
    return {"content-type": found.content_type, **own}


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise StoreUnavailableError(f"{what} cannot be read ({exc}); when that stays so, {_CHECK}") from exc


def other_generation(native: NativeObject, generation: str) -> ObjectChangedError:
    """Return the error of a key that has another generation than the listed one."""
    return ObjectChangedError(
        f"it was overwritten after it was listed (generation {generation}, listed {native.version})",
        location=native.location,
    )


def _native(item: Item, bucket: str) -> NativeObject:
    if item.storage_class == APPENDABLE:
        raise ListingError(
            f"gs://{bucket}/{item.name}: objects of zonal buckets (class {APPENDABLE}) are not supported: they grow without "
            f"becoming another generation, and what is appended after the first read would never be read"
        )
    size, generation = size_of(item.size, item.name), item.generation
    if not item.name or not (generation.isascii() and generation.isdigit() and generation.strip("0")):
        raise ValueError(f"an object {item.name[:MAX_KEY_BYTES]!a} of generation {generation[:20]!a}")
    return NativeObject(
        scheme="gs",
        bucket=bucket,
        key=item.name,
        size=size,
        version=item.generation,
        modified_ms=milliseconds(item.time_created),  # of this generation; `updated` moves with its metadata
        storage_class=item.storage_class,
    )
