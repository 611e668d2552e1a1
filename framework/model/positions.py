"""The position of an object: how many records are sent, how many survive any crash, and their destination.

    started -> sent (acknowledged) -> saved (survives any crash) -> final (saved up to the total)

docs/concepts/positions.md explains why these counts differ.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from typing_extensions import Self

from framework.errors import PositionMismatchError
from framework.model.objects import NativeObject, ObjectState, ResumePoint, TopicPartition
from framework.model.splits import KeyPart, Split, division_of

Scalar = str | int | float | bool | None


class OffsetManagerKey(NamedTuple):
    """The identity of a position: a small map, for S3 `bucket` and `key`.

    Its serialised form is canonical (sorted): a position whose key is written in another order is never found again.
    A tuple, because each object is looked up some twenty times: its hash costs no call into Python.
    """

    properties: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> OffsetManagerKey:
        """Return the key of a map, independent of the order of its items."""
        return cls(tuple(sorted(properties.items())))

    @classmethod
    def of_object(cls, bucket: str, key: str) -> OffsetManagerKey:
        """Return the key of an object: `{"bucket": bucket, "key": key}`."""
        return tuple.__new__(cls, ((("bucket", bucket), ("key", key)),))  # without a call into Python

    def of_split(self, split_number: int) -> OffsetManagerKey:
        """Return the key of a split of this object.

        Split 1 uses the object's own key: its position records how the object is split.
        """
        return self if split_number <= 1 else self.of({**dict(self.properties), "share": str(split_number)})

    def whole(self) -> OffsetManagerKey:
        """Return the key of the object that this split belongs to."""
        if all(name != "share" for name, _ in self.properties):
            return self
        return OffsetManagerKey(tuple(pair for pair in self.properties if pair[0] != "share"))

    def canonical(self) -> str:
        """Return JSON with sorted names and no spaces; equal keys give equal text."""
        return json.dumps(dict(self.properties), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


_NAMES = {
    "modified_ms": "modified",
    "split_number": "share",
    "records_done": "records",
    "records_saved": "saved",
    "numbering_options": "depends_on",
    "missing_since_ms": "missing_since",
}
"""Fields of a position -> their names in its stored form, where they differ."""

_NEEDED = {"version", "generation", "modified", "records", "saved", "state", "topic", "partition", "total"}
"""What the stored form has even when it is 0; of all else, only what says something."""


class OffsetManagerEntry(Struct, frozen=True, kw_only=True, rename=_NAMES.get):
    """The position of an object version, or of a split of it.

    Attributes:
        bucket: the object's bucket.
        key: the object's key.
        version: the version that the counts refer to.
        generation: 1, 2, 3 ...: each time this key starts again from its first record (a new version, a reset, other
            options), it gets a generation that it never had before. It is part of every message id.
        modified_ms: last-modified of that version, milliseconds since 1970.
        split_number: number of the split or part, counted from 1; 0 when the object is read whole.
        split_size: bytes per split; 0 when the object is read whole; below 0 when it is divided by key, see
            `framework.model.splits.KeyPart`. Fixed with the version's first position.
        records_done: records 1 .. records_done are acknowledged or skipped. Never "index of the next".
        records_saved: number of records that survive any crash of the server; never more than `records_done`.
        total: number of records; None until the end was read.
        failed: the total is not the object's end but the last record before the object failed.
        skipped: number of skipped bad records up to `records_done`.
        topic_partition: destination of the records; fixed when the object starts.
        mark: a place near `records_done` to resume from without reading the bytes before it.
        numbering_options: the options that number its records, canonical; see `Transformer.numbering_options`.
        may_begin_again: whether a person allowed it to start again once when other options number its records.
        missing_since_ms: since when complete listings have not shown the object; 0 while they do.
        extra: data of a subclass of the source; JSON scalars.
    """

    bucket: str
    key: str
    version: str
    generation: int = 1
    modified_ms: int = 0
    split_number: int = 0
    split_size: int = 0
    records_done: int = 0
    records_saved: int = 0
    total: int | None = None
    failed: bool = False
    skipped: int = 0
    topic_partition: TopicPartition
    mark: ResumePoint | None = None
    numbering_options: str = ""
    may_begin_again: bool = False
    missing_since_ms: int = 0
    extra: Mapping[str, Scalar] = {}

    def __post_init__(self) -> None:
        if self.extra:
            msgspec.structs.force_setattr(self, "extra", dict(self.extra))

    @classmethod
    def start(
        cls, native: NativeObject, topic_partition: TopicPartition, numbering_options: str = ""
    ) -> OffsetManagerEntry:
        """Return the position of an object before its first record is read."""
        return cls(
            bucket=native.bucket,
            key=native.key,
            version=native.version,
            modified_ms=native.modified_ms,
            topic_partition=topic_partition,
            numbering_options=numbering_options,
        )

    @property
    def finished(self) -> bool:
        """Whether this version has no more records to read: it is done or failed."""
        return self.total is not None and self.records_done >= self.total

    @property
    def final(self) -> bool:
        """Whether the position is finished and no crash can change that."""
        return self.total is not None and self.records_saved >= self.total

    @property
    def done(self) -> bool:
        """Whether the object was read to its end."""
        return self.finished and not self.failed

    @property
    def state(self) -> ObjectState:
        """The state: reading, done or failed."""
        if not self.finished:
            return ObjectState.READING
        return ObjectState.FAILED if self.failed else ObjectState.DONE

    @property
    def division(self) -> Split | KeyPart | None:
        """The split or part of this position; None when it is the only one of its object."""
        return division_of(self.split_number, self.split_size)

    @property
    def split(self) -> Split | None:
        """The split of this position; None when it covers no range of bytes."""
        return Split(self.split_number, self.split_size) if self.split_size > 0 else None

    @property
    def part(self) -> KeyPart | None:
        """The part of this position, where the object is divided by key; else None."""
        return KeyPart(self.split_number, -self.split_size) if self.split_size < 0 else None

    @property
    def whole(self) -> bool:
        """Whether it is the only position of its object."""
        return not self.split_size

    @property
    def counts_object(self) -> bool:
        """Whether its object, and `records_done`, count for it: of the parts of an object for the first alone."""
        return self.split_size >= 0 or self.split_number == 1

    def bytes_of(self, native: NativeObject) -> int:
        """Return how many bytes of the object this position covers."""
        division = self.division
        return division.bytes_of(native.size) if division is not None else native.size

    @property
    def is_abandoned(self) -> bool:
        """Whether its partition is gone, and the next listing begins its object again, in another one."""
        return self.numbering_options == _ABANDONED

    def abandoned(self) -> Self:
        """Return what is left of the position of an object whose partition is gone.

        It counts no record. While it is there, the watermark does not hide the object.
        """
        return self.changed(
            split_number=0,
            split_size=0,
            records_done=0,
            records_saved=0,
            total=None,
            failed=False,
            skipped=0,
            mark=None,
            numbering_options=_ABANDONED,
            extra={},
        )

    def is_of(self, other: OffsetManagerEntry) -> bool:
        """Return whether both cover the same records: the same generation, version and split size."""
        return (self.generation, self.version, self.split_size) == (other.generation, other.version, other.split_size)

    def get_manager_key(self) -> OffsetManagerKey:
        """Return the key under which the position is stored."""
        whole = OffsetManagerKey.of_object(self.bucket, self.key)
        return whole if self.split_number <= 1 else whole.of_split(self.split_number)

    def get_properties(self) -> dict[str, Any]:
        """Return the stored form without the key: a new dict of JSON values, independent of the position."""
        properties: dict[str, Any] = msgspec.to_builtins(self)
        del properties["bucket"], properties["key"]
        properties["state"] = self.state.value
        properties["topic"], properties["partition"] = properties.pop("topic_partition")
        if self.part is not None:
            properties["part"], properties["parts"] = properties.pop("share"), -properties.pop("split_size")
        return {name: value for name, value in properties.items() if value or (name in _NEEDED and value is not None)}

    @classmethod
    def from_properties(cls, key: OffsetManagerKey, properties: Mapping[str, Any]) -> Self:
        """Parse the stored form; the inverse of `get_properties`. Keeps no reference to the argument.

        Raises:
            KeyError, TypeError, ValueError: the stored form is not valid.
        """
        names, values = dict(key.properties), dict(properties)
        ObjectState(values["state"])
        if "part" in values:
            values["share"], values["split_size"] = values["part"], -values["parts"]
        for name in _NEEDED - {"total"}:
            values[name]  # a KeyError here, rather than a default
        values |= {"bucket": names["bucket"], "key": names["key"]}
        values["topic_partition"] = values["topic"], values["partition"]
        return msgspec.convert(values, cls)

    def get_int(self, name: str) -> int | None:
        """Return the extra of that name as an int; None when it is missing.

        Raises:
            TypeError: the value is not an int.
        """
        value = self.extra.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(
                f"{self.bucket}/{self.key}: {name} of its position is {type(value).__name__}, not a whole number"
            )
        return value

    get_long = get_int

    def get_string(self, name: str) -> str | None:
        """Return the extra of that name as text; None when it is missing.

        Raises:
            TypeError: the value is not text.
        """
        value = self.extra.get(name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{self.bucket}/{self.key}: {name} of its position is {type(value).__name__}, not text")
        return value

    def advanced(
        self, records_done: int, *, mark: ResumePoint | None = None, state: ObjectState = ObjectState.READING
    ) -> OffsetManagerEntry:
        """Return the position after more records.

        With a `state` other than reading, `records_done` is also the total and the position needs no mark.
        """
        if state is ObjectState.READING:
            return self.changed(records_done=records_done, mark=mark or self.mark)
        return self.changed(
            records_done=records_done, total=records_done, failed=state is ObjectState.FAILED, mark=None
        )

    def changed(self, **changes: Any) -> Self:
        """Return a copy with other values, as they are."""
        return msgspec.structs.replace(self, **changes)

    def recovered(self, records_done: int) -> OffsetManagerEntry:
        """Return the position after recovery found this many records in the topic, possibly fewer than recorded.

        A position that was not finished, and is found with all its records, is read on to its end: a leader may have
        assigned it by its older count, and its worker must not have forgotten it as final by then.
        """
        mark = self.mark if self.mark is not None and self.mark.record <= records_done else None
        is_found_whole = not self.finished and records_done == self.total
        return self.changed(records_done=records_done, mark=mark, total=None if is_found_whole else self.total)

    def reopened(self) -> OffsetManagerEntry:
        """Return the position of a failed object, to be read further."""
        return self.changed(total=None, failed=False)


def canonical_options(options: Mapping[str, str]) -> str:
    """Return the canonical text of numbering options for a position: equal maps give equal text."""
    return _encode_options(dict(options))


_encode_options = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


PARTITION_BY = "partition_by"
"""The numbering option that names the field by which objects are divided; only with `partition_by`."""

PARTITION_DIGEST = "partition_rule"
"""The numbering option with a digest of all that chooses the partition of a record; only with `partition_by`."""


_ABANDONED = '{"abandoned":true}'
"""In place of the numbering options of an abandoned position: no options number its records."""


def divides_by_key(numbering_options: str) -> bool:
    """Return whether objects are divided by key under these options."""
    return f'"{PARTITION_BY}"' in numbering_options


def is_numbered_by(entry: OffsetManagerEntry, numbering_options: str) -> bool:
    """Return whether these options give a position's records their numbers, and divide them as they were divided.

    An iterator may start positions that name no options. They are read whole, so they do not fit options that divide.
    """
    if not entry.numbering_options:
        return not divides_by_key(numbering_options)
    return entry.numbering_options == numbering_options


def numbers_alike(options: str, others: str) -> bool:
    """Return whether records have the same numbers under both numbering options, however they are divided.

    True when one of them is empty: a position may name none.
    """
    return not options or not others or _numbers(options) == _numbers(others)


def _numbers(options: str) -> object:
    try:
        found = json.loads(options)
    except (ValueError, RecursionError):  # a dead letter that another program wrote
        return options
    if not isinstance(found, dict):
        return options
    return {name: value for name, value in found.items() if name not in {PARTITION_BY, PARTITION_DIGEST}}


def check_numbering(entry: OffsetManagerEntry, numbering_options: str, location: str = "") -> None:
    """Reject a position whose records were numbered or divided under other options.

    Raises:
        PositionMismatchError: names the object, both sets of options, and the ways to resolve the mismatch.
    """
    if is_numbered_by(entry, numbering_options):
        return
    place = location or f"{entry.bucket}/{entry.key}"
    by_key = divides_by_key(entry.numbering_options) or divides_by_key(numbering_options)
    raise PositionMismatchError(
        f"{place}: {entry.records_done} records were read with {entry.numbering_options or 'no options'}, and the "
        f"configuration now says {numbering_options}, which {'divides' if by_key else 'numbers'} records in another way. "
        f"Set [input]{' and [[transforms]]' if by_key else ''} back until it is read; or read it "
        f"again from its first record: `offsets reset --key {shlex.quote(entry.key)}` for this object, `--prefix` for those "
        f"of a folder, `--all` for all; `offsets accept-data-loss` does so for all objects that are half read"
    )
