"""A store that is away ends a listing or a read, and not a continuous run; one object that is denied ends neither."""

import logging
import threading

import pytest

from framework.discovery.object_feed import AssignedFeed
from framework.engine.run_statistics import RunStatistics
from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ObjectDeniedError,
    StoreUnavailableError,
    ThrottledError,
)
from framework.model.objects import ObjectState
from framework.pipeline.object_reader import MAX_DENIED_IN_A_ROW
from framework.storage.outage import MAX_BROKEN_OBJECTS, OUTAGE_SECONDS, PAUSES, StoreOutage
from framework.testing.fakes.memory_store import MemoryStore
from tests.support.core import commit, drain, iterator_over, lines, next_pass, payloads, put_lines, store_of

AWAY = [StoreUnavailableError("memory://bucket: 500"), ThrottledError("memory://bucket: slow down")]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def over():
    """Iterators with a clock of their own, closed at the end."""
    made = []

    def make(store, clock, **options):
        iterator = iterator_over(store, **options)
        handed = iterator._outage.answered
        iterator._outage = StoreOutage("src", clock=clock)
        iterator._outage.answered = handed
        made.append(iterator)
        return iterator

    yield make
    for iterator in made:
        iterator.close()


@pytest.mark.parametrize("error", AWAY)
def test_a_store_that_is_away_ends_the_listing_and_not_the_run(over, error, caplog):
    store, clock = store_of(a=3), Clock()
    iterator = over(store, clock)
    assert len(payloads(drain(iterator))["a"]) == 3
    fault = store.fail("list_page", error, times=None)
    next_pass(iterator)
    calls = store.count("list_page")
    with caplog.at_level(logging.INFO, "framework"):
        assert iterator.next_batch() is None
        assert iterator.statistics.store_away == 1
        assert 0 < iterator.seconds_until_due <= PAUSES[0]
        asked = store.count("list_page")
        assert asked > calls
        assert iterator.next_batch() is None  # not before the pause is over
        assert store.count("list_page") == asked
        for pause in PAUSES:
            clock.now += pause
            assert iterator.next_batch() is None
        assert store.count("list_page") == asked * (1 + len(PAUSES)) - calls * len(PAUSES)
        assert not iterator.finished
        assert [record.levelname for record in caplog.records if "is away" in record.message] == ["WARNING"]
        fault.times = 0
        put_lines(store, "b", 2)
        clock.now += PAUSES[-1]
        assert payloads(drain(iterator)) == {"b": lines("b", 2)}
    assert iterator.statistics.store_away == 0
    assert "src: the store is back; listing goes on after 28 seconds" in caplog.text


def test_it_is_waited_for_as_long_as_iggy_is(over):
    store, clock = store_of(a=1), Clock()
    iterator = over(store, clock)
    drain(iterator)
    store.fail("list_page", AWAY[0], times=None)
    next_pass(iterator)
    began = clock.now

    def wait():
        while True:
            assert iterator.next_batch() is None
            clock.now += iterator.seconds_until_due

    with pytest.raises(StoreUnavailableError, match="gave up"):
        wait()
    assert OUTAGE_SECONDS <= clock.now - began < OUTAGE_SECONDS + 2 * PAUSES[-1]


def test_a_store_that_never_answered_is_not_waited_for(over):
    store = store_of(a=1)
    store.fail("list_page", AWAY[0], times=None)
    with pytest.raises(StoreUnavailableError):
        over(store, Clock()).next_batch()


def test_one_listing_is_not_waited_for(over):
    store, clock = store_of(a=1, b=1), Clock()
    iterator = over(store, clock, once=True)
    store.fail("open", AWAY[0], key="b", times=None)
    with pytest.raises(StoreUnavailableError):
        drain(iterator)


def test_what_a_person_must_change_is_not_waited_for(over):
    store = store_of(a=1)
    iterator = over(store, Clock())
    drain(iterator)
    store.fail("list_page", BucketNotFoundError("no bucket"))
    next_pass(iterator)
    with pytest.raises(BucketNotFoundError):
        iterator.next_batch()


