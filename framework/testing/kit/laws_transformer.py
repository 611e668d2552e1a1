"""Laws of a format in a source: no change, no silent truncation, and skips count records."""

from __future__ import annotations

from collections.abc import Sequence

from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.errors import SourceError
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import RecordBatch, SkippedRecord
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.model.splits import count_splits
from framework.testing.kit.law import BATCH, KEYS, Comparing, fill, law
from framework.testing.kit.laws_iterator import drain
from framework.testing.kit.scenario import BAD_RECORDS
from framework.testing.rig import Capability, SourceRig


@law("T1", "what was encoded is what is read, and an empty object gives nothing")
def round_trip(rig: SourceRig, comparing: Comparing) -> None:
    """Check difficult records, one by one and together, and an object without records."""
    difficult = rig.difficult_records()
    written = {f"one/{number:02}": [record] for number, record in enumerate(difficult)}
    written["together"] = difficult
    for key, records in written.items():
        rig.put(key, rig.encode(records))
    rig.put("nothing", rig.encode([]))
    with rig.open_iterator() as iterator:
        read: dict[str, list[bytes]] = {}
        for batch in drain(iterator):
            read.setdefault(batch.native.key, []).extend(batch.payloads)
            lengths = sum(map(len, batch.payloads))
            comparing.that(
                batch.size_bytes == lengths,
                f"a batch of {batch.native.key} says size_bytes={batch.size_bytes}, its payloads have {lengths}",
            )
    comparing.same(read.pop("nothing", []), [], "an object without records")
    for key, records in written.items():
        comparing.same(read.get(key, []), records, f"the records of {key}")


@law("T2", "an object that ends too early is an error naming object and record, never silently short", Capability.CUT)
def never_silently_short(rig: SourceRig, comparing: Comparing) -> None:
    """Check an object truncated at every byte."""
    written = fill(rig, [3, *rig.counts[1:2]])
    key = KEYS[0]
    records = written[key]
    for at in range(len(rig.encode(records))):
        rig.cut(key, at)
        with rig.open_iterator(tolerance="none", batch_length=2) as iterator:
            read, error = _read_until_error(iterator, key)
        comparing.that(error is not None, f"{key!r} cut at byte {at}: {len(read)} records and no error")
        comparing.same(read, records[: len(read)], f"{key!r} cut at byte {at}")
        text = str(error)
        number = getattr(error, "record_number", None)
        comparing.that(
            key in text and number is not None,
            f"{key!r} cut at byte {at}: the error names not both object and record: {text}",
        )
    rig.cut(key, None)


def _read_until_error(iterator: AbstractSourceRecordIterator, key: str) -> tuple[list[bytes], SourceError | None]:
    read: list[bytes] = []
    try:
        while (batch := iterator.next_batch()) is not None:
            if batch.native.key == key:
                read.extend(batch.payloads)
    except SourceError as error:
        return read, error
    return read, None


@law("T3", "skipping n records gives what reading everything gives without its first n")
def skip_counts_records(rig: SourceRig, comparing: Comparing) -> None:
    """Check every skip count of every object, from 0 to one more than its records; with bad records if the rig can."""
    written = fill(rig)
    with rig.open_iterator() as iterator:
        natives = {native.key: native for native in iterator.get_native_item_stream(None)}
        for key, records in written.items():
            for skip in range(len(records) + 2):
                comparing.same(
                    _skipping(iterator, natives[key], skip), records[skip:], f"{key!r} without its first {skip}"
                )
    if Capability.BAD_RECORDS in rig.capabilities:
        _bad_records_count(rig, comparing)
    else:
        comparing.note(f"no bad record was skipped: the rig cannot do {Capability.BAD_RECORDS.value}")


