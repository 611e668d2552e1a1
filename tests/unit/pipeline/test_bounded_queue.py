"""The bounded queue: bounds in records and bytes, back-pressure, and ends of every wait."""

import threading

import attrs
import pytest

from framework.errors import TaskClosedError
from framework.model.batches import RecordBatch
from framework.model.header_encoding import EncodedHeaders
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.pipeline.bounded_queue import BoundedQueue

PARTITION = TopicPartition("t", 0)
NATIVE = NativeObject(bucket="b", key="k", size=9, version="v1")


def batch(records, size_each=1):
    return RecordBatch(
        native=NATIVE,
        topic_partition=PARTITION,
        first_record=1,
        payloads=[b"x" * size_each] * records,
        size_bytes=records * size_each,
        entry=OffsetManagerEntry.start(NATIVE, PARTITION),
    )


def with_headers(records, size_each):
    """A batch of records of one byte, each with headers of its own."""
    headers = [EncodedHeaders({"n": "x" * size_each}) if number else None for number in range(records)]
    return attrs.evolve(batch(records), headers=headers)


def queue(records=10, size_bytes=100):
    return BoundedQueue(max_records=records, max_bytes=size_bytes)


class Putting:
    """A thread that puts one batch; tells whether it got through."""

    def __init__(self, target, one):
        self.error = None
        self._thread = threading.Thread(target=self._put, args=(target, one), daemon=True)
        self._thread.start()

    def _put(self, target, one):
        try:
            target.put(one)
        except TaskClosedError as error:
            self.error = error

    def ended(self, seconds):
        self._thread.join(seconds)
        return not self._thread.is_alive()


def test_headers_of_records_take_room_too():
    """A record may be one byte, and have 90,000 bytes of headers."""
    q, first, second = queue(), with_headers(2, 60), with_headers(2, 20)
    each = 5 + len("n") + 5
    assert (first.held_bytes, second.held_bytes) == (2 + each + 60, 2 + each + 20)
    q.put(first)
    putting = Putting(q, second)
    assert not putting.ended(0.05)
    assert q.take(100) == [first]
    assert putting.ended(30)
    assert q.size_bytes == second.held_bytes
    assert q.take(100) == [second]
    assert q.size_bytes == 0


def test_batches_come_out_in_order_and_are_counted():
    q = queue()
    first, second = batch(3), batch(4, 2)
    q.put(first)
    q.put(second)
    assert (len(q), q.records, q.size_bytes) == (2, 7, 11)
    assert q.take(100) == [first, second]
    assert (len(q), q.records, q.size_bytes) == (0, 0, 0)


def test_a_take_gives_whole_batches_up_to_its_limit_and_one_larger_one_alone():
    q = queue()
    batches = [batch(3), batch(3), batch(4)]
    for one in batches:
        q.put(one)
    assert q.take(7) == batches[:2]
    assert q.take(1) == batches[2:]


@pytest.mark.parametrize(("fitting", "second"), [(batch(8), batch(3)), (batch(2, 45), batch(1, 11))])
def test_a_batch_beyond_a_bound_waits_until_there_is_room(fitting, second):
    q = queue()
    for _ in range(2):
        before = q.blocked_seconds
        q.put(fitting)
        putting = Putting(q, second)
        assert not putting.ended(0.05)
        assert (len(q), q.records) == (1, len(fitting.payloads))
        assert q.take(100) == [fitting]
        assert putting.ended(60)
        assert q.take(100) == [second]
        assert 0 < q.blocked_seconds - before < 60


@pytest.mark.parametrize("each", [batch(2), batch(1, 20)])
def test_a_blocked_reader_is_woken_once_half_of_the_queue_is_free(each, monkeypatch):
    q, woken = queue(), []
    for _ in range(5):
        q.put(each)
    putting = Putting(q, each)
    while not q._waiting:
        assert not putting.ended(0.001)
    notify = q._changed.notify_all
    monkeypatch.setattr(q._changed, "notify_all", lambda: (woken.append(len(q)), notify())[1])
    for left in (4, 3):
        q.take(1)
        assert (len(q), woken) == (left, [])
    q.take(1)
    assert woken == [2]
    assert putting.ended(60)


def test_a_batch_at_the_bound_fits():
    q = queue()
    q.put(batch(8))
    assert Putting(q, batch(2)).ended(60)
    assert q.records == 10


def test_a_batch_larger_than_a_bound_goes_in_alone():
    q = queue()
    q.put(batch(50))
    assert q.records == 50
    putting = Putting(q, batch(1))
    assert not putting.ended(0.05)
    q.take(100)
    assert putting.ended(60)


def test_batches_without_records_are_bounded_too():
    q = queue(records=10)
    for _ in range(10):
        assert Putting(q, batch(0)).ended(60)
    putting = Putting(q, batch(0))
    assert not putting.ended(0.05)
    q.take(0)
    assert putting.ended(60)
    q.take(100)
    assert (q.records, q.size_bytes, len(q)) == (0, 0, 0)


def test_taking_waits_for_the_first_batch():
    q = queue()
    taken = []
    taker = threading.Thread(target=lambda: taken.extend(q.take(100, timeout_seconds=60)), daemon=True)
    taker.start()
    q.put(batch(1))
    taker.join(30)
    assert len(taken) == 1


def test_taking_ends_empty_handed_after_its_time():
    assert queue().take(100) == []
    assert queue().take(100, timeout_seconds=0.001) == []


@pytest.mark.parametrize("end", ["wake", "close"])
def test_taking_ends_empty_handed_when_it_is_woken_or_the_queue_closes(end):
    q = queue()
    taker = threading.Thread(target=q.take, args=(100,), kwargs={"timeout_seconds": 60}, daemon=True)
    taker.start()
    while taker.is_alive():  # it may not be waiting yet
        getattr(q, end)()
        taker.join(0.01)


def test_closing_ends_a_put_that_waits_and_every_later_one():
    q = queue()
    q.put(batch(10))
    putting = Putting(q, batch(1))
    assert not putting.ended(0.05)
    q.close()
    q.close()
    assert putting.ended(60)
    assert isinstance(putting.error, TaskClosedError)
    with pytest.raises(TaskClosedError):
        q.put(batch(1))


def test_what_is_inside_can_be_taken_after_the_end_without_waiting():
    q = queue()
    q.put(batch(2))
    q.close()
    assert len(q.take(100, timeout_seconds=60)) == 1
    assert q.take(100, timeout_seconds=60) == []
