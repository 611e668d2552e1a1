"""Objects whose names are refused: listed again in each pass, told once."""

from __future__ import annotations

import logging

import pytest

from framework.discovery import new_objects
from framework.errors import ObjectError
from framework.model.objects import NativeObject
from framework.offsets.manager import OffsetManager
from framework.testing.clock import FakeClock
from tests.support.feeds import listing_feed


class Refusing:
    """Every name is wrong."""

    def begin_listing(self):
        pass

    def partition_for(self, native, *, started=False):
        raise ObjectError("its name makes the topic '17'", location=native.location)

    def filtered(self):
        return {}


def natives(count, version="v"):
    return [NativeObject(scheme="s3", bucket="b", key=f"17/{at}", size=1, version=version) for at in range(count)]


def listings(listed, *, tolerant=True):
    """A feed after so many passes, each over what `listed` holds of it."""
    pages = iter(listed)
    feed = listing_feed(
        listing=lambda: iter(next(pages)),
        selection=Refusing(),
        offsets=OffsetManager(),
        numbering_options="",
        poll_interval_seconds=0.0,
        tolerant=tolerant,
        clock=FakeClock(),
    )
    for _ in listed:
        assert feed.take() is None
    return feed


def test_a_refused_object_is_told_once_and_counted_in_each_listing(caplog):
    feed = listings([natives(3)] * 4)
    assert feed.counts.listings == 4
    assert feed.counts.filtered == {"refused for its name": 3}
    assert caplog.messages == [f"skipped: s3://b/17/{at}: its name makes the topic '17'" for at in range(3)]
    caplog.clear()
    listings([natives(1), natives(1, version="w")])
    assert len(caplog.messages) == 2


def test_of_very_many_the_first_are_told(caplog, monkeypatch):
    monkeypatch.setattr(new_objects, "MAX_LOGGED", 5)
    with caplog.at_level(logging.WARNING):
        feed = listings([natives(100)] * 3)
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == "further objects are skipped for their names; they are only counted"
    assert feed.counts.filtered == {"refused for its name": 100}


def test_without_tolerance_it_ends_the_run():
    with pytest.raises(ObjectError, match="17"):
        listings([natives(1)], tolerant=False)
