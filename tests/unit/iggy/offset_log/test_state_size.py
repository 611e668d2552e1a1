"""What positions take, counted at small scale: in the log, in a snapshot, and in memory while a first pass is under way."""

import hashlib

import attrs
import pytest

from framework.iggy.offset_log import snapshots
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import ObjectState
from tests.support.compaction import BEGIN_MS, ClockStore, Leader

KEY = "lake/events/2026/11/part-{:09d}-c000.snappy.jsonl"
IN_A_DELTA = 1000


class Etags(ClockStore):
    """A store whose versions look like those of S3: what they take is most of a position."""

    def list_page(self, **call):
        page = super().list_page(**call)
        return attrs.evolve(page, objects=[attrs.evolve(one, version=version_of(one)) for one in page.objects])


def version_of(native):
    return f"{hashlib.md5(native.key.encode()).hexdigest()}@{native.modified_ms}"


def pass_over(one, count, in_a_delta=IN_A_DELTA):
    """Finishes every object that a first pass shows, without reading it. Returns the most positions that were held."""
    done = most = 0
    one.feed._due = 0
    while (assignment := one.feed.take()) is not None:
        entry = assignment.entry.advanced(1, state=ObjectState.DONE)
        end = RecordBatch(
            native=assignment.native,
            topic_partition=entry.topic_partition,
            first_record=2,
            payloads=(),
            size_bytes=0,
            entry=entry,
        )
        one.session.partitions.open_one(entry.topic_partition)
        one.offsets.commit(Acknowledgement(topic_partition=entry.topic_partition, batches=(end,), anchor=None))
        done += 1
        if done % in_a_delta == 0:
            most = max(most, len(one.offsets.table))
            one.save()
    one.save()
    assert done == count
    return most


def log_bytes(one):
    return sum(len(message.payload) for message in one.server.messages("kit", "kit-offsets"))


def filled(count, *, documented=True):
    store = Etags(documented=documented)
    for number in range(count):
        store.put(KEY.format(number), b"x", modified_ms=BEGIN_MS - 10_000_000 + 1009 * number)
    return store


def test_an_object_inside_the_window_takes_no_more_than_64_bytes_of_the_log():
    one = Leader(filled(5000), window="24h", page_size=1000)
    before = log_bytes(one)
    pass_over(one, 5000)
    assert len(one.offsets.table) == 5000
    assert log_bytes(one) - before <= 64 * 5000
    one.compact()  # a snapshot, too, is no larger: nothing of it goes
    assert len(one.offsets.table) == 5000
    assert log_bytes(one) - before <= 2 * 64 * 5000


@pytest.fixture
def at_once(monkeypatch):
    """Compaction depends on counts only, not on how fast this machine is."""
    monkeypatch.setattr(snapshots, "PAUSE_PARTS", 0)
    monkeypatch.setattr(snapshots, "COMPACT_FROM", 100)


def listed_long_after(count, *, documented):
    store = filled(count, documented=documented)
    store.now_ms += 1000 * 60 * 60 * 48
    return Leader(store, window="24h", page_size=30)


@pytest.mark.usefixtures("at_once")
def test_objects_older_than_the_window_are_held_by_the_hundred_however_many_there_are():
    sizes, most = [], []
    for count in (600, 1800):
        one = listed_long_after(count, documented=True)
        most.append(pass_over(one, count, in_a_delta=30))
        one.session.finish()
        assert len(one.offsets.table) == 0
        assert one.offsets.table.watermark.objects == count
        before = log_bytes(one)
        one.compact()
        sizes.append(log_bytes(one) - before)
    # what makes a snapshot due, what comes while it is written, and the page under way
    assert max(most) <= 2 * 100 + 10 * 30
    assert most[1] <= most[0] + 100
    assert max(sizes) < 1000
    assert sizes[1] <= sizes[0] + 20


@pytest.mark.usefixtures("at_once")
def test_in_a_store_without_an_order_they_are_held_until_the_listing_is_over():
    one = listed_long_after(600, documented=False)
    assert pass_over(one, 600, in_a_delta=30) == 600
    one.session.finish()
    assert len(one.offsets.table) == 0
    assert one.offsets.table.watermark.objects == 600
