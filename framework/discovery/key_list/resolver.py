"""Objects that a supplied list names, instead of a listing: discovery mode `keys`.

    list -> rows -> [filters: bucket, versions, prefix] -> trusted, or looked up -> objects, in list order

A row with size, ETag and last-modified replaces a line of a listing and costs no request. Any other row
is looked up in the store, several in parallel. So is a row that may be outdated: of an object that a
read found overwritten, one with a position of another version, or one that was empty.

While the list is unchanged, a listing covers only released and deferred objects, until `read_again`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

import attrs

from framework.discovery.key_list.rows import KeyRow
from framework.discovery.key_list.source import KeyList
from framework.errors import KeyListError, ObjectChangedError, ObjectNotFoundError
from framework.model.closing import close_iterator
from framework.model.objects import NativeObject
from framework.model.positions import OffsetManagerKey
from framework.offsets.manager import OffsetManager
from framework.storage.daemon_threads import DaemonThreads
from framework.storage.stat import Lookups

log = logging.getLogger(__name__)

MISSING = "missing"
OTHER_VERSION = "not the latest version"
DELETE_MARKER = "delete marker"
OUTSIDE = "outside the prefix"
"""Reasons why rows are filtered, besides the filters of every listing. The texts appear in logs and metrics."""

MAX_REMEMBERED = 100_000
"""Maximum number of released or deferred keys that are remembered.

