"""The facts of Iggy 0.9's TCP protocol: frames, codes, field encodings.

The embedded server speaks it, and at the other end of a connection `framework.iggy.send_connection`.

Everything that another protocol version would change is in this module and in `batch`. All integers are
little-endian. A connection is lockstep: one request, one reply, no greeting. Every frame is a 256-byte header
and a body; the header's checksums may be zero.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PROTOCOL_VERSION = (0 << 20) | (11 << 10) | 0
PROTOCOL_VERSION_MIN = PROTOCOL_VERSION

HEADER_SIZE = 256
MAX_FRAME_SIZE = 64_000_000 + 1_000_000
"""Largest accepted frame: the client's largest payload (64 MB) and slack for headers and addressing."""

COMMAND_REQUEST = 5
COMMAND_REPLY = 8
COMMAND_EVICTION = 13

EVICTED_BAD_CREDENTIALS = 9
EVICTED_BAD_TOKEN = 10
EVICTED_INACTIVE = 11
EVICTED_STALE = 13
EVICTED_INCOMPATIBLE = 14
EVICTED_MALFORMED_LOGIN = 15

OPERATION_REGISTER = 1
OPERATION_READ = 2
OPERATION_LOGOUT = 3

PING = 1
STATS = 10
CLUSTER_METADATA = 12
DESCRIBE_OPTIONS = 13
GET_ME = 20
GET_CLIENT = 21
GET_CLIENTS = 22
POLL = 100
SEND = 101
GET_OFFSET = 120
STORE_OFFSET = 121
DELETE_OFFSET = 122
GET_STREAM = 200
GET_STREAMS = 201
CREATE_STREAM = 202
DELETE_STREAM = 203
UPDATE_STREAM = 204
PURGE_STREAM = 205
GET_TOPIC = 300
GET_TOPICS = 301
CREATE_TOPIC = 302
DELETE_TOPIC = 303
UPDATE_TOPIC = 304
PURGE_TOPIC = 305
CREATE_PARTITIONS = 402
DELETE_PARTITIONS = 403
DELETE_SEGMENTS = 503
GET_GROUP = 600
GET_GROUPS = 601
CREATE_GROUP = 602
DELETE_GROUP = 603
JOIN_GROUP = 604
LEAVE_GROUP = 605

LEASE = 0x1EA5E
"""Not Iggy's: a joined `EmbeddedServer` marks the idle connection that keeps the server alive while it uses it."""

OPERATION_COMMANDS = {
    128: CREATE_STREAM,
    129: UPDATE_STREAM,
    130: DELETE_STREAM,
    131: PURGE_STREAM,
    132: CREATE_TOPIC,
    133: UPDATE_TOPIC,
    134: DELETE_TOPIC,
    135: PURGE_TOPIC,
    136: CREATE_PARTITIONS,
    137: DELETE_PARTITIONS,
    138: DELETE_SEGMENTS,
    139: CREATE_GROUP,
    140: DELETE_GROUP,
    148: JOIN_GROUP,
    149: LEAVE_GROUP,
    160: SEND,
    161: STORE_OFFSET,
    162: DELETE_OFFSET,
}
"""Write operations this server knows; reads come as `OPERATION_READ` with the command in the header."""

RESULT_FRAMED = frozenset(range(128, 150)) - {138} | {161, 162}
"""Operations whose reply body begins with a result section (a zero count when all is well)."""

# Status codes of replies. 57 and 58 are never sent: they make the client replay the frame.
INVALID_COMMAND = 3
INVALID_FORMAT = 4
FEATURE_UNAVAILABLE = 5
RESOURCE_NOT_FOUND = 20
UNAUTHENTICATED = 40
STREAM_NOT_FOUND = 1009
STREAM_EXISTS = 1012
TOPIC_NOT_FOUND = 2010
TOPIC_EXISTS = 2013
GROUP_NOT_FOUND = 5000
GROUP_EXISTS = 5004
TOO_MANY_PARTITIONS = 2015
INVALID_PARTITIONS_COUNT = 2019
PARTITION_NOT_FOUND = 3007
CONSUMER_OFFSET_NOT_FOUND = 3021
CANNOT_APPEND = 4010
UNSUPPORTED_OPTION = 4041
INVALID_OPTION_VALUE = 4042
INVALID_OFFSET = 4100
CANNOT_WRITE_FILE = 10006

