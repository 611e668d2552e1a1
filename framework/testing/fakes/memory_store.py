r"""A bucket in memory: pages, versions, a log of calls, and scripted failures.

    store = MemoryStore()
    store.put("a/1.jsonl", b'{"n":1}\n')
    store.fail("list_page", ThrottledError("slow down"), times=2)
    store.cut("a/1.jsonl", at=3)                 # its streams end early, without an error, as with a faulty store

It follows `framework.store.ObjectStore`, as the conformance kit proves; it fails only on request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import attrs
from typing_extensions import override

from framework.errors import ObjectChangedError, ObjectNotFoundError, StoreUnavailableError, TaskClosedError
from framework.model.objects import NativeObject
from framework.store import ListPage, ObjectStore
from framework.transformer import ReadStream

FIRST_TIME_MS = 1_700_000_000_000
"""Last-modified time of the first object; each later change adds a second."""


@attrs.define(kw_only=True)
class StoreFault:
    """A scripted failure.

    Attributes:
        call: `list_page`, `stat`, `metadata`, `open` or `read`.
        error: the error to raise, the same each time.
        key: only for this object; None = any. For `list_page` the prefix.
        skip: number of matching calls that succeed first.
        times: number of calls that fail after them; None = all.
        at: `read` only: fails from this byte of the object on.
    """

    call: str
    error: BaseException
    key: str | None = None
    skip: int = 0
    times: int | None = 1
    at: int = 0


@attrs.frozen
class Call:
    """A recorded call: its name and the object's key (for a listing, the prefix)."""

    name: str
    key: str


@attrs.frozen
class _Stored:
    data: bytes
    version: str
    modified_ms: int
    storage_class: str = ""
    metadata: Mapping[str, str] = attrs.field(factory=dict)


