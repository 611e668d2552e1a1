"""The codecs of Avro blocks: null, deflate, snappy, zstandard, bzip2, xz. None gives more than it is allowed to."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator

import attrs

from framework.errors import CorruptObjectError
from transformers.unpack import xz_member

_ZSTD_STEP_BYTES = 1 << 10
"""A zstd block of 4 bytes holds 128 KiB: of that much at a time come 32 MiB at most."""

_MESSAGE_CHARACTERS = 200


@attrs.frozen(slots=True)
class Limits:
    """What a block may take.

    Attributes:
        block: unpacked bytes.
        window: bytes of the window of zstd, or the dictionary of xz.
    """

    block: int
    window: int


class _TooLongError(Exception):
    """A block that unpacks to more than is allowed; never leaves this module."""


def unpack_block(codec: str, data: bytes, limits: Limits) -> bytes:
    """The bytes of one block, within the limits.

    Raises:
        CorruptObjectError: they cannot be unpacked, are more, or the codec is not known.
    """
    unpack = _CODECS.get(codec)
    if unpack is None:
        raise CorruptObjectError(f"the Avro codec {codec!r} is not known; known: {', '.join(_CODECS)}")
    try:
        return unpack(data, limits)
    except _TooLongError:
        raise CorruptObjectError(
            f"a block unpacks to more than input.max_block_bytes ({limits.block} bytes) with the Avro codec {codec}"
        ) from None
    except MemoryError:
        raise
    except Exception as exc:  # each library raises kinds of its own
        message = "".join(filter(str.isprintable, str(exc)))[:_MESSAGE_CHARACTERS]
        raise CorruptObjectError(f"a block cannot be unpacked with the Avro codec {codec} ({message})") from exc


def _within(out: bytes, limit: int) -> bytes:
    if len(out) > limit:
        raise _TooLongError
    return out


def _null(data: bytes, limits: Limits) -> bytes:
    return _within(data, limits.block)


def _deflate(data: bytes, limits: Limits) -> bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    out = _within(inflate.decompress(data, limits.block + 1), limits.block)
    if not inflate.eof:
        raise ValueError("the deflate stream has no end")
    return out


def _snappy(data: bytes, limits: Limits) -> bytes:
    from cramjam import snappy  # noqa: PLC0415

    packed = data[:-4]
    size = 0
    for at, byte in enumerate(packed[:5]):  # what it says first: how long it is unpacked
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:  # noqa: PLR2004
            break
    if size > limits.block:
        raise _TooLongError
    out = bytes(snappy.decompress_raw(packed))
    if zlib.crc32(out) != int.from_bytes(data[-4:], "big"):
        raise ValueError("CRC")
    return out


def _zstandard(data: bytes, limits: Limits) -> bytes:
    import zstandard  # noqa: PLC0415

    # Writers do not all put the size into the frame, and without it only a stream can be unpacked.
    unpacker = zstandard.ZstdDecompressor(max_window_size=limits.window).decompressobj()
    parts, size = [], 0
    for at in range(0, len(data), _ZSTD_STEP_BYTES):
        try:
            part = unpacker.decompress(data[at : at + _ZSTD_STEP_BYTES])
        except zstandard.ZstdError as exc:
            if "not enough memory" in str(exc):
                raise MemoryError(f"for the window of zstd: {exc}") from exc
            if "too much memory" in str(exc):
                raise ValueError(f"it needs a window larger than input.max_window_bytes, {limits.window}") from exc
            raise
        size += len(part)
        if size > limits.block:
            raise _TooLongError
        parts.append(part)
        if unpacker.eof:
            return b"".join(parts)
    raise ValueError("the zstd frame has no end")


def _bzip2(data: bytes, limits: Limits) -> bytes:
    return b"".join(_streams(bz2.BZ2Decompressor, data, limits.block))


def _xz(data: bytes, limits: Limits) -> bytes:
    try:
        return b"".join(_streams(lambda: xz_member(lzma.FORMAT_AUTO, limits.window), data, limits.block))
    except lzma.LZMAError as exc:
        if "emory usage limit" in str(exc):
            raise ValueError(f"it needs a dictionary larger than input.max_window_bytes, {limits.window}") from exc
        raise


def _streams(
    start: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor], data: bytes, limit: int
) -> Iterator[bytes]:
    """The streams of a block, one behind the other; what follows the last is no part of it, as `bz2.decompress` has it."""
    first = True
    while data:
        unpacker = start()
        try:
            out = unpacker.decompress(data, limit + 1)
        except (OSError, lzma.LZMAError):
            if first:
                raise
            return
        limit -= len(out)
        if limit < 0:
            raise _TooLongError
        if not unpacker.eof:
            raise ValueError("the stream has no end")
        yield out
        data, first = unpacker.unused_data, False


_CODECS: dict[str, Callable[[bytes, Limits], bytes]] = {
    "null": _null,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": _bzip2,
    "xz": _xz,
}
