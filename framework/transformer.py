"""The contract of a format: the bytes of an object -> its records.

A transformer knows nothing of buckets, retries or Iggy. It reads an `ObjectInput` and yields batches of payloads, with
bad records between them. The built-in formats are in the package `transformers`; others register under the entry point
group `iggy_cloud_sources.transformers`.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs
from typing_extensions import override

from framework.errors import (
    CorruptObjectError,
    FormatContractError,
    RecordError,
    SkippableError,
    SourceError,
    is_of_machine,
    raised_at,
)
from framework.model.batches import SkippedRecord
from framework.model.closing import close_iterator
from framework.model.objects import NativeObject, ResumePoint, length_only
from framework.model.payloads import BYTES_TYPES, PayloadColumn, owned
from framework.model.splits import Split

if TYPE_CHECKING:
    import msgspec

MAX_MESSAGE_BYTES = 64_000_000
"""The maximum payload of an Iggy message, in bytes (iggy 0.9)."""

MAX_DEAD_LETTER_BYTES = 1 << 20
"""The maximum number of bytes of a bad record that are kept for a dead letter."""

MIN_WINDOW_BYTES = 1 << 20
MAX_WINDOW_BYTES = 1 << 31
"""The limits of `input.max_window_bytes`; the maximum is the window of `zstd --long=31`."""

COMPRESSIONS = ("auto", "none", "gzip", "zstd", "snappy", "bzip2", "xz")
"""The values of `input.compression`."""


@attrs.frozen(kw_only=True, slots=True)
class InputOptions:
    """Options for reading records: the part of the `[input]` section that configures a transformer.

    Attributes:
        format: name of a format, built-in or registered; `auto` uses the key's suffix.
        compression: compression of the whole object; `auto` uses magic bytes, then the key's suffix.
        validate: check that every line of `jsonl` is JSON.
        max_record_bytes: a longer record is bad; at most `MAX_MESSAGE_BYTES`.
        max_block_bytes: a longer block of an Avro file, stored or decompressed, fails the object.
        max_expansion: an object whose records, or what its compression, blocks or pages hold, exceed its stored bytes by
            this factor fails. Small objects are exempt; 0 disables the limit.
        max_temporary_bytes: maximum decompressed size of an outer-compressed Parquet file, in a temporary file.
        max_page_bytes: pages of a Parquet file that are read at once and unfold to more fail the object.
        max_window_bytes: data of zstd that needs a larger window, or of xz with a larger dictionary, fails the object. At
            most `MAX_WINDOW_BYTES`.
        chunk_size: bytes per record of `bytes`; the last record may be shorter.
        whole_object: `bytes` makes the whole object a single record.
        csv_header: the first row names the fields; without it a row becomes a JSON array.
        csv_delimiter: the ASCII character between fields.
        csv_quote: the ASCII character around fields; it is doubled within a field. Empty: no quoting.
        columns: names, or dotted paths, of the only columns to read, for formats with `reads_columns`; empty: all.
    """

    format: str = "auto"
    compression: str = "auto"
    validate: bool = True
    max_record_bytes: int = MAX_MESSAGE_BYTES
    max_block_bytes: int = 1 << 26
    max_expansion: int = 1000
    max_temporary_bytes: int = 1 << 30
    max_page_bytes: int = 1 << 30
    max_window_bytes: int = 1 << 27
    chunk_size: int = 4096
    whole_object: bool = False
    csv_header: bool = True
    csv_delimiter: str = ","
    csv_quote: str = '"'
    columns: tuple[str, ...] = ()

    def validate_options(self) -> tuple[str, ...]:
        """Return a message for each invalid option; `make_transformer` checks the format's name."""
        found = []
        if self.compression not in COMPRESSIONS:
            found.append(f"input.compression: {self.compression!r} is none of {', '.join(COMPRESSIONS)}")
        for name, least, most in (
            ("max_record_bytes", 1, MAX_MESSAGE_BYTES),
            ("max_block_bytes", 1, sys.maxsize),
            ("max_expansion", 0, sys.maxsize),
            ("max_temporary_bytes", 1, sys.maxsize),
            ("chunk_size", 1, MAX_MESSAGE_BYTES),
            ("max_page_bytes", 1 << 20, 1 << 62),
            ("max_window_bytes", MIN_WINDOW_BYTES, MAX_WINDOW_BYTES),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                found.append(f"input.{name}: {value} is not between {least} and {most}")
        if not _is_csv_character(self.csv_delimiter):
            found.append("input.csv_delimiter: must be one ASCII character and no line end")
        if self.csv_quote and not _is_csv_character(self.csv_quote):
            found.append("input.csv_quote: must be one ASCII character and no line end, or empty for no quoting")
        if self.csv_delimiter == self.csv_quote:
            found.append("input.csv_quote: must not be the same as input.csv_delimiter")
        return (*found, *self._column_errors())

    def _column_errors(self) -> Iterator[str]:
        if "" in self.columns:
            yield "input.columns: a name must not be empty"
        if len(set(self.columns)) < len(self.columns):
            yield "input.columns: a name must not be there twice"
        if self.columns and not self.csv_header and self.format in {"csv", "auto"}:
            yield "input.columns: columns of CSV have names only with input.csv_header"


def _is_csv_character(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text not in "\r\n\0 "


class ReadStream(Protocol):
    """A forward-only stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return 1 to `size` bytes; `b""` only at the true end. Blocks. Raises on failure, never returns `b""` then."""

    def close(self) -> None:
        """Release the connection. May be called twice."""


class ObjectInput(Protocol):
    """The stored bytes of an object version.

    Every stream checks the bytes that it delivers. When the object is shorter than listed, or is not the listed
    version, `read` raises an `ObjectError`. So a transformer must read to the end to know that it saw the whole object.

    Attributes:
        location: the address for messages, `s3://bucket/key`.
        key: the key, for rules that depend on a suffix.
        size: bytes, as listed.
    """

    @property
    def location(self) -> str:
        """The address for messages."""

    @property
    def key(self) -> str:
        """The key, for rules that depend on a suffix."""

    @property
    def size(self) -> int:
        """Size in bytes, as listed."""

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        """Open the stored bytes `start .. end - 1` (by default to the object's end). Each call is a request."""


@attrs.frozen(kw_only=True, slots=True)
class BatchLimits:
    """Limits of a batch. The first limit reached ends the batch; a single larger record forms its own batch.

    Attributes:
        records: maximum number of records.
        size_bytes: approximate maximum of payload bytes.
    """

    records: int = 5000
    size_bytes: int = 2_000_000


@attrs.frozen(kw_only=True, slots=True)
class PayloadBatch:
    """Consecutive good records.

    Attributes:
        first_record: number of the first record, counted from 1.
        payloads: 1 byte to `MAX_MESSAGE_BYTES` each. A list works: of `bytes`, or of other buffers, which are copied. A
            `framework.model.payloads.PayloadColumn` is quicker for payloads without line feeds that are already in one
            piece of `bytes`.
        size_bytes: the sum of their lengths.
        mark: where to find the next record without reading the bytes before it; None when the format or an outer
            compression does not allow it.
    """

    first_record: int
    payloads: Sequence[bytes] = attrs.field(repr=length_only)
    size_bytes: int
    mark: ResumePoint | None = None


def explained(failure: Exception, location: str, record: int) -> Exception:
    """Return the exception to raise in place of an exception that ended the reading of an object.

    An exception that is not a framework error becomes an error of the object: the format's code cannot handle the
    object. Low memory, a missing module and system errors (a full disk) say nothing about the object and are kept.

    Args:
        failure: the original exception.
        location: the object's address.
        record: the number of the next record.
    """
    if isinstance(failure, MemoryError):
        if str(failure).startswith(f"{location}, record "):  # explained already, by `records` of another format
            return failure
        reason = f" ({failure})" if str(failure) else ""
        return MemoryError(f"{location}, record {record}: there is not enough memory to read it{reason}")
    if isinstance(failure, SkippableError):
        _locate(failure, location, record)
    if isinstance(failure, SourceError) or is_of_machine(failure):
        return failure
    return CorruptObjectError(
        f"it cannot be read further: its format failed with {type(failure).__name__}, which is either damage of the object or "
        f"a defect of the format's code ({raised_at(failure)})",
        location=location,
        record_number=record,
    )


def guarded(
    read: Callable[[], Iterator[PayloadBatch | SkippedRecord]], location: str, done: int, *, of: object
) -> Iterator[PayloadBatch | SkippedRecord]:
    """Yield a transformer's batches, checked, and map every exception to an error that the framework knows.

    Args:
        read: begins the reading; its iterator is closed with this one.
        location: the object's address.
        done: number of records before the first batch.
        of: the transformer, for messages.

    Raises:
        FormatContractError: the transformer yields something else than the next records.
        Exception: see `explained`.
    """
    runs: Iterator[PayloadBatch | SkippedRecord] | None = None
    try:
        runs = read()
        for run in _iterated(runs, of, location):
            done = _checked(run, done + 1, of, location)
            yield _owned(run, of, location)
    except Exception as failure:
        error = explained(failure, location, done + 1)
        if error is failure:
            raise
        raise error from failure
    finally:
        close_iterator(runs)


def whole_batch(
    transformer: Transformer, data: bytes, native: NativeObject, limits: BatchLimits
) -> PayloadBatch | None:
    """Return the only batch of an object, checked; None when it must be read.

    Raises:
        FormatContractError: the transformer returns something else.
    """
    try:
        run: object = transformer.read_whole(data, key=native.key, limits=limits)
    except Exception:  # noqa: BLE001 - `read` fails, too, and its error names the record
        return None
    if run is None:
        return None
    if not isinstance(run, PayloadBatch):
        raise _broken(transformer, native.location, f"read_whole returned {type(run).__name__}, not a PayloadBatch")
    _checked(run, 1, transformer, native.location)
    return _owned_batch(run, transformer, native.location)


def _iterated(
    runs: Iterator[PayloadBatch | SkippedRecord], of: object, location: str
) -> Iterator[PayloadBatch | SkippedRecord]:
    if not hasattr(runs, "__iter__"):
        raise _broken(of, location, f"read returned {type(runs).__name__}, which is no iterator of batches")
    return runs


def _checked(run: object, number: int, of: object, location: str) -> int:
    """Return the number of a run's last record. Constant time: of its payloads only the first is looked at.

    Args:
        run: what the transformer yielded.
        number: the number that its first record must have.
        of: the transformer, for messages.
        location: the object's address.

    Raises:
        FormatContractError: it is not the next record, or nothing that can be sent.
    """
    if isinstance(run, PayloadBatch):
        payloads: object = run.payloads
        count = len(payloads) if type(payloads) is list or isinstance(payloads, Sequence) else -1
        first, last, mistake = run.first_record, number + count - 1, _batch_mistake(run, count, number + count - 1)
    elif isinstance(run, SkippedRecord):
        first, last, mistake = run.record_number, number, _skip_mistake(run)
    else:
        first, last, mistake = number, number, f"read yielded {type(run).__name__}, not a PayloadBatch or SkippedRecord"
    if type(first) is not int or first != number:
        mistake = (
            f"read yielded record {first!r} where record {number} comes next: numbers begin at skip + 1 and increase by "
            "one over good and bad records alike"
        )
    if mistake:
        raise _broken(of, location, f"record {number}: {mistake}")
    return last


def _owned(run: PayloadBatch | SkippedRecord, of: object, location: str) -> PayloadBatch | SkippedRecord:
    """Return what a format yielded, independent of what the format does next with its lists and buffers."""
    if isinstance(run, PayloadBatch):
        return _owned_batch(run, of, location)
    _locate(run.error, location, run.record_number)
    return run if type(run.raw) is bytes else attrs.evolve(run, raw=bytes(run.raw))


def _locate(error: SkippableError, location: str, record: int) -> None:
    """Let an error that names no object or no place in it, as a format or a stream may raise it, name object and record."""
    if error.record_number is None and (not error.location or isinstance(error, CorruptObjectError)):
        error.record_number = record
    error.location = error.location or location


def _owned_batch(run: PayloadBatch, of: object, location: str) -> PayloadBatch:
    try:
        payloads = owned(run.payloads)
    except TypeError as exc:
        mistake = f"record {run.first_record}: a payload of its batch is {exc}, not bytes"
        raise _broken(of, location, mistake) from None
    return run if payloads is run.payloads else attrs.evolve(run, payloads=payloads)


def _batch_mistake(run: PayloadBatch, count: int, last: int) -> str:
    """Return what is wrong with a batch that ends with that record; empty if nothing is.

    Args:
        run: the batch.
        count: number of its payloads; below 0 when they are no sequence.
        last: the record.
    """
    payloads = run.payloads
    if count < 0:
        return f"its payloads are {type(payloads).__name__}, not a list"
    if not count:
        return "its batch has no payloads"
    if type(payloads) is not PayloadColumn and not isinstance(payloads[0], BYTES_TYPES):
        return f"its payload is {type(payloads[0]).__name__}, not bytes"
    if type(run.size_bytes) is not int or (run.size_bytes < count and all(payloads)):
        return f"size_bytes of its batch is {run.size_bytes!r}, not the sum of the payloads' lengths"
    if run.mark is not None and (type(run.mark) is not ResumePoint or run.mark.record > last):
        return f"the mark of its batch is {run.mark!r}, and the batch ends with record {last}"
    return ""


def _skip_mistake(run: SkippedRecord) -> str:
    """Return what is wrong with a bad record; empty if nothing is."""
    error: object = run.error
    if not isinstance(error, SkippableError):
        return f"its error is {type(error).__name__}, not a RecordError"
    raw: object = run.raw
    return "" if isinstance(raw, BYTES_TYPES) else f"its bytes are {type(raw).__name__}, not bytes"


def _broken(of: object, location: str, mistake: str) -> FormatContractError:
    kind = type(of)
    return FormatContractError(f"{location}: the format {kind.__module__}.{kind.__qualname__} is defective: {mistake}")


class Transformer(abc.ABC):
    """Read an object's records, lazily, from any position.

    An instance serves many objects, also from several threads at once: it holds options, never the state of a read.

    Attributes:
        name: the value of `input.format`.
        reads_forward: whether it opens a single stream from the start (or from the mark's byte) and reads to the end,
            so that the stream can be prefetched. False for formats that start at the end, such as Parquet.
        reads_columns: whether it reads only the columns that `InputOptions.columns` names. Other formats refuse the
            option.
        needs_modules: modules that reading imports besides the framework's, such as `("pyarrow",)`: checked on Spark's
            executors before a run.
        max_whole_bytes: the size up to which `read_whole` may read an object; 0: it reads none, as a subclass that
            has a `read` of its own and no `read_whole`.
        row_decoder: the parser of the first transform, set before the first read. A format that checks JSON may do it
            with this parser, and hand the rows on (`PayloadColumn.parsed`); then nothing parses a record twice.
    """

    name: ClassVar[str]
    max_whole_bytes: ClassVar[int] = 0
    row_decoder: msgspec.json.Decoder[Any] | None = None
    reads_forward: ClassVar[bool] = True
    reads_columns: ClassVar[bool] = False
    needs_modules: ClassVar[tuple[str, ...]] = ()

    @override
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "read_whole" not in vars(cls) and not vars(cls).keys().isdisjoint({"read", "_read"}):
            cls.max_whole_bytes = 0  # the `read_whole` of its base class knows nothing of its way

    @abc.abstractmethod
    def read(
        self, source: ObjectInput, *, skip: int = 0, mark: ResumePoint | None = None, limits: BatchLimits | None = None
    ) -> Iterator[PayloadBatch | SkippedRecord]:
        """Yield the records after the first `skip`, in order: good records in batches, bad records individually.

        The object is opened at the first `next`, and closed when the iterator is exhausted, closed or fails. The limits
        bound memory, whatever the object's size.

        Args:
            source: the stored bytes.
            skip: number of records to skip, good and bad alike; records up to this number are not yielded.
            mark: a mark of an earlier batch of this version with `mark.record <= skip`; may be ignored.
            limits: maximum size of a batch.

        Yields:
            Batches, and a `SkippedRecord` for each bad record after which reading can continue. Its error is a
            `RecordError` with location, number and byte offset when known. Numbers increase by one from `skip + 1` over
            both: a bad record keeps its number.

        Raises:
            ObjectError: the rest is unreadable: a broken block, a missing end. The records before it have been yielded.
                The framework converts any other exception to an `ObjectError`, except low memory (`MemoryError`), a
                missing module and system errors.
        """

    def read_whole(self, data: bytes, *, key: str, limits: BatchLimits) -> PayloadBatch | None:
        """Return the only batch of a small object: what `read` would yield, without a mark. None: `read` reads it.

        Many small objects cost less without a stream each. None by default, and for whatever is not plain: a bad record,
        a compression, more than a batch. A failure counts as None.

        Args:
            data: the object's bytes, at most `max_whole_bytes`.
            key: the object's key, for rules that depend on a suffix.
            limits: maximum size of the batch.
        """
        del data, key, limits
        return None

    @abc.abstractmethod
    def numbering_options(self) -> Mapping[str, str]:
        """Return the options that determine the record numbers: `{"format": "bytes", "chunk_size": "4096"}`.

        They are saved with every position. A position is valid only under the same options.
        """

    def prefetch_range(
        self, key: str, size: int, split: Split | None, mark: ResumePoint | None
    ) -> tuple[int, int | None] | None:
        """Return the bytes of an object that are requested before it is read: begin and end, None for the object's end.

        None: nothing. The reading must open this range first. By default, with `reads_forward`, what follows the mark,
        or `split.window(size, mark)`.
        """
        del key
        if not self.reads_forward:
            return None
        if split is not None:
            return split.window(size, mark)
        return mark.byte if mark is not None else 0, None

    def can_split(self, key: str) -> bool:
        """Return whether an object of that key may be split; False by default.

        Each split is then read separately with `read_split`. A pure function of options and key: it reads nothing.
        """
        del key
        return False

    def read_split(
        self,
        source: ObjectInput,
        split: Split,
        *,
        skip: int = 0,
        mark: ResumePoint | None = None,
        limits: BatchLimits | None = None,
    ) -> Iterator[PayloadBatch | SkippedRecord]:
        """Yield the records of a split, as `read` does for an object; numbers count from 1 in each split.

        A record belongs to the split in whose bytes it begins, or the block of records that it is in, and may end beyond
        it. All splits in order yield the records of `read`. Only for formats whose `can_split` allows it. The bytes of
        `prefetch_range` are prefetched: open those bytes first.

        Raises:
            ObjectError: as `read`.
            NotImplementedError: by default.
        """
        raise NotImplementedError(f"{self.name} reads {source.location} whole, not split {split.number} of it")

    def decode_record(self, raw: bytes, *, key: str) -> bytes:
        """Return the payload of a record, decoded from its own bytes alone, under the current options.

        For dead letters whose object is gone. By default it fails: a record may depend on the bytes around it.

        Args:
            raw: the complete bytes of `SkippedRecord.raw`.
            key: key of the object, for rules that depend on a suffix.

        Raises:
            RecordError: the record is still bad, or cannot be decoded alone.
        """
        del raw, key
        raise RecordError(f"a record of {self.name} cannot be made from its bytes alone")

    def records(self, source: ObjectInput, *, skip: int = 0) -> Iterator[bytes]:
        """Yield the payloads individually, for library use. The first bad record raises its error."""
        for run in guarded(lambda: self.read(source, skip=skip), source.location, skip, of=self):
            if isinstance(run, SkippedRecord):
                raise run.error
            yield from run.payloads
