"""What stands in the offsets topic: every record comes back as it was, and what is damaged, foreign or later says so."""

import hashlib
import json
import struct
from unittest import mock

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from framework.errors import PositionError
from framework.iggy.offset_log import codec, framing, record_size
from framework.iggy.offset_log.framing import LogMessage
from framework.iggy.offset_log.records import (
    Claim,
    PartitionOpening,
    Progress,
    ProgressItem,
    SnapshotFooter,
    TopicIdentity,
)
from framework.model.objects import Anchor, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.listing_hints import IncrementalMark, ListingHints
from framework.offsets.position_map import position_map
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.watermark import CoveredRange, Watermark
from tests.support.examples import examples

numbers = st.integers(0, 2**53)
hashes = st.integers(0, 2**64 - 1)
splits = st.integers(0, 2**24 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
topic_partitions = st.builds(TopicPartition, st.sampled_from(["t", "other"]), st.integers(0, 9))
anchors = st.builds(Anchor, numbers, st.integers(0, 2**128 - 1), numbers)
anchor_maps = st.dictionaries(topic_partitions, anchors, max_size=4)
identities = st.builds(TopicIdentity, topic_id=numbers, created_at=numbers)
marks = st.none() | st.builds(ResumePoint, numbers, numbers)
extras = st.dictionaries(text, st.none() | st.booleans() | numbers | text, max_size=3)
totals = st.none() | numbers
keys = st.dictionaries(text, text, max_size=3).map(OffsetManagerKey.of)

entries = st.builds(
    OffsetManagerEntry,
    bucket=st.sampled_from(["b", "c"]),
    key=text,
    version=text,
    generation=numbers,
    modified_ms=numbers,
    records_done=numbers,
    records_saved=numbers,
    total=totals,
    failed=st.booleans(),
    skipped=numbers,
    topic_partition=topic_partitions,
    mark=marks,
    numbering_options=st.sampled_from(["", '{"format":"jsonl"}']),
    may_begin_again=st.booleans(),
    missing_since_ms=numbers,
    extra=extras,
)
cuts = st.tuples(st.integers(1, 2**24 - 1), st.integers(1, 2**53))
entries = st.one_of(
    entries, st.builds(lambda entry, cut: entry.changed(split_number=cut[0], split_size=cut[1]), entries, cuts)
)
claims = st.builds(
    Claim,
    epoch=numbers,
    host=text,
    process=numbers,
    leader=st.booleans(),
    client=st.tuples(numbers, text),
    token=text,
    partitions=st.lists(topic_partitions, max_size=3).map(tuple),
)
selections = st.builds(
    SelectionScope,
    address=st.none() | text,
    bucket=text,
    prefixes=st.lists(text, max_size=3).map(tuple),
    options=st.dictionaries(text, text, max_size=3),
    oldest_ms=st.none() | numbers,
    changes_accepted=st.booleans(),
)
listings = st.dictionaries(
    text,
    st.builds(
        lambda histogram, **more: ListingHints(**more).with_histogram(histogram),
        histogram=st.lists(st.tuples(text, numbers), max_size=3),
        of=text,
        unordered=st.booleans(),
        incremental=st.none() | st.builds(IncrementalMark, after=text, whole_listing_ms=numbers, selection=text),
    ),
    max_size=2,
)
openings = st.builds(
    PartitionOpening,
    topic_partition=topic_partitions,
    topic=identities,
    anchor=st.none() | anchors,
    counts=st.dictionaries(st.tuples(hashes, splits), numbers, max_size=3),
    counted=st.none() | anchors,
)
items = st.builds(
    ProgressItem,
    object_hash=hashes,
    split_number=splits,
    saved=numbers,
    sent=numbers,
    total=totals,
    failed=st.booleans(),
    skipped=st.integers(0, 3),
    mark=marks,
    extra=extras,
)
progresses = st.builds(
    Progress,
    items=st.lists(items, max_size=4),
    anchors=anchor_maps,
    counted=anchor_maps,
    closed=st.dictionaries(topic_partitions, numbers, max_size=3),
    removed=st.lists(keys, max_size=3),
    listings=listings,
    skipped=st.integers(0, 99),
    selected=st.none() | selections,
)
watermarks = st.builds(
    Watermark,
    bucket=text,
    prefixes=st.dictionaries(
        text,
        st.lists(st.builds(CoveredRange, text, st.none() | text, numbers), min_size=1, max_size=3).map(tuple),
        max_size=2,
    ),
    compacted=st.dictionaries(text, numbers, max_size=2),
    records=numbers,
)
footers = st.builds(
    SnapshotFooter,
    floor=numbers,
    anchors=anchor_maps,
    topics=st.dictionaries(topic_partitions, identities, max_size=3),
    owners=st.dictionaries(topic_partitions, text, max_size=3),
    counted=anchor_maps,
    closed=st.dictionaries(topic_partitions, numbers, max_size=3),
    claims=st.dictionaries(numbers, claims, max_size=2),
    listings=listings,
    watermark=watermarks,
    selected=st.none() | selections,
    skipped=st.lists(st.tuples(numbers, numbers), max_size=3),
    has_abandoned_partitions=st.booleans(),
)


def record(payload, offset=0, timestamp_us=0):
    message = framing.decode(offset, payload, timestamp_us)
    assert message is not None
    return message


def head_of(message):
    return message.offset, message.kind, message.source, message.epoch, message.writer, message.timestamp_us


# ---- round trips


@given(claims, numbers)
def test_a_claim_comes_back_as_it_was_with_the_time_at_which_it_was_stored(claim, at_us):
    message = record(codec.encode_claim("orders", claim), 12, at_us)
    assert head_of(message) == (12, "claim", "orders", claim.epoch, "", at_us)
    assert codec.decode_claim(message) == replace(claim, at_us=at_us)


@given(numbers, numbers)
def test_an_opening_comes_back_as_it_was(epoch, fenced):
    message = record(codec.encode_opening("orders", epoch, fenced=fenced), 3)
    assert head_of(message) == (3, "opening", "orders", epoch, "", 0)
    assert codec.decode_opening(message) == fenced


@given(st.lists(entries, max_size=6), st.none() | selections)
def test_positions_that_begin_come_back_as_they_were_in_their_order(begun, selected):
    message = record(codec.encode_begin("orders", 7, begun, selected), 3)
    assert head_of(message) == (3, "begin", "orders", 7, "", 0)
    assert codec.decode_begin(message) == (begun, selected)


@given(st.lists(openings, max_size=4, unique_by=lambda opening: opening.topic_partition), text)
def test_partitions_that_were_taken_over_come_back_as_they_were(taken, writer):
    message = record(codec.encode_open("orders", 7, writer, taken), 3)
    assert head_of(message) == (3, "open", "orders", 7, writer, 0)
    assert codec.decode_open(message) == taken


@given(progresses, text)
def test_progress_comes_back_as_it_was(progress, writer):
    message = record(codec.encode_progress("orders", 7, writer, progress), 3)
    assert head_of(message) == (3, "progress", "orders", 7, writer, 0)
    assert codec.decode_progress(message) == progress


def as_read(parts):
    """The positions in parts of a snapshot, as a load takes them in."""
    positions = position_map()
    rows = [part for part in parts if part.header.get("rows")]
    if rows:
        packed = [codec.decode_rows(part) for part in rows]
        assert not any(
            tables.folders or tables.templates for tables, _ in packed[1:]
        )  # the first part has them for all
        positions.load(packed[0][0], (chunk for _, chunks in packed for chunk in chunks))
    for part in parts[len(rows) :]:
        if not part.header.get("facts"):
            positions.update((found.get_manager_key(), found) for found in codec.decode_entries(part))
    return positions


def footer_of(parts):
    """The footer of a snapshot, as a load takes it in."""
    footer = codec.decode_footer(parts[-1])
    for part in parts:
        if part.header.get("facts"):
            footer.add_facts(codec.decode_facts(part))
    return footer


@given(
    st.lists(entries, max_size=9, unique_by=OffsetManagerEntry.get_manager_key),
    footers,
    st.integers(1, 4),
    st.sampled_from([1, 300, 1000, 1 << 24]),
    numbers,
    numbers,
)
def test_a_snapshot_comes_back_as_it_was_in_however_many_parts(all_entries, footer, most, most_bytes, number, at):
    view = position_map(all_entries).view()
    with (
        mock.patch.object(codec, "PART_CHUNKS", 1),
        mock.patch.multiple(record_size, MAX_ROWS=most, MAX_BYTES=most_bytes),
    ):
        payloads = list(codec.encode_snapshot("orders", 3, view, footer, number=number, at=at))
    parts = [record(payload, offset) for offset, payload in enumerate(payloads)]
    assert [head_of(part) for part in parts] == [
        (offset, "snapshot", "orders", 3, "", 0) for offset in range(len(parts))
    ]
    names = [(part.header["number"], part.header["at"], part.header["part"]) for part in parts]
    assert names == [(number, at, part) for part in range(1, len(parts) + 1)]
    assert [bool(part.header.get("last")) for part in parts] == [*[False] * (len(parts) - 1), True]
    assert footer_of(parts) == footer
    by_name = lambda entry: (entry.bucket, entry.key, entry.split_number)  # noqa: E731
    assert sorted(as_read(parts).view(), key=by_name) == sorted(view, key=by_name)
    for part in parts:
        if part.header.get("facts"):
            values = [value for named in codec.decode_facts(part).values() for value in named]
            assert len(values) == 1 or (len(values) <= most and len(part.unpacked()) <= most_bytes)
        elif not part.header.get("rows"):
            found = list(codec.decode_entries(part))
            assert sorted(found, key=by_name) == found
            assert len(found) <= 1 or (len(found) <= most and len(part.unpacked()) <= most_bytes)


def test_only_the_last_part_of_a_snapshot_has_a_footer():
    view = position_map([entry("a"), entry("b")]).view()
    with mock.patch.object(record_size, "MAX_ROWS", 1):
        first, *_, last = codec.encode_snapshot("s", 1, view, SnapshotFooter(floor=4), number=1, at=0)
    with pytest.raises(PositionError, match="message 0: a record snapshot of a shape"):
        codec.decode_footer(record(first))
    assert codec.decode_footer(record(last)).floor == 4


def test_a_snapshot_of_nothing_has_one_part():
    (part,) = codec.encode_snapshot("s", 1, position_map().view(), SnapshotFooter(), number=1, at=0)
    assert list(codec.decode_entries(record(part))) == []


@given(st.binary(min_size=1, max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_a_file_name_that_is_no_valid_unicode_comes_back_as_it_was(name):
    odd = entry(name).changed(version=name)
    assert codec.decode_begin(record(codec.encode_begin("s", 1, [odd])))[0] == [odd]
    removed = [odd.get_manager_key()]
    assert (
        codec.decode_progress(record(codec.encode_progress("s", 1, "w", Progress(removed=removed)))).removed == removed
    )


# ---- size


def entry(key="k", **values):
    return OffsetManagerEntry(
        **{"bucket": "b", "key": key, "version": "v", "topic_partition": TopicPartition("t", 0), **values}
    )


def test_a_position_in_a_large_snapshot_takes_some_bytes_and_a_progress_some_dozens():
    view = position_map(entry(f"folder/{number:06}", records_saved=1, total=1) for number in range(5000)).view()
    assert sum(map(len, codec.encode_snapshot("s", 1, view, SnapshotFooter(), number=1, at=0))) < 20 * 5000
    random = [int.from_bytes(hashlib.md5(b"%d" % number).digest()[:8], "big") for number in range(1000)]
    plain = Progress(items=[ProgressItem(object_hash=one, split_number=0, saved=9, sent=9, total=9) for one in random])
    assert len(codec.encode_progress("s", 1, "w", plain)) < 20 * 1000


@pytest.mark.parametrize(("length", "packed"), [(300, False), (600, True)])
def test_what_is_long_is_packed_and_what_is_short_is_not(length, packed):
    selected = SelectionScope(bucket="b", prefixes=("x" * length,), options={})
    payload = codec.encode_progress("s", 1, "w", Progress(selected=selected))
    assert (record(payload).packed, len(payload) < length) == (packed, packed)
    assert codec.decode_progress(record(payload)).selected == selected


# ---- what is kept of a message


def test_the_head_of_a_message_is_everything_but_its_body():
    message = record(codec.encode_begin("s", 1, [entry()]), 7, 12)
    assert message.head == replace(message, body=b"")
    assert message.head.head == message.head
    for other in ({"offset": 8}, {"epoch": 9}, {"header": {"writer": "other"}}, {"timestamp_us": 1}):
        assert message.head != replace(message, **other).head
    assert message.body != b""
    assert "key" not in repr(message)
    assert f"<{len(message.body)}>" in repr(message)


def test_who_claimed_is_named_with_the_time_once_it_is_known():
    claim = Claim(epoch=1, host="h", process=12, leader=True, client=(1, "a:1"), token="t")
    assert claim.who == "h (process 12)"
    assert replace(claim, at_us=1_700_000_000_999_999).who == "h (process 12, since 2023-11-14 22:13:20 UTC)"


# ---- damage

AN_ANCHOR = Anchor(7, 1 << 127 | 5, 3)
EVERY_RECORD = {
    "claim": codec.encode_claim(
        "s",
        Claim(
            epoch=1,
            host="h",
            process=1,
            leader=True,
            client=(1, "a:1"),
            token="t",
            partitions=(TopicPartition("t", 1),),
        ),
    ),
    "opening": codec.encode_opening("s", 1, fenced=4),
    "begin": codec.encode_begin("s", 1, [entry(f"key {number}") for number in range(40)]),
    "open": codec.encode_open(
        "s",
        1,
        "w",
        [
            PartitionOpening(
                topic_partition=TopicPartition("t", 0),
                topic=TopicIdentity(topic_id=1, created_at=2),
                anchor=AN_ANCHOR,
                counts={(1 << 63, 0): 4},
            )
        ],
    ),
    "progress": codec.encode_progress(
        "s",
        1,
        "w",
        Progress(
            items=[ProgressItem(object_hash=1, split_number=0, saved=1, sent=2, total=None)],
            anchors={TopicPartition("t", 0): AN_ANCHOR},
        ),
    ),
    "snapshot": next(
        codec.encode_snapshot(
            "s",
            1,
            position_map([entry()]).view(),
            SnapshotFooter(anchors={TopicPartition("t", 0): AN_ANCHOR}, skipped=[(1, 2)]),
            number=1,
            at=0,
        )
    ),
}
DECODE = {
    "claim": codec.decode_claim,
    "opening": codec.decode_opening,
    "begin": codec.decode_begin,
    "open": codec.decode_open,
    "progress": codec.decode_progress,
    "snapshot": lambda message: (list(codec.decode_entries(message)), codec.decode_footer(message)),
}
WAY_OUT = r"another \[offsets\] topic.*offsets reset --all"


@pytest.mark.parametrize("kind", DECODE)
def test_a_record_that_is_cut_at_any_byte_is_an_error_with_its_place_and_a_way_out(kind):
    payload = EVERY_RECORD[kind]
    DECODE[kind](record(payload))
    for cut in range(4, len(payload)):
        with pytest.raises(PositionError, match=rf"message 12: .*{WAY_OUT}"):
            DECODE[kind](record(payload[:cut], 12))
    for cut in range(4):
        assert framing.decode(12, payload[:cut]) is None


@settings(max_examples=examples(300))
@given(st.sampled_from(sorted(DECODE)), st.data())
def test_a_record_with_a_bad_byte_is_read_or_is_an_error_and_never_anything_else(kind, data):
    payload = bytearray(EVERY_RECORD[kind])
    at = data.draw(st.integers(4, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    try:
        DECODE[kind](record(bytes(payload), 12))
    except PositionError as error:
        assert "message 12" in str(error)  # noqa: PT017  either is right


@pytest.mark.parametrize("kind", DECODE)
@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b"7", b'{"entries":{}}', b'{"partitions":[[1]]}'])
def test_a_body_of_another_shape_is_one_sentence_with_a_way_out(kind, body):
    message = LogMessage(offset=7, kind=kind, source="s", epoch=1, body=body)
    with pytest.raises(
        PositionError, match=rf"message 7: a record {kind} of a shape that this version does not know.*{WAY_OUT}"
    ):
        DECODE[kind](message)


def facts_part():
    """A part of a snapshot with facts beside positions."""
    closed = {TopicPartition("t", number): 7 for number in range(2)}
    with mock.patch.object(record_size, "MAX_BYTES", 1):
        return next(codec.encode_snapshot("s", 1, position_map().view(), SnapshotFooter(closed=closed), number=1, at=0))


def test_facts_of_another_shape_or_cut_are_an_error_with_a_way_out():
    payload = facts_part()
    assert codec.decode_facts(record(payload))["closed"] == {TopicPartition("t", 0): 7}
    for cut in range(len(payload) - len(record(payload).body), len(payload)):
        with pytest.raises(PositionError, match=rf"message 12: .*{WAY_OUT}"):
            codec.decode_facts(record(payload[:cut], 12))
    good = record(payload).read(dict)
    for name in good:
        for wrong in (7, [[1]], [[[], 0, 1]], None, [["t", "0", 7]]):
            message = replace(record(payload), body=orjson.dumps({**good, name: wrong}))
            with pytest.raises(PositionError, match=r"a record snapshot of a shape"):
                codec.decode_facts(message)


def test_a_version_without_such_parts_refuses_them():
    with pytest.raises(PositionError, match="a record snapshot of a shape"):
        list(codec.decode_entries(record(facts_part())))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("partitions", 0), [1.5, 0]),
        (("partitions", 0), ["t", "0"]),
        (("partitions", 0), ["t", True]),
        (("buckets", 0), None),
        (("options", 0), 1.5),
        (("options", 0), [1]),
        *((("columns", name, 0), value) for name in ("key", "version") for value in (1, None, ["a"])),
        *(
            (("columns", name, 0), value)
            for name in ("modified", "generation", "saved", "sent", "total")
            for value in (1.5, "1", True, [1])
        ),
        *((("columns", name, 0), -1) for name in ("bucket", "partition", "depends_on")),
        *((("columns", name), []) for name in ("key", "sent", "depends_on")),
        (("columns", "failed", "0"), "x"),
        (("columns", "skipped", "0"), 1.5),
        (("columns", "extra", "0"), [1]),
        (("columns", "mark", "0"), [1, "2"]),
        (("columns", "share", "0"), [None, 2]),
    ],
)
def test_a_position_with_a_value_of_another_type_is_an_error(place, value):
    """Taken in, it would show where positions or partitions are compared, as an unexpected error without a way out."""
    body = record(EVERY_RECORD["begin"]).read(dict)
    inner = body["entries"]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    message = LogMessage(offset=7, kind="begin", source="s", epoch=1, body=json.dumps(body).encode())
    with pytest.raises(PositionError, match=rf"message 7: a record begin of a shape that.*{WAY_OUT}"):
        codec.decode_begin(message)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("items", 0, at), value) for at in range(5) for value in ("1", 1.5, True, [1])),
        *((("items", 0, 5), value) for value in (1, "x", None)),
        *((("items", 0, 6), value) for value in ("1", True, None)),
        *((("items", 0, 7), value) for value in ([1, "2"], [1], 7)),
        *((("items", 0, 8), value) for value in ([1], "x", None)),
        (("removed", 0), [["bucket", 5]]),
        (("closed", 0), ["t", 0, "7"]),
        (("listings", "p", "of"), 5),
        (("listings", "p", "keys"), [5]),
        (("listings", "p", "counts"), ["5"]),
        *((("listings", "p", "counts"), counts) for counts in ([], [1, 2])),
        (("listings", "p", "unordered"), 0),
        (("listings", "p", "tail"), ["a", "1", "x"]),
        (("selected", "bucket"), 5),
        (("selected", "address"), 5),
        (("selected", "prefixes"), [5]),
        (("selected", "options"), {"a": 5}),
        (("selected", "oldest_ms"), "5"),
        (("selected", "since_start"), 1),
    ],
)
def test_progress_with_a_value_of_another_type_is_an_error(place, value):
    hints = ListingHints(
        of="s3://b", keys=("a",), counts=(1,), incremental=IncrementalMark(after="a", whole_listing_ms=1, selection="x")
    )
    progress = Progress(
        items=[ProgressItem(1, 0, 1, 2, 2, failed=True, skipped=1, mark=ResumePoint(1, 2), extra={"a": 1})],
        closed={TopicPartition("t", 0): 7},
        removed=[OffsetManagerKey.of_object("b", "k")],
        listings={"p": hints},
        selected=SelectionScope(address="a", bucket="b", prefixes=("p",), options={"a": "b"}, oldest_ms=5),
    )
    payload = codec.encode_progress("s", 1, "w", progress)
    assert codec.decode_progress(record(payload)) == progress
    body = record(payload).read(dict)
    inner = body
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    message = LogMessage(offset=7, kind="progress", source="s", epoch=1, body=json.dumps(body).encode())
    with pytest.raises(PositionError, match=rf"message 7: a record progress of a shape that.*{WAY_OUT}"):
        codec.decode_progress(message)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("floor",), value) for value in ("1", 1.5, True, None)),
        (("past_given_up",), 1),
        (("skipped", 0), [1, "2"]),
        (("skipped", 0), [1.5, 2]),
        (("owners", 0), ["t", 0, 5]),
        (("topics", 0), ["t", 0, "1", 2]),
        (("claims", 0, 0), "5"),
        (("watermark", "bucket"), 5),
        (("watermark", "prefixes", "p", 0), [5, None, 9]),
        (("watermark", "prefixes", "p", 0), ["", 5, 9]),
    ],
)
def test_a_footer_with_a_value_of_another_type_is_an_error(place, value):
    at = TopicPartition("t", 0)
    footer = SnapshotFooter(
        floor=1,
        skipped=[(1, 2)],
        owners={at: "w"},
        topics={at: TopicIdentity(topic_id=1, created_at=2)},
        claims={5: codec.decode_claim(record(EVERY_RECORD["claim"]))},
        watermark=Watermark(bucket="b").raised("p", CoveredRange("", None, 9)),
    )
    (payload,) = codec.encode_snapshot("s", 1, position_map().view(), footer, number=1, at=0)
    assert codec.decode_footer(record(payload)) == footer
    body = record(payload).read(dict)
    inner = body["footer"]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    message = LogMessage(offset=7, kind="snapshot", source="s", epoch=1, body=json.dumps(body).encode())
    with pytest.raises(PositionError, match=rf"message 7: a record snapshot of a shape that.*{WAY_OUT}"):
        codec.decode_footer(message)


