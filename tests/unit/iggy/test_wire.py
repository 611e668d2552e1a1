"""A send request, byte by byte, against a reader written from the layout alone."""

import struct
from itertools import count

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ConfigError, IggyProtocolError
from framework.iggy import wire
from framework.iggy.wire import Segment
from framework.model.payloads import PayloadColumn
from tests.support.examples import examples


def read_request(body):
    """Target, ids, payloads and headers of a request; checks every length and checksum on the way."""
    names, partition, origin, messages = read_timed_request(body)
    assert {at for at, *_ in messages} <= {origin}
    return names, partition, origin, [message[1:] for message in messages]


def read_timed_request(body):
    """As `read_request`, with the time of origin of each message before its id."""
    (meta,) = struct.unpack_from("<I", body)
    target, batch = body[4 : 4 + meta], body[4 + meta :]
    names = []
    for _ in range(2):
        assert target[0] == 2
        names.append(target[2 : 2 + target[1]].decode())
        target = target[2 + target[1] :]
    assert target[:2] == b"\x02\x04"
    partition, count = struct.unpack("<II", target[2:])
    zero1, zero2, zero3, origin, length, checksum, batch_count = struct.unpack_from("<QQQQQQI", batch)
    assert (zero1, zero2, zero3, length, batch_count) == (0, 0, 0, len(batch), count)
    assert batch[52:256] == bytes(204)
    place, hashes, messages = 256, b"", []
    while place < len(batch):
        low, high, delta, time, headers, payload, zero = struct.unpack_from("<QQIIIIQ", batch, place + 8)
        end = place + 48 + payload + headers
        assert (delta, zero) == (len(messages), 0)
        stored = batch[place : place + 8]
        assert int.from_bytes(stored, "little") == xxhash.xxh3_64(batch[place + 8 : end]).intdigest()
        hashes += stored
        messages.append(
            (origin + time, high << 64 | low, batch[place + 48 : place + 48 + payload], batch[end - headers : end])
        )
        place = end
    assert place == len(batch)
    assert len(messages) == count
    fields = struct.pack("<QQQQQI", 0, 0, 0, origin, length, count)
    assert checksum == xxhash.xxh3_64(fields + hashes).intdigest()
    return names, partition, origin, messages


segments = st.lists(
    st.builds(
        Segment,
        id_high=st.integers(0, 2**64 - 1),
        split_number=st.integers(0, 2**24 - 1),
        first_record=st.integers(1, 2**40 - 100),
        payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=7),
        headers=st.binary(max_size=30),
    ),
    min_size=1,
    max_size=5,
).filter(lambda many: any(one.payloads for one in many))


def expected(many):
    return [
        (one.id_high << 64 | one.split_number << 40 | number, payload, one.headers)
        for one in many
        for number, payload in enumerate(one.payloads, one.first_record)
    ]


@given(segments, st.integers(0, 2**32 - 1), st.text(min_size=1, max_size=20).filter(lambda name: not name.isdigit()))
def test_every_message_as_given(many, partition, name):
    if not all(character.isprintable() for character in name):
        name = "topic"
    body = wire.encode_send("stream", name, partition, many, time_us=77)
    assert read_request(body) == (["stream", name], partition, 77, expected(many))


def test_many_messages_of_many_lengths():
    payloads = [bytes([number % 251]) * (1 + number % 311) for number in range(1013)]
    many = [Segment(id_high=9, first_record=5, payloads=payloads, headers=b"h" * 37)] * 2
    assert read_request(wire.encode_send("s", "t", 1, many))[3] == expected(many)


def former_encoder(stream, topic, partition, many, time_us):
    """The request, made a message at a time."""
    frames, checksums, deltas = [], [], count()
    for one in many:
        for number, payload in enumerate(one.payloads, one.split_number << 40 | one.first_record):
            sizes = len(one.headers), len(payload)
            fixed = struct.pack("<QQIIIIQ", number, one.id_high, next(deltas), 0, *sizes, 0)
            body = fixed + payload + one.headers
            checksums.append(struct.pack("<Q", xxhash.xxh3_64_intdigest(body)))
            frames += (checksums[-1], body)
    core = struct.pack("<QQQQQ", 0, 0, 0, time_us, 256 + sum(map(len, frames)))
    checksum = xxhash.xxh3_64_intdigest(core + struct.pack("<I", len(checksums)) + b"".join(checksums))
    target = wire.encode_name(stream) + wire.encode_name(topic) + struct.pack("<BBII", 2, 4, partition, len(checksums))
    header = core + struct.pack("<QI", checksum, len(checksums))
    return struct.pack("<I", len(target)) + target + header.ljust(256, b"\0") + b"".join(frames)


