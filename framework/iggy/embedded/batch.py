"""One batch of messages as it travels and as it is stored: a 256-byte header, then frames.

Header: `partition u64 | base_offset u64 | base_timestamp u64 | origin_timestamp u64 | length u64 | checksum u64 |
count u32`, the rest zero; `length` counts the header too. Frame: `checksum u64 | id u128 | offset_delta u32 |
timestamp_delta u32 | headers_length u32 | payload_length u32 | 0 u64`, payload, headers. A frame's checksum is
XXH3-64 over the frame after the checksum; the batch's is XXH3-64 over the header's fields without the checksum,
then every frame's checksum. So the batch checksum binds the bodies only together with the frames' own.

No Python object is made per message beyond the loop's locals: a batch is verified, stamped and stored in place.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

HEADER_SIZE = 256
FRAME_HEADER_SIZE = 48
MAX_BATCH_SIZE = 1 << 27
"""No stored batch is longer: a length field above it is damage, not data."""

_HEADER = struct.Struct("<QQQQQQI")
_FRAME = struct.Struct("<Q16xIIIIQ")
_STAMP = struct.Struct("<QQQ")
_BOUND = struct.Struct("<QQQQQI")
_LENGTH = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_LENGTH_AT, _CHECKSUM_AT, _COUNT_AT = 32, 40, 48
_RESERVED = bytes(HEADER_SIZE - _HEADER.size)


class DamagedBatchError(Exception):
    """The bytes are no whole batch, or a checksum does not fit."""


class Header(NamedTuple):
    """The fields of a batch header."""

    partition: int
    base_offset: int
    base_timestamp: int
    origin_timestamp: int
    length: int
    checksum: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used here


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> Header:
    """Return the header at `position`.

    Raises:
        DamagedBatchError: Fewer than 256 bytes, reserved bytes that are not zero, or a length that cannot be.
    """
    end = position + HEADER_SIZE
    if len(data) < end:
        raise DamagedBatchError("a batch header is cut short")
    header = Header._make(_HEADER.unpack_from(data, position))
    if data[position + _HEADER.size : end] != _RESERVED:
        raise DamagedBatchError("the reserved bytes of a batch header are not zero")
    frames = header.length - HEADER_SIZE
    if not FRAME_HEADER_SIZE <= frames <= MAX_BATCH_SIZE or not 0 < header.count <= frames // FRAME_HEADER_SIZE:
        raise DamagedBatchError(f"a batch cannot have {header.count} messages in {header.length} bytes")
    return header


def verify(batch: memoryview) -> tuple[Header, bytes]:
    """Prove that `batch` is one whole, undamaged batch.

    Args:
        batch: Exactly the batch's bytes.

    Returns:
        Its header and its frames' checksums in order, as `stamp` needs them.

    Raises:
        DamagedBatchError: The layout does not add up, or a checksum differs.
    """
    header = read_header(batch)
    size = len(batch)
    if header.length != size:
        raise DamagedBatchError(f"a batch of {header.length} bytes came with {size}")
    unpack, digest = _FRAME.unpack_from, xxh3_64_intdigest
    checksums: list[memoryview] = []
    collect = checksums.append
    position = HEADER_SIZE
    try:
        for number in range(header.count):
            checksum, delta, _, headers_length, payload_length, reserved = unpack(batch, position)
            body = position + 8
            collect(batch[position:body])
            position += FRAME_HEADER_SIZE + headers_length + payload_length
            # A slice past the end is shorter than the frame, so its digest cannot fit by accident.
            if digest(batch[body:position]) != checksum or delta != number or reserved:
                raise DamagedBatchError(f"message {number} of the batch has a wrong checksum or layout")
    except struct.error as exc:
        raise DamagedBatchError("the batch ends before its last message") from exc
    if position != size:
        raise DamagedBatchError("the messages do not fill the batch")
    joined = b"".join(checksums)
    if _batch_checksum(header, joined) != header.checksum:
        raise DamagedBatchError("the batch checksum does not fit")
    return header, joined


def stamp(batch: memoryview, header: Header, checksums: bytes, *, partition: int, offset: int, timestamp: int) -> None:
    """Write partition, base offset, base timestamp and the new checksum into a verified batch, in place."""
    stamped = header._replace(partition=partition, base_offset=offset, base_timestamp=timestamp)
    _STAMP.pack_into(batch, 0, partition, offset, timestamp)
    _LENGTH.pack_into(batch, _CHECKSUM_AT, _batch_checksum(stamped, checksums))


def skip_frames(batch: memoryview, frames: int, position: int = HEADER_SIZE) -> int:
    """Return the position behind `frames` more frames of a sound batch, counted from `position`."""
    unpack = _FRAME.unpack_from
    for _ in range(frames):
        _, _, _, headers_length, payload_length, _ = unpack(batch, position)
        position += FRAME_HEADER_SIZE + headers_length + payload_length
    return position


def cut(batch: memoryview, start: int, stop: int) -> tuple[bytes, memoryview]:
    """Return the messages `start` to `stop` (exclusive) of a stored batch, as a poll serves them.

    Returns:
        The batch's header with new length and count, and the frames as stored: their offset deltas still count
        from the batch's base offset. The checksum stays the stored batch's; clients do not check it.
    """
    first = skip_frames(batch, start)
    last = skip_frames(batch, stop - start, first)
    header = bytearray(batch[:HEADER_SIZE])
    _LENGTH.pack_into(header, _LENGTH_AT, HEADER_SIZE + last - first)
    _COUNT.pack_into(header, _COUNT_AT, stop - start)
    return bytes(header), batch[first:last]


def _batch_checksum(header: Header, checksums: bytes) -> int:
    bound = _BOUND.pack(*header[:5], header.count)
    return xxh3_64_intdigest(bound + checksums)