@pytest.mark.parametrize("anchor", [[[1], "5", 3], [7, "5", "3"], [7, "5"], [7, 5, 3]])
@pytest.mark.parametrize("topic", ["t", 5])
def test_a_partition_or_an_anchor_of_another_type_is_an_error(anchor, topic):
    body = {"partitions": [[topic, 0, 1, 2, anchor, []]]}
    message = LogMessage(offset=7, kind="open", source="s", epoch=1, body=json.dumps(body).encode())
    with pytest.raises(PositionError, match=rf"message 7: a record open of a shape that.*{WAY_OUT}"):
        codec.decode_open(message)


@pytest.mark.parametrize(("body", "packed"), [(b"{", False), (b"\xff", False), (b"no zstd", True)])
def test_a_body_that_is_no_json_or_cannot_be_unpacked_is_an_error(body, packed):
    message = LogMessage(offset=7, kind="begin", source="s", epoch=1, body=body, packed=packed)
    with pytest.raises(PositionError, match=rf"message 7: a begin that cannot be read.*{WAY_OUT}"):
        message.read(dict)


@pytest.mark.parametrize("tells_size", [True, False])
def test_a_body_that_unfolds_to_too_much_is_an_error_before_it_is_unpacked(monkeypatch, tells_size):
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 1000)
    packer = zstandard.ZstdCompressor()
    if tells_size:
        fits, too_much = (packer.compress(b'"%s"' % (b"x" * (size - 2))) for size in (1000, 1001))
        assert LogMessage(offset=7, kind="begin", source="s", epoch=1, body=fits, packed=True).read(str)
    else:
        stream = packer.compressobj()
        too_much = stream.compress(b"{}") + stream.flush()
    message = LogMessage(offset=7, kind="begin", source="s", epoch=1, body=too_much, packed=True)
    with pytest.raises(PositionError, match=rf"message 7: a begin that cannot be read.*{WAY_OUT}"):
        message.read(dict)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["claim", "opening"])