lines = st.lists(st.binary(min_size=1, max_size=40).map(lambda line: line.replace(b"\n", b"-")), max_size=11)


FORMS = ("list", "tuple", "column", "view", "slice", "slice of a slice")


def in_form(one, form):
    """The segment with its payloads in another sequence: as a column, in a view, or as the middle of one or of a middle."""
    if form == "list" or any(b"\n" in payload for payload in one.payloads):
        return one
    around = [b"", b"before", *one.payloads, b"behind"] if form in {"slice", "slice of a slice"} else one.payloads
    data = b"".join(payload + b"\n" for payload in around)
    column = PayloadColumn(memoryview(bytearray(data)) if form == "view" else data)
    shaped = {"tuple": tuple(around), "slice": column[2:-1], "slice of a slice": column[1:][1:-1]}
    payloads = shaped.get(form, column)
    return Segment(
        id_high=one.id_high,
        split_number=one.split_number,
        first_record=one.first_record,
        payloads=payloads,
        headers=one.headers,
        numbers=one.numbers,
        own_headers=one.own_headers,
        times_us=one.times_us,
    )


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.builds(
                Segment,
                id_high=st.integers(0, 2**64 - 1),
                split_number=st.integers(0, 2**24 - 1),
                first_record=st.integers(1, 2**40 - 100),
                payloads=lines | st.lists(st.binary(min_size=1, max_size=40), max_size=7),
                headers=st.binary(max_size=30),
            ),
            st.sampled_from(FORMS),
        ),
        min_size=1,
        max_size=6,
    ).filter(lambda many: any(one.payloads for one, _ in many)),
    st.integers(1, 12),
)
def test_lists_and_columns_give_the_bytes_of_the_former_encoder(many, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_CHUNK", chunk)
        body = wire.encode_send("s", "t", 3, [in_form(one, form) for one, form in many], time_us=77)
    assert body == former_encoder("s", "t", 3, [one for one, _ in many], 77)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("headers", [b"", b"h\n" * 9])
@pytest.mark.parametrize("records", [1, 399, 400, 401, 800, 1013])
def test_chunks_of_many_messages(records, headers, form):
    payloads = [bytes([65 + number % 26]) * (1 + number % 311) for number in range(records)]
    one = Segment(id_high=9, first_record=5, payloads=payloads, headers=headers)
    none = Segment(id_high=1, first_record=1, payloads=[], headers=b"none")
    shaped = in_form(one, form)
    assert np.array_equal(shaped.sizes, one.sizes)
    for many in ([shaped], [none, shaped, none, shaped, none]):
        plain = [one] * sum(each is shaped for each in many)
        assert wire.encode_send("s", "t", 1, many, time_us=7) == former_encoder("s", "t", 1, plain, 7)


@pytest.mark.parametrize("form", ["list", "column", "slice"])
def test_a_request_of_more_than_eight_megabytes(form):
    payloads = [b"x" * 3_000_000, b"y", b"z" * 6_000_000, b"w" * 70_000]
    one = Segment(id_high=9, first_record=5, payloads=payloads, headers=b"h" * 37)
    assert wire.encode_send("s", "t", 1, [in_form(one, form)], time_us=7) == former_encoder("s", "t", 1, [one], 7)


@settings(max_examples=examples(200))
@given(segments, st.integers(1, 300))
def test_cutting_keeps_messages_and_order_and_fills_requests(many, limit):
    requests = list(wire.cut_segments(many, limit))
    assert [message for one in requests for message in expected(one)] == expected(many)
    for request in requests:
        size = sum(one.size_bytes for one in request)
        assert size <= limit or sum(len(one.payloads) for one in request) == 1
        assert any(one.payloads for one in request)


def test_names_at_the_limit():
    assert wire.encode_name("\u00fc" * 127 + "x")[:2] == b"\x02\xff"
    with pytest.raises(ConfigError, match="is not valid Unicode"):
        wire.encode_name("\udcff")  # an argument of the command line that is no UTF-8
    for name in ("", "\u00fc" * 128, "123"):
        with pytest.raises(ConfigError):
            wire.encode_name(name)


def test_confirmations():
    reply = struct.pack("<IIIIQ", 1, 1, 2, 3, 2**40)
    assert wire.parse_base_offset(reply) == 2**40
    assert wire.parse_base_offset(b"") is None
    assert wire.parse_base_offset(bytes(4)) is None
    with pytest.raises(IggyProtocolError):
        wire.parse_base_offset(reply[:-1])


def test_clients():
    # As a real server 0.9.0-edge.5 answered.
    one = bytes.fromhex("0100000000000000010f0000003132372e302e302e313a333532393400000000")
    (client,) = wire.parse_clients(one)
    assert (client.client_id, client.address) == (1, "127.0.0.1:35294")
    assert len(wire.parse_clients(one * 3)) == 3
    assert wire.parse_clients(b"") == ()
    with pytest.raises(IggyProtocolError):
        wire.parse_clients(one[:-1])


def a_client(client_id, address, groups=()):
    """As the server writes it, from the layout alone; behind the number of groups come these, for the own client only."""
    raw = address.encode()
    head = struct.pack("<IIBI", client_id, 0, 1, len(raw)) + raw + struct.pack("<I", len(groups))
    return head + b"".join(struct.pack("<III", *group) for group in groups)


@given(
    st.integers(0, 2**32 - 1), st.text(max_size=30), st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 3), max_size=4)
)
def test_the_own_client_is_told_with_its_groups(client_id, address, groups):
    client = wire.parse_own_client(a_client(client_id, address, groups))
    assert (client.client_id, client.address) == (client_id, address)


