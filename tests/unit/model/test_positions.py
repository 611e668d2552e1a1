"""Positions: what they say, and their stored form."""

import json
import pickle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import PositionMismatchError
from framework.model.objects import ObjectState, ResumePoint
from framework.model.positions import (
    OffsetManagerEntry,
    OffsetManagerKey,
    canonical_options,
    check_numbering,
    numbers_alike,
)
from framework.model.splits import Split
from tests.support.entries import KEY, NATIVE, ended, entry

# ---- what a position says

counts = st.integers(0, 9)


@st.composite
def any_entry(draw):
    records = draw(counts)
    total = draw(st.none() | st.integers(records, 9))
    mark = draw(st.none() | st.builds(ResumePoint, st.integers(0, records), st.integers(0, 99)))
    split_number = draw(st.integers(0, 3))
    return entry(
        records,
        generation=draw(st.integers(1, 1 << 40)),
        records_saved=draw(st.integers(0, records)),
        total=total,
        failed=total is not None and draw(st.booleans()),
        skipped=draw(st.integers(0, records)),
        split_number=split_number,
        split_size=draw(st.sampled_from([8, -4])) if split_number else 0,
        mark=mark,
        numbering_options=draw(st.sampled_from(["", canonical_options({"format": "jsonl"})])),
        may_begin_again=draw(st.booleans()),
        missing_since_ms=draw(st.sampled_from([0, 17])),
        extra=draw(st.dictionaries(st.sampled_from("ab"), st.integers(0, 1) | st.text(max_size=3), max_size=2)),
    )


@given(any_entry())
def test_what_is_final_is_finished_and_what_is_finished_is_done_or_has_failed(position):
    assert position.finished or not position.final
    assert position.finished == (position.state is not ObjectState.READING)
    assert position.done == (position.state is ObjectState.DONE)
    assert position.finished == (position.records_done == position.total)
    assert position.final == (position.records_saved == position.total)


def test_an_end_that_is_sent_and_could_still_be_lost_is_finished_and_not_final():
    position = entry(4, records_saved=3, mark=ResumePoint(4, 40)).advanced(6, state=ObjectState.DONE)
    assert position.mark is None
    assert (position.total, position.records_done, position.records_saved) == (6, 6, 3)
    assert (position.finished, position.final) == (True, False)


def test_a_position_whose_tail_was_lost_goes_on_where_the_topic_ends_and_keeps_its_total():
    found = ended(6, records_saved=2, mark=ResumePoint(5, 50)).recovered(4)
    assert (found.records_done, found.records_saved, found.total, found.finished) == (4, 2, 6, False)
    assert found.mark is None  # it lies behind what is there
    assert entry(6, mark=ResumePoint(4, 40)).recovered(4).mark == ResumePoint(4, 40)


def test_a_position_that_is_found_whole_is_read_on_to_its_end():
    tail_lost = ended(6, records_saved=2).recovered(4)
    found = tail_lost.recovered(6)
    assert (found.records_done, found.total, found.finished) == (6, None, False)
    assert ended(6, records_saved=2).recovered(6).finished  # nothing new was found


@given(any_entry(), any_entry())
def test_a_copy_with_other_values_has_all_else_of_the_first_and_leaves_the_first_as_it_was(position, other):
    before = msgspec.structs.asdict(position)
    values = {"records_done": other.records_done, "total": other.total, "mark": other.mark, "extra": other.extra}
    changed = position.changed(**values)
    assert msgspec.structs.asdict(changed) == {**before, **values}
    assert pickle.loads(pickle.dumps(changed)) == changed
    assert msgspec.structs.asdict(position) == before


class LaterEntry(OffsetManagerEntry, frozen=True, kw_only=True):
    rows: int = 0


def test_a_copy_keeps_what_a_subclass_adds():
    later = LaterEntry(**msgspec.structs.asdict(entry(3)), rows=7)
    changed = later.changed(records_done=4)
    assert (type(changed), changed.records_done, changed.rows) == (LaterEntry, 4, 7)


def test_a_position_that_is_opened_again_goes_on_behind_what_was_given_up():
    failed = entry(3).advanced(3, state=ObjectState.FAILED)
    assert failed.finished
    assert not failed.done
    again = failed.reopened()
    assert (again.records_done, again.finished, again.failed, again.generation) == (3, False, False, failed.generation)


@given(any_entry())
def test_what_is_left_of_an_abandoned_position_counts_no_record(position):
    left = position.abandoned()
    nothing = {
        "records_done": 0,
        "split_number": 0,
        "total": None,
        "failed": False,
        "skipped": 0,
        "mark": None,
        "extra": {},
    }
    assert left.is_abandoned
    assert left == position.changed(split_size=0, records_saved=0, numbering_options=left.numbering_options, **nothing)


def test_two_positions_are_of_the_same_records_only_in_one_generation_of_one_version_split_alike():
    one = entry(3, generation=2)
    assert one.is_of(entry(7, generation=2, total=7))
    for other in [entry(3, generation=3), entry(3, generation=2, version="v2"), entry(3, generation=2, split_size=8)]:
        assert not one.is_of(other)


# ---- keys and the stored form

names = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5)