STRING_KIND = 2
BOOL_KIND = 3
UINT32_KIND = 11
UINT64_KIND = 12

IDENTIFIER_NUMBER, IDENTIFIER_NAME = 1, 2
CONSUMER_SINGLE = 1
STRATEGY_OFFSET, STRATEGY_TIMESTAMP, STRATEGY_FIRST, STRATEGY_LAST, STRATEGY_NEXT = 1, 2, 3, 4, 5
PARTITIONING_BALANCED, PARTITIONING_ID, PARTITIONING_KEY = 1, 2, 3

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
_REQUEST = struct.Struct("<48xI8xB67x16s24xQB7xQII")  # size, command, client, request, operation, session, user, code
_REPLY = struct.Struct("<48xI8xB67x32s16s24xQB7xI36x")  # size, command, checksum + context, client, request, op, status
_EVICTION = struct.Struct("<48xI8xB67x16sII103xB")
_RESULT = struct.Struct("<8xI")  # behind count and index
_SIZE = struct.Struct("<48xI")
_NO_CONTEXT = bytes(32)
_EVICTIONS = {  # in the official client's words
    EVICTED_BAD_CREDENTIALS: "Invalid credentials",
    EVICTED_BAD_TOKEN: "Invalid personal access token",
    EVICTED_INACTIVE: "User inactive",
    EVICTED_STALE: "Stale client",
    EVICTED_INCOMPATIBLE: "Incompatible protocol version",
}


class RefusedError(Exception):
    """A request the server answers with an error status; the connection goes on."""

    def __init__(self, status: int) -> None:
        """Keep the status code that the reply will carry."""
        super().__init__(f"status {status}")
        self.status = status


class BrokenFrameError(Exception):
    """Bytes that no well-behaved client sends: the connection is dropped and nothing is stored."""


class Request:
    """One request frame's header fields; the body is read separately."""

    __slots__ = ("body_size", "client", "code", "operation", "request")

    def __init__(self, header: bytes | bytearray | memoryview) -> None:
        """Take the header apart.

        Args:
            header: 256 bytes as received.

        Raises:
            BrokenFrameError: It is no request frame, or it announces more than `MAX_FRAME_SIZE`.
        """
        size, command, client, request, operation, _, _, code = _REQUEST.unpack_from(header)
        if command != COMMAND_REQUEST:
            raise BrokenFrameError(f"a frame of kind {command} is not a request")
        if not HEADER_SIZE <= size <= MAX_FRAME_SIZE:
            raise BrokenFrameError(f"a frame of {size} bytes; the limit is {MAX_FRAME_SIZE}")
        self.body_size = size - HEADER_SIZE
        self.client: bytes = client
        self.request: int = request
        self.operation: int = operation
        self.code: int = code if operation == OPERATION_READ else OPERATION_COMMANDS.get(operation, 0)


def request_header(body_size: int, *, client: bytes, request: int, operation: int, session: int, code: int) -> bytes:
    """Return the 256-byte header of a request.

    Args:
        body_size: bytes of the body.
        client: the client's own number, 16 bytes.
        request: number of the request; a read takes that of the next write.
        operation: the operation.
        session: of the login; 0 before it.
        code: the command of an `OPERATION_READ`.
    """
    size = HEADER_SIZE + body_size
    return _REQUEST.pack(size, COMMAND_REQUEST, client, request, operation, session, 0, code).ljust(HEADER_SIZE, b"\0")


def missing_bytes(received: bytearray) -> int:
    """Return how many bytes are missing to the end of a header, or to the end of its frame."""
    if len(received) < HEADER_SIZE:
        return HEADER_SIZE - len(received)
    size: int = _SIZE.unpack_from(received)[0]
    return size - len(received)


def read_reply(frame: bytes, operation: int, number: int) -> tuple[int, bytes]:
    """Return status and body of the reply to a request.

    Args:
        frame: as received.
        operation: of the request.
        number: the request's.

    Raises:
        BrokenFrameError: the server refused the login, or ends the session; or this is no reply, or that to another request.
    """
    _, command, _, _, answered_number, answered_operation, status = _REPLY.unpack_from(frame)
    if command == COMMAND_EVICTION:
        reason = frame[HEADER_SIZE - 1]
        raise BrokenFrameError(_EVICTIONS.get(reason, f"the server ended the session, reason {reason}"))
    if command != COMMAND_REPLY:
        raise BrokenFrameError(f"a frame of kind {command} is not a reply")
    if (answered_number, answered_operation) != (number, operation):
        raise BrokenFrameError("an answer to another request")
    body = frame[HEADER_SIZE:]
    if not status and operation in RESULT_FRAMED and body[:4] != bytes(4):
        if len(body) < _RESULT.size:
            raise BrokenFrameError(f"the answer to operation {operation} has {len(body)} bytes")
        (status,) = _RESULT.unpack_from(body)
    return status, body


