"""The fields of requests and replies of Iggy 0.9's TCP protocol, as a server reads and writes them.

The frames that they are in: `framework.iggy.protocol`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class RefusedError(Exception):
    """A request the server answers with an error status; the connection goes on."""

    def __init__(self, status: int) -> None:
        """Keep the status code that the reply will carry."""
        super().__init__(f"status {status}")
        self.status = status


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
