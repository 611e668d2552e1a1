"""Bytes of Iggy 0.9's TCP commands that we write and read ourselves; their frames: `framework.iggy.protocol`.

A whole batch is encoded here and sent as one raw request (command 101): the stored messages are those that the official
client's `SendMessage` would give, for a fraction of its time per message. A server of another layout refuses the login: the
protocol's version is part of it, and the client's is fixed by the dependency.

    request   metadata length u32 | stream | topic | partitioning | count u32 | batch   (the length: stream to count)
    name      kind u8 (2 = text) | length u8 | bytes        partitioning by id: 2, 4, partition u32
    batch     header of 256 bytes: partition u64 0 | base offset u64 0 | base time u64 0 | time u64 (us) |
              length u64 (256 + frames) | checksum u64 | count u32 | zeros
    frame     checksum u64 | id u128 | offset delta u32 | time delta u32 | headers length u32 | payload length u32 |
              0 u64 | payload | headers
    reply     count u32 | { stream u32 | topic u32 | partition u32 | base offset u64 }

All little-endian. A frame's checksum is XXH3-64 of the frame behind it; the batch's is XXH3-64 of its first five
fields, the count and the frames' checksums. A wrong one makes the server drop the connection.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from framework.errors import ConfigError, IggyProtocolError
from framework.iggy.values import ConnectedClient
from framework.model.payloads import PayloadColumn

BATCH_HEADER_BYTES = 256
FRAME_BYTES = 48
_CHECKSUM_BYTES = 8
MAX_PAYLOAD_BYTES = 64_000_000
MAX_NAME_BYTES = 255

# Messages cut out at a time, so that their bytes stay in the cache until they are hashed (measured: the same from 200 to
# 1,000). MessagePack's short array takes half of 65,535.
_CHUNK = 400

# A frame's fixed fields. Until the checksums are known, marks of MessagePack stand in their place: then some hundred
# frames are an array, of which every second value is a frame behind its checksum, and one call cuts them all out.
_FRAME = np.dtype(
    {
        "names": [
            *("mark", "values", "body_mark", "body_length"),
            *("low", "high", "offset_delta", "time_delta", "headers_length", "payload_length"),
        ],
        "formats": ["u1", ">u2", "u1", ">u4", "<u8", "<u8", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 1, 3, 4, 8, 16, 24, 28, 32, 36],
        "itemsize": FRAME_BYTES,
    }
)
_ARRAY16, _UINT16, _BIN32 = 0xDC, 0xCD, 0xC6
_ROW = struct.Struct("<B2xB4xQQ8xI12x")
"""A frame's fields that all messages of a segment share, and the first message's id."""
_HOLE = bytes(FRAME_BYTES)
_MAX_U64 = 2**64 - 1
_unpack = msgspec.msgpack.Decoder().decode
_CONFIRMATION = struct.Struct("<IIIQ")


def _length(value: Sequence[object] | bytes) -> str:
    return f"<{len(value)}>"


@attrs.frozen(kw_only=True, slots=True)
class Segment:
    """Records of one object, in order: by default messages whose ids count up and whose headers are the same.

    Attributes:
        id_high: upper 64 bits of every id: the object's hash.
        split_number: 24 bits; 0 when the object is not split.
        first_record: number of the first payload; the lower 40 bits of its id.
        payloads: each 1 to 64,000,000 bytes; a `PayloadColumn` is quickest.
        headers: the encoded header block of each message (`header_encoding.encode_headers`), or nothing.
        numbers: the number of each payload, when they are not consecutive.
        own_headers: a header block for each message, in place of `headers`.
        times_us: each message's time of origin, microseconds since 1970; 0 for the time of sending.
        sizes: the payloads' lengths, worked out once here: a list for a list, which small objects have.
    """

    id_high: int
    split_number: int = 0
    first_record: int
    payloads: Sequence[bytes] = attrs.field(repr=_length)
    headers: bytes = attrs.field(default=b"", repr=_length)
    numbers: NDArray[np.int64] | None = attrs.field(default=None, repr=False, eq=False)
    own_headers: Sequence[bytes] | None = attrs.field(default=None, repr=False)
    times_us: NDArray[np.int64] | None = attrs.field(default=None, repr=False, eq=False)
    sizes: NDArray[np.uint32] | list[int] = attrs.field(init=False, repr=False, eq=False)

    @sizes.default
    def _measure(self) -> NDArray[np.uint32] | list[int]:
        payloads = self.payloads
        return payloads.sizes.astype("<u4") if type(payloads) is PayloadColumn else list(map(len, payloads))

    @property
    def fits(self) -> bool:
        """Whether Iggy stores payloads of these lengths."""
        sizes = self.sizes
        if type(sizes) is list:
            return 0 not in sizes and max(sizes) <= MAX_PAYLOAD_BYTES
        array = np.asarray(sizes)
        return bool(array.min() > 0 and array.max() <= MAX_PAYLOAD_BYTES)

    @property
    def size_bytes(self) -> int:
        """Bytes of the messages in a request."""
        headers = (
            len(self.payloads) * len(self.headers) if self.own_headers is None else sum(map(len, self.own_headers))
        )
        sizes = self.sizes
        payloads = sum(sizes) if type(sizes) is list else int(np.asarray(sizes).sum(dtype=np.uint64))
        return payloads + len(self.payloads) * FRAME_BYTES + headers

    @property
    def frame_sizes(self) -> NDArray[np.uint32]:
        """Bytes of each message in a request."""
        headers = np.uint32(len(self.headers)) if self.own_headers is None else self.header_sizes
        sizes: NDArray[np.uint32] = np.asarray(self.sizes, "<u4") + headers + np.uint32(FRAME_BYTES)
        return sizes

    @property
    def header_sizes(self) -> NDArray[np.uint32]:
        """The lengths of the messages' own header blocks."""
        return np.fromiter(map(len, self.own_headers or ()), "<u4", len(self.payloads))

    @property
    def last_record(self) -> int:
        """The number of the last payload."""
        return int(self.numbers[-1]) if self.numbers is not None else self.first_record + len(self.payloads) - 1