def _bad_records_count(rig: SourceRig, comparing: Comparing) -> None:
    """Check every skip count of objects with bad records at the beginning, in the middle and at the end."""
    contents = BAD_RECORDS.fill(rig, rig.counts[:3])
    with rig.open_iterator(tolerance="skip_record") as iterator:
        natives = {native.key: native for native in iterator.get_native_item_stream(None)}
        for key, good in contents.good.items():
            everything = _numbered(iterator, natives[key], 0)
            payloads = [payload for _, payload in everything if payload is not None]
            comparing.same(payloads, good, f"the good records of {key!r}")
            numbers = [number for number, _ in everything]
            count = len(good) + len(contents.bad[key])
            comparing.same(numbers, range(1, count + 1), f"numbers of the good and bad records of {key!r}")
            for skip in range(count + 2):
                rest = _numbered(iterator, natives[key], skip)
                comparing.same(rest, everything[skip:], f"{key!r}, with bad records, without its first {skip}")


def _numbered(
    iterator: AbstractSourceRecordIterator, native: NativeObject, skip: int
) -> list[tuple[int, bytes | None]]:
    """Return the numbers and payloads of the records after `skip`; a bad record has no payload."""
    found: list[tuple[int, bytes | None]] = []
    source = iterator.get_input_stream(native)
    for run in iterator.transformer.read(source, skip=skip):
        if isinstance(run, SkippedRecord):
            found.append((run.record_number, None))
        else:
            found.extend((number, bytes(payload)) for number, payload in enumerate(run.payloads, run.first_record))
    return found


def _skipping(iterator: AbstractSourceRecordIterator, native: NativeObject, skip: int) -> list[bytes]:
    return list(iterator.transformer.records(iterator.get_input_stream(native), skip=skip))


@law(
    "T4",
    "the splits of an object together are its records, each once and in order, and each split resumes where it was",
    Capability.SPLITS,
)
def splits_are_the_object(rig: SourceRig, comparing: Comparing) -> None:
    """Check the smallest object at every split size, so that a split begins at every byte; others at a few sizes."""
    written = fill(rig)
    with rig.open_iterator() as iterator:
        natives = {native.key: native for native in iterator.get_native_item_stream(None)}
        split = [key for key in written if iterator.transformer.can_split(key)]
    comparing.that(split, "no object of this format can be split, though the rig says so")
    smallest = min(split, key=lambda key: natives[key].size)
    for key in split:
        size = natives[key].size
        sizes = range(4, size) if key == smallest else {1 + size // splits for splits in (2, 3, 5)}
        for split_size in sizes:
            _splits_hold(rig, comparing, natives[key], split_size, written[key], resume=split_size % 7 == 0)


def _splits_hold(
    rig: SourceRig,
    comparing: Comparing,
    native: NativeObject,
    split_size: int,
    records: Sequence[bytes],
    *,
    resume: bool,
) -> None:
    splits = range(1, count_splits(native.size, split_size) + 1)
    whole = OffsetManagerEntry.start(native, TopicPartition("any", 0))
    entries = [whole.changed(split_number=split_number, split_size=split_size) for split_number in splits]
    batches = _read_splits(rig, native, entries)
    place = f"{native.key!r} in splits of {split_size} bytes"
    comparing.same([payload for batch in batches for payload in batch.payloads], records, place)
    for batch in batches if resume else ():
        rest = [
            payload
            for later in batches
            if later.entry.split_number == batch.entry.split_number and later.first_record > batch.last_record
            for payload in later.payloads
        ]
        again = _read_splits(rig, native, [batch.entry])
        place_again = f"{place}, split {batch.entry.split_number} after its record {batch.entry.records_done}"
        comparing.same([payload for batch in again for payload in batch.payloads], rest, place_again)


def _read_splits(rig: SourceRig, native: NativeObject, entries: Sequence[OffsetManagerEntry]) -> list[RecordBatch]:
    feed = AssignedFeed([Assignment(native=native, entry=entry) for entry in entries], closed=True)
    with rig.open_iterator(feed=feed, batch_length=BATCH // 2) as iterator:
        return drain(iterator)
