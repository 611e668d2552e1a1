"""A record of the offsets log as a message of Iggy.

    message = b"ICSP" | format version u8 | flags u8 (1: body is zstd) | header length u32 LE | header JSON | body JSON

The header identifies the record without unpacking the body; `framework.iggy.offset_log.codec` has the kinds. In every format
`source` in the header names the writer: sources of several versions may share a topic.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import orjson
import zstandard
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from framework.errors import PositionError
from framework.model.objects import length_only

T = TypeVar("T")

_WAYS_OUT = "bring the topic back from a backup; or name another [offsets] topic and read everything again: `offsets reset --all`"
WAY_OUT = f"It is damaged: {_WAYS_OUT}"

MAGIC = b"ICSP"
FORMAT_VERSION = 2
_PREFIX = struct.Struct("<4sBBI")
_ZSTD = 1
_COMPRESS_FROM_BYTES = 512
MAX_BODY_BYTES = 256 << 20
"""Maximum size of an unpacked body. Real bodies reach some megabytes; other writers to the topic could craft larger."""

MAX_CLAIM_BYTES = 4 << 20
"""Maximum size of an unpacked claim or opening. Real claims have some 100 bytes, and 30 more for each partition."""

_SNAPSHOT_NUMBERS = ("number", "at", "part")
_MAX_NUMBER = 2**63 - 1


class LogMessage(Struct, frozen=True, kw_only=True):
    """One record of the log, its body still packed.

    Attributes:
        offset: offset in the offsets topic.
        kind: `claim`, `opening`, `begin`, `open`, `progress` or `snapshot`.
        source: name of the source that wrote it.
        epoch: the writer's epoch.
        header: the remaining fields of the header.
        timestamp_us: when the server stored it.
        body: the body, packed if `packed`; empty when only the head of the message is kept.
        packed: whether the body is zstd.
    """

    offset: int
    kind: str
    source: str
    epoch: int
    header: Mapping[str, Any] = {}
    timestamp_us: int = 0
    body: bytes = b""
    packed: bool = False

    @override
    def __repr__(self) -> str:
        return f"<a {self.kind} at {self.offset}, {length_only(self.body)}>"

    @property
    def writer(self) -> str:
        """Token of the writer's claim; empty for records that only the leader writes."""
        return str(self.header.get("writer", ""))

    @property
    def head(self) -> LogMessage:
        """The message without its body."""
        return replace(self, body=b"")

    def read(self, kind: type[T], limit: int | None = None) -> T:
        """Return the decoded body.

        Args:
            kind: its type, which is checked.
            limit: how many bytes it may have, unpacked; `MAX_BODY_BYTES` without one.

        Raises:
            PositionError: the body is damaged, or has more bytes.
            ValueError: the body is of another type.
        """
        try:
            value = _loads(self.unpacked(limit))
        except (ValueError, RecursionError) as exc:
            raise self.damaged() from exc
        return msgspec.convert(value, kind, str_keys=True)

    def unpacked(self, limit: int | None = None) -> bytes:
        """Return the unpacked bytes of the body.

        Raises:
            PositionError: the body is damaged, or has more than `limit` bytes.
        """
        limit = MAX_BODY_BYTES if limit is None else limit
        if not self.packed and len(self.body) > limit:
            raise self.damaged()
        try:
            return _unpack(self.body, limit) if self.packed else self.body
        except (zstandard.ZstdError, ValueError) as exc:
            raise self.damaged() from exc

    def check_header(self, place: str = "offsets topic") -> None:
        """Check the types in the header. It is up to the reader to ask for it: what another source wrote is none of ours.

        Args:
            place: how an error names the topic.

        Raises:
            PositionError: the header is damaged.
        """
        numbers = [self.epoch, self.header.get("skipped", 0)]
        if self.kind == "snapshot":
            numbers += map(self.header.get, _SNAPSHOT_NUMBERS)
        right = type(self.kind) is str and {*map(type, numbers)} == {int}
        if not right or min(numbers) < 0 or max(numbers) > _MAX_NUMBER:
            raise PositionError(_unreadable(self.offset, place))

    def damaged(self) -> PositionError:
        """Return the error to raise for an unreadable body."""
        return PositionError(f"offsets topic, message {self.offset}: a {self.kind} that cannot be read. {WAY_OUT}")


