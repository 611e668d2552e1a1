"""The codecs of outer compression: pieces of packed bytes -> pieces of at most about 1 MiB of unpacked bytes.

Every codec tells a cut (`TruncatedObjectError`) from damage (`CorruptObjectError`) and from what stands behind the end
(`TrailingDataError`). In their
messages, what follows a semicolon is true of an object that is packed as a whole, and not of a block inside of one.
zstandard and cramjam cannot bound what one call returns, or do not report a cut (a stream reader of zstandard just
ends), so zstd and snappy are taken apart here into their blocks, which the formats limit to 128 KiB and 64 KiB, and
only groups of blocks are given to the library.
"""

from __future__ import annotations

import bz2
import functools
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from framework.errors import CorruptObjectError, TruncatedObjectError, is_of_machine
from framework.transformer import MAX_WINDOW_BYTES

_OUTPUT_BYTES = 1 << 20

_PART_BYTES = 1 << 16
"""How much a member is given at a time: at its end the library copies what is left of that, for a member of 14 bytes too."""

_XZ_BESIDE_BYTES = 2 << 20
"""What unpacking xz takes besides the dictionary."""


class TrailingDataError(Exception):
    """Behind the complete data stands something else. The text is the reason. Never leaves this package."""


class _Member(Protocol):
    """One gzip member, bzip2 stream or xz stream."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _GzipMember:
    """zlib's object behind the interface that bz2 and lzma have."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._full and not self._inflate.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        out = self._inflate.decompress(self._inflate.unconsumed_tail or data, max_length)
        self._full = len(out) == max_length
        return out


def unpack_gzip(pieces: Iterator[bytes], window: int) -> Iterator[bytes]:
    """RFC 1952: members in a row; zero bytes may follow (tape and some uploaders pad)."""
    return _unpack_members(pieces, window, "gzip", b"\x1f\x8b", _GzipMember, padding=1)


def unpack_bzip2(pieces: Iterator[bytes], window: int) -> Iterator[bytes]:
    """Streams in a row, as pbzip2 writes them."""
    return _unpack_members(pieces, window, "bzip2", b"BZh", bz2.BZ2Decompressor, padding=0)


def unpack_xz(pieces: Iterator[bytes], window: int) -> Iterator[bytes]:
    """Streams in a row with stream padding, also between them: zero bytes, a multiple of four."""
    # what unpacking takes besides the dictionary is allowed on top
    start = functools.partial(lzma.LZMADecompressor, format=lzma.FORMAT_XZ, memlimit=window + _XZ_BESIDE_BYTES)
    return _unpack_members(pieces, window, "xz", b"\xfd7zXZ\x00", start, padding=4)


def _unpack_members(  # noqa: C901 - what may stand between members is most of it
    pieces: Iterator[bytes], window: int, name: str, magic: bytes, start: Callable[[], _Member], *, padding: int
) -> Iterator[bytes]:
    """Members in a row. Zero bytes may follow one in multiples of `padding`; none when that is 0, the last when it is 1."""
    pieces = (piece[at : at + _PART_BYTES] for piece in pieces for at in range(0, len(piece), _PART_BYTES))
    data = b""
    first = True
    while True:
        while len(data) < len(magic) and (piece := next(pieces, b"")):
            data += piece
        if not data and not first:
            return
        if not data.startswith(magic):
            if not first and padding and data[0] == 0:
                data = _behind_padding(data, pieces, name, padding)
                continue
            if data == magic[: len(data)]:
                raise _cut(name)
            raise _not_packed(name) if first else _rubbish(name)
        first = False
        member = start()
        while not member.eof:
            if not data and member.needs_input:
                data = next(pieces, b"")
                if not data:
                    raise _cut(name)
            try:
                out = member.decompress(data, _OUTPUT_BYTES)
            except (zlib.error, OSError, lzma.LZMAError, ValueError) as exc:
                if "emory usage limit" in str(exc):
                    raise CorruptObjectError(
                        f"the {name} data needs more than input.max_window_bytes ({window} bytes) for its dictionary"
                    ) from exc
                raise _damaged(name) from exc
            data = b""
            if out:
                yield out
        data = member.unused_data


