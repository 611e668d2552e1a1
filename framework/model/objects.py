"""Basic values: objects, partitions, byte positions in an object, offsets in a partition."""

from __future__ import annotations

import enum
from collections.abc import Sized
from datetime import datetime, timezone

import attrs
import msgspec
from typing_extensions import override


def length_only(value: Sized) -> str:
    """Return a repr for a long value that shows its length, never its content."""
    return f"<{len(value)}>"


_SHOWN_KEY = 200

MAX_SIZE = 10**18 - 1
"""The largest size of an object, in bytes: no store has a thousandth of it, and sums still fit in 64 bits."""

_SIZE_DIGITS = len(str(MAX_SIZE))


def size_of(text: str, key: str) -> int:
    """Return the size of an object as a listing writes it: ASCII digits.

    Raises:
        ValueError: no object has that many bytes; a size that is missing is not 0. Names the key.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _SIZE_DIGITS):
        raise ValueError(f"an object {key[:_SHOWN_KEY]!a} of {f'{text[:20]!a} bytes' if text else 'no size'}")
    return int(text)


@attrs.frozen(kw_only=True, slots=True)
class NativeObject:
    """An object version of a bucket, as a listing shows it.

    Attributes:
        scheme: the store's scheme in an address: `s3`, `gs`, `file`.
        bucket: the object's bucket.
        key: the object's key, exactly as stored.
        size: bytes, as listed.
        version: distinguishes contents under the same key: an etag, or else the size, with its last-modified (S3), a
            generation (GCS).
        modified_ms: last-modified, milliseconds since 1970 UTC. A plain int, since listings hold millions of them.
        storage_class: the store's name for it; empty when the store has none.
    """

    scheme: str = ""
    bucket: str
    key: str
    size: int
    version: str
    modified_ms: int = 0
    storage_class: str = ""

    @property
    def location(self) -> str:
        """The address for messages: `s3://bucket/key`."""
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.scheme else f"{self.bucket}/{self.key}"

    @property
    def last_modified(self) -> datetime:
        """The last-modified time, timezone-aware, UTC."""
        return datetime.fromtimestamp(self.modified_ms / 1000, tz=timezone.utc)


def is_older_form(version: str, listed: str) -> bool:
    """Return whether a saved version is what earlier builds saved of this listed one.

    An S3 store that lists no ETag shows `@last-modified-size`. They left out the size.
    """
    return version[:1] == "@" and listed.startswith(f"{version}-")


class TopicPartition(
    msgspec.Struct, frozen=True, order=True, cache_hash=True, array_like=True, forbid_unknown_fields=True
):
    """A partition of a data topic: the unit of work, of order and of recovery."""

    topic: str
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class ResumePoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A place to resume from without reading the bytes before it.

    Attributes:
        record: number of records that end at or before `byte`.
        byte: offset in the stored object of the first byte after them.
    """

    record: int
    byte: int


class ObjectState(str, enum.Enum):
    """The progress of an object."""

    READING = "reading"
    DONE = "done"
    FAILED = "failed"


@attrs.frozen(slots=True)
class Anchor:
    """The place of a message in a partition: saved counts cover every message of this source up to it.

    Attributes:
        offset: the message's offset in its partition.
        message_id: its 128-bit id.
        origin_us: the send time by the sender's clock, microseconds since 1970; 0 when unknown. Ids are the same on
            every run; the time rules out a different message with the same id.
    """

    offset: int
    message_id: int
    origin_us: int = 0

    def is_at(self, offset: int, message_id: int, origin_us: int) -> bool:
        """Return whether a message is the anchored message."""
        same_time = not (self.origin_us and origin_us) or self.origin_us == origin_us
        return (self.offset, self.message_id) == (offset, message_id) and same_time
