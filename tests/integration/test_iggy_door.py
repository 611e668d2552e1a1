"""The door to Iggy against a server: the real one that IGGY_TEST_URL names, else the embedded one."""

import asyncio
import gc
import multiprocessing
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import attrs
import numpy as np
import pytest

from framework.config.iggy_address import IggyAddress
from framework.engine.topic_checks import offsets_topic_refusal
from framework.errors import (
    ConfigError,
    FatalError,
    IggyAuthError,
    IggyProtocolError,
    IggyTopicError,
    IggyUnavailableError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.iggy import connection as connection_module
from framework.iggy import protocol, wire
from framework.iggy.connection import IggyConnection
from framework.iggy.embedded.launcher import EmbeddedServer
from framework.iggy.header_decoding import join_provenance
from framework.iggy.producer import IggyProducer
from framework.iggy.reader import read_partition, read_topic
from framework.iggy.send_connection import SendConnection
from framework.iggy.topics import ensure_topic
from framework.iggy.wire import Segment
from framework.model.batches import RecordBatch
from framework.model.header_encoding import encode_headers
from framework.model.header_kinds import NUMBER_KINDS, header_number
from framework.model.message_ids import message_id, object_hash64
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from tests.integration import iggy_rig
from tests.support.client_messages import send_by_client
from tests.support.iggy_messages import append
from tests.support.stopwatch import Stopwatch

NATIVE = NativeObject(scheme="s3", bucket="lake", key="a/\u00fc b.jsonl" + "\u00e9" * 400, size=1, version="etag@1")


@pytest.fixture
def address(iggy_url):
    return IggyAddress.parse(iggy_url)


@pytest.fixture(params=["through the client", "over a socket"])
def opened(request):
    """Open a connection that sends through the official client, or over a socket of its own."""

    def connect(address, **options):
        made = IggyConnection(address, **options).connect()
        if request.param == "over a socket":
            made.open_sending()
        return made

    return connect


@pytest.fixture
def connection(address, opened):
    with opened(address) as made:
        yield made


@pytest.fixture
def topic_partition(connection, stream_name):
    ensure_topic(connection, stream_name, "orders", 3)
    return TopicPartition("orders", 1)


def batch(topic_partition, first, payloads, native=NATIVE):
    entry = OffsetManagerEntry.start(native, topic_partition)
    return RecordBatch(
        native=native, topic_partition=topic_partition, first_record=first, payloads=payloads, size_bytes=0, entry=entry
    )


KINDS = {
    "text": "\u00fc",
    "raw": b"\xff\x00",
    "yes": True,
    "no": False,
    "low": -5,
    "small": 7,
    "high": 2**64 - 1,
    "half": 0.1,
    **{kind: header_number(kind, 7) for kind in NUMBER_KINDS},
    **{f"lowest {kind}": header_number(kind, -7) for kind in NUMBER_KINDS if not kind.startswith("u")},
}
"""A header of each kind of values."""


def seen(messages):
    return [(one.message_id, one.payload, dict(one.headers)) for one in messages]


# ---- connecting


def test_who_is_connected(address, connection):
    own = connection.own_client()
    with IggyConnection(address).connect() as other:
        gone = other.own_client()
        assert {own.client_id, gone.client_id} <= {client.client_id for client in connection.clients()}
        assert own in other.clients()
    wait_until(lambda: gone.client_id not in {client.client_id for client in connection.clients()})


def test_a_poll_behind_the_end_tells_the_end(connection, topic_partition, stream_name):
    assert connection.polled_end(stream_name, "orders", 1) == 0
    for number in range(7):
        append(connection, stream_name, "orders", 1, b"%d" % number)
    assert connection.polled_end(stream_name, "orders", 1) == 6
    assert connection.polled_end(stream_name, "orders", 0) == 0


def test_the_server_tells_a_version_we_know(connection):
    assert connection.server_version().startswith("0.9.")


def test_a_wrong_password_names_user_and_host_and_no_secret(address):
    wrong = IggyAddress(host=address.host, port=address.port, user=address.user, password="hush-hush")
    with pytest.raises(IggyAuthError) as caught:
        IggyConnection(wrong).connect()
    assert f'user "{address.user}"' in str(caught.value)
    assert address.server in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_wrong_token(address):
    with pytest.raises(IggyAuthError, match="the access token"):
        IggyConnection(IggyAddress(host=address.host, port=address.port, token="nonsense")).connect()


def test_host_names_are_resolved(address):
    if address.host != "127.0.0.1":
        pytest.skip("the server is not on this machine")
    named = IggyAddress(host="localhost", port=address.port, user=address.user, password=address.password)
    with IggyConnection(named).connect() as connection:
        assert connection.own_client().client_id


def test_nobody_listens():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = IggyAddress.parse(f"iggy://ann:secret@127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(IggyUnavailableError, match=str(address.port)):
            IggyConnection(address).connect()


def test_a_name_that_does_not_exist():
    with pytest.raises(IggyUnavailableError, match=r"host no\.such\.host\.invalid was not resolved"):
        IggyConnection(IggyAddress.parse("iggy://ann:secret@no.such.host.invalid")).connect()


def test_a_server_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = IggyAddress.parse(f"iggy://ann:secret@127.0.0.1:{silent.getsockname()[1]}")
        begun = Stopwatch()
        with pytest.raises(IggyUnavailableError, match=r"no answer"):
            IggyConnection(address, connect_timeout_seconds=0.3).connect()
        assert begun.seconds < 3


def test_something_else_listens():
    with socket.create_server(("127.0.0.1", 0)) as other:

        def speak():
            peer, _ = other.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 300)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(speak)
            address = IggyAddress.parse(f"iggy://ann:secret@127.0.0.1:{other.getsockname()[1]}")
            with pytest.raises((IggyUnavailableError, IggyProtocolError)):
                IggyConnection(address, connect_timeout_seconds=2).connect()


def test_tls_to_a_server_without_it(address):
    tls = IggyAddress(host=address.host, port=address.port, user="ann", password="secret", tls=True)
    with pytest.raises(IggyUnavailableError):
        IggyConnection(tls, connect_timeout_seconds=3).connect()


def test_an_embedded_address_has_to_be_started():
    with pytest.raises(ConfigError, match=r"framework\.iggy\.embedded"):
        IggyConnection(IggyAddress.parse("embedded:somewhere")).connect()


def test_life_of_a_connection(address):
    connection = IggyConnection(address)
    with pytest.raises(TaskClosedError, match="not made yet"):
        connection.own_client()
    with connection:
        assert connection.own_client()
        with pytest.raises(TaskClosedError, match="made once"):
            connection.connect()
    connection.close()
    with pytest.raises(TaskClosedError, match="was closed"):
        connection.own_client()
    assert "closed" in repr(connection)
    assert str(address.password) + "@" not in repr(connection)


def test_a_closed_connection_is_gone_from_the_server_while_the_object_lives(connection, address):
    closed = IggyConnection(address).connect()
    number = closed.own_client().client_id
    closed.close()
    deadline = time.monotonic() + 30
    while any(client.client_id == number for client in connection.clients()):
        assert time.monotonic() < deadline, "the server still has it"
        time.sleep(0.01)


def test_closing_ends_an_attempt_to_connect_that_nothing_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        address = IggyAddress(host="127.0.0.1", port=silent.getsockname()[1], user="ann", password="secret")
        connection = IggyConnection(address, connect_timeout_seconds=300)
        attempt = pool.submit(connection.connect)
        with silent.accept()[0]:
            connection.close()
            with pytest.raises(IggyUnavailableError, match="closed before it was open"):
                attempt.result(60)


def test_an_attempt_that_fails_after_it_was_closed_is_not_in_the_log(address, monkeypatch, caplog):
    """asyncio writes a traceback of each failure that nobody has asked for."""
    begun, ended = threading.Event(), threading.Event()

    async def open_client(*_):
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(0.01, ended.set)
            raise IggyUnavailableError("connection refused") from None

    monkeypatch.setattr(connection_module, "open_client", open_client)
    connection = IggyConnection(address)
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(connection.connect)
        assert begun.wait(60)
        connection.close()
        with pytest.raises(IggyUnavailableError, match="closed before it was open"):
            attempt.result(60)
    assert ended.wait(60)
    del attempt, connection  # they know the failure
    gc.collect()
    assert caplog.text == ""


def _use(connection, address, answers):
    for go in (connection.own_client, lambda: IggyConnection(address).connect(), connection.close):
        try:
            go()
        except FatalError as error:
            answers.put(f"{type(error).__name__}: {error}")
        else:
            answers.put("worked")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_told_so(connection, address):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_use, args=(connection, address, answers))
    child.start()
    try:
        used, made, closed = (answers.get(timeout=60) for _ in range(3))
    finally:
        child.kill()
        child.join()
    assert "does" not in used
    assert used.startswith("FatalError: a connection to Iggy was made in process")
    assert made.startswith("FatalError: a connection to Iggy was made in process")
    assert closed == "worked"
    assert connection.own_client()


