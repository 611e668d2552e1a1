"""The producer against a connection of futures: what it acknowledges, and what it does not believe."""

import struct
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from framework.errors import (
    IggyTopicError,
    IggyUnavailableError,
    RecordError,
    RecordTooLargeError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.iggy import producer as producer_module
from framework.iggy import topics, wire
from framework.iggy.producer import IggyProducer
from framework.iggy.topics import PartitionDamagedError
from framework.iggy.values import PartitionInfo
from framework.model.batches import RecordBatch
from framework.model.header_encoding import encode_headers
from framework.model.message_ids import MAX_RECORD, MAX_SPLIT, message_id, object_hash64
from framework.model.objects import Anchor, NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from tests.support.header_blocks import decode_headers
from tests.unit.iggy.test_wire import read_request

PARTITION = TopicPartition("orders", 2)
NATIVE = NativeObject(scheme="s3", bucket="lake", key="a/b.jsonl", size=1, version="v1")


class Connection:
    call_timeout_seconds = 0.02

    def __init__(self):
        self.sent = []
        self.objects = []
        self.closed = 0
        self.polls = []
        self.pulled = []
        self.on_pull = None
        self.lost_from = self.lost_until = None
        self.topic = None

    def submit_send(self, stream, topic, partition, body, objects=()):
        self.objects.append(list(objects))
        self.sent.append((stream, topic, partition, body, Future()))
        return self.sent[-1][-1]

    def pull(self, seconds):
        self.pulled.append(seconds)
        if self.on_pull is not None:
            self.on_pull()

    def poll(self, stream, topic, partition, *, offset, count):
        self.polls.append((stream, topic, partition, offset, count))
        if self.lost_from is None or offset < self.lost_from:
            return [SimpleNamespace(offset=offset)]
        return [SimpleNamespace(offset=max(offset, self.lost_until))] if self.lost_until is not None else []

    def get_topic(self, stream, topic):
        return self.topic

    def polled_end(self, stream, topic, partition):
        return self.topic.partitions[0].current_offset

    def close(self):
        self.closed += 1

    def confirm(self, number, base):
        self.sent[number][-1].set_result(base)

    def fail(self, number, error):
        self.sent[number][-1].set_exception(error)


@pytest.fixture
def connection():
    return Connection()


@pytest.fixture
def producer(connection):
    return IggyProducer(connection, stream="lake", source="orders")


def batch(first, payloads, *, topic_partition=PARTITION, native=NATIVE):
    return RecordBatch(
        native=native,
        topic_partition=topic_partition,
        first_record=first,
        payloads=payloads,
        size_bytes=sum(map(len, payloads)),
        entry=OffsetManagerEntry.start(native, topic_partition),
    )


def an_id(record, native=NATIVE):
    return message_id(object_hash64("orders", native.bucket, native.key, native.version), 0, record)


def origin_us(body):
    """The time of origin in the header of a request's batch."""
    (target,) = struct.unpack_from("<I", body)
    return struct.unpack_from("<Q", body, 4 + target + 24)[0]


def test_whoever_asks_for_a_confirmation_has_it_read(producer, connection):
    future = producer.send(PARTITION, [batch(1, [b"a"])])
    assert not future.done()
    assert connection.pulled == [0]
    connection.on_pull = lambda: connection.confirm(0, 7)
    assert future.result(5).anchor.offset == 7
    assert connection.pulled == [0, 5]
    assert future.done()
    assert len(connection.pulled) == 2, "nobody asks for what is there"


class SlowAnswer(Future):
    """An answer that comes in another thread as soon as someone waits for it, and is preempted in its first call."""

    def __init__(self, outcome):
        super().__init__()
        self.outcome = outcome
        self.thread = None

    def add_done_callback(self, call):
        if self.thread is not None:
            super().add_done_callback(call)
            return
        called = threading.Event()

        def preempted(future):
            called.set()
            time.sleep(0.05)
            call(future)

        super().add_done_callback(preempted)
        self.thread = threading.Thread(target=self.answer)
        self.thread.start()
        assert called.wait(5)

    def answer(self):
        if isinstance(self.outcome, BaseException):
            self.set_exception(self.outcome)
        else:
            self.set_result(self.outcome)


def test_an_answer_that_comes_while_a_send_begins_is_taken_once(producer, connection, monkeypatch):
    for outcome in (10, 11, IggyUnavailableError("broke")):
        answer = SlowAnswer(outcome)
        monkeypatch.setattr(connection, "submit_send", lambda *_, answer=answer: answer)
        future = producer.send(PARTITION, [batch(1, [b"a"])])
        if isinstance(outcome, int):
            assert future.result(5).anchor.offset == outcome
        else:
            assert future.exception(5) is outcome
        answer.thread.join()


def test_each_request_tells_its_objects(producer, connection):
    other = attrs.evolve(NATIVE, key="other")
    producer.send(PARTITION, [batch(1, [b"a"]), batch(2, [b"b"]), batch(1, [b"c"], native=other)])
    producer.send(PARTITION, [batch(1, [b"x" * 40_000_000] * 2)])
    assert [set(objects) for objects in connection.objects] == [
        {(NATIVE.bucket, NATIVE.key), (NATIVE.bucket, "other")},
        *[{(NATIVE.bucket, NATIVE.key)}] * 2,
    ]


def test_each_generation_of_an_object_has_ids_of_its_own(producer, connection):
    ids = []
    for number, more in enumerate([{}, {"generation": 2}]):
        made = batch(1, [b"a"])
        future = producer.send(PARTITION, [attrs.evolve(made, entry=made.entry.changed(**more))])
        connection.confirm(number, number)
        ids.append(future.result(60).anchor.message_id)
    assert ids == [
        message_id(object_hash64("orders", NATIVE.bucket, NATIVE.key, NATIVE.version, generation=generation), 0, 1)
        for generation in (1, 2)
    ]


def test_the_anchor_of_a_send_in_several_requests_has_the_origin_of_all_of_them(producer, connection):
    future = producer.send(PARTITION, [batch(1, [b"x" * 5_000_000] * 2)])
    first, second = connection.sent
    assert origin_us(first[3]) == origin_us(second[3])
    connection.confirm(0, 0)
    connection.confirm(1, 1)
    assert future.result(60).anchor == Anchor(1, an_id(2), origin_us(second[3]))


def test_the_anchor_is_the_last_message(producer, connection):
    batches = [batch(5, [b"a", b"b"]), batch(7, [b"c"])]
    future = producer.send(PARTITION, batches)
    assert not future.done()
    connection.confirm(0, 100)
    acknowledged = future.result(60)
    assert acknowledged.anchor == Anchor(102, an_id(7), origin_us(connection.sent[0][3]))
    assert abs(acknowledged.anchor.origin_us / 1e6 - time.time()) < 3600
    assert acknowledged.batches == tuple(batches)
    assert acknowledged.topic_partition == PARTITION
    assert connection.sent[0][:3] == ("lake", "orders", 2)
    assert len(connection.sent) == 1


def test_nothing_to_send_is_acknowledged_at_once(producer, connection):
    assert producer.send(PARTITION, [batch(1, []), batch(1, [])]).result(0).anchor is None
    assert producer.send(PARTITION, []).result(0).batches == ()
    assert connection.sent == []


def test_the_anchor_ignores_an_empty_batch_at_the_end(producer, connection):
    future = producer.send(PARTITION, [batch(1, [b"a"]), batch(2, [])])
    connection.confirm(0, 0)
    assert future.result(60).anchor == Anchor(0, an_id(1), origin_us(connection.sent[0][3]))


@pytest.mark.parametrize("base", [0, 9, 10])
def test_an_offset_confirmed_twice_is_a_loss(producer, connection, base):
    first, second = producer.send(PARTITION, [batch(1, [b"a"])]), producer.send(PARTITION, [batch(2, [b"b"])])
    connection.confirm(0, 10)
    connection.confirm(1, base)
    assert first.result(60).anchor.offset == 10
    with pytest.raises(UnknownOutcomeError, match=rf"stored at offset {base}, but offset 10 was confirmed"):
        second.result(60)
    with pytest.raises(UnknownOutcomeError, match="earlier send failed"):
        producer.send(PARTITION, [batch(3, [b"c"])])


def test_offsets_after_the_end_of_a_batch_only(producer, connection):
    first, second = producer.send(PARTITION, [batch(1, [b"a"] * 5)]), producer.send(PARTITION, [batch(6, [b"b"])])
    connection.confirm(0, 10)
    connection.confirm(1, 14)  # the first batch ended at 14
    assert first.result(60)
    with pytest.raises(UnknownOutcomeError):
        second.result(60)


def test_partitions_have_offsets_of_their_own(producer, connection):
    other = TopicPartition("orders", 3)
    first = producer.send(PARTITION, [batch(1, [b"a"])])
    second = producer.send(other, [batch(1, [b"b"], topic_partition=other)])
    connection.confirm(0, 10)
    connection.confirm(1, 0)
    assert (first.result(60).anchor.offset, second.result(60).anchor.offset) == (10, 0)


def test_recovery_sets_the_bar(producer, connection):
    producer.expect_above(PARTITION, 41)
    producer.expect_above(PARTITION, 7)
    future = producer.send(PARTITION, [batch(1, [b"a"])])
    connection.confirm(0, 41)
    with pytest.raises(UnknownOutcomeError, match="offset 41 was confirmed"):
        future.result(60)


def confirmed_twice(producer, connection):
    for number, base in enumerate((7, 9)):
        producer.send(PARTITION, [batch(2 * number + 1, [b"1", b"2"])])
        connection.confirm(number, base)


def details(current_offset, messages_count=100):
    partition = PartitionInfo(id=2, current_offset=current_offset, messages_count=messages_count, segments_count=1)
    return SimpleNamespace(partitions=(partition,))


def test_the_first_confirmed_message_of_a_partition_is_read_back_once(producer, connection):
    producer.check_delivered()
    assert connection.polls == []
    confirmed_twice(producer, connection)
    producer.check_delivered()
    producer.check_delivered()
    assert connection.polls == [("lake", "orders", 2, 7, 1)]


def test_a_server_that_confirms_and_does_not_deliver_is_noticed(producer, connection, monkeypatch):
    """A real server was seen so after a kill: it confirmed 1,134 messages that no consumer received."""
    monkeypatch.setattr(topics, "DAMAGE_PAUSES_SECONDS", (0.0,))
    confirmed_twice(producer, connection)
    connection.lost_from, connection.topic = 7, details(10)
    said = 'topic "orders", partition 2, of stream "lake": Iggy reports 10 as its last message but does not return message 7'
    for _ in range(2):  # at the flush, and at the last one: neither saves
        with pytest.raises(PartitionDamagedError, match=said):
            producer.check_delivered()


def test_a_hole_is_no_answer_but_the_end_of_what_has_expired_is(producer, connection, monkeypatch):
    """A real server was seen so after two kills: on the way to its disk it dropped messages that it had confirmed."""
    monkeypatch.setattr(topics, "DAMAGE_PAUSES_SECONDS", (0.0,))
    confirmed_twice(producer, connection)
    connection.lost_from, connection.lost_until, connection.topic = 7, 9, details(10)
    with pytest.raises(PartitionDamagedError, match="does not return message 7"):
        producer.check_delivered()
    connection.lost_from = 0
    producer.check_delivered()


def test_what_a_server_may_hold_in_memory_is_read_back_again_until_it_is_on_disk(connection):
    producer = IggyProducer(connection, stream="lake", source="orders", hold_back=lambda _: 3)
    producer.send(PARTITION, [batch(1, [b"1", b"2"])])
    connection.confirm(0, 7)
    for _ in range(2):
        producer.check_delivered()
    producer.send(PARTITION, [batch(3, [b"1", b"2"])])
    connection.confirm(1, 9)
    for _ in range(2):
        producer.check_delivered()
    assert connection.polls == [("lake", "orders", 2, 7, 1)] * 3


@pytest.mark.parametrize(
    "topic", [None, details(3), details(10, 0)], ids=["deleted", "purged and written again", "expired"]
)
def test_a_topic_without_the_message_by_order_is_not_damaged(producer, connection, topic):
    confirmed_twice(producer, connection)
    connection.lost_from, connection.topic = 0, topic
    producer.check_delivered()
    assert len(connection.polls) == 1


@pytest.mark.parametrize(
    ("error", "later"),
    [
        (UnknownOutcomeError("broke"), UnknownOutcomeError),
        (IggyUnavailableError("away"), IggyUnavailableError),
        (IggyTopicError("missing"), IggyUnavailableError),
    ],
)
def test_after_a_failure_nothing_goes_out(producer, connection, error, later):
    first, second = producer.send(PARTITION, [batch(1, [b"a"])]), producer.send(PARTITION, [batch(2, [b"b"])])
    connection.fail(0, error)
    connection.confirm(1, 0)  # cannot happen, and is not believed
    with pytest.raises(type(error)):
        first.result(60)
    with pytest.raises(type(error)):
        second.result(60)
    with pytest.raises(later, match="not sent"):
        producer.send(PARTITION, [batch(3, [b"c"])])
    assert len(connection.sent) == 2


def test_back_pressure(producer, connection):
    producer.send(PARTITION, [batch(1, [b"a"])])
    producer.send(PARTITION, [batch(2, [b"b"])])
    with pytest.raises(IggyUnavailableError, match=r"earlier sends did not end within 0\.06 s"):
        producer.send(PARTITION, [batch(3, [b"c"])])
    connection.confirm(0, 0)
    connection.confirm(1, 1)
    producer.send(PARTITION, [batch(3, [b"c"])])
    assert len(connection.sent) == 3


def test_a_send_that_a_connection_refuses_makes_room_for_the_next(producer, connection, monkeypatch):
    def refuse(*_):
        raise IggyUnavailableError("away")

    monkeypatch.setattr(connection, "submit_send", refuse)
    for _ in range(3):
        with pytest.raises(IggyUnavailableError, match=r"^away$"):
            producer.send(PARTITION, [batch(1, [b"a"])])


def test_a_send_longer_than_a_request_is_cut(producer, connection, monkeypatch):
    monkeypatch.setattr(producer_module, "_MAX_REQUEST_BYTES", 1000)
    future = producer.send(PARTITION, [batch(1, [b"x" * 100] * 10)])
    assert len(connection.sent) > 2
    places = range(0, 10 * len(connection.sent), 10)
    for number, base in enumerate(places):
        assert not future.done()
        connection.confirm(number, base)
    anchor = future.result(60).anchor
    assert anchor.message_id == an_id(10)
    assert anchor.offset >= places[-1]


def test_a_cut_send_that_fails_half_way_is_open(producer, connection, monkeypatch):
    monkeypatch.setattr(producer_module, "_MAX_REQUEST_BYTES", 1000)
    future = producer.send(PARTITION, [batch(1, [b"x" * 100] * 10)])
    connection.confirm(0, 0)
    for number in range(1, len(connection.sent)):
        connection.fail(number, IggyUnavailableError("not sent"))
    with pytest.raises(UnknownOutcomeError, match="may be stored"):
        future.result(60)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (0, "the record is empty, and Iggy stores no empty messages"),
        (wire.MAX_PAYLOAD_BYTES + 1, "the record has 64,000,001 bytes, Iggy stores at most 64,000,000"),
    ],
)
def test_a_record_that_iggy_cannot_store_is_named(producer, connection, size, reason):
    with pytest.raises(RecordError) as caught:
        producer.send(PARTITION, [batch(7, [b"ok", bytes(size)])])
    assert isinstance(caught.value, RecordTooLargeError) == (size > 0)
    assert str(caught.value) == f"s3://lake/a/b.jsonl, record 8: {reason}"
    assert connection.sent == []


