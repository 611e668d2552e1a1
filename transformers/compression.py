"""Outer compression: the stored bytes of an object -> the bytes inside, piece by piece in bounded memory.

`auto` decides by the first bytes. Where they and the key's suffix disagree the bytes are right: a `.gz` that begins
otherwise is read as it is, and gzip without the suffix is unpacked. The suffix counts only for an object that is
shorter than the magic bytes, and where it names a compression and the bytes are neither that nor text: then they are
packed in a way that is not supported, and no format of text may take them for records.

| name | suffixes | more than one in a row | behind the end |
| --- | --- | --- | --- |
| `gzip` | `.gz` `.gzip` | members | zero bytes are padding, anything else is an error |
| `zstd` | `.zst` `.zstd` | frames, also skippable ones | an error |
| `snappy` | `.sz` `.snappy` | streams, framed format | an error |
| `bzip2` | `.bz2` `.bzip2` | streams | an error |
| `xz` | `.xz` | streams | zero bytes are padding, anything else is an error |

A format whose end looks like a cut (framed snappy, cut between two chunks) relies on the stream, which raises
when the object is shorter than listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from framework.errors import CorruptObjectError
from framework.transformer import InputOptions, ObjectInput
from transformers.compression_codecs import (
    ZSTD_MAGICS,
    TrailingDataError,
    unpack_bzip2,
    unpack_gzip,
    unpack_snappy,
    unpack_xz,
    unpack_zstd,
)

PIECE_BYTES = 1 << 20
"""About as much as is read, unpacked and split at a time."""

_PACKED_READ_BYTES = 1 << 18

FREE_EXPANSION_BYTES = 1 << 30
"""What an object may unfold to, however small it is."""

SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".sz": "snappy",
    ".snappy": "snappy",
    ".bz2": "bzip2",
    ".bzip2": "bzip2",
    ".xz": "xz",
}

UNSUPPORTED = {
    ".lz4": "lz4",
    ".br": "brotli",
    ".zip": "zip",
    ".7z": "7z",
    ".deflate": "Hadoop's deflate",
    ".zz": "zlib",
    ".zlib": "zlib",
    ".tar": "tar",
    ".z": "compress",
    ".lzo": "lzo",
    ".lzma": "lzma",
    ".lz": "lzip",
}
"""Compressions that are not unpacked here, by the suffixes that say so."""

_NAMED = frozenset((*SUFFIXES, *UNSUPPORTED))

_TAR_SUFFIXES = (".tgz", ".tbz", ".tbz2", ".txz", ".tzst", *(f".tar{suffix}" for suffix in SUFFIXES))
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
"""Of POSIX and GNU archives (tar(5), "Ustar Archives"); older ones have none."""

_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
"""The byte order marks of UTF-16 and UTF-32: such text would be divided inside of characters. The fourth begins with the first."""

_WIDE_FORMS = ((2, 0), (2, 1), (4, 0), (4, 3))
"""Of UTF-16 and UTF-32, in both orders: bytes of a character, and which of them a character of Latin-1 has; the others are 0."""

_FEWEST_WIDE_BYTES, WIDE_BYTES = 8, 16
"""How many bytes must be of such a form where no mark says so, and how many are looked at."""

_TEXT_BYTES = 4096
"""How much of the beginning is looked at to tell text from what is packed."""

_CONTROLS = bytes(set(range(32)) - set(b"\b\t\n\v\f\r\x1b"))

_MAGIC = {
    "gzip": (b"\x1f\x8b\x08",),
    "zstd": ZSTD_MAGICS,
    "snappy": (b"\xff\x06\x00\x00sNaPpY",),
    # "BZh", the block size, then the magic of a block or of the end.
    "bzip2": tuple(b"BZh%d" % level + tail for level in range(1, 10) for tail in (b"1AY&SY", b"\x17rE8P\x90")),
    "xz": (b"\xfd7zXZ\x00",),
}
_MAGICS = tuple(magic for magics in _MAGIC.values() for magic in magics)
MAX_MAGIC_BYTES = 10

_UNPACKERS: dict[str, Callable[[Iterator[bytes], int], Iterator[bytes]]] = {
    "gzip": unpack_gzip,
    "zstd": unpack_zstd,
    "snappy": unpack_snappy,
    "bzip2": unpack_bzip2,
    "xz": unpack_xz,
}
"""Name -> function of the packed pieces and `input.max_window_bytes`."""


def compression_of_key(key: str) -> str:
    """The compression that the key's suffix names; `none` when it names none."""
    return SUFFIXES.get(_suffix(key), "none")