@pytest.mark.parametrize("error", AWAY)
@pytest.mark.parametrize("at", [0, 5])
def test_an_object_that_cannot_be_read_is_read_on_later_and_others_meanwhile(over, error, at, caplog):
    store, clock = MemoryStore(), Clock()
    store.largest_read = 4
    for name in "abc":
        put_lines(store, name, 5)
    fault = store.fail("read", error, key="b", times=None, at=at)
    iterator = over(store, clock, batch_length=2)
    found = drain(iterator)
    for _ in range(20):
        clock.now += PAUSES[-1]
        found += drain(iterator)
    assert {name: payloads(found)[name] for name in "ac"} == {"a": lines("a", 5), "c": lines("c", 5)}
    assert "read on in a later listing" in caplog.text
    assert not any(batch.native.key == "b" and batch.entry.finished for batch in found)
    commit(iterator.offsets, found)
    fault.times = 0
    next_pass(iterator)
    clock.now += PAUSES[-1]
    more = drain(iterator)
    assert payloads(found + more)["b"] == lines("b", 5)
    assert iterator.statistics.store_away == 0
    assert iterator.statistics.failed == 0


def test_a_few_objects_that_alone_cannot_be_read_never_end_the_run(over, caplog):
    """As of a replica that is broken, in a bucket where nothing else happens."""
    caplog.set_level(logging.DEBUG, "framework")  # after a few lines in ten seconds, the level of the others
    broken = [f"k{number:02}" for number in range(MAX_BROKEN_OBJECTS)]
    store, clock = store_of(**dict.fromkeys(broken, 3)), Clock()
    faults = [store.fail("open", StoreUnavailableError("500"), key=name, times=None) for name in broken]
    iterator = over(store, clock)
    began = clock.now
    while clock.now - began < 3 * OUTAGE_SECONDS:
        assert drain(iterator) == []
        next_pass(iterator)
        clock.now += 60.0
    warnings = [record.message for record in caplog.records if "read on in a later listing" in record.message]
    for name in broken:
        assert sum(f"gave up opening memory://bucket/{name} " in warning for warning in warnings) > 1
    assert (iterator.statistics.store_away, iterator.statistics.failed, iterator.statistics.vanished) == (1, 0, 0)
    put_lines(store, "z", 2)

    def read():
        found = []
        next_pass(iterator)
        for _ in range(len(broken) + 1):  # each of them may end a turn of its own before the others
            clock.now += PAUSES[-1]
            found += drain(iterator)
        return payloads(found)

    assert read() == {"z": lines("z", 2)}
    for fault in faults:
        fault.times = 0
    assert read() == {name: lines(name, 3) for name in broken}
    assert iterator.statistics.store_away == 0


def test_an_outage_is_waited_for_although_objects_were_broken_long_before(over):
    """The wait belongs to the outage: objects that are broken themselves have used nothing of it."""
    store, clock = store_of(a=3), Clock()
    store.fail("open", AWAY[0], times=None)
    iterator = over(store, clock)
    for _ in range(100):  # alone in the bucket, for hours
        assert drain(iterator) == []
        next_pass(iterator)
        clock.now += 60.0
    for number in range(MAX_BROKEN_OBJECTS):
        put_lines(store, f"k{number:02}", 1)
    began = clock.now

    def wait():
        while True:
            assert drain(iterator) == []
            next_pass(iterator)
            clock.now += max(1.0, iterator.seconds_until_due)

    with pytest.raises(StoreUnavailableError):
        wait()
    assert clock.now - began >= OUTAGE_SECONDS


def test_reading_that_never_works_ends_the_run(over):
    store, clock = store_of(**{f"k{number:02}": 1 for number in range(MAX_BROKEN_OBJECTS + 1)}), Clock()
    iterator = over(store, clock)
    store.fail("open", AWAY[0], times=None)
    began = clock.now

    def wait():
        while True:
            drain(iterator)
            next_pass(iterator)
            clock.now += max(1.0, iterator.seconds_until_due)

    with pytest.raises(StoreUnavailableError):
        wait()
    assert clock.now - began >= OUTAGE_SECONDS