def test_a_script_ends_cleanly(iggy_url):
    script = (
        "import sys; from framework.iggy.connection import IggyConnection; from framework.config.iggy_address import IggyAddress\n"
        "assert 'apache_iggy' not in sys.modules\n"
        "connection = IggyConnection(IggyAddress.parse(sys.argv[1])).connect(); print(bool(connection.own_client()))"
    )
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", script, iggy_url], capture_output=True, timeout=60, text=True)
        assert (ended.returncode, ended.stdout.strip()) == (0, "True"), ended.stderr


# ---- streams and topics


def test_streams_and_topics_are_made_once(connection, stream_name):
    assert connection.get_topic(stream_name, "t") is None
    for _ in range(2):
        connection.ensure_stream(stream_name)
        connection.create_topic(stream_name, "t", 2)
    info = connection.get_topic(stream_name, "t")
    assert (info.name, info.stream, [one.id for one in info.partitions]) == ("t", stream_name, [0, 1])
    assert info.persisted
    assert info.messages_required_to_save == 1
    assert (info.expiry_microseconds, info.max_bytes) == (None, None)
    assert abs(info.created_at / 1e6 - time.time()) < 3600
    again, warnings = ensure_topic(connection, stream_name, "t", 2)
    assert (again.id, again.created_at, warnings) == (info.id, info.created_at, ())
    with pytest.raises(IggyTopicError, match="has 2 partitions, the configuration says 1"):
        ensure_topic(connection, stream_name, "t", 1)


