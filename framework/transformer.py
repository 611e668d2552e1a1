"""The contract of a format: the bytes of an object -> its records.

A transformer knows nothing of buckets, retries or Iggy. It is given an `ObjectInput` and yields runs of payloads, with
bad records between them. The formats that ship are in the package `transformers`; others register under the entry point
group `iggy_cloud_sources.transformers`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

import attrs

from framework.errors import RecordError
from framework.records import Mark, SkippedRecord, length_only
from framework.shares import Share

MAX_MESSAGE_BYTES = 64_000_000
"""The longest payload that an Iggy message can have (iggy 0.9)."""

MAX_LETTER_BYTES = 1 << 20
"""The longest piece of a bad record that is kept, for a dead letter."""

COMPRESSIONS = ("auto", "none", "gzip", "zstd", "snappy", "bzip2", "xz")
"""The values of `input.compression`."""


@attrs.frozen(kw_only=True, slots=True)
class InputOptions:
    """How the bytes of an object become records: the part of the `[input]` section that a transformer is made from.

    Attributes:
        format: name of a format, shipped or registered; `auto` goes by the key's suffix.
        compression: what the whole object is packed in; `auto` goes by magic bytes, then by the key's suffix.
        validate: check that every line of `jsonl` is JSON.
        max_record_bytes: a longer record is a bad one; at most `MAX_MESSAGE_BYTES`.
        chunk_size: bytes in a record of `bytes`; the last may be shorter.
        whole_object: `bytes` makes one record of the whole object.
        csv_header: the first row names the fields; without it a row becomes a JSON array.
        csv_delimiter: one ASCII character between fields.
        csv_quote: one ASCII character around fields; within a field it stands twice. Empty: no quoting.
    """

    format: str = "auto"
    compression: str = "auto"
    validate: bool = True
    max_record_bytes: int = MAX_MESSAGE_BYTES
    chunk_size: int = 4096
    whole_object: bool = False
    csv_header: bool = True
    csv_delimiter: str = ","
    csv_quote: str = '"'

    def mistakes(self) -> tuple[str, ...]:
        """What is wrong with these options, one sentence each; the format's name is checked by `make_transformer`."""
        found = []
        if self.compression not in COMPRESSIONS:
            found.append(f"input.compression: {self.compression!r} is none of {', '.join(COMPRESSIONS)}")
        for name in ("max_record_bytes", "chunk_size"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_MESSAGE_BYTES:
                found.append(f"input.{name}: {value} is not between 1 and {MAX_MESSAGE_BYTES}")
        if not _is_csv_character(self.csv_delimiter):
            found.append("input.csv_delimiter: must be one ASCII character and no line end")
        if self.csv_quote and not _is_csv_character(self.csv_quote):
            found.append("input.csv_quote: must be one ASCII character and no line end, or empty for no quoting")
        if self.csv_delimiter == self.csv_quote:
            found.append("input.csv_quote: must not be the same as input.csv_delimiter")
        return tuple(found)


def _is_csv_character(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text not in "\r\n\0 "


class ReadStream(Protocol):
    """A forward-only stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At least one byte and at most `size`; `b""` at the true end only. Blocks. A failure raises, never ends."""

    def close(self) -> None:
        """Gives the connection back. May be called twice."""


class ObjectInput(Protocol):
    """The stored bytes of one object version.

    Every stream checks what it delivers: when the object is shorter than listed, or is not the listed version, `read`
    raises an `ObjectError`. A transformer therefore must read to the end to know that it saw the whole object.

    Attributes:
        location: the address for messages, `s3://bucket/key`.
        key: the key, for what depends on a suffix.
        size: bytes, as listed.
    """

    @property
    def location(self) -> str:
        """The address for messages."""

    @property
    def key(self) -> str:
        """The key, for what depends on a suffix."""

    @property
    def size(self) -> int:
        """Bytes, as listed."""

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        """Opens the stored bytes `start .. end - 1` (to the object's end by default). Each call is a request."""


@attrs.frozen(kw_only=True, slots=True)
class BatchLimits:
    """When a run of records is long enough. The first limit reached ends it; a single larger record goes alone.

    Attributes:
        records: at most this many.
        size_bytes: at most about this many bytes of payload.
    """

    records: int = 5000
    size_bytes: int = 2_000_000


@attrs.frozen(kw_only=True, slots=True)
class PayloadRun:
    """Consecutive good records.

    Attributes:
        first_record: number of the first, counted from 1.
        payloads: 1 byte to `MAX_MESSAGE_BYTES` each.
        size_bytes: the sum of their lengths.
        mark: where the next record can be found without reading what is before; None when the format or an outer
            compression cannot say.
    """

    first_record: int
    payloads: Sequence[bytes] = attrs.field(repr=length_only)
    size_bytes: int
    mark: Mark | None = None


class Transformer(abc.ABC):
    """Splits one object into records, lazily, from any position.

    One instance serves many objects, also from several threads at once: it holds options, never the state of a read.

    Attributes:
        name: the value of `input.format`.
        reads_forward: it opens one stream from the start (or from the mark's byte) and reads to the end, so that stream can
            be opened ahead. False for formats that begin at the end, as Parquet does.
        needs_modules: modules that reading imports besides the framework's, `("pyarrow",)`: looked for on Spark's executors
            before a run.
    """

    name: ClassVar[str]
    reads_forward: ClassVar[bool] = True
    needs_modules: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def runs(
        self, source: ObjectInput, *, skip: int = 0, mark: Mark | None = None, limits: BatchLimits | None = None
    ) -> Iterator[PayloadRun | SkippedRecord]:
        """The records after the first `skip`, in order: runs of good ones, and every bad one by itself.

        The object is opened at the first `next`, and closed when the iterator is exhausted, closed or fails. Memory is
        bounded by the limits, whatever the object's size.

        Args:
            source: the stored bytes.
            skip: records to leave out, good and bad ones alike; those at or below it are not yielded.
            mark: a mark of an earlier run over this version with `mark.record <= skip`; may be ignored.
            limits: how long a run may get.

        Yields:
            Runs, and `SkippedRecord`s for records that are bad while those after them can be read (its error is a
            `RecordError` with location, number and byte offset when known). Numbers go up by one from `skip + 1`, over
            both: a bad record keeps its number.

        Raises:
            ObjectError: the rest cannot be read: a broken block, an end that is missing. What stood before it has been
                yielded.
        """

    @abc.abstractmethod
    def depends_on(self) -> Mapping[str, str]:
        """The options that decide which record has which number: `{"format": "bytes", "chunk_size": "4096"}`.

        They are saved with every position. A position is only used when they are the same.
        """

    def can_split(self, key: str) -> bool:
        """Whether an object of that key may be cut into shares, each read by itself with `share_runs`. No, by default.

        A fixed function of the options and the key: nothing is read to decide it.
        """
        del key
        return False

    def share_runs(
        self,
        source: ObjectInput,
        share: Share,
        *,
        skip: int = 0,
        mark: Mark | None = None,
        limits: BatchLimits | None = None,
    ) -> Iterator[PayloadRun | SkippedRecord]:
        """The records of one share, as `runs` gives those of an object; numbers count from 1 in each share.

        A record belongs to the share in whose bytes it begins, and may end behind them: all shares in their order give what
        `runs` gives. Only for formats that say so with `can_split`. What `share.window(source.size, mark)` names is fetched
        ahead: open those bytes first.

        Raises:
            ObjectError: as `runs`.
            NotImplementedError: by default.
        """
        raise NotImplementedError(f"{self.name} reads {source.location} whole, not share {share.number} of it")

    def remake(self, raw: bytes, *, key: str) -> bytes:
        """The payload of a record from its own bytes alone, as a dead letter holds them, under the options as they are now.

        For letters whose object is gone. By default there is no way back: a record may need what stands around it.

        Args:
            raw: the bytes that `SkippedRecord.raw` had, all of them.
            key: of its object, for what depends on a suffix.

        Raises:
            RecordError: it is still bad, or cannot be made so.
        """
        del raw, key
        raise RecordError(f"a record of {self.name} cannot be made from its bytes alone")

    def records(self, source: ObjectInput, *, skip: int = 0) -> Iterator[bytes]:
        """The payloads one by one, for library use. The first bad record raises its error."""
        for run in self.runs(source, skip=skip):
            if isinstance(run, SkippedRecord):
                raise run.error
            yield from run.payloads
