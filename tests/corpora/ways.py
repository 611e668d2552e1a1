"""One object, read in every way: all ways must give the records of a plain reading, with the same errors and numbers."""

import contextlib
import json

import attrs

from framework.errors import ObjectError
from framework.model.batches import SkippedRecord
from framework.model.splits import Split, count_splits
from framework.transformer import BatchLimits, InputOptions
from tests.corpora.oracle_lines import BAD
from tests.support.packing import PACK, Dribble
from transformers import lines, make_transformer, row_json
from transformers.avro import format as avro
from transformers.compression import MAX_MAGIC_BYTES, detect_compression
from transformers.local_inputs import BytesInput
from transformers.parquet import format as parquet
from transformers.parquet import row_encoder

LIMITS = [
    BatchLimits(records=records, size_bytes=size) for records, size in ((501, 4000), (7, 60), (500, 3), (1, 10**6))
]
QUICK = (
    (avro, "_FLAT_RECORDS"),
    (row_json, "_COLUMN_ROWS"),
    (lines, "_COLUMN_BYTES"),
    (parquet, "_SMALL_OBJECT_BYTES"),
    (row_encoder, "_LINES_ROWS"),
)
"""Sizes from which the quick ways are taken, and ranged reads: at 1 they are taken for each object."""
SPLIT_SIZES = (1, 2, 3, 5, 7, 11, 31, 97, 1009, 4099, 16_411, 65_537, 1 << 20)
MANY_RECORDS, LARGE_BYTES = 2000, 20_000
"""Of files with more, fewer limits, positions and splits are tried: each reads the file again."""


@attrs.frozen
class Reading:
    """What a reading gave.

    Attributes:
        records: payloads, or what is known of a bad record.
        error: its class, text and record number; None at a good end.
        marks: number of records and mark after each batch.
    """

    records: list
    error: tuple | None
    marks: list = attrs.field(eq=False, factory=list)

    @property
    def bad(self):
        return sum(isinstance(record, tuple) for record in self.records)

    def after(self, skip):
        return Reading(self.records[skip:], self.error)

    def difference(self, other):
        """Return a short text of what is not the same in another reading; empty for nothing."""
        if self == other:
            return ""
        for at, (mine, theirs) in enumerate(zip(self.records, other.records)):  # noqa: B905
            if mine != theirs:
                return f"record {at + 1}: {mine!r:.300} and not {theirs!r:.300}"
        return f"{len(self.records)} records, {self.error}, and not {len(other.records)}, {other.error}"


def read(runs):
    records, marks = [], []
    try:
        for run in runs:
            if isinstance(run, SkippedRecord):
                records.append((type(run.error).__name__, run.error.message, bytes(run.raw), run.length))
            else:
                records += map(bytes, run.payloads)
                marks.append((run.first_record + len(run.payloads) - 1, run.mark))
    except ObjectError as exc:
        return Reading(records, (type(exc).__name__, exc.message, exc.record_number), marks)
    return Reading(records, None, marks)


