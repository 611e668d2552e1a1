"""The scope of `offsets reset`: which objects it includes, which listing hints it drops, and its stored form."""

import pytest

from framework.offsets.position_filter import PositionFilter
from framework.offsets.watermark import CoveredRange, Watermark

ALL = [PositionFilter(), PositionFilter(prefix="")]
KEYS = ["", "a", "a/", "a/b", "a/bc", "b"]


@pytest.mark.parametrize(
    ("reset", "taken"),
    [
        (PositionFilter(), KEYS),
        (PositionFilter(prefix=""), KEYS),
        (PositionFilter(prefix="a/"), ["a/", "a/b", "a/bc"]),
        (PositionFilter(key="a/b"), ["a/b"]),
        (PositionFilter(key="a/b", prefix="b"), ["a/b"]),
        (PositionFilter(key=""), [""]),
    ],
)
def test_a_reset_takes_one_object_or_a_prefix_or_everything(reset, taken):
    assert [key for key in KEYS if reset.takes(key)] == taken
    assert reset.everything is (reset in ALL)


@pytest.mark.parametrize(
    ("reset", "taken"),
    [
        (PositionFilter(), ["x/a", "x/b", "y/a", "y/b"]),
        (PositionFilter(key="a"), ["x/a", "y/a"]),
        (PositionFilter(bucket="x"), ["x/a", "x/b"]),
        (PositionFilter(key="a", bucket="x"), ["x/a"]),
        (PositionFilter(prefix="b", bucket="y"), ["y/b"]),
    ],
)
def test_dead_letters_are_those_of_one_bucket_or_of_all(reset, taken):
    assert [f"{bucket}/{key}" for bucket in "xy" for key in "ab" if reset.takes_object(bucket, key)] == taken


@pytest.mark.parametrize(
    ("reset", "prefix", "touched"),
    [
        (PositionFilter(), "a/", True),
        (PositionFilter(key="a"), "", True),
        (PositionFilter(key="a/b"), "a/", True),
        (PositionFilter(key="a"), "a/", False),
        (PositionFilter(key="a"), "b/", False),
        (PositionFilter(prefix="a/b"), "a/", True),
        (PositionFilter(prefix="a/"), "a/b/", True),
        (PositionFilter(prefix="a/"), "b/", False),
        (PositionFilter(prefix="a/"), "", True),
    ],
)
def test_hints_are_dropped_of_every_prefix_that_may_hold_an_object_of_the_reset(reset, prefix, touched):
    assert reset.touches(prefix) is touched


def test_the_watermark_hides_none_of_the_objects_any_more():
    mark = Watermark(bucket="b").raised("", CoveredRange("", None, 5))

    def hidden(reset):
        opened = reset.removed_from(mark)
        return [key for key in KEYS if key and opened.covers("b", key, 1)]

    assert hidden(PositionFilter(key="a/b")) == ["a", "a/", "a/bc", "b"]
    assert hidden(PositionFilter(prefix="a/")) == ["a", "b"]
    assert hidden(PositionFilter(prefix="")) == hidden(PositionFilter()) == []


def test_a_source_that_is_reset_as_a_whole_has_finished_nothing():
    """What was compacted is counted again when it is read again."""
    mark = Watermark(bucket="b").raised("", CoveredRange("", None, 5)).with_compacted({"": 7}, records=70)
    for reset in (PositionFilter(), PositionFilter(prefix="")):
        assert reset.removed_from(mark) == Watermark()