def test_a_claim_or_opening_of_many_values_is_an_error_before_it_is_parsed(monkeypatch, kind, packed):
    monkeypatch.setattr(framing, "_loads", lambda body: pytest.fail(f"{len(body)} bytes are parsed"))
    body = b'{"x":[' + b"[]," * (framing.MAX_CLAIM_BYTES // 3) + b"[]]}"
    body = zstandard.compress(body) if packed else body
    message = LogMessage(offset=7, kind=kind, source="s", epoch=1, body=body, packed=packed)
    with pytest.raises(PositionError, match=rf"message 7: a {kind} that cannot be read.*{WAY_OUT}"):
        DECODE[kind](message)


def framed(header, body=b"{}", version=framing.FORMAT_VERSION, flags=0):
    return struct.pack("<4sBBI", framing.MAGIC, version, flags, len(header)) + header + body


@pytest.mark.parametrize(
    "broken",
    [
        framing.MAGIC,
        framing.MAGIC + b"\2\0",
        framing.MAGIC + struct.pack("<BBI", 2, 0, 10**9) + b"{}",
        framed(b"[]"),
        framed(b"null"),
        framed(b"7"),
        framed(b'"text"'),
        framed(b"{}"),
        framed(b'{"kind":"claim","source":"s"}'),
        framed(b'{"kind":"claim","epoch":1}'),
        framed(b'{"source":"s","epoch":1}'),
    ],
    ids=lambda payload: payload[4:].hex(),
)
def test_a_broken_header_of_ours_is_an_error_with_its_place_and_a_way_out(broken):
    with pytest.raises(PositionError, match=rf"message 5: positions that cannot be read.*{WAY_OUT}"):
        framing.decode(5, broken)


@pytest.mark.parametrize(
    "header",
    [
        {"kind": ["claim"]},
        {"epoch": "x"},
        {"epoch": None},
        {"epoch": 1.5},
        {"epoch": True},
        {"epoch": -1},
        {"epoch": 2**63},
        {"kind": "progress", "skipped": [1]},
        {"kind": "snapshot"},
        *({"kind": "snapshot", "number": 1, "at": 1, "part": 1, name: "x"} for name in ("number", "at", "part")),
    ],
    ids=repr,
)
def test_a_value_of_another_type_in_a_header_is_an_error_with_its_place_and_a_way_out(header):
    message = record(framed(orjson.dumps({"kind": "claim", "source": "s", "epoch": 1, **header})), 5)
    with pytest.raises(PositionError, match=rf"message 5: positions that cannot be read.*{WAY_OUT}"):
        message.check_header()


@pytest.mark.parametrize("payload", EVERY_RECORD.values(), ids=EVERY_RECORD)
def test_the_headers_that_are_written_have_the_types_that_are_checked(payload):
    record(payload).check_header()


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
@pytest.mark.parametrize("kind", DECODE)
def test_a_body_that_is_nested_too_deep_is_an_error(kind, body):
    message = LogMessage(offset=7, kind=kind, source="s", epoch=1, body=body)
    with pytest.raises(PositionError, match=rf"message 7: a {kind} that cannot be read.*{WAY_OUT}"):
        DECODE[kind](message)


def test_tables_of_a_snapshot_that_are_nested_too_deep_are_an_error():
    tables = b"[" * 100_000
    message = LogMessage(offset=7, kind="snapshot", source="s", epoch=1, body=struct.pack("<I", len(tables)) + tables)
    with pytest.raises(PositionError, match=rf"message 7: a record snapshot of a shape.*{WAY_OUT}"):
        codec.decode_rows(message)


@pytest.mark.parametrize(
    "odd",
    [
        {"epoch": "x"},
        {"host": [1]},
        {"process": "x"},
        {"leader": "x"},
        {"client": ["x", "a:1"]},
        {"client": [1, [1]]},
        {"token": {}},
        {"partitions": [["t", "x"]]},
        {"partitions": [[["t"], 1]]},
        {"at_us": None},
    ],
    ids=repr,
)
def test_a_claim_with_a_value_of_another_type_is_an_error(odd):
    written = {**record(EVERY_RECORD["claim"]).read(dict), **odd}
    message = LogMessage(offset=7, kind="claim", source="s", epoch=1, body=orjson.dumps(written))
    with pytest.raises(PositionError, match=rf"message 7: a record claim of a shape.*{WAY_OUT}"):
        codec.decode_claim(message)


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_another_format_is_an_error_that_says_which_version_to_run(version):
    payload = bytearray(EVERY_RECORD["begin"])
    payload[4] = version
    said = rf"message 5: positions in format {version}, and this version reads format 2; run the version that wrote"
    with pytest.raises(PositionError, match=said):
        framing.decode(5, bytes(payload))


@pytest.mark.parametrize("version", [0, 1, 2, 3, 255])
@pytest.mark.parametrize("header", [{}, {"kind": "claim", "epoch": 1}, {"kind": ["claim"], "epoch": "x"}], ids=repr)
def test_a_record_of_another_source_is_none_of_ours_in_whatever_format(version, header):
    payload = framed(orjson.dumps({"source": "other", **header}), version=version)
    assert framing.decode(5, payload, source="s") is None


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b"7", b"\xff", b'{"sauce":"other"}'])
def test_a_record_that_names_no_source_may_be_ours(header):
    for version, said in ((2, "positions that cannot be read"), (3, "positions in format 3")):
        with pytest.raises(PositionError, match=f"^here, message 5: {said}"):
            framing.decode(5, framed(header, b"", version), source="s", place="here")