@pytest.mark.parametrize(
    ("first", "split_number", "fits"),
    [
        (MAX_RECORD - 1, 0, True),
        (MAX_RECORD, 0, False),
        (1, MAX_SPLIT, True),
        (1, MAX_SPLIT + 1, False),
        (1, -1, False),
    ],
)
def test_a_record_that_no_message_id_can_name_is_refused(producer, connection, first, split_number, fits):
    made = batch(first, [b"a", b"b"])
    made = attrs.evolve(made, entry=made.entry.changed(split_number=split_number, split_size=8))
    if fits:
        producer.send(PARTITION, [made])
    else:
        refused = (
            rf"^s3://lake/a/b.jsonl, record {first + 1}: no message id: at most {MAX_SPLIT} splits and {MAX_RECORD} rec"
        )
        with pytest.raises(RecordError, match=refused):
            producer.send(PARTITION, [made])
    assert len(connection.sent) == fits


def test_a_batch_of_another_partition_is_refused(producer):
    with pytest.raises(ValueError, match="orders/3"):
        producer.send(PARTITION, [batch(1, [b"a"], topic_partition=TopicPartition("orders", 3))])


def test_splits_are_in_ids_and_headers(connection):
    producer = IggyProducer(connection, stream="lake", source="orders")
    whole = batch(9, [b"a"])
    future = producer.send(
        PARTITION, [attrs.evolve(whole, entry=whole.entry.changed(split_number=3, split_size=1 << 20))]
    )
    connection.confirm(0, 0)
    object_hash = object_hash64("orders", "lake", "a/b.jsonl", "v1", 1 << 20)
    assert future.result(60).anchor.message_id == message_id(object_hash, 3, 9)
    assert b"share" in connection.sent[0][3]
    assert b"3/1048576" in connection.sent[0][3]


