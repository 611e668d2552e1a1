"""Every option that numbers records is in what a position depends on: found out by reading, not by looking at the lists."""

import bz2
import gzip
import itertools
import json

import attrs
import pytest

from framework.config.format_registry import FORMATS
from framework.config.input_section import InputSection
from framework.errors import PositionMismatchError, SkippableError
from framework.model.batches import SkippedRecord
from framework.model.objects import NativeObject, ObjectState, TopicPartition
from framework.model.positions import OffsetManagerEntry, canonical_options
from framework.model.splits import Split, count_splits
from framework.offsets.manager import OffsetManager
from framework.transformer import BatchLimits, InputOptions
from tests.integration.program_rig import encoded, rows
from tests.support.feeds import listing_feed
from transformers import BytesInput, make_transformer

LINES = b'{"a": "x;y", "b": 1}\n\n\'q,1\', "r;2"\r\n"a ""b""",c\n["d", 5]\n{"a": 2}\n' * 7
OBJECTS = {
    "a.jsonl": LINES,
    "a.txt": LINES,
    "a.csv": LINES,
    "b.csv": b"n,text\n1,one\n2,\"two\ntwo\"\n3,'three;3'\n",
    "a.json": json.dumps([{"n": n} for n in range(9)]).encode(),
    "a.avro": encoded("avro", rows("a", 20)),
    "a.parquet": encoded("parquet", rows("a", 20)),
    "a.jsonl.gz": gzip.compress(LINES),
    "a.txt.bz2": bz2.compress(LINES),
    "a.bin": bytes(range(256)) * 40,
}
CHANGES = {
    "format": [*FORMATS.names()],
    "compression": ["auto", "none", "gzip", "bzip2"],
    "chunk_size": [7, 4096, 5000],
    "whole_object": [False, True],
    "csv_header": [True, False],
    "csv_delimiter": [",", ";"],
    "csv_quote": ['"', "'", ""],
    "validate": [True, False],
    "max_record_bytes": [10, 1000],
    "max_block_bytes": [30, 1 << 20],
    "max_expansion": [0, 1],
    "max_temporary_bytes": [100, 1 << 20],
    "max_page_bytes": [1 << 20, 1 << 30],
    "max_window_bytes": [1 << 20, 1 << 31],
    "columns": [(), ("n",)],
}
NUMBERS_NOTHING = {
    "validate",
    "max_record_bytes",
    "max_block_bytes",
    "max_expansion",
    "max_temporary_bytes",
    "max_page_bytes",
    "max_window_bytes",
    "columns",
}
"""A record that they refuse keeps its number, and an object that they end has no other records before its end. A record
with fewer columns keeps its number as well."""
SPLIT_SIZE = 100
HAVE_COLUMNS = ("auto", "avro", "csv", "parquet")


def numbered(transformer, key):
    """Split (0: the whole) and number -> record, as far as the object can be read; a record that is bad is None."""
    source, found = BytesInput(OBJECTS[key], key=key), {}
    splits = range(1, count_splits(source.size, SPLIT_SIZE) + 1) if transformer.can_split(key) else ()
    readings = [(0, transformer.read(source, limits=BatchLimits()))]
    readings += [(split, transformer.read_split(source, Split(split, SPLIT_SIZE))) for split in splits]
    for split, runs in readings:
        try:
            for run in runs:
                if isinstance(run, SkippedRecord):
                    found[split, run.record_number] = None
                else:
                    found.update({(split, number): one for number, one in enumerate(run.payloads, run.first_record)})
        except SkippableError:
            pass
    return found


def test_the_list_of_options_above_is_complete():
    assert set(CHANGES) == {field.name for field in attrs.fields(InputOptions)}


def option_pairs(name):
    formats = HAVE_COLUMNS if name == "columns" else FORMATS.names()
    others = [{}] if name == "format" else [{"format": form} for form in formats]
    for base in others:
        for one, other in itertools.combinations(CHANGES[name], 2):
            yield InputOptions(**{**base, name: one}), InputOptions(**{**base, name: other})


def only_n(payload, name):
    """What is left of a record with the columns that are chosen above; the record itself when another option changes."""
    return payload if name != "columns" else json.dumps({"n": json.loads(payload)["n"]}, separators=(",", ":")).encode()


@pytest.mark.parametrize("name", CHANGES)
def test_two_readings_that_number_other_records_depend_on_other_options(name):
    compared = differed = 0
    for one, other in option_pairs(name):
        left, right = make_transformer(one), make_transformer(other)
        same_options = canonical_options(left.numbering_options()) == canonical_options(right.numbering_options())
        for key in OBJECTS:
            read, again = numbered(left, key), numbered(right, key)
            both = [(read[n], again[n]) for n in read.keys() & again.keys() if None not in (read[n], again[n])]
            differ = any(b not in (a, only_n(a, name)) for a, b in both)
            compared += len(both)
            differed += differ
            assert not (differ and same_options), f"{key} is numbered otherwise under {one} and {other}"
    assert compared
    assert bool(differed) == (name not in NUMBERS_NOTHING), f"{differed} readings differed"


@pytest.mark.parametrize("format", FORMATS.names())  # fails when a new format is not looked at
@pytest.mark.parametrize("half", [True, False])
def test_a_start_under_other_options_names_the_command_that_helps(format, half):  # noqa: A002
    ours = canonical_options(make_transformer(InputOptions(format=format)).numbering_options())
    other = "bytes" if format != "bytes" else "text"
    theirs = canonical_options(make_transformer(InputOptions(format=other)).numbering_options())
    offsets = OffsetManager()
    native = NativeObject(scheme="s3", bucket="b", key="in/it's.x", size=9, version="v1")
    begun = OffsetManagerEntry.start(native, TopicPartition("t", 0), theirs)
    offsets.add_entry(begun.advanced(3, state=ObjectState.READING if half else ObjectState.DONE))
    feed = listing_feed(
        listing=lambda: iter([native]),
        selection=Everything(),
        offsets=offsets,
        numbering_options=ours,
        poll_interval_seconds=0,
        once=True,
    )
    if not half:  # what is finished is not read, so nothing depends on anything
        assert feed.take() is None
        return
    with pytest.raises(PositionMismatchError) as caught:
        feed.take()
    said = str(caught.value)
    for part in (
        "s3://b/in/it's.x",
        ours,
        theirs,
        "offsets reset --key 'in/it'\"'\"'s.x'",
        "--prefix",
        "--all",
        "offsets accept-data-loss",
    ):
        assert part in said


class Everything:
    def begin_listing(self):
        pass

    def partition_for(self, native, *, started=False):
        return TopicPartition("t", 0)

    def filtered(self):
        return {}


def test_every_option_of_the_section_is_a_reading_option_or_decides_in_another_way():
    """A new option of [input] has to be put somewhere."""
    elsewhere = {
        "split_size": "in the position itself: what was begun goes on as it was begun",
        "prefetch_objects": "speed",
        "prefetch_bytes": "speed",
        "queue_records": "speed",
        "queue_bytes": "speed",
        **dict.fromkeys(
            (
                "envelope",
                "envelope_payload",
                "envelope_fields",
                "envelope_columns",
                "envelope_headers",
                "envelope_header_kinds",
                "envelope_key_header",
                "envelope_timestamp_unit",
                "envelope_mismatch",
            ),
            "the first transform: a record keeps the number of its format",
        ),
    }
    names = {field.name for field in attrs.fields(InputSection)}
    assert names - set(CHANGES) == set(elsewhere) & names
    assert names <= set(CHANGES) | set(elsewhere)
