"""The facts of Iggy 0.9's TCP protocol: frames and codes.

The embedded server speaks it, and at the other end of a connection `framework.iggy.send_connection`.

What another protocol version would change is here, in `framework.iggy.wire`, in `framework/model/header_encoding.py`, and in
`fields` and `batch` of `framework.iggy.embedded`. All integers are little-endian. A connection is lockstep: one request,
one reply, no greeting. Every frame is a 256-byte header and a body; the header's checksums may be zero.
"""

from __future__ import annotations

import struct

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