@pytest.mark.parametrize(("mode", "there"), [("provenance", True), ("none", False)])
def test_headers_can_be_left_out(connection, mode, there):
    IggyProducer(connection, stream="lake", source="orders", headers=mode).send(PARTITION, [batch(1, [b"a"])])
    assert (b"a/b.jsonl" in connection.sent[0][3]) == there


def test_close_twice(producer, connection):
    with producer:
        pass
    producer.close()
    assert connection.closed == 2
    with pytest.raises(TaskClosedError):
        producer.send(PARTITION, [])


# ---- times of origin

DAY_US = 86_400_000_000


def far_apart(count):
    return attrs.evolve(
        batch(1, [b"x"] * count), timestamps_us=np.asarray([1 + number * DAY_US for number in range(count)])
    )


class Answering(Connection):
    """A connection that a thread of its own answers, one request after the other, and that may break at one of them."""

    def __init__(self, breaks_at=None, error=None):
        super().__init__()
        self.breaks_at = breaks_at
        self.error = error
        self.waiting = self.most_waiting = 0

    def submit_send(self, *place):
        future = super().submit_send(*place)
        self.waiting += 1
        self.most_waiting = max(self.waiting, self.most_waiting)
        return future

    def wait(self, future):
        """Answers everything up to this request."""
        for number, (*_, one) in enumerate(self.sent):
            if not one.done():
                self.answer(number)
            if one is future:
                return future.result(0)
        raise AssertionError

    def answer(self, number):
        self.waiting -= 1
        if number == self.breaks_at:
            self.fail(number, self.error)
        else:
            self.confirm(number, number)