def encode_send(
    stream: str, topic: str, partition: int, segments: Sequence[Segment], *, time_us: int | None = None
) -> bytearray:
    """The body of one send request with all messages of all segments, in order.

    The offsets that the server gives are consecutive, in this order. The hot path of the project: whatever is done for
    each message happens inside C, for some hundred messages a call or all of them. Neither the ranges of the ids' parts nor the
    payloads' lengths are checked here: the caller did both (`producer.py`).

    Args:
        stream: name of the stream.
        topic: name of the topic.
        partition: counted from 0.
        segments: at least one payload in all. Their own times of origin must lie within `MAX_TIME_SPAN_US`
            (`cut_times`).
        time_us: the messages' time of origin, microseconds since 1970; now when left out.
    """
    fields = _fixed_fields(segments)
    time_us = time.time_ns() // 1000 if time_us is None else time_us
    times = origin_times(segments, time_us)
    if times is not None:
        time_us = int(times.min())
        fields["time_delta"] = times - time_us
    count = len(fields)
    target = encode_name(stream) + encode_name(topic) + struct.pack("<BBII", 2, 4, partition, count)
    at = 4 + len(target) + BATCH_HEADER_BYTES
    ends = np.cumsum(fields["body_length"] + np.int64(_CHECKSUM_BYTES))
    length = int(ends[-1])
    begins = ends - fields["body_length"] + np.int64(at - _CHECKSUM_BYTES)
    request = bytearray().join((bytes(at + FRAME_BYTES), *_open_frames(segments)))
    del request[-FRAME_BYTES:]  # no message follows the last one
    _at_any_byte(request, FRAME_BYTES)[begins] = fields.view(f"V{FRAME_BYTES}")
    view = memoryview(request)
    digests: list[bytes] = []
    for end in (*begins[_CHUNK::_CHUNK].tolist(), len(request)):
        # every second value of MessagePack's array is a frame behind its checksum
        digests += map(xxh3_64_digest, _unpack(view[at:end])[::2])
        at = end
    checksums = np.frombuffer(b"".join(digests), ">u8").astype("<u8")
    _at_any_byte(request, _CHECKSUM_BYTES)[begins] = checksums.view(f"V{_CHECKSUM_BYTES}")
    core = struct.pack("<QQQQQ", 0, 0, 0, time_us, BATCH_HEADER_BYTES + length)
    checksum = xxh3_64_intdigest(core + struct.pack("<I", count) + checksums.tobytes())
    head = struct.pack("<I", len(target)) + target + core + struct.pack("<QI", checksum, count)
    view[: len(head)] = head
    return request


