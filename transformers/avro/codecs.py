"""The codecs of Avro blocks: null, deflate, snappy, zstandard, bzip2, xz. None gives more than it is allowed to."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from framework.errors import CorruptObjectError, is_of_machine
from framework.transformer import InputOptions
from transformers.compression_codecs import TrailingDataError, unpack_bzip2, unpack_xz, unpack_zstd

_MESSAGE_CHARACTERS = 200


_Unpack = Callable[[bytes, InputOptions], Iterator[bytes]]


class _TooLongError(Exception):
    """A block that unpacks to more than is allowed; never leaves this module."""


def unpack_block(codec: str, data: bytes, options: InputOptions) -> bytes:
    """The bytes of one block, within the limits of the options.

    Raises:
        CorruptObjectError: they cannot be unpacked, are more, or the codec is not known.
    """
    unpack = _CODECS.get(codec)
    if unpack is None:
        raise CorruptObjectError(f"the Avro codec {codec!r} is not known; known: {', '.join(_CODECS)}")
    parts: list[bytes] = []
    left = options.max_block_bytes
    try:
        for part in unpack(data, options):
            left -= len(part)
            if left < 0:
                raise _TooLongError  # noqa: TRY301
            parts.append(part)
    except _TooLongError:
        raise CorruptObjectError(
            f"a block unpacks to more than input.max_block_bytes ({options.max_block_bytes} bytes) with the Avro codec {codec}"
        ) from None
    except Exception as exc:  # each library raises kinds of its own
        if is_of_machine(exc):
            raise
        reason = exc.message.partition(";")[0] if isinstance(exc, CorruptObjectError) else str(exc)
        message = "".join(filter(str.isprintable, reason))[:_MESSAGE_CHARACTERS]
        raise CorruptObjectError(f"a block cannot be unpacked with the Avro codec {codec} ({message})") from exc
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _deflate(data: bytes, options: InputOptions) -> Iterator[bytes]:
    """The bytes up to the end of the stream: Avro's library for Python leaves a part of zlib's check sum behind it."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    yield inflate.decompress(data, options.max_block_bytes + 1)
    if not inflate.eof:
        raise ValueError("the deflate stream has no end")


def _snappy(data: bytes, options: InputOptions) -> Iterator[bytes]:
    from cramjam import snappy  # noqa: PLC0415

    packed = data[:-4]
    if snappy.decompress_raw_len(packed) > options.max_block_bytes:
        raise _TooLongError
    out = bytes(snappy.decompress_raw(packed))
    if zlib.crc32(out) != int.from_bytes(data[-4:], "big"):
        raise ValueError("CRC")
    yield out


def _outer(unpack: Callable[[Iterator[bytes], int], Iterator[bytes]]) -> _Unpack:
    """A codec that is an outer compression, too.

    What stands behind the data is ignored, as Avro's libraries do: the number of data in the block tells whether all are
    there.
    """

    def unpack_whole(data: bytes, options: InputOptions) -> Iterator[bytes]:
        try:
            yield from unpack(iter((data,)), options.max_window_bytes)
        except TrailingDataError:
            return

    return unpack_whole


_CODECS: dict[str, _Unpack] = {
    "null": lambda data, _options: iter((data,)),
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _outer(unpack_zstd),
    "bzip2": _outer(unpack_bzip2),
    "xz": _outer(unpack_xz),
}