def _behind_padding(data: bytes, pieces: Iterator[bytes], name: str, multiple: int) -> bytes:
    """Return what follows zero bytes: nothing, or the next member where padding is allowed."""
    total = 0
    while data:
        rest = data.lstrip(b"\0")
        total += len(data) - len(rest)
        data = rest or next(pieces, b"")
        if rest:
            break
    if total % multiple or (data and multiple == 1):
        raise _rubbish(name)
    return data


class ShortRead(Exception):  # noqa: N818 - never leaves this package
    """The bytes ended inside of something."""


class ExactReader:
    """Takes exact numbers of bytes off pieces.

    Attributes:
        taken: bytes so far.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._data = b""
        self._at = 0
        self.taken = 0

    def at_end(self) -> bool:
        """Return whether nothing is left; may read a piece to know."""
        if self._at == len(self._data):
            self._data, self._at = next(self._pieces, b""), 0
        return not self._data

    def take(self, size: int) -> bytes:
        """The next `size` bytes.

        Raises:
            ShortRead: there are fewer.
        """
        self.taken += size
        end = self._at + size
        if end <= len(self._data):
            part = self._data[self._at : end]
            self._at = end
            return part
        parts = [self._data[self._at :]]
        missing = size - len(parts[0])
        while missing:
            self._data, self._at = next(self._pieces, b""), 0
            if not self._data:
                raise ShortRead
            parts.append(self._data[:missing])
            self._at = len(parts[-1])
            missing -= self._at
        return b"".join(parts)

    def take_up_to(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end only."""
        parts: list[bytes] = []
        while size and not self.at_end():
            parts.append(self.take(min(size, len(self._data) - self._at)))
            size -= len(parts[-1])
        return b"".join(parts)

    def drop_past(self, pattern: bytes, within: int) -> bool:
        """Leave out everything up to the end of `pattern`; False when it begins at none of the next `within` bytes."""
        left, tail = within + len(pattern) - 1, b""
        while left > 0 and not self.at_end():
            piece = self._data[self._at : self._at + left]
            seen = tail + piece
            found = seen.find(pattern)
            step = len(piece) if found < 0 else found + len(pattern) - len(tail)
            self._at += step
            self.taken += step
            if found >= 0:
                return True
            left -= step
            tail = seen[1 - len(pattern) :]
        return False

    def drop(self, size: int) -> None:
        """Leave out `size` bytes."""
        while size:
            step = min(size, _OUTPUT_BYTES)
            self.take(step)
            size -= step


ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + each]) + b"\x2a\x4d\x18" for each in range(16)))
"""Of a frame, and of skippable frames (RFC 8878, 3.1), which may stand first: pzstd writes one."""


def unpack_zstd(pieces: Iterator[bytes], window: int) -> Iterator[bytes]:
    """RFC 8878: frames in a row. At most eight blocks (of at most 128 KiB unpacked) go to the library at a time."""
    import zstandard  # noqa: PLC0415 - only who reads zstd pays for it

    packed = ExactReader(pieces)
    unpacker = zstandard.ZstdDecompressor(max_window_size=window)
    first = True
    try:
        while not packed.at_end() or first:
            magic = packed.take_up_to(4)
            if len(magic) < 4:  # noqa: PLR2004
                known = any(whole.startswith(magic) for whole in ZSTD_MAGICS)
                raise _cut("zstd") if known else _not_packed("zstd") if first else _rubbish("zstd")
            if magic in ZSTD_MAGICS[1:]:
                packed.drop(int.from_bytes(packed.take(4), "little"))
            elif magic == ZSTD_MAGICS[0]:
                yield from _zstd_frame(packed, magic, unpacker.decompressobj().decompress, window)
            else:
                raise _not_packed("zstd") if first else _rubbish("zstd")
            first = False
    except ShortRead:
        raise _cut("zstd") from None
    except zstandard.ZstdError as exc:
        if "not enough memory" in str(exc):
            raise MemoryError(f"for the window of zstd: {exc}") from exc
        if "too much memory" in str(exc):  # more than any decoder takes
            raise CorruptObjectError(
                f"the zstd data needs a window of more than {MAX_WINDOW_BYTES} bytes, the most that input.max_window_bytes can be"
            ) from exc
        raise CorruptObjectError(
            "the zstd data is damaged, or was packed with a dictionary that it does not name: it cannot be unpacked further"
        ) from exc


