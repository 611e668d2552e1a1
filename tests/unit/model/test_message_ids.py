"""Message ids: unambiguous, stable, and readable again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.model.message_ids import (
    MAX_RECORD,
    MAX_SPLIT,
    MessageId,
    dead_letter_hash64,
    entry_hash64,
    message_id,
    object_hash64,
    parse_message_id,
)
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry


def test_an_id_is_the_same_for_ever():
    # Written down once: ids in existing topics depend on it.
    assert object_hash64("orders", "lake", "events/a.jsonl", "etag@1") == 0x2DF4DF91F9CD850B
    assert object_hash64("orders", "lake", "events/a.jsonl", "etag@1", 64, generation=9) == 0x8E1A59BC4CB30CD8
    assert message_id(0x0102030405060708, 3, 7) == 0x0102030405060708_000003_0000000007
    place = ("orders", "lake", "events/a.jsonl", "etag@1")
    assert dead_letter_hash64(*place, 0, generation=1, kind="dead letter") == 0x361D2FC2098BB217
    assert dead_letter_hash64(*place, 0, generation=1, kind="dead object") == 0x78D2D7872F6CD952
    assert dead_letter_hash64(*place, 64, generation=9, kind="replayed") == 0xC5646E632D38EC59


def test_a_position_has_the_hash_of_its_generation():
    position = OffsetManagerEntry(
        bucket="lake", key="events/a.jsonl", version="etag@1", topic_partition=TopicPartition("t", 0), generation=3
    )
    assert entry_hash64("orders", position) == object_hash64("orders", "lake", "events/a.jsonl", "etag@1", generation=3)


def test_each_generation_of_a_version_has_ids_of_its_own_and_so_have_its_dead_letters():
    place = ("orders", "lake", "k", "v")
    hashes = {
        *(object_hash64(*place, generation=generation) for generation in (1, 2, 1 << 40)),
        *(
            dead_letter_hash64(*place, 0, generation=generation, kind=kind)
            for generation in (1, 2)
            for kind in ("dead letter", "dead object", "replayed")
        ),
    }
    assert len(hashes) == 3 + 6


@pytest.mark.parametrize(
    "other",
    [
        ("ordersl", "ake", "k", "v", 0),
        ("orders", "lakek", "", "v", 0),
        ("orders", "lake", "kv", "", 0),
        ("orders", "lake", "k", "v", 1),
        ("", "orderslake", "k", "v", 0),
    ],
)
def test_fields_do_not_run_into_each_other(other):
    assert object_hash64(*other) != object_hash64("orders", "lake", "k", "v", 0)


def test_a_name_that_is_no_unicode_has_a_hash_of_its_own():
    assert object_hash64("s", "b", "\udcff", "v") != object_hash64("s", "b", "\udcfe", "v")
    assert object_hash64("s", "b", "k", "\udcff") != object_hash64("s", "b", "k", "\udcfe")


@given(st.integers(0, 2**64 - 1), st.integers(0, MAX_SPLIT), st.integers(0, MAX_RECORD))
def test_the_parts_come_back(object_hash, split_number, record):
    made = message_id(object_hash, split_number, record)
    assert 0 <= made < 2**128
    assert parse_message_id(made) == MessageId(object_hash, split_number, record)


def test_the_largest_parts_fit():
    assert message_id(2**64 - 1, MAX_SPLIT, MAX_RECORD) == 2**128 - 1


@pytest.mark.parametrize(
    "parts", [(2**64, 0, 1), (-1, 0, 1), (1, MAX_SPLIT + 1, 1), (1, 0, MAX_RECORD + 1), (1, -1, 1)]
)
def test_a_part_that_does_not_fit_is_refused(parts):
    with pytest.raises(ValueError, match="no message id"):
        message_id(*parts)