def test_times_far_apart_wait_for_earlier_requests():
    connection = Answering()
    producer = IggyProducer(connection, stream="lake", source="orders")
    future = producer.send(PARTITION, [far_apart(30)])
    assert len(connection.sent) == 30
    assert connection.most_waiting == producer_module._MAX_REQUESTS_AHEAD
    connection.wait(connection.sent[-1][-1])
    anchor = future.result(0).anchor
    assert (anchor.offset, anchor.origin_us) == (29, 1 + 29 * DAY_US)


def test_the_last_message_without_a_time_of_origin_has_that_of_its_send(producer, connection):
    future = producer.send(PARTITION, [attrs.evolve(batch(1, [b"x"]), timestamps_us=np.asarray([0]))])
    connection.confirm(0, 0)
    assert future.result(0).anchor.origin_us == origin_us(connection.sent[0][3])


@pytest.mark.parametrize(
    ("error", "later"),
    [(UnknownOutcomeError("broke"), UnknownOutcomeError), (IggyUnavailableError("away"), IggyUnavailableError)],
)
def test_a_break_between_such_requests_has_an_unknown_outcome(error, later):
    connection = Answering(breaks_at=5, error=error)
    producer = IggyProducer(connection, stream="lake", source="orders")
    with pytest.raises(UnknownOutcomeError):
        producer.send(PARTITION, [far_apart(30)])
    assert len(connection.sent) < 30
    with pytest.raises(later, match="an earlier send failed"):
        producer.send(PARTITION, [batch(31, [b"y"])])