def _suffix(key: str) -> str:
    return key[key.rfind(".") :].lower()


def detect_compression(head: bytes, key: str) -> str:
    """The compression of an object that begins with `head` (10 bytes, or all there are)."""
    if head.startswith(_MAGICS):
        return next(name for name, magics in _MAGIC.items() if head.startswith(magics))
    named = compression_of_key(key)
    if len(head) < MAX_MAGIC_BYTES and head and any(magic.startswith(head) for magic in _MAGIC.get(named, ())):
        return named
    return "none"


def unsupported_compression(key: str) -> str | None:
    """The compression that the key's suffix names, when it is none of those here."""
    return UNSUPPORTED.get(_suffix(key))


def is_plain_by_name(compression: str, key: str) -> bool:
    """Return whether neither the option nor the key says that the object is compressed."""
    if compression == "auto":
        return _suffix(key) not in _NAMED
    return compression == "none"


def is_plain(data: bytes, compression: str, key: str) -> bool:
    """Return whether neither option, key nor first bytes say that an object is compressed."""
    return is_plain_by_name(compression, key) and not (compression == "auto" and data.startswith(_MAGICS))


def is_wide(head: bytes) -> bool:
    """Return whether text that begins with `head`, 16 bytes or all there are, is in UTF-16 or UTF-32.

    Without a byte order mark it is noticed where it begins with characters of Latin-1.
    """
    if head.startswith(_WIDE_MARKS):
        return True
    head = head[:WIDE_BYTES]
    if b"\0" not in head[:2] or len(head) < _FEWEST_WIDE_BYTES:
        return False
    for width, place in _WIDE_FORMS:
        characters = head[place::width]
        is_text = characters.translate(None, _CONTROLS) == characters
        if is_text and len(head) % width == 0 and head.count(0) == len(head) - len(characters):
            return True
    return False


def _check_not_packed(head: bytes, key: str) -> None:
    """Refuse what is packed in a way that is not supported: its name says so, and it begins with what text has not."""
    foreign = unsupported_compression(key)
    named = foreign or compression_of_key(key)
    packed = head.translate(None, _CONTROLS) != head
    if foreign and not packed:
        try:
            head.decode()
        except UnicodeDecodeError as exc:
            packed = exc.start < len(head) - 3  # behind that it may be a character that was cut
    if packed:
        known = (
            "not supported"
            if foreign
            else "packed in another form of it, which is not supported, or its beginning is damaged"
        )
        if named == "snappy":
            known = "not in its framed form; Hadoop's and Spark's own, and the raw one, are not supported"
        raise CorruptObjectError(
            f"its name says {named}, and it is {known}; unpack it, or pack it with one of {', '.join(_MAGIC)}"
        )


