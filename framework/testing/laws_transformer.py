"""Laws of a format as a source reads it: nothing changed, nothing silently short, and skipping counts records."""

from __future__ import annotations

from framework.errors import SourceError
from framework.iterator import AbstractSourceRecordIterator
from framework.records import NativeObject
from framework.testing.law import KEYS, Comparing, fill, law
from framework.testing.laws_iterator import drain
from framework.testing.rig import Capability, SourceRig


@law("T1", "what was encoded is what is read, and an empty object gives nothing")
def round_trip(rig: SourceRig, comparing: Comparing) -> None:
    """Difficult records, each alone and all together; an object of no records."""
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
    comparing.same(read.pop("nothing", []), [], "an object without records")
    for key, records in written.items():
        comparing.same(read.get(key, []), records, f"the records of {key}")


@law("T2", "an object that ends too early is an error naming object and record, never silently short", Capability.CUT)
def never_silently_short(rig: SourceRig, comparing: Comparing) -> None:
    """Cut at every byte."""
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
    """Every n from none to one more than all, of every object."""
    written = fill(rig)
    with rig.open_iterator() as iterator:
        natives = {native.key: native for native in iterator.get_native_item_stream(None)}
        for key, records in written.items():
            for skip in range(len(records) + 2):
                comparing.same(
                    _skipping(iterator, natives[key], skip), records[skip:], f"{key!r} without its first {skip}"
                )


def _skipping(iterator: AbstractSourceRecordIterator, native: NativeObject, skip: int) -> list[bytes]:
    return list(iterator.transformer.records(iterator.get_input_stream(native), skip=skip))
