"""Where a key lies between two others: monotone whatever was seen, and blind to what all keys share."""

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.storage.listing.keyspace import KeySpace, after_all, shared_length

TEXT = st.text(
    st.one_of(st.sampled_from("ab/0195zZ \U0010ffff\ufffd\U00010000é語"), st.characters(exclude_categories=["Cs"]))
)


def space_of(keys, prefix=""):
    space = KeySpace(prefix)
    space.observe(sorted(keys))
    return space


@given(TEXT, TEXT)
def test_the_shared_length_is_that_of_a_character_by_character_look(one, other):
    length = shared_length(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


@given(TEXT, TEXT)
def test_after_all_is_behind_everything_with_the_stem_and_before_everything_else(stem, key):
    end = after_all(stem)
    if end is None:
        assert not stem.strip("\U0010ffff")
        return
    end.encode()
    assert stem < end
    if key.startswith(stem):
        assert key < end
    elif key > stem:
        assert key >= end


@given(st.lists(TEXT, min_size=1, max_size=30), st.lists(TEXT, min_size=2, max_size=10))
def test_positions_never_go_down_along_the_keys(seen, asked):
    space = space_of(seen)
    positions = [space.position(key, 0) for key in sorted(asked)]
    assert all(one <= other + 1e-9 for one, other in pairwise(positions))
    assert all(-1e-9 <= one <= 1 + 1e-9 for one in positions)


@example(["\x7f", "\U000b58330"], 0.07421875, 0.001)  # just where no characters are
@example(["\ud780", "\ud7a3"], 0.9, 0.001)  # surrogates are beyond
@example(["\U0010fff0"], 0.9, 0.001)
@given(st.lists(TEXT, min_size=1, max_size=30), st.floats(0, 1), st.sampled_from([0.1, 0.001]))
def test_a_key_made_for_a_position_is_valid_text_at_about_that_position(seen, position, precision):
    space = space_of(seen)
    key = space.key_at("", position, precision)
    key.encode()
    places = max(map(len, seen))
    if len(key) < places:  # else nothing is known beyond
        assert abs(space.position(key, 0) - position) <= precision + 1e-9


def test_a_range_under_one_subtree_has_that_subtree_as_its_stem():
    space = KeySpace("logs/")
    assert space.stem("logs/a/07/x", "logs/a/1") == "logs/a/0"
    assert space.stem("logs/a/07/x", "logs/b/1") == "logs/"
    assert space.stem("logs/a/07/x", None) == "logs/"


@pytest.mark.parametrize("prefix", ["", "x" * 200, "logs/2024/"])
def test_what_all_keys_share_does_not_change_sizes(prefix):
    keys = [f"{prefix}{number:04d}" for number in range(0, 10000, 7)]
    space = space_of(keys)
    half = space.log_size(f"{prefix}0", f"{prefix}5")
    whole = space.log_size(f"{prefix}0", f"{prefix}9999")
    assert math.exp(half - whole) == pytest.approx(0.5, abs=0.02)


def test_digits_are_expected_where_a_digit_was_seen():
    space = space_of(["a/3x", "a/4x"])
    assert space.position("a/9x", 0) > space.position("a/4x", 0)


def test_memory_is_bounded_by_the_length_of_a_key_not_by_their_number():
    space = space_of([chr(0x4E00 + number) for number in range(20000)])
    assert len(space._places) == 1
    assert len(space._places[0].seen) <= 300