With more released keys, no row of this list is trusted any more. With more deferred keys, the next
listing covers the whole list.
"""

WINDOW = 4
"""Maximum rows that wait for lookups, in multiples of the concurrency, so that a slow lookup does not stop others."""

REWRITTEN_TIMES = 5
"""Maximum number of restarts within a listing, when the list is rewritten while it is read."""

NAMED_MISSING = 5
"""Maximum missing objects per listing that the log names; further ones are only counted."""

_Wanted: TypeAlias = "NativeObject | str"
"""A trusted object, or a key to look up."""


@attrs.define(eq=False, repr=False, slots=False)
class KeyListResolver:
    """The objects of a list, listing after listing. One thread iterates; `released` and `defer` may come from any.

    Attributes:
        whole: whether the current listing, or the last one, covers the whole list.

    Args:
        keys: the list.
        lookups: requests to the store.
        offsets: positions; they show which rows are outdated, and which objects are finished.
        key_of: the identity of an object in the positions.
        prefixes: of the source.
        concurrency: maximum number of parallel lookups.
        recheck: whether a finished object is looked up again when its row does not state its version.
    """

    _keys: KeyList
    _lookups: Lookups
    _offsets: OffsetManager
    _key_of: Callable[[NativeObject], OffsetManagerKey] = attrs.field(kw_only=True)
    _prefixes: tuple[str, ...] = attrs.field(default=("",), kw_only=True)
    _concurrency: int = attrs.field(default=16, kw_only=True)
    _recheck: bool = attrs.field(default=True, kw_only=True)
    _state: str | None = attrs.field(default=None, init=False)
    _complete: bool = attrs.field(default=False, init=False)
    _again: bool = attrs.field(default=False, init=False)
    _filtered: Counter[str] = attrs.field(factory=Counter, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _doubted: set[str] = attrs.field(factory=set, init=False)
    _waiting: dict[str, None] = attrs.field(factory=dict, init=False)
    _doubt_all: bool = attrs.field(default=False, init=False)
    whole: bool = attrs.field(default=True, init=False)

    def objects(self, after: str = "") -> Iterator[NativeObject]:
        """Yield one listing: every object after the key `after` that the list names and the store has.

        An object that the list names repeatedly may be yielded repeatedly.

        Raises:
            KeyListError, ConfigError: the list cannot be used.
            RetriableError, FatalError: the store's error.
        """
        for _attempt in range(REWRITTEN_TIMES):
            wanted = self._begin_listing(after)
            try:
                yield from self._found(wanted)
            except ObjectChangedError as error:
                log.warning("the list was rewritten while it was read, and is read from its beginning: %s", error)
            else:
                self._complete = True
                return
            finally:
                close_iterator(wanted)  # a lookup that failed keeps it in its traceback, and the list open
        raise KeyListError(
            f"{self._keys.name}: rewritten {REWRITTEN_TIMES} times while it was read; write it seldomer, each time whole"
        )

    def _begin_listing(self, after: str) -> Iterator[_Wanted]:
        state = self._keys.state()
        with self._lock:
            rewritten = state != self._state
            self.whole = rewritten or self._again or not self._complete
            waiting, self._waiting, self._again = self._waiting, {}, False
            if rewritten:
                self._doubted, self._doubt_all = set(waiting), False
        self._state, self._complete = state, False
        if not self.whole:
            return iter(waiting)
        log.info("reading the list of keys %s", self._keys.name)
        self._filtered.clear()
        return self._wanted_rows(after)

    def _wanted_rows(self, after: str) -> Iterator[_Wanted]:
        rows = 0
        for row in self._keys.rows():
            rows += 1
            wanted = self._wanted(row, after)
            if wanted is not None:
                yield wanted
        if not rows:
            log.warning("%s names nothing: is that all of it?", self._keys.name)

    def _wanted(self, row: KeyRow, after: str) -> _Wanted | None:
        if row.delete_marker:
            self._filtered[DELETE_MARKER] += 1
        elif not row.latest:
            self._filtered[OTHER_VERSION] += 1
        elif not row.key.startswith(self._prefixes) or (after and row.key <= after):
            self._filtered[OUTSIDE] += 1
        else:
            return self._believed(row)
        return None

    def _believed(self, row: KeyRow) -> _Wanted | None:
        version = None
        if row.size and row.modified_ms is not None:  # an empty object is filtered, unless it was written since
            version = self._lookups.store.listed_version(etag=row.etag, modified_ms=row.modified_ms)
        native = NativeObject(
            scheme=self._lookups.store.scheme,
            bucket=self._lookups.store.bucket,
            key=row.key,
            size=row.size or 0,
            version=version or "",
            modified_ms=row.modified_ms or 0,
            storage_class=row.storage_class,
        )
        entry = self._offsets.get_entry(self._key_of(native))
        # split 1 of a split object says nothing of the others
        finished = entry is not None and entry.finished and not entry.split_size
        if version is None:
            return None if finished and not self._recheck else row.key
        if entry is not None and entry.version != version:
            return row.key
        if finished:
            return native
        exact = entry is not None or not self._lookups.store.lists_milliseconds or native.modified_ms % 1000 != 0
        is_doubted = self._doubt_all or row.key in self._doubted
        return native if exact and not is_doubted else row.key

    # ---- looking up

    def _found(self, wanted: Iterable[_Wanted]) -> Iterator[NativeObject]:
        """Yield the objects, in order, without missing ones."""
        window: deque[tuple[_Wanted, Future[NativeObject | None] | None]] = deque()
        threads = DaemonThreads(self._concurrency, name="lookup")
        try:
            for wanted_object in wanted:
                lookup = threads.submit(partial(self._stat, wanted_object)) if isinstance(wanted_object, str) else None
                window.append((wanted_object, lookup))
                while window and (len(window) > WINDOW * self._concurrency or _ready(window[0][1])):
                    yield from self._taken(*window.popleft())
            while window:
                yield from self._taken(*window.popleft())
        finally:
            threads.shutdown()

    def _stat(self, key: str) -> NativeObject | None:
        try:
            return self._lookups.stat(self._lookups.store.bucket, key)
        except ObjectNotFoundError:
            return None

    def _is_outdated(self, native: NativeObject) -> bool:
        """Return whether a position has begun another version since the row was read: another row names the object, too."""
        entry = self._offsets.get_entry(self._key_of(native))
        return entry is not None and entry.version != native.version

    def _taken(self, wanted: _Wanted, lookup: Future[NativeObject | None] | None) -> Iterator[NativeObject]:
        """Yield the object unless it is missing.

        Args:
            wanted: the object, or its key.
            lookup: the lookup of the key.
        """
        if isinstance(wanted, NativeObject):
            key = wanted.key
            native = self._stat(key) if self._is_outdated(wanted) else wanted
        else:
            assert lookup is not None
            key, native = wanted, lookup.result()
        if native is not None:
            yield native
        else:
            self._filtered[MISSING] += 1
            if self._filtered[MISSING] <= NAMED_MISSING:
                address = self._lookups.address(self._lookups.store.bucket, key)
                log.warning("%s: skipped, the object does not exist, but %s names it", address, self._keys.name)

    # ---- what came of them

    def released(self, key: str, *, gone: bool) -> None:
        """Distrust a row: the reader found another version, or none. Unless gone, the next listing looks the object up."""
        with self._lock:
            if len(self._doubted) < MAX_REMEMBERED:
                self._doubted.add(key)
            else:
                self._doubt_all = True
        if not gone:
            self.defer(key)

    def defer(self, key: str) -> None:
        """Include an object of the current listing in the next one."""
        with self._lock:
            if len(self._waiting) < MAX_REMEMBERED:
                self._waiting[key] = None
            else:
                self._again = True

    def read_again(self) -> None:
        """Let the next listing cover the whole list."""
        with self._lock:
            self._again = True

    def filtered(self) -> dict[str, int]:
        """Return reason -> number of filtered rows."""
        return dict(self._filtered)


def _ready(lookup: Future[NativeObject | None] | None) -> bool:
    return lookup is None or lookup.done()
