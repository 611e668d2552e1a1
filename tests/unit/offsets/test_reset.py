"""The scope of `offsets reset`: which objects it includes, which listing hints it drops, and its stored form."""

import pytest

from framework.offsets.reset import Reset
from framework.offsets.watermark import CoveredRange, Watermark
from tests.support.positions import position

ALL = [Reset(), Reset(prefix="")]
KEYS = ["", "a", "a/", "a/b", "a/bc", "b"]


@pytest.mark.parametrize(
    ("reset", "taken"),
    [
        (Reset(), KEYS),
        (Reset(prefix=""), KEYS),
        (Reset(prefix="a/"), ["a/", "a/b", "a/bc"]),
        (Reset(key="a/b"), ["a/b"]),
        (Reset(key="a/b", prefix="b"), ["a/b"]),
        (Reset(key=""), [""]),
    ],
)
def test_a_reset_takes_one_object_or_a_prefix_or_everything(reset, taken):
    assert [key for key in KEYS if reset.takes(key)] == taken
    assert [key for key in KEYS if reset.takes_entry(position(key))] == taken
    assert reset.everything is (reset in ALL)


@pytest.mark.parametrize(
    ("reset", "taken"),
    [
        (Reset(), ["x/a", "x/b", "y/a", "y/b"]),
        (Reset(key="a"), ["x/a", "y/a"]),
        (Reset(bucket="x"), ["x/a", "x/b"]),
        (Reset(key="a", bucket="x"), ["x/a"]),
        (Reset(prefix="b", bucket="y"), ["y/b"]),
    ],
)
def test_dead_letters_are_those_of_one_bucket_or_of_all(reset, taken):
    assert [f"{bucket}/{key}" for bucket in "xy" for key in "ab" if reset.takes_object(bucket, key)] == taken


@pytest.mark.parametrize(
    ("reset", "prefix", "touched"),
    [
        (Reset(), "a/", True),
        (Reset(key="a"), "", True),
        (Reset(key="a/b"), "a/", True),
        (Reset(key="a"), "a/", False),
        (Reset(key="a"), "b/", False),
        (Reset(prefix="a/b"), "a/", True),
        (Reset(prefix="a/"), "a/b/", True),
        (Reset(prefix="a/"), "b/", False),
        (Reset(prefix="a/"), "", True),
    ],
)
def test_hints_are_dropped_of_every_prefix_that_may_hold_an_object_of_the_reset(reset, prefix, touched):
    assert reset.touches(prefix) is touched


def test_the_watermark_hides_none_of_the_objects_any_more():
    mark = Watermark(bucket="b").raised("", [CoveredRange("", None, 5)])

    def hidden(reset):
        opened = reset.opened(mark)
        return [key for key in KEYS if key and opened.covers("b", key, 1)]

    assert hidden(Reset(key="a/b")) == ["a", "a/", "a/bc", "b"]
    assert hidden(Reset(prefix="a/")) == ["a", "b"]
    assert hidden(Reset(prefix="")) == hidden(Reset()) == []