def test_an_expiry_and_a_size_that_were_sent_as_texts_are_known(connection, iggy_url, stream_name):
    ensure_topic(connection, stream_name, "t", 1)

    async def update():
        client = await iggy_rig.connect(iggy_url)
        await client.update_topic(stream_name, "t", "t", options={"message_expiry": "1h", "max_topic_size": "2GB"})

    iggy_rig.run(update())
    info = connection.get_topic(stream_name, "t")
    assert (info.expiry_microseconds, info.max_bytes) == (3600 * 10**6, 2 * 10**9)
    assert "drops old messages (message_expiry, max_topic_size)" in offsets_topic_refusal(info)


def test_many_at_once_make_the_same_topic(address, stream_name):
    def make(_):
        with IggyConnection(address).connect() as one:
            return ensure_topic(one, stream_name, "t", 2)[0].created_at

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(make, range(4)))) == 1


@pytest.mark.parametrize("name", ["", "x" * 256, "17"])
def test_names_that_cannot_be(connection, name):
    with pytest.raises(ConfigError):
        connection.get_topic(name, "t")
    with pytest.raises(ConfigError):
        connection.ensure_stream(name)
    with pytest.raises(ConfigError):
        connection.poll("s", name, 0, offset=0, count=1)


def test_missing_things_are_named(connection, topic_partition, stream_name):
    with pytest.raises(IggyTopicError, match=f'make topic "t" in stream "{stream_name}-2"'):
        connection.create_topic(f"{stream_name}-2", "t", 1)
    with pytest.raises(IggyTopicError, match=f'topic "none", partition 0, of stream "{stream_name}"'):
        connection.poll(stream_name, "none", 0, offset=0, count=1)
    with pytest.raises(IggyTopicError, match='topic "orders", partition 9'):
        connection.poll(stream_name, "orders", 9, offset=0, count=1)
    assert connection.own_client()
    with pytest.raises(IggyUnavailableError, match='send to topic "none", partition 0'):
        append(connection, stream_name, "none", 0, b"x")
    with pytest.raises(IggyUnavailableError, match="not sent"):
        connection.own_client()