def _zstd_frame(packed: ExactReader, magic: bytes, feed: Callable[[bytes], bytes], window: int) -> Iterator[bytes]:
    import zstandard  # noqa: PLC0415

    head = magic + packed.take(1)
    head += packed.take(zstandard.frame_header_size(head) - len(head))
    frame = zstandard.get_frame_parameters(head)
    if frame.dict_id:
        raise CorruptObjectError(
            f"the zstd data was packed with a dictionary (number {frame.dict_id}), which cannot be given here; pack it "
            "without one"
        )
    if frame.window_size > window:
        raise CorruptObjectError(
            f"the zstd data needs a window of {frame.window_size} bytes, more than input.max_window_bytes ({window})"
        )
    waiting = [head]
    blocks, last = 0, 0
    while not last:
        try:
            head = packed.take(3)
            value = int.from_bytes(head, "little")
            last, kind, size = value & 1, value >> 1 & 3, value >> 3
            if kind == 3:  # noqa: PLR2004 - reserved
                raise _damaged("zstd")
            waiting += (head, packed.take(1 if kind == 1 else size))
            if last and frame.has_checksum:
                waiting.append(packed.take(4))
        except ShortRead:
            # What came whole goes out before the cut is reported.
            if out := feed(b"".join(waiting)):
                yield out
            raise
        blocks += 1
        if last or blocks == 8:  # noqa: PLR2004
            out = feed(b"".join(waiting))
            waiting, blocks = [], 0
            if out:
                yield out


_SNAPPY_CHUNK_BYTES = 76_490 + 4
"""The longest that 64 KiB can take with their CRC: what snappy does not compress grows by a sixth and 32 bytes."""

_SNAPPY_HEAD = b"\xff\x06\x00\x00sNaPpY"


def unpack_snappy(pieces: Iterator[bytes], _window: int) -> Iterator[bytes]:
    """The framed format (framing_format.txt of google/snappy). Sixteen chunks of at most 64 KiB at a time.

    Every group of chunks is given to the library behind a stream identifier of its own, so that it checks their CRCs.
    """
    from cramjam import snappy  # noqa: PLC0415 - only who reads snappy pays for it

    packed = ExactReader(pieces)
    waiting: list[bytes] = [_SNAPPY_HEAD]
    problem: CorruptObjectError | TrailingDataError | None = None
    try:
        if packed.at_end():
            return  # what the libraries write for no data
        if packed.take(10) != _SNAPPY_HEAD:
            raise _not_packed("framed snappy")
        while not packed.at_end():
            head = packed.take(4)
            kind, size = head[0], int.from_bytes(head[1:], "little")
            if kind <= 1 and size <= _SNAPPY_CHUNK_BYTES:
                waiting += (head, packed.take(size))
            elif kind == 0xFF and size == 6 and packed.take(6) == _SNAPPY_HEAD[4:]:  # noqa: PLR2004 - another stream
                pass
            elif 0x80 <= kind <= 0xFE:  # noqa: PLR2004 - padding, or to be skipped
                packed.drop(size)
            else:
                problem = (_damaged if kind <= 1 else _rubbish)("snappy")
                break
            if len(waiting) > 32:  # noqa: PLR2004
                yield from _snappy_chunks(snappy.decompress, waiting)
                waiting = [_SNAPPY_HEAD]
    except ShortRead:
        problem = _cut("snappy")
    yield from _snappy_chunks(snappy.decompress, waiting)
    if problem is not None:
        raise problem


def _snappy_chunks(decompress: Callable[[bytes], object], waiting: list[bytes]) -> Iterator[bytes]:
    if len(waiting) == 1:
        return
    try:
        out = bytes(decompress(b"".join(waiting)))  # type: ignore[call-overload]
    except Exception as exc:  # cramjam has one error class, and its module path differs between versions
        if is_of_machine(exc):
            raise
        raise _damaged("snappy") from exc
    if out:
        yield out


def _cut(name: str) -> TruncatedObjectError:
    return TruncatedObjectError(f"the {name} data ends too early; the object was cut short")


def _damaged(name: str) -> CorruptObjectError:
    return CorruptObjectError(f"the {name} data is damaged: it cannot be unpacked further")


def _rubbish(name: str) -> TrailingDataError:
    return TrailingDataError(f"behind the end of the {name} data stands something that is not {name}")


def _not_packed(name: str) -> CorruptObjectError:
    return CorruptObjectError(f"this is not {name} data; set input.compression to what it is, or to auto")