@given(names, st.randoms(use_true_random=False))
def test_a_key_is_the_same_in_whatever_order_its_names_come(properties, random):
    shuffled = list(properties.items())
    random.shuffle(shuffled)
    one, other = OffsetManagerKey.of(properties), OffsetManagerKey.of(dict(shuffled))
    assert one == other
    assert hash(one) == hash(other)
    assert (
        one.canonical()
        == other.canonical()
        == json.dumps(properties, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    )


def test_the_short_way_to_an_objects_key_gives_the_same_key():
    assert OffsetManagerKey.of_object("b", "k") == OffsetManagerKey.of({"key": "k", "bucket": "b"})


def test_split_1_goes_by_the_objects_key_and_every_other_split_by_its_own():
    def key_of(split_number):
        return entry(split_number=split_number, split_size=8 if split_number else 0).get_manager_key()

    assert key_of(0) == key_of(1) == KEY
    assert key_of(12).canonical() == '{"bucket":"b","key":"k","share":"12"}'
    assert key_of(12) == KEY.of_split(12) != key_of(2)
    assert key_of(12).whole() == key_of(1).whole() == KEY


def test_a_split_knows_its_bytes():
    sizes = [entry(split_number=split_number, split_size=4).bytes_of(NATIVE) for split_number in (1, 2, 3)]
    assert sizes == [4, 4, 1]
    assert Split(4, 4).bytes_of(9) == 0
    assert entry().bytes_of(NATIVE) == NATIVE.size == 9


@settings(deadline=None)
@given(any_entry(), st.text(), st.text())
def test_the_stored_form_round_trips_through_json(position, bucket, key):
    position = position.changed(bucket=bucket, key=key)
    stored = json.loads(json.dumps(position.get_properties()))
    back = OffsetManagerEntry.from_properties(position.get_manager_key(), stored)
    assert back == position
    assert back.get_properties() == position.get_properties()


def test_what_a_position_does_not_say_is_not_in_its_stored_form():
    needed = {"version", "generation", "modified", "records", "saved", "state", "topic", "partition"}
    assert entry().get_properties().keys() == needed
    assert entry(split_number=2, split_size=64).get_properties().keys() == needed | {"share", "split_size"}
    assert entry(split_number=2, split_size=-3).get_properties().keys() == needed | {"part", "parts"}


def test_nothing_that_is_handed_out_or_taken_in_is_shared():
    extra = {"a": 1}
    position = entry(1, extra=extra)
    extra["a"] = 2
    properties = position.get_properties()
    properties["extra"]["a"] = 3
    again = OffsetManagerEntry.from_properties(KEY, properties)
    properties["extra"]["a"] = 4
    assert (position.get_int("a"), again.get_int("a")) == (1, 3)


@pytest.mark.parametrize(
    "missing", ["version", "generation", "records", "saved", "state", "topic", "partition", "modified"]
)
def test_a_stored_form_that_is_not_ours_is_refused(missing):
    properties = entry().get_properties()
    del properties[missing]
    with pytest.raises(KeyError):
        OffsetManagerEntry.from_properties(KEY, properties)


def test_getters_are_typed():
    position = entry(extra={"n": 7, "s": "text", "t": True})
    assert (position.get_int("n"), position.get_long("n"), position.get_string("s")) == (7, 7, "text")
    assert (position.get_int("absent"), position.get_string("absent")) == (None, None)
    for wrong, said in [
        (lambda: position.get_int("s"), "b/k: s of its position is str, not a whole number"),
        (lambda: position.get_int("t"), "b/k: t of its position is bool, not a whole number"),
        (lambda: position.get_string("n"), "b/k: n of its position is int, not text"),
    ]:
        with pytest.raises(TypeError, match=f"^{said}$"):
            wrong()


def test_positions_pickle():
    position = entry(3, generation=4, mark=ResumePoint(3, 30), skipped=2, extra={"a": 1})
    assert pickle.loads(pickle.dumps(position)) == position


def test_a_position_made_with_other_options_is_refused_with_the_way_out():
    ours, theirs = canonical_options({"format": "bytes", "n": "1"}), canonical_options({"n": "2", "format": "bytes"})
    check_numbering(entry(3), ours)
    check_numbering(entry(3, numbering_options=ours), ours)
    said = r"b/k.*3 records.*which numbers records in another way.*offsets reset --key k.*--prefix.*--all.*accept"
    with pytest.raises(PositionMismatchError, match=said) as error:
        check_numbering(entry(3, numbering_options=theirs), ours)
    assert "Set [input] back until" in str(error.value)
    with pytest.raises(PositionMismatchError, match=r"^s3://b/k: 3 records were read with \{"):
        check_numbering(entry(3, numbering_options=theirs), ours, "s3://b/k")


@pytest.mark.parametrize(
    ("options", "others", "alike"),
    [
        ('{"format":"csv"}', '{"format":"csv","partition_by":"n","partition_rule":"00"}', True),
        ('{"format":"csv"}', '{"format":"text","partition_by":"n","partition_rule":"00"}', False),
        ("", '{"format":"text"}', True),  # a position may name none
        ('{"format":"text"}', "", True),
        ("of another program", '{"format":"text"}', False),
        ("of another program", "of another program", True),
        ("[1]", "[2]", False),
        ("[1]", "[1]", True),
        ("[" * 10_000, "[" * 10_001, False),
    ],
)
def test_options_that_choose_the_partition_give_records_no_other_number(options, others, alike):
    assert numbers_alike(options, others) is alike