# ---- messages


def test_both_encoders_store_the_same(connection, topic_partition, stream_name):
    chance = random.Random(7)
    segments = [
        Segment(
            id_high=chance.getrandbits(64),
            split_number=split_number,
            first_record=chance.randrange(1, 2**39),
            payloads=[chance.randbytes(chance.randrange(1, 700)) for _ in range(count)],
            headers=encode_headers({"bucket": "lake", "key": key, "version": "v"} if key else {}),
        )
        for count, split_number, key in [(1, 0, "k"), (1013, 5, "\u00e9" * 511), (7, 2**24 - 1, ""), (2, 0, "x" * 255)]
    ]
    raw = connection.send_raw(stream_name, "orders", 0, wire.encode_send(stream_name, "orders", 0, segments))
    slow = send_by_client(connection, stream_name, "orders", 2, segments)
    assert raw == 0
    assert slow == [(2, 0)]
    ours, theirs = (list(read_partition(connection, stream_name, "orders", number)) for number in (0, 2))
    assert len(ours) == 1023
    assert seen(ours) == seen(theirs)
    assert [one.offset for one in ours] == list(range(1023))
    expected = [
        (message_id(one.id_high, one.split_number, number), payload)
        for one in segments
        for number, payload in enumerate(one.payloads, one.first_record)
    ]
    assert [(one.message_id, one.payload) for one in ours] == expected
    assert join_provenance(ours[1].headers)["key"] == "\u00e9" * 511


def kinds_in(message):
    """Headers as the client shows them: with their kinds."""
    return message.id(), message.payload(), {str(name): repr(value) for name, value in message.user_headers().items()}


@pytest.mark.parametrize("own", [True, False])
def test_both_encoders_give_headers_the_same_kinds(connection, topic_partition, stream_name, monkeypatch, own):
    """A consumer reads a 64-bit number as one, whichever of the two encoded it; and bytes of any type are sent."""
    block = encode_headers(KINDS)
    segment = Segment(
        id_high=1,
        first_record=9,
        payloads=[memoryview(b"of a format"), bytearray(b"of another")],
        headers=block,
        numbers=np.array([9, 12]),
        own_headers=[block, encode_headers({"bucket": "lake"})] if own else None,
    )
    connection.send_raw(stream_name, "orders", 0, wire.encode_send(stream_name, "orders", 0, [segment]))
    send_by_client(connection, stream_name, "orders", 2, [segment])
    monkeypatch.setattr("framework.iggy.connection._stored_messages", lambda messages: list(map(kinds_in, messages)))
    ours, theirs = (connection.poll(stream_name, "orders", number, offset=0, count=9) for number in (0, 2))
    assert ours == theirs
    assert [len(headers) for *_, headers in ours] == [len(KINDS), 1 if own else len(KINDS)]