def reply_header(request: Request, body_size: int, status: int = 0) -> bytes:
    """Return the 256-byte header that answers `request` with a body of `body_size` bytes."""
    return _REPLY.pack(
        HEADER_SIZE + body_size, COMMAND_REPLY, _NO_CONTEXT, request.client, request.request, request.operation, status
    )


def eviction(client: bytes, reason: int) -> bytes:
    """Return the frame that refuses a login for `reason`; the connection is closed after it."""
    window = (PROTOCOL_VERSION, PROTOCOL_VERSION_MIN) if reason == EVICTED_INCOMPATIBLE else (0, 0)
    return _EVICTION.pack(HEADER_SIZE, COMMAND_EVICTION, client, *window, reason)


class Cursor:
    """Reads the fields of one request body, in order.

    Every method raises `RefusedError(INVALID_FORMAT)` when the body ends too early.
    """

    __slots__ = ("body", "position")

    def __init__(self, body: memoryview, position: int = 0) -> None:
        """Start at `position` of `body`."""
        self.body = body
        self.position = position

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        start, self.position = self.position, self.position + size
        if self.position > len(self.body):
            raise RefusedError(INVALID_FORMAT)
        return self.body[start : self.position]

    def u8(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def u32(self) -> int:
        """Return the next four bytes as a number."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """Return the next eight bytes as a number."""
        return int.from_bytes(self.take(8), "little")

    def text(self, size: int) -> str:
        """Return the next `size` bytes as UTF-8 text."""
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as exc:
            raise RefusedError(INVALID_FORMAT) from exc

    def name(self) -> str:
        """Return a name: one length byte, 1 to 255 bytes of UTF-8."""
        size = self.u8()
        if size == 0:
            raise RefusedError(INVALID_FORMAT)
        return self.text(size)

    def identifier(self) -> int | str:
        """Return a stream's, topic's or consumer's identifier: a number or a name."""
        kind, size = self.u8(), self.u8()
        if kind == IDENTIFIER_NUMBER and size == U32.size:
            return self.u32()
        if kind == IDENTIFIER_NAME and size > 0:
            return self.text(size)
        raise RefusedError(INVALID_FORMAT)

    def optional_partition(self) -> int | None:
        """Return the partition id behind a presence flag, or None."""
        present, value = self.u8(), self.u32()
        return value if present else None

    def rest(self) -> memoryview:
        """Return everything that is left."""
        return self.take(len(self.body) - self.position)

    def end(self) -> bool:
        """Tell whether the whole body was read."""
        return self.position == len(self.body)


def encode_name(name: str) -> bytes:
    """Return a name with its length byte."""
    raw = name.encode()
    return bytes((len(raw),)) + raw


def encode_text(text: str) -> bytes:
    """Return a text with its u32 length."""
    raw = text.encode()
    return U32.pack(len(raw)) + raw


def encode_options(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """Return an options block of `(key, kind, value)` entries: for key and value, `kind u8 | length u32 | bytes`."""
    parts: list[bytes] = []
    for key, kind, value in entries:
        raw = key.encode()
        parts += (bytes((STRING_KIND,)), U32.pack(len(raw)), raw, bytes((kind,)), U32.pack(len(value)), value)
    return b"".join(parts)


def decode_options(block: memoryview) -> list[tuple[str, int, bytes]]:
    """Return the `(key, kind, value)` entries of an options block.

    Raises:
        RefusedError: The block is cut short, a key is no text, or a key comes twice.
    """
    cursor, entries = Cursor(block), list[tuple[str, int, bytes]]()
    while not cursor.end():
        if cursor.u8() != STRING_KIND:
            raise RefusedError(INVALID_FORMAT)
        key = cursor.text(cursor.u32())
        kind = cursor.u8()
        entries.append((key, kind, bytes(cursor.take(cursor.u32()))))
    if len({key for key, _, _ in entries}) != len(entries):
        raise RefusedError(INVALID_FORMAT)
    return entries