@pytest.mark.parametrize("version", [0, 1])
def test_an_earlier_format_is_an_error_that_names_the_options_to_go_on_with(version):
    payload = bytearray(EVERY_RECORD["begin"])
    payload[4] = version
    said = (
        r"or name another \[offsets\] topic: everything is sent again, or with \[discovery\] modified_after what is new"
    )
    with pytest.raises(PositionError, match=said):
        framing.decode(5, bytes(payload))


@pytest.mark.parametrize("version", [3, 255])
def test_a_later_format_brings_no_advice_to_send_everything_again(version):
    payload = bytearray(EVERY_RECORD["begin"])
    payload[4] = version
    with pytest.raises(PositionError, match=r"run the version that wrote them$"):
        framing.decode(5, bytes(payload))


@pytest.mark.parametrize(
    "payload", [b"", b"ICS", b"hello", struct.pack("<I", 7), b"icsp" + bytes(20), b"ICSQ" + bytes(99)]
)
def test_what_does_not_begin_like_ours_is_none_of_ours(payload):
    assert framing.decode(0, payload) is None


# ---- the layout is part of the stored data


def test_the_layout_of_a_message_is_the_documented_one():
    payload = EVERY_RECORD["opening"]
    assert payload == framed(b'{"kind":"opening","source":"s","epoch":1}', b'{"fenced":4}')
    packed = EVERY_RECORD["begin"]
    magic, version, flags, length = struct.unpack_from("<4sBBI", packed)
    assert (magic, version, flags) == (b"ICSP", 2, 1)
    assert orjson.loads(packed[10 : 10 + length]) == {"kind": "begin", "source": "s", "epoch": 1}
    assert b'"key 39"' in zstandard.ZstdDecompressor().decompress(packed[10 + length :])


def test_what_is_seldom_takes_no_room_in_progress():
    payload = codec.encode_progress(
        "s", 1, "w", Progress(items=[ProgressItem(object_hash=5, split_number=0, saved=1, sent=2, total=3)])
    )
    assert payload == framed(
        b'{"kind":"progress","source":"s","epoch":1,"writer":"w"}', b'{"items":[[5,0,1,2,3]],"anchors":[]}'
    )