def test_headers_times_and_numbers_of_each_record(connection, topic_partition, stream_name):
    own = {"text": "\u00e9", "raw": b"\x00\xff", "yes": True, "no": False, "low": -5, "high": 2**64 - 1, "half": 0.5}
    day = 86_400_000_000
    times = np.asarray([day, 0, day + 5, 400 * day], dtype=np.int64)
    sent = attrs.evolve(
        batch(topic_partition, 1, [b"a", b"b", b"c", b"d"]),
        numbers=np.asarray([2, 3, 5, 9]),
        headers=[own, None, {"key": "other"}, own],
        timestamps_us=times,
    )
    producer = IggyProducer(connection, stream=stream_name, source="kit")
    acknowledged = producer.send(topic_partition, [sent]).result(60)
    found = list(read_partition(connection, stream_name, "orders", 1))
    assert [one.message_id & 0xFFFFFFFFFF for one in found] == [2, 3, 5, 9]
    assert [found[0].origin_us, found[2].origin_us, found[3].origin_us] == [day, day + 5, 400 * day]
    assert abs(found[1].origin_us / 1e6 - time.time()) < 3600
    assert {name: found[0].headers[name] for name in own} == own
    assert join_provenance(found[0].headers)["key"] == NATIVE.key
    assert join_provenance(found[1].headers) == {"bucket": "lake", "key": NATIVE.key, "version": "etag@1"}
    assert join_provenance(found[2].headers) == {"bucket": "lake", "key": "other", "version": "etag@1"}
    anchor = acknowledged.anchor
    assert (anchor.offset, anchor.message_id, anchor.origin_us) == (3, found[3].message_id, 400 * day)


def test_times_far_apart_need_many_requests(connection, topic_partition, stream_name):
    times = np.asarray([1 + (number * 7919 % 101) * 86_400_000_000 for number in range(60)], dtype=np.int64)
    sent = attrs.evolve(batch(topic_partition, 1, [b"%d" % number for number in range(60)]), timestamps_us=times)
    producer = IggyProducer(connection, stream=stream_name, source="kit")
    assert producer.send(topic_partition, [sent]).result(60).anchor.offset == 59
    found = list(read_partition(connection, stream_name, "orders", 1))
    assert [one.origin_us for one in found] == times.tolist()
    assert [one.message_id & 0xFFFFFFFFFF for one in found] == list(range(1, 61))


