"""The Iggy in memory is held to a server that speaks the protocol: the same tests on both."""

import time
import uuid

import pytest

from framework.config.iggy_address import IggyAddress
from framework.errors import IggyProtocolError, IggyTopicError, IggyUnavailableError, TaskClosedError
from framework.iggy.connection import IggyConnection
from framework.iggy.producer import IggyProducer
from framework.iggy.reader import read_partition
from framework.iggy.topics import ensure_topic, topic_warnings
from framework.model.batches import RecordBatch
from framework.model.objects import Anchor, NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import Bench, CrashPoint
from tests.conformance.rigs import MemoryRig
from tests.support.core import lines, put_lines
from tests.support.iggy_messages import append

NATIVE = NativeObject(bucket="b", key="a/é", size=9, version="v1")


class OverTheWire:
    """A server of the integration tests behind the names of `MemoryIggy`."""

    on_event = None

    def __init__(self, url):
        self.address = IggyAddress.parse(url)

    def connect(self):
        return IggyConnection(self.address).connect()

    def messages(self, stream, topic, partition=0):
        with self.connect() as connection:
            return list(read_partition(connection, stream, topic, partition))


@pytest.fixture(params=["memory", "wire"])
def server(request):
    return MemoryIggy() if request.param == "memory" else OverTheWire(request.getfixturevalue("iggy_url"))


@pytest.fixture
def connection(server):
    with server.connect() as opened:
        yield opened


@pytest.fixture
def stream():
    return f"s-{uuid.uuid4().hex[:12]}"


def test_what_is_missing_is_none_and_what_is_made_stays(connection, stream):
    assert connection.get_topic(stream, "t") is None
    for _ in range(2):
        connection.ensure_stream(stream)
    assert connection.get_topic(stream, "t") is None
    for _ in range(2):
        connection.create_topic(stream, "t", 3)
    info = connection.get_topic(stream, "t")
    assert [(one.id, one.messages_count, one.current_offset) for one in info.partitions] == [
        (n, 0, 0) for n in range(3)
    ]
    again = connection.get_topic(stream, "t")
    assert (info.id, info.created_at) == (again.id, again.created_at)
    assert topic_warnings(info) == ()
    assert ensure_topic(connection, stream, "t", 3)[0].id == info.id


def test_single_messages_get_offsets_in_order(connection, stream):
    ensure_topic(connection, stream, "t", 2)
    offsets = [append(connection, stream, "t", 1, b"m%d" % n, message_id=n, headers={"n": str(n)}) for n in range(1, 6)]
    assert offsets == [0, 1, 2, 3, 4]
    found = connection.poll(stream, "t", 1, offset=0, count=100)
    assert [(m.offset, m.message_id, m.payload, dict(m.headers)) for m in found] == [
        (n - 1, n, b"m%d" % n, {"n": str(n)}) for n in range(1, 6)
    ]
    assert connection.poll(stream, "t", 0, offset=0, count=100) == []
    assert connection.get_topic(stream, "t").partitions[1].current_offset == 4
    seen = []
    sent = [connection.submit_append(stream, "t", 0, b"x", on_stored=seen.append) for _ in range(2)]
    assert [connection.wait(future) for future in sent] == seen == [0, 1]
    assert len({message.message_id for message in connection.poll(stream, "t", 0, offset=0, count=100)}) == 2


@pytest.mark.parametrize(
    ("offset", "count", "expected"),
    [
        (0, 2, [0, 1]),
        (3, 100, [3, 4]),
        (5, 100, []),
        (99, 1, []),
        ("last", 1, [4]),
        ("last", 2, [3, 4]),
    ],
)
def test_polls_begin_where_they_are_told(connection, stream, offset, count, expected):
    ensure_topic(connection, stream, "t", 1)
    for n in range(5):
        append(connection, stream, "t", 0, b"%d" % n)
    assert [m.offset for m in connection.poll(stream, "t", 0, offset=offset, count=count)] == expected


def test_a_place_before_the_first_message_is_no_place(connection, stream):
    connection.ensure_stream(stream)
    connection.create_topic(stream, "t", 1)
    with pytest.raises(IggyProtocolError):
        connection.poll(stream, "t", 0, offset=-1, count=1)


def test_the_last_message_of_an_empty_partition_is_none(connection, stream):
    ensure_topic(connection, stream, "t", 1)
    assert connection.poll(stream, "t", 0, offset="last", count=1) == []


def test_a_topic_that_is_missing_is_an_error(connection, stream):
    connection.ensure_stream(stream)
    with pytest.raises(IggyTopicError):
        connection.poll(stream, "none", 0, offset=0, count=1)
    with pytest.raises(IggyUnavailableError):
        append(connection, stream, "none", 0, b"x")


def test_the_producer_stores_ids_headers_and_payloads(server, connection, stream):
    ensure_topic(connection, stream, "t", 2)
    topic_partition = TopicPartition("t", 1)
    entry = OffsetManagerEntry.start(NATIVE, topic_partition)
    batches = [
        RecordBatch(
            native=NATIVE,
            topic_partition=topic_partition,
            first_record=1,
            payloads=[b"x", b"yy"],
            size_bytes=3,
            entry=entry,
        ),
        RecordBatch(
            native=NATIVE,
            topic_partition=topic_partition,
            first_record=3,
            payloads=[b"z" * 300],
            size_bytes=300,
            entry=entry,
        ),
    ]
    with IggyProducer(server.connect(), stream=stream, source="kit") as producer:
        acknowledgement = producer.send(topic_partition, batches).result(10)
        found = connection.poll(stream, "t", 1, offset=0, count=10)
        assert [(m.payload, m.message_id & 0xFF) for m in found] == [(b"x", 1), (b"yy", 2), (b"z" * 300, 3)]
        assert [dict(m.headers) for m in found] == [{"bucket": "b", "key": "a/é", "version": "v1"}] * 3
        assert acknowledgement.anchor == Anchor(2, found[-1].message_id, found[-1].origin_us)
        failed = producer.send(
            TopicPartition("none", 0),
            [
                RecordBatch(
                    native=NATIVE,
                    topic_partition=TopicPartition("none", 0),
                    first_record=1,
                    payloads=[b"x"],
                    size_bytes=1,
                    entry=entry,
                )
            ],
        )
        assert isinstance(failed.exception(10), IggyUnavailableError)


def test_who_is_connected_is_listed_until_it_leaves(server, connection):
    other = server.connect()
    mine, theirs = connection.own_client(), other.own_client()
    assert mine != theirs
    assert {mine, theirs} <= set(connection.clients())
    other.close()
    for _ in range(500):
        if theirs not in connection.clients():
            break
        time.sleep(0.01)
    else:
        pytest.fail("the client never left")
    with pytest.raises(TaskClosedError):
        other.clients()


@pytest.mark.parametrize("at", [3, 8, 13, 17])
def test_a_process_that_died_is_recovered_from(server, stream, at):
    rig, expected = MemoryRig(), []
    for name, count in {"a": 5, "b": 7, "c": 11}.items():
        put_lines(rig.store, name, count)
        expected += lines(name, count)
    bench = Bench(rig, server=server, stream=stream, batch_length=4, queue_records=13, linger_time=0.0)
    bench.live(CrashPoint(at))
    ends = bench.live(CrashPoint())
    stored = [payload for values in bench.stored().values() for _, payload in values]
    assert sorted(stored) == sorted(expected)
    assert sorted((entry.key, entry.records_done, entry.finished) for entry in ends) == [
        ("a", 5, True),
        ("b", 7, True),
        ("c", 11, True),
    ]