class MemoryStore(ObjectStore):
    """A bucket in memory. Threads may share it.

    Attributes:
        calls: every `list_page`, `stat`, `open` and `read`, in order.
        open_streams: number of open streams.
        largest_read: maximum bytes per `read`; small values move the block boundaries that a format sees.
        on_call: called at the start of each call; may raise.
        change_page: replaces each page of a listing: a store with broken paging.
        object_tags: the tags of objects, by key.
    """

    scheme = "memory"
    lists_milliseconds = False

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self.calls: list[Call] = []
        self.open_streams = 0
        self.largest_read: int | None = None
        self.on_call: Callable[[Call], None] | None = None
        self.change_page: Callable[[ListPage], ListPage] | None = None
        self.object_tags: dict[str, dict[str, str]] = {}
        self.closed = False
        self._objects: dict[str, _Stored] = {}
        self._faults: list[StoreFault] = []
        self._cuts: dict[str, int] = {}
        self._changes = 0
        self._lock = threading.RLock()  # the garbage collector may close a stream during a call

    # ---- out of band

    def put(
        self,
        key: str,
        data: bytes,
        *,
        modified_ms: int | None = None,
        storage_class: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> NativeObject:
        """Write an object, always as a new version; return it as listings show it."""
        with self._lock:
            self._changes += 1
            when = FIRST_TIME_MS + 1000 * self._changes if modified_ms is None else modified_ms
            stored = self._objects[key] = _Stored(data, f"v{self._changes}", when, storage_class, metadata or {})
            return self._native(key, stored)

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        with self._lock:
            self._objects.pop(key, None)

    def stored(self) -> dict[str, tuple[bytes, str, int]]:
        """Return the content, key -> bytes, version, last-modified time; for `restore` in another process."""
        with self._lock:
            return {key: (stored.data, stored.version, stored.modified_ms) for key, stored in self._objects.items()}

    def restore(self, stored: Mapping[str, tuple[bytes, str, int]]) -> None:
        """Replace the content by that of another store."""
        with self._lock:
            self._objects = {key: _Stored(*fields) for key, fields in stored.items()}
            self._changes = len(self._objects)

    def fail(
        self,
        call: str,
        error: BaseException,
        *,
        key: str | None = None,
        skip: int = 0,
        times: int | None = 1,
        at: int = 0,
    ) -> StoreFault:
        """Script a failure; see `StoreFault`. A call counts for the first failure that matches it."""
        fault = StoreFault(call=call, error=error, key=key, skip=skip, times=times, at=at)
        with self._lock:
            self._faults.append(fault)
        return fault

    def cut(self, key: str, at: int | None) -> None:
        """Make every stream of an object end at this byte without an error; None = as stored again."""
        with self._lock:
            if at is None:
                self._cuts.pop(key, None)
            else:
                self._cuts[key] = at

    def clear_faults(self) -> None:
        """Remove all failures and cuts; clear the log of calls."""
        with self._lock:
            self._faults.clear()
            self._cuts.clear()
            self.calls.clear()

    def count(self, name: str, key: str | None = None) -> int:
        """Return the number of calls."""
        with self._lock:
            return sum(call.name == name and key in (None, call.key) for call in self.calls)

    # ---- the store

    @override
    def list_page(
        self, *, prefix: str = "", after: str = "", continuation: str | None = None, page_size: int = 1000
    ) -> ListPage:
        self._call("list_page", prefix)
        border = (continuation if continuation is not None else after).encode()
        with self._lock:
            named = sorted((key.encode(), key) for key in self._objects if key.startswith(prefix))
            keys = [key for raw, key in named if raw > border or not border]
            objects = [self._native(key, self._objects[key]) for key in keys[:page_size]]
        more = len(keys) > page_size
        page = ListPage(objects=objects, continuation=objects[-1].key if more else None)
        return page if self.change_page is None else self.change_page(page)

    @override
    def stat(self, key: str) -> NativeObject:
        self._call("stat", key)
        with self._lock:
            stored = self._objects.get(key)
            if stored is None:
                raise ObjectNotFoundError("there is no such object", location=f"{self.scheme}://{self.bucket}/{key}")
            return self._native(key, stored)

    @override
    def metadata(self, native: NativeObject) -> Mapping[str, str]:
        self._call("metadata", native.key)
        with self._lock:
            stored = self._objects.get(native.key)
            if stored is None:
                raise ObjectNotFoundError("there is no such object", location=native.location)
            if stored.version != native.version:
                raise ObjectChangedError("it was overwritten after it was listed", location=native.location)
            return dict(stored.metadata)

    @override
    def tags(self, native: NativeObject) -> Mapping[str, str]:
        self._call("tags", native.key)
        with self._lock:
            if native.key not in self._objects:
                raise ObjectNotFoundError("there is no such object", location=native.location)
            return dict(self.object_tags.get(native.key, {}))

    @override
    def listed_version(self, *, etag: str, modified_ms: int) -> str | None:
        """Return the etag, which is the version: `v1`, `v2`, and so on."""
        return etag.strip('"') or None

    @override
    def open(self, native: NativeObject, start: int = 0, end: int | None = None) -> ReadStream:
        self._call("open", native.key)
        with self._lock:
            stored = self._objects.get(native.key)
            if stored is None:
                raise ObjectNotFoundError("deleted since it was listed", location=native.location)
            if stored.version != native.version:
                raise ObjectChangedError("overwritten since it was listed", location=native.location)
            stop = len(stored.data) if end is None else end
            cut = self._cuts.get(native.key)
            data = stored.data[: stop if cut is None else min(stop, cut)]
            self.open_streams += 1
        return _MemoryStream(self, native.key, data, start)

    @override
    def close(self) -> None:
        self.closed = True

    def _native(self, key: str, stored: _Stored) -> NativeObject:
        return NativeObject(
            scheme=self.scheme,
            bucket=self.bucket,
            key=key,
            size=len(stored.data),
            version=stored.version,
            modified_ms=stored.modified_ms,
            storage_class=stored.storage_class,
        )

    def _call(self, name: str, key: str, at: int = 0) -> None:
        call = Call(name, key)
        if self.on_call is not None:
            self.on_call(call)
        with self._lock:
            self.calls.append(call)
            if self.closed:
                raise TaskClosedError("the store is closed")
            for fault in self._faults:
                if fault.call != name or fault.key not in (None, key) or at < fault.at:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                elif fault.times is None or fault.times > 0:
                    if fault.times is not None:
                        fault.times -= 1
                    raise fault.error
                return

    def read_some(self, key: str, data: bytes, at: int, size: int) -> bytes:
        """Read from a stream of this store."""
        self._call("read", key, at)
        return data[at : at + min(size, self.largest_read or size)]

    def stream_closed(self) -> None:
        """Count a closed stream."""
        with self._lock:
            self.open_streams -= 1


class _MemoryStream(ReadStream):
    def __init__(self, store: MemoryStore, key: str, data: bytes, at: int) -> None:
        self._store = store
        self._key = key
        self._data = data
        self._at = at
        self._closed = False

    @override
    def read(self, size: int, /) -> bytes:
        if self._closed:
            raise StoreUnavailableError(f"{self._key}: read from a closed stream")
        data = self._store.read_some(self._key, self._data, self._at, size)
        self._at += len(data)
        return data

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._store.stream_closed()
