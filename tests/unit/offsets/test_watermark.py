"""The watermark as a function of keys: held against a plain search over everything that ever raised it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.iggy.offset_log import codec, framing
from framework.iggy.offset_log.records import SnapshotFooter
from framework.offsets import watermark as module
from framework.offsets.position_map import position_map
from framework.offsets.watermark import CoveredRange, Watermark, key_before

KEYS = st.text("ab\U0010ffff\0é", max_size=3)
TIMES = st.integers(1, 4)


@st.composite
def stretches(draw):
    after = draw(KEYS)
    until = draw(st.none() | KEYS.filter(lambda key: key > after)) if after < "\U0010ffff" * 3 else None
    return CoveredRange(after, until, draw(TIMES))


def raised(all_ranges, prefix=""):
    mark = Watermark(bucket="b")
    for one in all_ranges:
        mark = mark.raised(prefix, one)
    return mark


def oracle(all_ranges, key):
    """The latest time of any stretch that holds the key."""
    inside = (s for s in all_ranges if s.after < key and (s.until is None or key <= s.until))
    return max((s.time_ms for s in inside), default=0)


def test_ranges_that_a_lower_time_ends_at_stay_as_they_are():
    mark = raised([CoveredRange("", "m", 9), CoveredRange("m", None, 3)])
    assert mark.raised("", CoveredRange("c", "m", 7)) == mark


def test_a_prefix_without_a_range_hides_nothing():
    mark = Watermark(bucket="b", prefixes={"": ()})
    assert not mark
    assert not mark.covers("b", "k", 1)


@given(st.lists(stretches(), max_size=8), st.lists(KEYS, max_size=12))
def test_a_key_has_the_latest_time_of_all_ranges_that_hold_it(all_ranges, keys):
    mark = raised(all_ranges)
    ends = [end for s in all_ranges for end in (s.after, s.until) if end is not None]
    for key in [*keys, *ends, *(end + "\0" for end in ends)]:
        assert mark.time_of("b", key) == (oracle(all_ranges, key) if key else 0), key
        assert mark.time_of("other", key) == 0


@given(st.lists(stretches(), max_size=8), st.randoms())
def test_the_order_of_raising_does_not_matter_nor_does_raising_again(all_ranges, random):
    shuffled = list(all_ranges)
    random.shuffle(shuffled)
    assert raised(shuffled) == raised(all_ranges + shuffled) == raised(all_ranges)


@given(st.lists(stretches(), max_size=8))
def test_ranges_are_in_order_disjoint_and_as_few_as_can_be(all_ranges):
    ranges = raised(all_ranges).prefixes.get("", ())
    for left, right in itertools.pairwise(ranges):
        assert left.until is not None
        assert left.until <= right.after
        assert left.until != right.after or left.time_ms != right.time_ms
    assert all(one.until is None or one.after < one.until for one in ranges)


@given(st.lists(stretches(), max_size=6), KEYS.filter(bool), st.booleans(), st.lists(KEYS.filter(bool), max_size=12))
def test_what_is_opened_is_new_and_nothing_else(all_ranges, names, exactly, keys):
    before = raised(all_ranges)
    after = before.without(names, exactly=exactly)
    near = [names, names + "a", names + "\0", names[:-1], names + "\U0010ffff", *keys]
    for key in filter(None, near):
        chosen = key == names if exactly else key.startswith(names)
        assert after.time_of("b", key) == (0 if chosen else before.time_of("b", key)), key


def test_of_ranges_that_are_opened_from_end_to_end_none_is_left():
    assert not raised([CoveredRange("", None, 5)]).without("").prefixes


@given(KEYS.filter(bool), KEYS)
def test_no_key_lies_between_a_key_and_the_one_before_it(key, other):
    before = key_before(key)
    assert before < key
    assert other <= before or other >= key


def test_prefixes_have_ranges_of_their_own():
    mark = Watermark(bucket="b").raised("a/", CoveredRange("", None, 5)).raised("c/", CoveredRange("c/k", None, 7))
    assert [mark.time_of("b", key) for key in ("a/x", "b/x", "c/k", "c/l", "d")] == [5, 0, 0, 7, 0]
    assert not mark.covers("b", "a/x", 5)
    assert mark.covers("b", "a/x", 4)
    assert not mark.covers("b", "a/x", 0), "an object without a time is never hidden"


def test_where_there_would_be_too_many_ranges_none_is_raised_and_none_lowered(monkeypatch):
    monkeypatch.setattr(module, "MAX_RANGES", 3)
    many = [CoveredRange(key, key + "5", 1) for key in "abcdefg"]
    mark = raised(many)
    assert len(mark) == 3
    higher = mark.raised("", CoveredRange("a1", "a2", 9))
    assert higher == mark
    whole = mark.raised("", CoveredRange("", None, 9))
    assert whole.prefixes[""] == (CoveredRange("", None, 9),)


def test_neighbours_of_one_time_are_one_range():
    assert raised([CoveredRange("a", "b", 1), CoveredRange("b", "c", 1)]) == raised([CoveredRange("a", "c", 1)])


def test_a_range_of_nothing_or_at_no_time_changes_nothing():
    for mark in (Watermark(bucket="b"), raised([CoveredRange("a", "b", 2)])):
        for nothing in (CoveredRange("c", "c", 9), CoveredRange("d", None, 0), CoveredRange("e", "d", 3)):
            assert mark.raised("", nothing) == mark


def stored(mark):
    (payload,) = codec.encode_snapshot("kit", 1, position_map().view(), SnapshotFooter(watermark=mark), number=1, at=0)
    return codec.decode_footer(framing.decode(0, payload)).watermark


@given(st.lists(stretches(), max_size=5), st.integers(0, 9))
def test_it_is_stored_with_a_snapshot_and_comes_back(all_ranges, count):
    mark = raised(all_ranges).with_compacted({"": count}, 3 * count)
    assert stored(mark) == mark


def test_one_that_stands_for_nothing_comes_back_as_such():
    assert not stored(Watermark())
    assert not Watermark()


@pytest.mark.parametrize("key", ["a", "a\0", chr(0xD801), "\ue000", "é"])
def test_the_key_before_needs_no_surrogates(key):
    key_before(key).encode()


def test_the_key_before_a_character_behind_the_surrogates_begins_with_the_one_before_it():
    assert [ord(key_before(key)[0]) for key in ("\ud7ff", "\ue000", "\ue001", "\ue002")] == [
        0xD7FE,
        0xD7FF,
        0xE000,
        0xE001,
    ]