@contextlib.contextmanager
def quick_ways():
    """Take the quick ways for the smallest objects."""
    kept = [(module, name, getattr(module, name)) for module, name in QUICK]
    try:
        for module, name in QUICK:
            setattr(module, name, 1)
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def differences(whole, data, key, options):
    """Yield a text for each way of reading: empty when it gave what the plain reading did.

    Args:
        whole: the plain reading.
        data: the object's bytes.
        key: its key.
        options: those of the transformer.
    """
    transformer = make_transformer(InputOptions(**options))
    source, many = BytesInput(data, key), len(whole.records) > MANY_RECORDS or len(data) > LARGE_BYTES
    marks, some_limits = whole.marks, LIMITS[:1] if many else LIMITS

    def named(way, got, expected=whole):
        found = got.difference(expected)
        return found and f"{way}: {found}"

    for quick in (contextlib.nullcontext, quick_ways):
        with quick():
            for limits in some_limits:
                got = read(transformer.read(source, limits=limits))
                marks = marks + got.marks
                yield named(f"{quick.__name__}, {limits}", got)
            pieces = Dribble(data, key, step=97 + len(data) // 100)
            yield named(f"{quick.__name__}, in pieces", read(transformer.read(pieces)))
            for skip, mark in _positions(marks, len(whole.records), 2 if many else 16):
                got = read(transformer.read(source, skip=skip, mark=mark, limits=some_limits[skip % len(some_limits)]))
                yield named(f"{quick.__name__}, from {skip}, {mark}", got, whole.after(skip))
    if options["format"] != "csv" and whole.records:  # there a line counts as well
        yield named("max_record_bytes", *_limited(whole, source, options))
    if (batch := transformer.read_whole(data, key=key, limits=BatchLimits())) is not None:
        yield named("read_whole", Reading(list(map(bytes, batch.payloads)), None))
    if detect_compression(data[:MAX_MAGIC_BYTES], key) == "none":
        packed = sorted(PACK)[len(data) % len(PACK)]
        yield named(packed, read(transformer.read(BytesInput(PACK[packed](data), key))))
    if transformer.can_split(key):
        with quick_ways():
            for size in _split_sizes(len(data), 12 if many else 100):
                yield from (
                    named(f"split size {size}, {way}", *pair)
                    for way, *pair in _splits(transformer, source, size, whole)
                )


def _limited(whole, source, options):
    """Return what there is and what there should be when about half of the records are too long."""
    sizes = sorted(len(record) for record in whole.records if isinstance(record, bytes)) or [1]
    most = sizes[len(sizes) // 2]
    with quick_ways():
        got = read(make_transformer(InputOptions(**options, max_record_bytes=most)).read(source))
    expected = [record if isinstance(record, bytes) and len(record) <= most else BAD for record in whole.records]
    return Reading([BAD if isinstance(record, tuple) else record for record in got.records], got.error), Reading(
        expected, whole.error
    )


def _positions(marks, count, most):
    chosen = marks[:: max(1, len(marks) // most)]
    return chosen + [(skip, None) for skip in sorted({0, 1, count // 2, count - 1, count}) if 0 <= skip <= count]


def _split_sizes(size, most):
    return [n for n in sorted({*SPLIT_SIZES, size // 2 + 1, size // 7 + 1}) if size // most < n <= size][:6]


def _splits(transformer, source, split_size, whole):
    """Yield what there is and what there should be: of each split from its first marks, and of all splits together."""
    records = []
    for number in range(1, count_splits(source.size, split_size) + 1):
        split = Split(number, split_size)
        part = read(transformer.read_split(source, split))
        for skip, mark in part.marks[:2]:
            again = read(transformer.read_split(source, split, skip=skip, mark=mark, limits=LIMITS[0]))
            yield f"{number} from {skip}", again, part.after(skip)
        records += part.records
        if part.error is not None:
            error = (*part.error[:2], len(records) + 1)
            yield "all", Reading(records, error), whole
            return
    yield "all", Reading(records, None), whole


def columns(whole, data, key, options):
    """Yield the same for readings of some columns; what a row should hold of them comes from the whole rows."""
    rows = [json.loads(payload) for payload in whole.records]
    names = list(rows[0]) if rows and isinstance(rows[0], dict) else []
    nested = [(name, inner) for name in names for inner in _inside(rows[0][name])]
    choices = [names[::2], names[-1:], names[::-1], [f"{name}.{inner}" for name, inner in nested[:1]]]
    is_record = all(names) and all(
        isinstance(row, dict) and list(row) == names for row in rows
    )  # and no map, nor another value
    for chosen in choices if is_record else []:
        if not chosen:
            continue
        transformer = make_transformer(InputOptions(**options, columns=tuple(chosen)))
        for quick in (contextlib.nullcontext, quick_ways):
            with quick():
                got = read(transformer.read(BytesInput(data, key), limits=LIMITS[0]))
            if got.error is not None and got.error[1].endswith("it has no columns"):
                return  # a map or a union
            if chosen is choices[-1]:
                if got.error is not None and "it has no column" in got.error[1]:
                    continue  # the same inside
                expected = [{nested[0][0]: _picked(row[nested[0][0]], nested[0][1])} for row in rows]
            else:
                expected = [{name: row[name] for name in names if name in chosen} for row in rows]
            found = Reading(values(got), got.error).difference(Reading(list(map(repr, expected)), None))
            yield found and f"columns {chosen}: {found}"


def _inside(value):
    while isinstance(value, list) and value:
        value = value[0]
    return [name for name in value if "." not in name][-1:] if isinstance(value, dict) else []


def _picked(value, name):
    if isinstance(value, list):
        return [_picked(item, name) for item in value]
    return value if value is None else {name: value[name]}


def values(reading, load=json.loads):
    """Return the rows of a reading, in a form in which 1 and 1.0 differ."""
    return [BAD if isinstance(record, tuple) else repr(load(record)) for record in reading.records]
