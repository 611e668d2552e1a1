"""Bytes of Iggy 0.9's TCP commands that we write and read ourselves; with `headers.py` all that 0.10 will change.

A whole batch is encoded here and sent as one raw request (command 101): the stored messages are those that the official
client's `SendMessage` would give, for a fraction of its time per message.

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

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from framework.errors import ConfigError, IggyProtocolError
from framework.iggy.values import Confirmation, ConnectedClient
from framework.model.payloads import PayloadColumn

SEND_MESSAGES = 101
OWN_CLIENT = 20
ALL_CLIENTS = 22
DELETE_SEGMENTS = 503

BATCH_HEADER_BYTES = 256
FRAME_BYTES = 48
_CHECKSUM_BYTES = 8
MAX_PAYLOAD_BYTES = 64_000_000
MAX_NAME_BYTES = 255

# Messages encoded at a time, so that their bytes stay in the cache between the copies and the hash (measured: the same
# from 200 to 800). MessagePack's short array takes half of 65,535.
_CHUNK = 400

# A frame's fixed fields. Until the checksums are known, marks of MessagePack stand in their place: then some hundred
# frames are an array, of which every second value is a frame behind its checksum, and one call cuts them all out.
_FRAME = np.dtype(
    {
        "names": [
            *("mark", "values", "body_mark", "body_length"),
            *("low", "high", "offset_delta", "headers_length", "payload_length"),
        ],
        "formats": ["u1", ">u2", "u1", ">u4", "<u8", "<u8", "<u4", "<u4", "<u4"],
        "offsets": [0, 1, 3, 4, 8, 16, 24, 32, 36],
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
_CLIENT_NAME = 13
"""Where the address of a client begins."""


def _length(value: Sequence[object] | bytes) -> str:
    return f"<{len(value)}>"


@attrs.frozen(kw_only=True, slots=True)
class Segment:
    """Consecutive records of one object: messages whose ids count up and whose headers are the same.

    Attributes:
        id_high: upper 64 bits of every id: the object's hash.
        split_number: 24 bits; 0 when the object is not split.
        first_record: number of the first payload; the lower 40 bits of its id.
        payloads: each 1 to 64,000,000 bytes; a `PayloadColumn` is quickest.
        headers: the encoded header block of each message (`headers.encode_headers`), or nothing.
        sizes: the payloads' lengths, worked out once here.
    """

    id_high: int
    split_number: int = 0
    first_record: int
    payloads: Sequence[bytes] = attrs.field(repr=_length)
    headers: bytes = attrs.field(default=b"", repr=_length)
    sizes: NDArray[np.uint32] = attrs.field(init=False, repr=False, eq=False)

    @sizes.default
    def _measure(self) -> NDArray[np.uint32]:
        payloads = self.payloads
        if isinstance(payloads, PayloadColumn):
            return payloads.sizes.astype("<u4")
        return np.fromiter(map(len, payloads), "<u4", len(payloads))

    @property
    def size_bytes(self) -> int:
        """Bytes of the messages in a request."""
        return int(self.sizes.sum(dtype=np.uint64)) + len(self.payloads) * (FRAME_BYTES + len(self.headers))


def encode_send(
    stream: str, topic: str, partition: int, segments: Sequence[Segment], *, time_us: int | None = None
) -> bytes:
    """The body of one send request with all messages of all segments, in order.

    The offsets that the server gives are consecutive, in this order. The hot path of the project: whatever is done for
    each message happens inside C, for some hundred messages a call. Neither the ranges of the ids' parts nor the
    payloads' lengths are checked here: the caller did both (`sender.py`).

    Args:
        stream: name of the stream.
        topic: name of the topic.
        partition: counted from 0.
        segments: at least one payload in all.
        time_us: the messages' time of origin, microseconds since 1970; now when left out.
    """
    fields = _fixed_fields(segments)
    count = len(fields)
    ends = np.cumsum(fields["body_length"] + np.int64(_CHECKSUM_BYTES))
    checksums = np.empty(count, "<u8")
    out: list[bytes | bytearray] = [b""]
    start = before = 0
    for frames in _open_frames(segments):
        stop = min(start + _CHUNK, count)
        del frames[-FRAME_BYTES:]  # the hole of a message that does not follow
        places = ends[start:stop] - fields["body_length"][start:stop] - (before + _CHECKSUM_BYTES)
        _at_any_byte(frames, FRAME_BYTES)[places] = fields[start:stop].view(f"V{FRAME_BYTES}")
        # every second value of MessagePack's array is a frame behind its checksum
        bodies = _unpack(frames)[::2]
        checksums[start:stop] = np.fromiter(map(xxh3_64_intdigest, bodies), "<u8", stop - start)
        _at_any_byte(frames, _CHECKSUM_BYTES)[places] = checksums[start:stop].view(f"V{_CHECKSUM_BYTES}")
        out.append(frames)
        start, before = stop, int(ends[stop - 1])
    core = struct.pack(
        "<QQQQQ", 0, 0, 0, time.time_ns() // 1000 if time_us is None else time_us, BATCH_HEADER_BYTES + before
    )
    checksum = xxh3_64_intdigest(core + struct.pack("<I", count) + checksums.tobytes())
    target = encode_name(stream) + encode_name(topic) + struct.pack("<BBII", 2, 4, partition, count)
    head = struct.pack("<I", len(target)) + target + core + struct.pack("<QI", checksum, count)
    out[0] = head.ljust(4 + len(target) + BATCH_HEADER_BYTES, b"\0")
    return b"".join(out)


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
    sizes = np.concatenate([segment.sizes for segment in segments]) if len(segments) > 1 else segments[0].sizes
    fields["payload_length"] = sizes
    fields["body_length"] = sizes + fields["headers_length"] + np.uint32(FRAME_BYTES - _CHECKSUM_BYTES)
    fields["mark"][::_CHUNK] = _ARRAY16
    fields["values"][::_CHUNK] = 2 * _CHUNK - 1
    fields["values"][(count - 1) // _CHUNK * _CHUNK] = 2 * ((count - 1) % _CHUNK) + 1
    return fields


def _open_frames(segments: Sequence[Segment]) -> Iterator[bytearray]:
    """The frames of all messages with holes for their fixed fields, `_CHUNK` of them a time."""
    frames, room = bytearray(_HOLE), _CHUNK
    for segment in segments:
        end, payloads = segment.headers + _HOLE, segment.payloads
        start, count = 0, len(payloads)
        while start < count:
            part = payloads[start : start + room] if count > room or start else payloads
            if not isinstance(part, PayloadColumn):
                frames += end.join((*part, b""))
            elif room == _CHUNK:
                frames = (frames + part.data).replace(b"\n", end)  # as below, with a copy less
            else:
                frames += part.ended_with(end)
            start += len(part)
            room -= len(part)
            if not room:
                yield frames
                frames, room = bytearray(_HOLE), _CHUNK
    if room < _CHUNK:
        yield frames


def _at_any_byte(data: bytearray, size: int) -> NDArray[np.void]:
    """The `size` bytes behind each byte of `data`, to write many of them at once."""
    view: NDArray[np.void] = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    return view


def cut_segments(segments: Sequence[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """The same messages in requests of at most `max_bytes` each, unless a single message is longer."""
    group: list[Segment] = []
    room = max_bytes
    for segment in segments:
        whole = segment.size_bytes
        if whole == 0:
            continue
        if whole <= room:
            group.append(segment)
            room -= whole
            continue
        extra = FRAME_BYTES + len(segment.headers)
        start = 0
        for number, size in enumerate((segment.sizes + np.uint32(extra)).tolist()):
            if size > room and (group or number > start):
                if number > start:
                    group.append(_slice(segment, start, number))
                yield group
                group, room, start = [], max_bytes, number
            room -= size
        group.append(_slice(segment, start, len(segment.payloads)))
    if group:
        yield group


def _slice(segment: Segment, start: int, end: int) -> Segment:
    return attrs.evolve(segment, first_record=segment.first_record + start, payloads=segment.payloads[start:end])


def encode_name(name: str) -> bytes:
    """A stream's or topic's name as the commands name it.

    Raises:
        ConfigError: no bytes or more than 255; digits alone, which the official client takes for a number.
    """
    raw = name.encode()
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


def parse_confirmations(reply: bytes) -> tuple[Confirmation, ...]:
    """The confirmations of a send; may be none: stored, but the server does not tell where."""
    if len(reply) < 4:  # noqa: PLR2004  (the count)
        return ()
    (count,) = struct.unpack_from("<I", reply)
    if len(reply) != 4 + count * _CONFIRMATION.size:
        raise IggyProtocolError(f"a send was answered with {len(reply)} bytes for {count} confirmations")
    return tuple(Confirmation(*fields) for fields in _CONFIRMATION.iter_unpack(reply[4:]))


def parse_own_client(reply: bytes) -> ConnectedClient:
    """The client of command 20: as in a list, and behind it its groups, each `stream u32 | topic u32 | group u32`."""
    try:
        (length,) = struct.unpack_from("<I", reply, _CLIENT_NAME - 4)
    except struct.error as error:
        raise IggyProtocolError("the own client is not laid out as version 0.9 does it") from error
    (client,) = parse_clients(reply[: _CLIENT_NAME + length + 4]) or (None,)
    if client is None:
        raise IggyProtocolError("the server does not tell the own client")
    return client


def parse_clients(reply: bytes) -> tuple[ConnectedClient, ...]:
    """The clients of command 22: `id u32 | user u32 | transport u8 | text | groups u32` each."""
    clients: list[ConnectedClient] = []
    place = 0
    try:
        while place < len(reply):
            client_id, user_id, _transport, length = struct.unpack_from("<IIBI", reply, place)
            place += 13
            address = reply[place : place + length].decode()
            (_groups,) = struct.unpack_from("<I", reply, place + length)
            place += length + 4
            clients.append(ConnectedClient(client_id, address, user_id))
    except (struct.error, UnicodeDecodeError) as error:
        raise IggyProtocolError("the server's list of clients is not laid out as version 0.9 does it") from error
    return tuple(clients)