def test_a_task_gives_back_what_it_was_handed(over):
    store, clock = store_of(a=2), Clock()
    lister = over(store, clock)
    assignment = lister.feed.take()
    released = []
    feed = AssignedFeed([assignment], on_release=lambda given, gone: released.append((given, gone)))
    store.fail("open", AWAY[0], times=None)
    reader = over(store, clock, feed=feed)
    assert reader.next_batch() is None
    assert released == [(assignment, False)]
    assert reader.statistics.store_away == 1
    reader.close()
    assert reader.statistics.store_away == 0


def test_objects_that_wait_for_the_store_do_not_keep_the_reader_busy(over):
    """A feed that holds objects ends every wait at once; while the store is away only a stop may."""
    store, clock = store_of(a=1), Clock()
    iterator = over(store, clock)
    drain(iterator)
    waited, stop = [], threading.Event()
    iterator.feed.wait = lambda *_: waited.append("feed")
    stop.wait = waited.append
    iterator.wait(0.3, stop)
    assert waited == ["feed"]
    iterator._outage.failed("reading", StoreUnavailableError("away"))
    iterator.wait(0.3, stop)
    iterator.wait(9.0, stop)
    assert waited == ["feed", 0.3, PAUSES[0]]


def test_a_worker_of_a_run_that_goes_on_once_does_not_wait(over):
    store, clock = store_of(a=2), Clock()
    assignment = over(store, clock).feed.take()
    store.fail("open", StoreUnavailableError("memory://bucket: 500"), times=None)
    with pytest.raises(StoreUnavailableError):
        over(store, clock, feed=AssignedFeed([assignment]), once=True).next_batch()


def test_it_is_a_figure():
    assert not RunStatistics(store_away=1).store_up
    assert RunStatistics().store_up


def test_it_shows_while_a_call_is_still_being_tried_again(over):
    iterator = over(store_of(a=3), Clock())
    drain(iterator)
    iterator.log_retry(ThrottledError("memory://bucket: slow down"), 1, 0.0)
    assert iterator.statistics.store_away == 0
    iterator.log_retry(StoreUnavailableError("memory://bucket: 500"), 1, 0.0)
    assert iterator.statistics.store_away == 1
    iterator.store_works("reading")
    assert iterator.statistics.store_away == 0


# ---- an object that is denied


def denied(store, *names, times=None):
    for name in names:
        store.fail("open", AccessDeniedError(f"memory://bucket/{name}: not allowed"), key=name, times=times)


@pytest.mark.parametrize("tolerance", ["skip_record", "skip_object"])
def test_one_object_that_is_denied_is_one_failed_object(over, tolerance):
    store = store_of(a=2, b=2, c=2)
    denied(store, "b")
    iterator = over(store, Clock(), tolerance=tolerance)
    found = drain(iterator)
    assert payloads(found) == {"a": lines("a", 2), "b": [], "c": lines("c", 2)}
    (failed,) = [batch for batch in found if batch.failure]
    assert failed.entry.state is ObjectState.FAILED
    assert type(failed.failure.error) is ObjectDeniedError
    assert str(failed.failure.error) == "memory://bucket/b: not allowed"
    assert iterator.statistics.kinds == {"ObjectDeniedError": 1}
    assert iterator.statistics.failed == 1


def test_without_a_tolerance_it_stops(over):
    store = store_of(a=2, b=2)
    denied(store, "b")
    with pytest.raises(AccessDeniedError):
        drain(over(store, Clock()))


def test_when_all_are_denied_it_is_the_source_that_may_not_read(over):
    names = [f"k{number:02}" for number in range(MAX_DENIED_IN_A_ROW + 3)]
    store = store_of(**dict.fromkeys(names, 1))
    denied(store, *names)
    iterator = over(store, Clock(), tolerance="skip_object")
    with pytest.raises(AccessDeniedError, match=rf"{MAX_DENIED_IN_A_ROW + 1} objects in a row"):
        drain(iterator)
    assert iterator.statistics.failed == MAX_DENIED_IN_A_ROW


def test_denied_objects_between_good_ones_are_not_in_a_row(over):
    names = [f"k{number:02}" for number in range(3 * MAX_DENIED_IN_A_ROW)]
    store = store_of(**dict.fromkeys(names, 1))
    denied(store, *(name for number, name in enumerate(names) if number % 5))
    iterator = over(store, Clock(), tolerance="skip_object")
    drain(iterator)
    assert iterator.statistics.failed == 24