def test_how_many_servers_there_are():
    whole = b"\x04\x00\x00\x00iggy\x03\x00\x00\x00" + b"their names"
    assert wire.parse_node_count(whole) == 3
    for cut in range(12):
        with pytest.raises(IggyProtocolError, match="the servers of the cluster"):
            wire.parse_node_count(whole[:cut])


def test_an_own_client_of_another_layout_is_refused():
    whole = a_client(7, "127.0.0.1:35294")
    for cut in range(len(whole)):
        with pytest.raises(IggyProtocolError):
            wire.parse_own_client(whole[:cut])


@st.composite
def own_segments(draw):
    """Segments whose messages have gaps in their numbers, headers and times of their own."""
    payloads = draw(
        st.lists(st.binary(min_size=1, max_size=40).map(lambda line: line.replace(b"\n", b"-")), max_size=7)
    )
    count = len(payloads)
    each = st.integers(1, 3)
    numbers = np.cumsum([draw(st.integers(1, 2**39)), *(draw(each) for _ in payloads)])[:count]
    blocks = [draw(st.binary(max_size=9)) for _ in payloads]
    times = st.just(0) | st.integers(1, 2**40)
    return in_form(
        Segment(
            id_high=draw(st.integers(0, 2**64 - 1)),
            split_number=draw(st.integers(0, 2**24 - 1)),
            first_record=int(numbers[0]) if count else 1,
            payloads=payloads,
            headers=draw(st.binary(max_size=9)),
            numbers=draw(st.sampled_from([None, numbers])),
            own_headers=draw(st.sampled_from([None, blocks])),
            times_us=draw(st.sampled_from([None, np.asarray([draw(times) for _ in payloads], dtype=np.int64)])),
        ),
        draw(st.sampled_from(FORMS)),
    )


def expected_own(many, now):
    return [
        (
            now if one.times_us is None or not one.times_us[at] else int(one.times_us[at]),
            one.id_high << 64
            | one.split_number << 40
            | (one.first_record + at if one.numbers is None else int(one.numbers[at])),
            payload,
            one.headers if one.own_headers is None else one.own_headers[at],
        )
        for one in many
        for at, payload in enumerate(one.payloads)
    ]


@settings(max_examples=examples(200))
@given(
    st.lists(own_segments(), min_size=1, max_size=5).filter(lambda many: any(one.payloads for one in many)),
    st.integers(1, 12),
    st.integers(60, 400),
)
def test_numbers_headers_and_times_of_each_message(many, chunk, limit):
    now, sent = 2**41, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_CHUNK", chunk)
        for group in wire.cut_segments(many, limit):
            for part in wire.cut_times(group, now):
                times = [at for at, *_ in expected_own(part, now)]
                assert max(times) - min(times) <= wire.MAX_TIME_SPAN_US
                _, _, origin, messages = read_timed_request(wire.encode_send("s", "t", 3, part, time_us=now))
                assert origin == min(times)
                sent += messages
    assert sent == expected_own(many, now)
    for one in many:
        assert sum(one.frame_sizes.tolist()) == one.size_bytes


def test_times_close_together_stay_in_one_request():
    times = np.arange(5000, dtype=np.int64) * 800_000 + 1
    one = Segment(id_high=1, first_record=1, payloads=[b"x"] * 5000, times_us=times)
    assert len(list(wire.cut_times([one], 7))) == 1
    far = Segment(id_high=1, first_record=1, payloads=[b"x"] * 3, times_us=np.asarray([1, 2**40, 2], dtype=np.int64))
    assert [len(part[0].payloads) for part in wire.cut_times([far], 7)] == [1, 1, 1]