def _fixed_fields(segments: Sequence[Segment]) -> NDArray[np.void]:
    """The first 48 bytes of every frame, with MessagePack's marks in the place of the checksum."""
    rows, count = [], 0
    for segment in segments:
        first = (segment.split_number << 40 | segment.first_record) - count & _MAX_U64
        row = _ROW.pack(_UINT16, _BIN32, first, segment.id_high, len(segment.headers))
        rows.append(row * len(segment.payloads))
        count += len(segment.payloads)
    fields: NDArray[np.void] = np.frombuffer(bytearray().join(rows), _FRAME)
    index = np.arange(count, dtype="<u8")
    fields["low"] += index
    fields["offset_delta"] = index
    at = 0
    for segment in segments:
        part = slice(at, at + len(segment.payloads))
        if segment.numbers is not None:
            fields["low"][part] = segment.numbers.astype("<u8") + np.uint64(segment.split_number << 40)
        if segment.own_headers is not None:
            fields["headers_length"][part] = segment.header_sizes
        at = part.stop
    lengths = [segment.sizes for segment in segments]
    if all(type(some) is list for some in lengths):
        sizes = np.fromiter(chain.from_iterable(lengths), "<u4", count)
    else:
        sizes = np.concatenate([np.asarray(some, "<u4") for some in lengths])
    fields["payload_length"] = sizes
    fields["body_length"] = sizes + fields["headers_length"] + np.uint32(FRAME_BYTES - _CHECKSUM_BYTES)
    fields["mark"][::_CHUNK] = _ARRAY16
    fields["values"][::_CHUNK] = 2 * _CHUNK - 1
    fields["values"][(count - 1) // _CHUNK * _CHUNK] = 2 * ((count - 1) % _CHUNK) + 1
    return fields


def origin_times(segments: Sequence[Segment], time_us: int) -> NDArray[np.int64] | None:
    """The time of origin of each message, microseconds since 1970; None when no message has its own."""
    if all(segment.times_us is None for segment in segments):
        return None
    times = np.concatenate(
        [
            np.zeros(len(segment.payloads), np.int64) if segment.times_us is None else segment.times_us
            for segment in segments
        ]
    )
    return np.where(times == 0, np.int64(time_us), times)


def _open_frames(segments: Sequence[Segment]) -> Iterator[bytes]:
    """All messages behind their fixed fields, each followed by a hole for the next one's."""
    for segment in segments:
        end, payloads = segment.headers + _HOLE, segment.payloads
        if segment.own_headers is not None:
            yield b"".join(chain.from_iterable(zip(payloads, segment.own_headers, repeat(_HOLE))))
        elif type(payloads) is PayloadColumn:
            yield payloads.ended_with(end)
        else:
            yield end.join((*payloads, b""))


def _at_any_byte(data: bytearray, size: int) -> NDArray[np.void]:
    """The `size` bytes behind each byte of `data`, to write many of them at once."""
    view: NDArray[np.void] = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    return view


def cut_segments(segments: Sequence[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """The same messages in requests of at most `max_bytes` each, unless a single message is longer."""
    rest = [segment for segment in segments if len(segment.payloads)]
    while sum(segment.size_bytes for segment in rest) > max_bytes:
        ends = np.cumsum(np.concatenate([segment.frame_sizes for segment in rest]), dtype=np.int64)
        head, rest = _cut_at(rest, max(1, int(ends.searchsorted(max_bytes, side="right"))))
        yield head
    if rest:
        yield rest


def _slice(segment: Segment, start: int, end: int) -> Segment:
    numbers, own, times = segment.numbers, segment.own_headers, segment.times_us
    return attrs.evolve(
        segment,
        first_record=segment.first_record + start,
        payloads=segment.payloads[start:end],
        numbers=None if numbers is None else numbers[start:end],
        own_headers=None if own is None else own[start:end],
        times_us=None if times is None else times[start:end],
    )


MAX_TIME_SPAN_US = 2**32 - 1
"""Between the earliest and the latest time of origin of a request's messages: some 71 minutes."""


def cut_times(segments: list[Segment], time_us: int) -> Iterator[list[Segment]]:
    """The same messages in requests whose times of origin Iggy can store; usually in one.

    Args:
        segments: the messages.
        time_us: the time of origin of messages without their own.
    """
    times = origin_times(segments, time_us)
    while times is not None and np.ptp(times) > MAX_TIME_SPAN_US:
        span = np.maximum.accumulate(times) - np.minimum.accumulate(times)
        first = int(np.searchsorted(span, MAX_TIME_SPAN_US, side="right"))
        head, segments = _cut_at(segments, first)
        yield head
        times = times[first:]
    yield segments


def _cut_at(segments: Sequence[Segment], count: int) -> tuple[list[Segment], list[Segment]]:
    """The first `count` messages, and the others."""
    head: list[Segment] = []
    for place, segment in enumerate(segments):
        size = len(segment.payloads)
        if count < size:
            tail = [_slice(segment, count, size), *segments[place + 1 :]]
            return [*head, _slice(segment, 0, count)] if count else head, tail
        head.append(segment)
        count -= size
    return head, []


def encode_name(name: str) -> bytes:
    """A stream's or topic's name as the commands name it.

    Raises:
        ConfigError: no bytes or more than 255; no valid Unicode; digits alone, which the official client takes for a number.
    """
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the name {name!r} of a stream or topic is not valid Unicode") from None
    if not 1 <= len(raw) <= MAX_NAME_BYTES:
        raise ConfigError(f"the name of a stream or topic holds 1 to {MAX_NAME_BYTES} bytes, not {len(raw)}")
    if name.isascii() and name.removeprefix("+").isdigit():  # the client's parser takes a sign, too
        raise ConfigError(
            f"a stream or topic cannot be called {name}: Iggy takes digits alone for a number, not a name"
        )
    return struct.pack("<BB", 2, len(raw)) + raw


def encode_delete_segments(stream: str, topic: str, partition: int, count: int) -> bytes:
    """The body that deletes the `count` oldest sealed segments of a partition."""
    return encode_name(stream) + encode_name(topic) + struct.pack("<II", partition, count)


def encode_poll_behind_end(stream: str, topic: str, partition: int) -> bytes:
    """The body of a poll that gets no message, because it begins behind every end: its answer tells the end."""
    reader = struct.pack("<BBBI", 1, 1, 4, 1)  # a consumer of its own, number 1, as in every poll
    strategy = struct.pack("<BQIB", 1, 2**64 - 1, 1, 0)  # from this offset on; one message; nothing is stored
    return reader + encode_name(stream) + encode_name(topic) + struct.pack("<BI", 1, partition) + strategy


def parse_polled_end(reply: bytes) -> int:
    """The offset of a partition's last message in the answer to a poll; 0 also where there is none."""
    with laid_out("the answer to a poll"):
        _, end, _ = struct.unpack_from("<IQI", reply)
    return int(end)


@contextmanager
def laid_out(what: str) -> Iterator[None]:
    """Refuse an answer of another layout than this version's.

    Raises:
        IggyProtocolError: what is parsed within is too short, or holds other bytes than text.
    """
    try:
        yield
    except (struct.error, UnicodeDecodeError) as error:
        raise IggyProtocolError(f"{what} is not laid out as version 0.9 does it") from error


def parse_base_offset(reply: bytes) -> int | None:
    """The offset of the first message that a send has stored; None when the server does not tell where it is."""
    if len(reply) < 4:  # noqa: PLR2004  (the count)
        return None
    (count,) = struct.unpack_from("<I", reply)
    if len(reply) != 4 + count * _CONFIRMATION.size:
        raise IggyProtocolError(f"a send was answered with {len(reply)} bytes for {count} confirmations")
    return _CONFIRMATION.unpack_from(reply, 4)[-1] if count else None


def parse_node_count(reply: bytes) -> int:
    """The number of servers of the cluster, of command 12: `length u32 | name | nodes u32 | nodes`."""
    with laid_out("the list of the servers of the cluster"):
        (length,) = struct.unpack_from("<I", reply)
        (nodes,) = struct.unpack_from("<I", reply, 4 + length)
    return int(nodes)


def parse_own_client(reply: bytes) -> ConnectedClient:
    """The client of command 20: as in a list, and behind it its groups, each `stream u32 | topic u32 | group u32`."""
    with laid_out("the own client"):
        return _client_at(reply, 0)[0]


def parse_clients(reply: bytes) -> tuple[ConnectedClient, ...]:
    """The clients of command 22, one behind the other."""
    clients: list[ConnectedClient] = []
    at = 0
    with laid_out("the server's list of clients"):
        while at < len(reply):
            client, at = _client_at(reply, at)
            clients.append(client)
    return tuple(clients)


def _client_at(reply: bytes, at: int) -> tuple[ConnectedClient, int]:
    """The client at a place, and where it ends: `id u32 | user u32 | transport u8 | text | groups u32`."""
    client_id, user_id, _transport, length = struct.unpack_from("<IIBI", reply, at)
    end = at + 13 + length
    struct.unpack_from("<I", reply, end)
    return ConnectedClient(client_id, reply[at + 13 : end].decode(), user_id), end + 4