def _loads(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)  # reads what `dumps` writes for names that are not valid Unicode


def _unpack(packed: bytes, limit: int) -> bytes:
    """Unpack a zstd frame. `encode` never writes a frame without a size, or with a larger one.

    Raises:
        ValueError, ZstdError: the frame is damaged or malicious.
    """
    size = zstandard.frame_content_size(packed)
    if not 0 <= size <= limit:
        raise ValueError(size)
    return zstandard.ZstdDecompressor().decompress(packed)


def dumps(body: Any) -> bytes:
    """Return a body as JSON."""
    try:
        return _encode(body)
    except (UnicodeEncodeError, OverflowError):  # a name is not valid Unicode, such as a file's; a number is very large
        return json.dumps(msgspec.to_builtins(body), separators=(",", ":")).encode()


_encode = msgspec.json.Encoder().encode


def encode(header: Mapping[str, Any], raw: bytes) -> bytes:
    """Return the message of a header and a body."""
    packed_header = orjson.dumps(header)
    flags = 0
    if len(raw) >= _COMPRESS_FROM_BYTES:
        raw, flags = zstandard.ZstdCompressor().compress(raw), _ZSTD
    return _PREFIX.pack(MAGIC, FORMAT_VERSION, flags, len(packed_header)) + packed_header + raw


def unpacked_bytes(message: bytes) -> int:
    """Return how many bytes the body of a message has, unpacked."""
    _, _, flags, length = _PREFIX.unpack_from(message)
    body = message[_PREFIX.size + length :]
    return zstandard.frame_content_size(body) if flags & _ZSTD else len(body)


def decode(
    offset: int, payload: bytes, timestamp_us: int = 0, *, source: str | None = None, place: str = "offsets topic"
) -> LogMessage | None:
    """Decode a payload; return None when it is not a record of the offsets log, or names another source.

    Args:
        offset: offset of the message.
        payload: its bytes.
        timestamp_us: when the server stored it.
        source: the source whose records are wanted, in any format; None for those of all.
        place: how an error names the topic.

    Raises:
        PositionError: the record is of another format, or damaged, so that it may be one of the source.
    """
    if payload[:4] != MAGIC:
        return None
    version = FORMAT_VERSION
    try:
        _, version, flags, length = _PREFIX.unpack_from(payload)
        end = _PREFIX.size + length
        header = orjson.loads(payload[_PREFIX.size : end])
        writer = header.pop("source")
        if source is not None and writer != source:
            return None
        if version == FORMAT_VERSION:
            return LogMessage(
                offset=offset,
                kind=header.pop("kind"),
                source=writer,
                epoch=header.pop("epoch"),
                header=header,
                timestamp_us=timestamp_us,
                body=payload[end:],
                packed=bool(flags & _ZSTD),
            )
    except (struct.error, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as exc:
        if version == FORMAT_VERSION:
            raise PositionError(_unreadable(offset, place)) from exc
    raise PositionError(_of_another_format(offset, place, version))


_SHAPE_ERRORS = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)


def _unreadable(offset: int, place: str) -> str:
    return f"{place}, message {offset}: positions that cannot be read. {WAY_OUT}"


def _of_another_format(offset: int, place: str, version: int) -> str:
    advice = "run the version that wrote them"
    if version < FORMAT_VERSION:
        advice += ", or name another [offsets] topic: everything is sent again, or with [discovery] modified_after what is new"
    return f"{place}, message {offset}: positions in format {version}, and this version reads format {FORMAT_VERSION}; {advice}"


@contextlib.contextmanager
def shape_of(message: LogMessage) -> Iterator[None]:
    """Turn a body of an unexpected shape into a `PositionError` that names a way out.

    It is around decoding, and around what takes the decoded values in: a value of another type may show only there.
    """
    try:
        yield
    except _SHAPE_ERRORS as error:
        raise PositionError(
            f"offsets topic, message {message.offset}: a record {message.kind} of a shape that this version does not know. "
            f"If another version wrote it, run that version: nothing is lost. Else it is damaged: {_WAYS_OUT}"
        ) from error