@pytest.mark.parametrize("length", [1, 254, 255, 256, 510, 511])
def test_header_borders(connection, topic_partition, stream_name, length):
    for value in ("k" * length, ("\u00fc" * length)[: length // 2] + "k" * (length % 2)):
        if value:
            offset = append(connection, stream_name, "orders", 0, b"x", headers={"key": value, "n" * 255: "v"})
            (message,) = connection.poll(stream_name, "orders", 0, offset=offset, count=1)
            assert join_provenance(message.headers) == {"key": value, "n" * 255: "v"}


def test_polls(connection, topic_partition, stream_name):
    for number in range(7):
        offset = append(connection, stream_name, "orders", 1, b"%d" % number, message_id=2**127 + number)
        assert offset == number
    poll = lambda offset, count: [  # noqa: E731
        int(one.payload) for one in connection.poll(stream_name, "orders", 1, offset=offset, count=count)
    ]
    assert poll(0, 3) == [0, 1, 2]
    assert poll("last", 2) == [5, 6]
    assert poll("last", 100) == list(range(7))
    assert poll(6, 5) == [6]
    assert poll(7, 5) == []
    assert poll(1000, 5) == []
    assert connection.poll(stream_name, "orders", 0, offset="last", count=1) == []
    info = connection.get_topic(stream_name, "orders")
    assert [(one.current_offset, one.messages_count) for one in info.partitions] == [(0, 0), (6, 7), (0, 0)]
    assert connection.poll(stream_name, "orders", 1, offset=3, count=1)[0].message_id == 2**127 + 3


def test_reading_in_steps(connection, topic_partition, stream_name):
    with_numbers = [b"%d " % number + b"x" * (number % 50) for number in range(1234)]
    connection.send_raw(
        stream_name,
        "orders",
        1,
        wire.encode_send(stream_name, "orders", 1, [Segment(id_high=1, first_record=1, payloads=with_numbers)]),
    )
    append(connection, stream_name, "orders", 2, b"last")
    read = list(read_topic(connection, stream_name, "orders", [0, 1, 2]))
    assert [payload.payload for _, payload in read] == [*with_numbers, b"last"]
    assert [partition for partition, _ in read] == [1] * 1234 + [2]
    part = list(read_partition(connection, stream_name, "orders", 1, start=11))
    assert [one.payload for one in part] == with_numbers[11:]
    with pytest.raises(IggyTopicError, match=r'topic "orders" of stream .* has no partition 7'):
        list(read_topic(connection, stream_name, "orders", [1, 7]))


def test_a_large_message_and_one_too_large(opened, address, connection, topic_partition, stream_name):
    native = NativeObject(bucket="b", key="k", size=1, version="v")
    with IggyProducer(opened(address), stream=stream_name, source="s") as producer:
        big = random.Random(3).randbytes(10_000_000)
        assert (
            producer.send(topic_partition, [batch(topic_partition, 1, [b"a", big, b"z"], native)])
            .result(60)
            .anchor.offset
            == 2
        )
        assert [one.payload for one in read_partition(connection, stream_name, "orders", 1)] == [b"a", big, b"z"]
    body = wire.encode_send(
        stream_name, "orders", 1, [Segment(id_high=1, first_record=1, payloads=[bytes(70_000_000)])]
    )
    broken = opened(address)
    with pytest.raises((UnknownOutcomeError, IggyProtocolError)):
        broken.send_raw(stream_name, "orders", 1, body)
    with pytest.raises(IggyUnavailableError, match="not sent"):
        broken.own_client()
    assert connection.get_topic(stream_name, "orders").partitions[1].messages_count == 3


def test_a_wrong_checksum_stores_nothing(opened, address, connection, topic_partition, stream_name):
    body = bytearray(
        wire.encode_send(stream_name, "orders", 1, [Segment(id_high=1, first_record=1, payloads=[b"payload"])])
    )
    body[-1] ^= 1
    # A real server does not always answer; then the limit ends it.
    broken = opened(address, call_timeout_seconds=1)
    with pytest.raises((UnknownOutcomeError, IggyProtocolError)):
        broken.send_raw(stream_name, "orders", 1, bytes(body))
    assert connection.get_topic(stream_name, "orders").partitions[1].messages_count == 0


# ---- the connection for records


def test_it_is_listed_and_ends_with_the_other(address, connection):
    with IggyConnection(address).connect() as both:
        assert len(both.own_clients()) == 1
        both.open_sending()
        one, beside = both.own_clients()
        assert {one, beside} <= set(connection.clients())
    wait_until(lambda: not {one.identity, beside.identity} & {client.identity for client in connection.clients()})


BEGUN = ("lake", "begun")
ELSEWHERE = ("lake", "elsewhere")


def one_record(stream_name):
    segment = Segment(id_high=1, first_record=1, payloads=[b"record"])
    return stream_name, "orders", 1, wire.encode_send(stream_name, "orders", 1, [segment])


def test_a_send_waits_for_the_append_in_which_its_object_begins(
    address, connection, topic_partition, stream_name, monkeypatch
):
    with IggyConnection(address).connect() as both:
        both.open_sending()
        order = []
        appended = both.submit_append(
            stream_name, "orders", 0, b"begin", on_stored=lambda _: order.append("appended"), begins={BEGUN}
        )
        real = both._sending.submit
        monkeypatch.setattr(both._sending, "submit", lambda *names: (order.append("sent"), real(*names))[1])
        both.wait(both.submit_send(*one_record(stream_name), iter([ELSEWHERE, BEGUN])))
        assert order == ["appended", "sent"]
        refused = both.submit_append(stream_name, "no such topic", 0, b"begin", begins={BEGUN})
        with pytest.raises(IggyUnavailableError, match="not sent"):
            both.submit_send(*one_record(stream_name), [BEGUN])
        assert appended.result() == 0
        assert isinstance(refused.exception(), IggyUnavailableError)
    assert [one.payload for one in read_partition(connection, stream_name, "orders", 1)] == [b"record"]


def test_a_send_does_not_go_out_before_the_answer_to_the_append_in_which_its_object_begins(
    address, connection, topic_partition, stream_name, monkeypatch
):
    monkeypatch.setattr(connection_module, "_GRACE_SECONDS", 0.0)
    with IggyConnection(address).connect() as both:
        both.open_sending()
        unanswered = [Future(), Future()]
        waiting = iter(unanswered)
        with monkeypatch.context() as patch:
            patch.setattr(both, "_submit", lambda *_, **__: next(waiting))
            patch.setattr(type(both._requests), "longest_wait_seconds", 0.1)
            both.submit_append(stream_name, "orders", 0, b"begin", begins={BEGUN})
            both.submit_append(stream_name, "orders", 0, b"begin", begins={ELSEWHERE})
            for objects in ([BEGUN], [ELSEWHERE], [("lake", "other"), BEGUN]):
                with pytest.raises(IggyUnavailableError, match="not sent, the append of the position"):
                    both.submit_send(*one_record(stream_name), objects)
        assert connection.get_topic(stream_name, "orders").partitions[1].messages_count == 0
        both.wait(both.submit_send(*one_record(stream_name), [("lake", "other")]))  # nothing of it is on its way
        unanswered[0].set_result(0)
        both.wait(both.submit_send(*one_record(stream_name), [BEGUN]))
    assert connection.get_topic(stream_name, "orders").partitions[1].messages_count == 2


def test_a_send_that_fails_there_ends_the_other_too(address, connection, topic_partition, stream_name):
    both = IggyConnection(address).connect()
    both.open_sending()
    body = wire.encode_send(stream_name, "nothing", 0, [Segment(id_high=1, first_record=1, payloads=[b"record"])])
    with pytest.raises(IggyUnavailableError, match="no such stream, topic or partition any more"):
        both.send_raw(stream_name, "nothing", 0, body)
    wait_until(lambda: both._requests.failure is not None)
    with pytest.raises(IggyUnavailableError, match="not sent"):
        both.own_client()


def test_records_go_through_the_client_to_a_cluster_and_over_other_transports(address, connection, monkeypatch):
    with IggyConnection(address).connect() as one:
        monkeypatch.setattr(wire, "parse_node_count", lambda _: 3)
        one.open_sending()
        assert len(one.own_clients()) == 1
        monkeypatch.undo()
        one.address = attrs.evolve(address, tls=True)
        one.open_sending()
        assert len(one.own_clients()) == 1


@pytest.mark.parametrize("refusal", [IggyProtocolError("Feature is unavailable"), IggyAuthError("Unauthorized")])
def test_records_go_through_the_client_where_the_server_does_not_tell_its_nodes(address, monkeypatch, refusal):
    def refused(_):
        raise refusal

    with IggyConnection(address).connect() as one:
        monkeypatch.setattr(wire, "parse_node_count", refused)
        one.open_sending()
        assert len(one.own_clients()) == 1


def test_a_close_ends_the_opening_of_the_second_connection(address, monkeypatch):
    """A source that is stopped does not wait for a server that has frozen between the two."""
    with IggyConnection(address).connect() as both:
        begin = SendConnection.open

        def begin_to_open(made, loop):
            monkeypatch.setattr(made, "_write", lambda *_: None)  # no answer comes
            threading.Timer(0.1, both.close).start()
            begin(made, loop)

        monkeypatch.setattr(SendConnection, "open", begin_to_open)
        watch = Stopwatch()
        with pytest.raises(IggyUnavailableError):
            both.open_sending()
        assert watch.seconds < 8
        assert both._sending is None


def test_a_group_has_both(address, connection, stream_name, topic_partition):
    with IggyConnection(address).connect() as both:
        both.open_sending()
        if "embedded" in connection.server_version():
            with pytest.raises(IggyProtocolError):
                both.join_group(stream_name, "orders", "lease")
            return
        both.join_group(stream_name, "orders", "lease")
        of_both = [
            both._command("ask", protocol.GET_ME, b"", bytes),
            both._sending._ask("ask", protocol.OPERATION_READ, code=protocol.GET_ME),
        ]
        assert [struct.unpack_from("<I", told, len(told) - 16) for told in of_both] == [(1,), (1,)]


# ---- the producer


def test_the_producer_end_to_end(opened, address, connection, topic_partition, stream_name):
    other = NativeObject(bucket="lake", key="b", size=1, version="2")
    with IggyProducer(opened(address), stream=stream_name, source="src") as producer:
        futures = []
        for number in range(40):
            first = number * 13 + 1
            batches = [batch(topic_partition, first, [b"%d" % record for record in range(first, first + 13)])]
            if number % 3 == 0:
                batches.append(batch(topic_partition, number + 1, [b"other"], other))
            futures.append(producer.send(topic_partition, batches))
        anchors = [future.result(60).anchor for future in futures]
    messages = list(read_partition(connection, stream_name, "orders", 1))
    assert len(messages) == 40 * 13 + 14
    assert anchors[-1].offset == messages[-1].offset
    for anchor in anchors:
        assert messages[anchor.offset].message_id == anchor.message_id
    mine = [one for one in messages if join_provenance(one.headers)["key"] == NATIVE.key]
    assert [one.payload for one in mine] == [b"%d" % record for record in range(1, 521)]
    object_hash = object_hash64("src", "lake", NATIVE.key, "etag@1")
    assert [one.message_id for one in mine] == [message_id(object_hash, 0, record) for record in range(1, 521)]
    assert join_provenance(mine[0].headers) == {"bucket": "lake", "key": NATIVE.key, "version": "etag@1"}


def test_closing_in_the_middle_leaves_the_send_open(opened, address, topic_partition, stream_name):
    producer = IggyProducer(opened(address), stream=stream_name, source="s")
    futures = [
        producer.send(topic_partition, [batch(topic_partition, 1 + number * 5000, [b"x" * 200] * 5000)])
        for number in range(3)
    ]
    producer.close()
    for future in futures:
        error = future.exception(60)
        assert error is None or isinstance(error, IggyUnavailableError)
    with pytest.raises(TaskClosedError):
        producer.send(topic_partition, [])


# ---- servers that end


def wait_until(condition, limit_seconds=60):
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_server_killed_in_the_middle(opened, tmp_path):
    server = EmbeddedServer.start(tmp_path)
    topic_partition = TopicPartition("t", 0)
    confirmed = -1
    try:
        address = IggyAddress.parse(server.url)
        connection = opened(address)
        ensure_topic(connection, "s", "t", 1)
        producer = IggyProducer(connection, stream="s", source="x")
        with pytest.raises(IggyUnavailableError) as caught:  # noqa: PT012
            first = 1
            while True:
                future = producer.send(topic_partition, [batch(topic_partition, first, [b"x" * 100] * 500)])
                confirmed = future.result(60).anchor.offset
                if first == 5001:
                    threading.Thread(target=os.kill, args=(server.pid, 9)).start()
                    begun = Stopwatch()
                first += 500
        assert begun.seconds < 10
        assert isinstance(caught.value, UnknownOutcomeError) or "not sent" in str(caught.value)
        with pytest.raises(IggyUnavailableError, match="not sent"):
            producer.send(topic_partition, [batch(topic_partition, first, [b"x"])])
        with pytest.raises(IggyUnavailableError, match="not sent"):
            connection.own_client()
    finally:
        server.stop()
    with EmbeddedServer.start(tmp_path) as again, IggyConnection(IggyAddress.parse(again.url)).connect() as second:
        (partition,) = second.get_topic("s", "t").partitions
        assert partition.current_offset >= confirmed >= 0


def test_a_server_that_stops_answering(opened, tmp_path):
    with EmbeddedServer.start(tmp_path) as server:
        address = IggyAddress.parse(server.url)
        with IggyConnection(address).connect() as patient:
            ensure_topic(patient, "s", "t", 1)
        connection = opened(address, call_timeout_seconds=0.5)
        os.kill(server.pid, 19)  # SIGSTOP: connected, and silent
        try:
            begun = Stopwatch()
            with pytest.raises(UnknownOutcomeError, match=r"no answer within 0\.5 s"):
                append(connection, "s", "t", 0, b"x")
            assert begun.seconds < 5
            with pytest.raises(IggyUnavailableError, match="not sent"):
                connection.own_client()
            with pytest.raises(IggyUnavailableError):
                IggyConnection(address, connect_timeout_seconds=0.3).connect()
        finally:
            os.kill(server.pid, 18)