def test_headers_that_records_share_in_turn_are_encoded_once_each(producer, monkeypatch):
    encoded = []
    monkeypatch.setattr(
        producer_module, "encode_headers", lambda headers: encoded.append(headers) or encode_headers(headers)
    )
    one, other = {"x": "1"}, {"x": "2"}
    producer.send(PARTITION, [attrs.evolve(batch(1, [b"a", b"b", b"c", b"d"]), headers=[one, other, one, other])])
    assert [headers for headers in encoded if "x" in headers] == [one, other]


def test_own_headers_replace_those_that_name_the_object(producer, connection):
    sent = attrs.evolve(batch(1, [b"a", b"b", b"c"]), headers=[{"x": "1"}, None, {"key.1": "z", "y": 5}])
    producer.send(PARTITION, [sent])
    (request,) = connection.sent
    _, _, _, messages = read_request(request[3])
    found = [decode_headers(headers) for *_, headers in messages]
    names = {"bucket": "lake", "key": "a/b.jsonl", "version": "v1"}
    assert found == [{**names, "x": "1"}, names, {"bucket": "lake", "version": "v1", "key.1": "z", "y": 5}]


def test_records_keep_their_numbers_where_others_between_them_were_filtered(producer, connection):
    sent = attrs.evolve(batch(1, [b"a", b"b", b"c"]), numbers=np.asarray([2, 5, 6]))
    future = producer.send(PARTITION, [sent])
    connection.confirm(0, 0)
    (request,) = connection.sent
    _, _, _, messages = read_request(request[3])
    assert [(message_id, payload) for message_id, payload, _ in messages] == [
        (an_id(2), b"a"),
        (an_id(5), b"b"),
        (an_id(6), b"c"),
    ]
    assert future.result(0).anchor.message_id == an_id(6)
