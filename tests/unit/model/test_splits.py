"""Splits by bytes and parts by key, as a position stores them."""

from hypothesis import given
from hypothesis import strategies as st

from framework.model.message_ids import dead_letter_hash64, object_hash64
from framework.model.objects import ResumePoint
from framework.model.splits import TAIL_BYTES, KeyPart, Split, division_of


@given(st.integers(0, 1 << 50), st.integers(1, 100))
def test_the_shares_of_all_parts_are_the_object(size, parts):
    shares = [KeyPart(number, parts).bytes_of(size) for number in range(1, parts + 1)]
    assert sum(shares) == size
    assert max(shares) - min(shares) <= 1


def test_a_split_is_requested_from_its_mark_or_the_byte_before_it_to_just_beyond_its_end():
    split, size = Split(3, 1 << 20), 10 << 20
    end = split.end + TAIL_BYTES
    assert split.window(size) == (split.begin - 1, end)
    assert split.window(size, ResumePoint(5, split.begin + 7)) == (split.begin + 7, end)
    assert split.window(split.end + 9) == (split.begin - 1, split.end + 9)
    assert Split(1, 1 << 20).window(3) == (0, 3)
    behind = end + 1  # of a line that is longer than a split
    assert split.window(size, ResumePoint(5, behind)) == (behind, behind)


def test_what_a_position_stores_tells_splits_from_parts():
    assert division_of(0, 0) is None
    assert division_of(3, 64) == Split(3, 64)
    assert division_of(3, -4) == KeyPart(3, 4)
    assert (KeyPart(3, 4).split_size, KeyPart(3, 4).partition) == (-4, 2)


def test_ids_of_an_object_differ_by_how_it_is_divided():
    of = ("source", "bucket", "key", "version")
    sizes = (0, 4, -4, -5, 64)
    assert (
        len(
            {object_hash64(*of, size) for size in sizes}
            | {dead_letter_hash64(*of, size, generation=1, kind="dead letter") for size in sizes}
        )
        == 10
    )
