"""A position that is set by hand: which can be, and what becomes of it."""

import pytest

from framework.errors import PositionError, PositionMismatchError
from framework.model.objects import ResumePoint, TopicPartition
from framework.offsets.set_position import SetPosition
from tests.support.positions import position

JSONL, TEXT = '{"format":"jsonl"}', '{"format":"text"}'


def change(records=None, **options):
    return SetPosition(key="a", records=records, numbering_options=JSONL, **options)


def entry(records_done=0, **values):
    return position("a", records_done, numbering_options=JSONL, **values)


HALF = entry(500, mark=ResumePoint(400, 9000), skipped=3)
DONE = entry(1000, total=1000, skipped=3)
FAILED = entry(300, total=300, failed=True)
REWOUND = entry(200, total=1000)
FAILED_REWOUND = entry(200, total=300, failed=True)  # a crash of the server took the others
UNSAVED = entry(500, records_saved=300)


@pytest.mark.parametrize(
    ("before", "records", "expected"),
    [
        (HALF, 0, (0, None, 0, None)),
        (HALF, 399, (399, None, 0, None)),
        (HALF, 400, (400, None, 0, ResumePoint(400, 9000))),
        (HALF, 500, (500, None, 3, ResumePoint(400, 9000))),
        (HALF, None, (500, 500, 3, None)),
        (DONE, 200, (200, 1000, 0, None)),
        (DONE, 1000, (1000, 1000, 3, None)),
        (DONE, None, (1000, 1000, 3, None)),
        (FAILED, 100, (100, None, 0, None)),
        (FAILED, None, (300, 300, 0, None)),
        (FAILED_REWOUND, None, (200, 200, 0, None)),
        (REWOUND, 700, (700, 1000, 0, None)),
        (REWOUND, None, (1000, 1000, 0, None)),
        (UNSAVED, 300, (300, None, 0, None)),
    ],
)
def test_a_set_position_is_saved_up_to_its_count_in_a_generation_of_its_own(before, records, expected):
    made = change(records).applied(change(records).find([before]), 7)
    assert (made.records_done, made.total, made.skipped, made.mark) == expected
    assert (made.records_saved, made.generation, made.failed) == (made.records_done, 7, False)
    assert (made.version, made.topic_partition, made.modified_ms) == (
        before.version,
        before.topic_partition,
        before.modified_ms,
    )


def test_a_position_that_is_abandoned_can_only_be_set_done():
    """Its partition is gone: a count of records there would be refused at the next start."""
    left = HALF.abandoned()
    with pytest.raises(PositionError, match="/a: its partition is gone, so the next listing reads it from its first"):
        change(0).find([left])
    made = change().applied(change().find([left]), 2)
    assert (made.done, made.records_done) == (True, 0)


def test_what_was_accepted_before_ends_with_its_generation():
    before = HALF.changed(may_begin_again=True)
    assert change(100).applied(before, 2).may_begin_again is False


@pytest.mark.parametrize(
    ("entries", "wanted", "said"),
    [
        ([], change(1), "'a' has no position: it was never begun, or was finished long ago and compacted"),
        ([position("ab", 5)], change(1), "'a' has no position"),
        ([HALF], change(501), "501 is more than the 500 records that are known to be in it .its end is not known yet"),
        ([DONE], change(1001), "1001 is more than the 1000 records that are known to be in it .that is its end"),
        (
            [FAILED],
            change(301),
            "301 is more than the 300 records that are known to be in it .its end is not known yet",
        ),
        ([UNSAVED], change(301), "301 is more than the 300 records"),
        ([UNSAVED], change(), "records 301 to 500 were sent, and a crash of the server could still take them"),
        ([UNSAVED.changed(total=900)], change(301), "records 301 to 500 were sent, and a crash of the server"),
        ([HALF], change(1, version="v2"), "bucket/a: its position is of version 'v1', not of 'v2'"),
        ([HALF.changed(extra={"x": 1})], change(1), "holds data of the source's own code.*offsets reset --key a"),
        ([HALF.changed(bucket="b"), HALF], change(1), "has positions in 2 buckets.*offsets reset --key a"),
        (
            [HALF.changed(bucket="b"), HALF],
            change(1, bucket="c"),
            "in 2 buckets, none of them that of the source",
        ),
        (
            [HALF.changed(split_size=10, split_number=number) for number in (1, 2)],
            change(1),
            "is read in 2 splits or parts, each with a count of its own.*offsets reset --key a",
        ),
        ([HALF.changed(split_size=-2, split_number=1)], change(), "is read in 1 splits or parts"),
    ],
)
def test_a_position_that_cannot_be_set_is_refused_with_the_reason(entries, wanted, said):
    with pytest.raises(PositionError, match=said):
        wanted.find(entries)


def test_of_several_buckets_that_of_the_source_is_meant():
    other = HALF.changed(bucket="b")
    assert change(1, bucket="b").find([HALF, other]) == other
    assert change(1, bucket=HALF.bucket).find([HALF, other]) == HALF
    assert change(1, bucket="another name of the store's").find([HALF]) == HALF


def test_the_version_that_a_position_has_may_be_named():
    assert change(1, version=HALF.version).find([HALF]) == HALF


def test_a_position_in_a_partition_that_is_gone_is_only_set_done():
    """The next start would refuse it: that partition has nothing to go on in."""
    in_last, beyond = (HALF.changed(topic_partition=TopicPartition("t", partition)) for partition in (2, 3))
    assert change(1, partitions=3).find([in_last]) == in_last
    assert change(1).find([beyond]) == beyond, "the number of partitions is not known"
    with pytest.raises(
        PositionError,
        match=r"^bucket/a: its records went to partition 3 of topic t, which has only 3 partitions now; .*reset --key a",
    ):
        change(1, partitions=3).find([beyond])
    assert change(partitions=3).find([beyond]) == beyond
    done = DONE.changed(topic_partition=TopicPartition("t", 3))
    assert change(1000, partitions=3).find([done]) == done
    with pytest.raises(PositionError, match="which has only 3 partitions"):
        change(999, partitions=3).find([done])
    with pytest.raises(PositionError, match="which has only 0 partitions"):
        change(1, partitions=0).find([beyond])


def test_a_count_needs_the_options_that_numbered_the_records():
    other = HALF.changed(numbering_options=TEXT)
    with pytest.raises(PositionMismatchError, match=r"500 records were read with .*text.* now says .*jsonl"):
        change(1).find([other])
    assert change().find([other]) == other, "nothing is numbered any more"
