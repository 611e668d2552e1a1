"""Laws of an iterator's streams: nothing is shared, everything is closed, no versions are mixed, a part is that part."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from typing_extensions import override

from framework.errors import CorruptObjectError, SourceError, TaskClosedError
from framework.iterator import AbstractSourceRecordIterator
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.batches import RecordBatch
from framework.model.objects import NativeObject
from framework.offsets.offset_store import MemoryOffsetStore, PositionDelta
from framework.testing.kit.law import BATCH, Comparing, fill, in_order, law
from framework.testing.kit.laws_iterator import drain, payloads_of
from framework.testing.kit.watch import replace, watch_streams
from framework.testing.rig import Capability, SourceRig
from framework.transformer import ObjectInput, ReadStream

_SETTLE_SECONDS = 2.0
"""Limit for prefetching to notice that its streams are not wanted any more."""


@law("I4", "two iterators over one source do not disturb each other")
def undisturbed(rig: SourceRig, comparing: Comparing) -> None:
    """Check two iterators record by record in turns, listings in turns, and one after the other is closed."""
    written = fill(rig)
    expected = sorted(record for records in written.values() for record in records)
    for behind in (0, 1, BATCH, len(expected) // 2):
        with rig.open_iterator(batch_length=BATCH) as first, rig.open_iterator(batch_length=BATCH - 1) as second:
            seen: tuple[list[bytes], list[bytes]] = ([], [])
            for _ in range(behind):
                _one_more(first, seen[0])
            while _one_more(first, seen[0]) | _one_more(second, seen[1]):
                pass
            for number, records in enumerate(seen):
                comparing.same(sorted(records), expected, f"iterator {number + 1} of two, the second {behind} behind")
    with rig.open_iterator() as first, rig.open_iterator() as second:
        streams = [iterator.get_native_item_stream(None) for iterator in (first, second)]
        listed: list[list[str]] = [[], []]
        for _ in range(len(written) + 1):
            for keys, stream in zip(listed, streams, strict=True):
                keys.extend(native.key for native in [next(stream, None)] if native is not None)
        for number, keys in enumerate(listed):
            comparing.same(in_order(keys), list(written), f"listing {number + 1} of two in turns")
    with rig.open_iterator(batch_length=1) as stays:
        left: list[bytes] = []
        _one_more(stays, left)
        with rig.open_iterator(batch_length=1) as goes:
            next(goes)
        while _one_more(stays, left):
            pass
        comparing.same(sorted(left), expected, "an iterator when another one was closed in the middle")


def _one_more(iterator: AbstractSourceRecordIterator, seen: list[bytes]) -> bool:
    record = next(iterator, None)
    if record is not None:
        seen.append(record.payload)
    return record is not None


@law("I5", "close twice is fine, use after close raises, and all that was open is closed, after errors too")
def gives_back(rig: SourceRig, comparing: Comparing) -> None:
    """Check closing before, during and after reading, an error at each read, a single stream, and the store."""
    written = fill(rig)
    total = sum(map(len, written.values()))
    for records in (0, 1, BATCH + 1, total):
        with rig.open_iterator(batch_length=2, prefetch_objects=2) as iterator:
            open_now = _Open(iterator)
            for _ in range(records):
                next(iterator)
            for _ in range(2):
                iterator.close()
            for question in (iterator.next_batch, lambda iterator=iterator: next(iterator)):
                comparing.that(
                    _raises(question, TaskClosedError), f"reading on after {records} records and a close raised nothing"
                )
        comparing.that(open_now.settled(), f"{open_now.count} streams are open after a close behind {records} records")
        _no_handles(rig, comparing, f"after a close behind {records} records")
    for tolerance in ("none", "skip_object"):
        for fails_at in (1, 2):
            with rig.open_iterator(batch_length=2, prefetch_objects=1, tolerance=tolerance) as iterator:
                open_now = _Open(iterator, fails_at=fails_at)
                failed = _drain_or_fail(iterator)
                example = f"read {fails_at} of every object fails, {tolerance}"
                comparing.that(
                    failed == (tolerance == "none"), f"{example}: the error was {'' if failed else 'not '}raised"
                )
                if tolerance == "none":
                    iterator.close()
                comparing.that(open_now.settled(), f"{example}: {open_now.count} streams are open")
            _no_handles(rig, comparing, example)
    with rig.open_iterator() as iterator:
        native = next(iter(iterator.get_native_item_stream(None)))
        stream = iterator.get_input_stream(native).open()
        stream.read(1)
        for _ in range(2):
            stream.close()
        comparing.that(
            _raises(lambda: stream.read(1), SourceError, ValueError), "a stream gave bytes, or its end, after its close"
        )
    _no_handles(rig, comparing, "after a stream was closed by itself")
    for close in [iterator.store.close] * 2 if isinstance(iterator, StoreRecordIterator) else []:
        comparing.that(not _raises(close, Exception), "the store's close failed; it may be called twice")


def _no_handles(rig: SourceRig, comparing: Comparing, example: str) -> None:
    if Capability.HANDLES in rig.capabilities:
        limit = time.monotonic() + _SETTLE_SECONDS
        while rig.open_handles() and time.monotonic() < limit:
            threading.Event().wait(0.01)
        comparing.that(rig.open_handles() == 0, f"{rig.open_handles()} handles are open {example}")


def _raises(call: Callable[[], object], *kinds: type[BaseException]) -> bool:
    try:
        call()
    except kinds:
        return True
    return False


def _drain_or_fail(iterator: AbstractSourceRecordIterator) -> bool:
    try:
        drain(iterator)
    except SourceError:
        return True
    return False


class _Open:
    """Counts the open streams of an iterator, and makes a read of each fail."""

    def __init__(self, iterator: AbstractSourceRecordIterator, *, fails_at: int = 0) -> None:
        self.fails_at = fails_at
        self.count = 0
        self._lock = threading.Lock()
        watch_streams(iterator, wrap=self._counted)

    def _counted(self, stream: ReadStream, location: str) -> ReadStream:
        self.changed(1)
        return _CountedStream(stream, self, location)

    def changed(self, by: int) -> None:
        """Count a stream that was opened, or closed for the first time."""
        with self._lock:
            self.count += by

    def settled(self) -> bool:
        """Return whether no stream is open, once the prefetch had time to end."""
        limit = time.monotonic() + _SETTLE_SECONDS
        while self.count and time.monotonic() < limit:
            threading.Event().wait(0.01)
        return self.count == 0


class _CountedStream(ReadStream):
    def __init__(self, inner: ReadStream, owner: _Open, location: str) -> None:
        self._inner = inner
        self._owner = owner
        self._location = location
        self._reads = 0
        self._closed = False

    @override
    def read(self, size: int, /) -> bytes:
        self._reads += 1
        if self._reads == self._owner.fails_at:
            raise CorruptObjectError("broken on purpose", location=self._location)
        return self._inner.read(min(size, 16) if self._owner.fails_at else size)

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._owner.changed(-1)
        self._inner.close()


@law(
    "I6", "an object that goes or is overwritten between list and read: never two versions mixed, the newest one whole"
)
def one_version(rig: SourceRig, comparing: Comparing) -> None:
    """Check a change before the object is opened and after each batch, with equal length; and an older position."""
    counts = rig.counts[:3]
    victim = "a/b"
    _versions_tell(rig, comparing, victim, counts)
    for gone in (False, True):
        for batches_before in range(4):
            written = fill(rig, counts)
            old = written[victim]
            new = rig.make_records("a/c", len(old))  # of the same length: the size alone does not tell
            change = _Change(rig, victim, None if gone else rig.encode(new), batches_before)
            with rig.open_iterator(batch_length=2, prefetch_objects=1) as iterator:
                batches = _read_changing(iterator, victim, change)
            change.make()
            example = f"{'deleted' if gone else 'overwritten'} after batch {batches_before} of it"
            _one_version_each(comparing, batches, change, old, [] if gone else new, f"{victim!r} {example}")
            for key, records in written.items():
                if key != victim:
                    seen = payloads_of([batch for batch in batches if batch.native.key == key])
                    comparing.same(seen, records, f"{victim!r} {example}: the records of {key!r}")
    _resumes_in_a_new_version(rig, comparing, victim, counts)


def _versions_tell(rig: SourceRig, comparing: Comparing, victim: str, counts: Sequence[int]) -> None:
    """Check that an object has another version once it is overwritten, and no earlier last-modified time."""
    listed: list[NativeObject] = []
    for key in (victim, "a/c"):
        written = fill(rig, counts)
        rig.put(victim, rig.encode(rig.make_records(key, len(written[victim]))))
        with rig.open_iterator() as iterator:
            listed += [native for native in iterator.get_native_item_stream(None) if native.key == victim]
    before, after = listed
    comparing.that(
        before.version != after.version, f"{victim!r} overwritten: it still has the version {after.version!r}"
    )
    comparing.that(
        before.modified_ms <= after.modified_ms,
        f"{victim!r} overwritten: its modified_ms went back from {before.modified_ms} to {after.modified_ms}",
    )


class _Change:
    """Changes the object once: when it is opened, or after a number of its batches."""

    def __init__(self, rig: SourceRig, key: str, data: bytes | None, after: int) -> None:
        self._rig, self.key, self._data, self.after = rig, key, data, after
        with rig.open_iterator() as iterator:
            self.old_version = next(
                native.version for native in iterator.get_native_item_stream(None) if native.key == key
            )
        self.done = False

    def make(self) -> None:
        """Change the object now."""
        if not self.done:
            self.done = True
            if self._data is None:
                self._rig.delete(self.key)
            else:
                self._rig.put(self.key, self._data)


def _read_changing(iterator: AbstractSourceRecordIterator, victim: str, change: _Change) -> list[RecordBatch]:
    get_input_stream = iterator.get_input_stream

    def changing(native: NativeObject) -> ObjectInput:
        if native.key == victim and not change.after:
            change.make()
        return get_input_stream(native)

    replace(iterator, get_input_stream=changing)
    batches: list[RecordBatch] = []
    seen = 0
    while not iterator.finished:
        batch = iterator.next_batch()
        if batch is None:
            continue
        batches.append(batch)
        seen += batch.native.key == victim
        if seen and seen == change.after:
            change.make()
    return batches


def _one_version_each(
    comparing: Comparing,
    batches: Sequence[RecordBatch],
    change: _Change,
    old: Sequence[bytes],
    new: Sequence[bytes],
    example: str,
) -> None:
    """Check for the start of the old version, then all of the new one, unless the old one was complete."""
    of_old: list[bytes] = []
    of_new: list[bytes] = []
    for batch in batches:
        if batch.native.key == change.key:
            (of_old if batch.native.version == change.old_version else of_new).extend(batch.payloads)
    comparing.same(of_old, old[: len(of_old)], f"{example}: the records that came as the old version's")
    if of_new or of_old != list(old):  # else it was read before it changed: the next listing shows the new one
        comparing.same(of_new, new, f"{example}: the records of the new version")


def _resumes_in_a_new_version(rig: SourceRig, comparing: Comparing, victim: str, counts: Sequence[int]) -> None:
    """Check that a position within an older version is not used for the new version."""
    for done in range(1, 4):
        written = fill(rig, counts)
        store = MemoryOffsetStore()
        with rig.open_iterator(batch_length=1) as iterator:
            for batch in drain(iterator):
                if batch.native.key != victim or batch.last_record <= done:
                    store.save(PositionDelta(entries=[batch.entry]))
        new = rig.make_records("a/c", len(written[victim]))
        rig.put(victim, rig.encode(new))
        with rig.open_iterator(store, batch_length=2) as iterator:
            rest = drain(iterator)
        seen = payloads_of([batch for batch in rest if batch.native.key == victim])
        comparing.same(seen, new, f"{victim!r} overwritten when {done} records of the old version were done")
        again = sorted({batch.native.key for batch in rest} - {victim})
        comparing.same(again, [], f"objects that were finished, read again when {victim!r} was overwritten")


@law("I7", "an object has the listed size, and a stream of its bytes `start` to `end - 1` gives those and no more")
def part_of_an_object(rig: SourceRig, comparing: Comparing) -> None:
    """Check parts at the beginning, in the middle and at the end of an object, the whole and an empty part, read by 16 bytes."""
    data = rig.encode(rig.make_records("a", rig.counts[0]))
    rig.put("a", data)
    third = len(data) // 3
    with rig.open_iterator() as iterator:
        (native,) = iterator.get_native_item_stream(None)
        comparing.that(
            native.size == len(data), f"an object of {len(data)} bytes is listed with the size {native.size}"
        )
        for start, end in ((0, third), (third, 2 * third), (2 * third, None), (0, None), (third, third), (1, 2)):
            example = f"open({start}, {end}) of {len(data)} bytes"
            with contextlib.closing(iterator.get_input_stream(native).open(start, end)) as stream:
                read = list(iter(partial(stream.read, _PIECE), b""))
            comparing.same([b"".join(read)], [data[start:end]], example)
            longest = max(map(len, read), default=0)
            comparing.that(longest <= _PIECE, f"{example}: read({_PIECE}) gave {longest} bytes")


_PIECE = 16
