"""The codecs of Avro blocks: null, deflate, snappy, zstandard, bzip2, xz."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable

from framework.errors import CorruptObjectError


def unpack_block(codec: str, data: bytes, location: str) -> bytes:
    """The bytes of one block.

    Raises:
        CorruptObjectError: they cannot be unpacked, or the codec is not known.
    """
    unpack = _CODECS.get(codec)
    if unpack is None:
        raise CorruptObjectError(
            f"the Avro codec {codec!r} is not known; known: {', '.join(_CODECS)}", location=location
        )
    try:
        return unpack(data)
    except Exception as exc:  # each library raises kinds of its own
        raise CorruptObjectError(f"a block cannot be unpacked with the Avro codec {codec}", location=location) from exc


def _null(data: bytes) -> bytes:
    return data


def _deflate(data: bytes) -> bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    out = inflate.decompress(data)
    if not inflate.eof:
        raise ValueError("the deflate stream has no end")
    return out


def _snappy(data: bytes) -> bytes:
    from cramjam import snappy  # noqa: PLC0415

    out = bytes(snappy.decompress_raw(data[:-4]))
    if zlib.crc32(out) != int.from_bytes(data[-4:], "big"):
        raise ValueError("CRC")
    return out


def _zstandard(data: bytes) -> bytes:
    import zstandard  # noqa: PLC0415

    # Writers do not all put the size into the frame, and without it only a stream can be unpacked.
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    out = unpacker.decompress(data)
    if not unpacker.eof:
        raise ValueError("the zstd frame has no end")
    return out


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": _null,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}