class UnpackedStream:
    """The unpacked bytes of an object from `start` on. Opened at the first read; closing twice is fine.

    Args:
        source: the object.
        options: how it may be packed.
        start: of the stored bytes; behind 0 nothing is unpacked.
        piece_bytes: about how much to read at a time.
        text: whether it must be text inside, so that what is surely none is refused.
    """

    def __init__(
        self,
        source: ObjectInput,
        options: InputOptions,
        *,
        start: int = 0,
        piece_bytes: int = PIECE_BYTES,
        text: bool = False,
    ) -> None:
        self._piece_bytes = min(piece_bytes, PIECE_BYTES)
        self._source = source
        self._text = text
        self._window, self._expansion = options.max_window_bytes, options.max_expansion
        self._start = start
        self._compression = "none" if start else options.compression
        self._may_be_packed = self._compression == "auto"
        self._pieces: Iterator[bytes] | None = None
        self._failure: Exception | None = None
        self._raw_close: Callable[[], None] | None = None
        self._missing = PIECE_BYTES

    @property
    def packed(self) -> bool:
        """Whether there is an outer compression, so that offsets here are not those of the stored object."""
        if self._pieces is None:
            self._open()
        return self._compression != "none"

    def read_some(self) -> bytes:
        """One byte to about 1 MiB; `b""` at the end only.

        Raises:
            TruncatedObjectError: the compressed data ends too early.
            CorruptObjectError: it is not what the compression says, something else follows it, or it unpacks to too much.
        """
        return next(self._pieces or self._open(), b"")

    def read_about(self, size: int) -> bytes:
        """At least `size` bytes; more only when they are unpacked, and fewer only at the end and before an error."""
        if self._failure is not None:
            raise self._failure
        first = self.read_some()
        if len(first) >= size or not first:
            return first
        parts, total = [first], len(first)
        try:
            while total < size:
                self._missing = size - total
                if not (part := self.read_some()):
                    break
                parts.append(part)
                total += len(part)
        except Exception as exc:  # noqa: BLE001 - raised by the next call: what was read before it must not be lost
            self._failure = exc
        self._missing = PIECE_BYTES
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back."""
        self._pieces = iter(())
        if self._raw_close is not None:
            self._raw_close()

    def _open(self) -> Iterator[bytes]:
        size = _PACKED_READ_BYTES if self._compression not in {"none", "auto"} else self._piece_bytes
        raw = self._source.open(self._start)
        self._raw_close = raw.close
        pieces: Iterator[bytes] = iter(lambda: raw.read(min(size, self._missing)), b"")
        if self._compression == "auto":
            head, pieces = _beginning(pieces, MAX_MAGIC_BYTES)
            self._compression = detect_compression(head, self._source.key)
            size = _PACKED_READ_BYTES if self._compression != "none" else self._piece_bytes
        if self._compression != "none":
            pieces = _bounded(_UNPACKERS[self._compression](pieces, self._window), self._expansion, self._source.size)
        if self._text and not self._start:
            pieces = self._checked_text(pieces)
        self._pieces = pieces
        return pieces

    def _checked_text(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces, if they begin as text does, wherever their borders are."""
        is_packed = self._compression != "none"
        is_named = _suffix(self._source.key) in _NAMED
        head, pieces = _beginning(pieces, _TEXT_BYTES if is_packed or is_named else WIDE_BYTES)
        if is_packed:
            _check_packed_once(head, self._source.key, self._compression)
        elif self._may_be_packed and is_named:
            _check_not_packed(head[:_TEXT_BYTES], self._source.key)
        if is_wide(head):
            raise CorruptObjectError(
                "it begins as text in UTF-16 or UTF-32, which is not supported; upload it in UTF-8, or set "
                'input.format = "bytes"'
            )
        yield from pieces


def check_expansion(what: str, unfolded: int, factor: int, stored_bytes: int) -> None:
    """Check how many bytes so many stored ones unfold to; see `input.max_expansion`.

    Raises:
        CorruptObjectError: more than they may; `what` begins its message.
    """
    most = max(FREE_EXPANSION_BYTES, factor * stored_bytes)
    if factor and unfolded > most:
        raise CorruptObjectError(
            f"{what} more than {most} bytes, of {stored_bytes} that are stored: input.max_expansion is {factor}"
        )


def _bounded(pieces: Iterator[bytes], factor: int, stored_bytes: int) -> Iterator[bytes]:
    """Yield the pieces up to the one with which they are more than is allowed: what holds no records counts, too."""
    total = 0
    try:
        for piece in pieces:
            yield piece
            total += len(piece)
            check_expansion("it unpacks to", total, factor, stored_bytes)
    except TrailingDataError as exc:
        raise CorruptObjectError(str(exc)) from None


def _beginning(pieces: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """Return at least the first `size` bytes, or all there are, and all pieces again; an error comes after the former."""
    head = b""
    try:
        while len(head) < size and (piece := next(pieces, b"")):
            head += piece
    except Exception as exc:  # noqa: BLE001 - raised behind the head
        return head, _after(head, exc)
    return head, chain((head,), pieces)


def _check_packed_once(head: bytes, key: str, compression: str) -> None:
    """Refuse files that are packed together, and text that is packed again inside: its bytes would be taken for lines."""
    inner = next((name for name, magics in _MAGIC.items() if head.startswith(magics)), None)
    if inner is not None:
        raise CorruptObjectError(
            f"it is packed twice: inside of the {compression} data there is {inner} data; upload it packed once"
        )
    if key.lower().endswith(_TAR_SUFFIXES) and head.startswith(_TAR_MAGIC, _TAR_MAGIC_AT):
        raise CorruptObjectError(
            "its name says tar, an archive of files, which is not supported; upload the files that are in it"
        )


def _after(head: bytes, failure: Exception) -> Iterator[bytes]:
    if head:
        yield head
    raise failure
