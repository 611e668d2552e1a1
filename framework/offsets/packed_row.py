"""A final position as a row of bytes: data common to many objects is stored once.

    row  = head | body
    head = folder u32 | length of the name u32 | name             equal for equal keys, and only for them
    body = flags u8 | template u16 | modified i64 | records u32 | [length of extra u32 | extra] | version

A *folder* is a bucket with the part of the key up to its last slash. A *template* holds every field of an entry except
its key, version, modified_ms, the counts and extra. The etag of an S3 version is packed to its 16 bytes, and its time is
that of the entry. Extra is MessagePack. Entries that do not fit this form have no row. Snapshots store rows unchanged,
with the tables (`Tables`): this layout is stored data. Whoever may write to the offsets topic may have made what is
loaded, so that is checked.
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import attrs
import msgspec
from msgspec import Struct

from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FOLDERS = 1 << 15
"""Maximum number of shared folders; other keys store theirs in the row. Bounds the cost of a folder per object."""

FOLDER_CHARACTERS = 4_000_000
"""Maximum of the characters of shared folders together: a snapshot stores them in one part."""

TEMPLATES = 1 << 13

MAX_ROW_BYTES = 2000
"""Longer rows are none. The rows of stores with keys of 1,024 bytes are shorter."""

_HEAD = struct.Struct("<II")
_BODY = struct.Struct("<BHqI")
_MODIFIED_AT, _RECORDS_AT = 3, 11
_LENGTH = struct.Struct("<I")
_TIMED, _HEX, _EXTRA = 1, 2, 4
_FLAGS = _TIMED | _HEX | _EXTRA
_LAST_ASCII = 127
_ETAG_CHARACTERS, _ETAG_BYTES = 32, 16

Scope: TypeAlias = str | tuple[tuple[Literal["bucket"], str], tuple[Literal["share"], str]]
"""A key without its name: the bucket, and the number of a split after the first."""


class Template(Struct, frozen=True):
    """What many positions have in common."""

    generation: int
    split_number: int
    split_size: int
    failed: bool
    skipped: int
    topic_partition: TopicPartition
    numbering_options: str
    may_begin_again: bool
    missing_since_ms: int


class Tables(Struct):
    """The tables that rows refer to by number."""

    folders: list[tuple[Scope, str]] = []
    templates: list[Template] = []


@attrs.frozen
class RowChunk:
    """Some rows: a block of the table, or a chunk of a snapshot.

    Attributes:
        rows: the rows, concatenated.
        ends: end of each row, u32 each.
    """

    rows: bytes | memoryview
    ends: bytes | memoryview

    def __len__(self) -> int:
        return len(self.ends) // _LENGTH.size

    def start(self, at: int) -> int:
        """Return where a row begins; where the last one ends, for the number behind it."""
        start: int = _LENGTH.unpack_from(self.ends, _LENGTH.size * (at - 1))[0] if at else 0
        return start

    def row(self, at: int) -> bytes:
        """Return a row."""
        return bytes(self.rows[self.start(at) : self.start(at + 1)])


class RowColumns(NamedTuple):
    """Rows as an array of bytes, and of each row its start, its end, and the start of its body."""

    raw: NDArray[np.uint8]
    starts: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    bodies: NDArray[np.uint32]

    @classmethod
    def of(cls, chunk: RowChunk) -> RowColumns:
        """Return the columns of a chunk.

        Raises:
            IndexError, ValueError: it holds no rows.
        """
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        raw, ends = np.frombuffer(chunk.rows, np.uint8), np.frombuffer(chunk.ends, np.uint32)
        starts = np.append(np.zeros(1, np.uint32), ends[:-1])
        return cls(raw, starts, ends, starts + (_numbers(raw, starts + 4) + _HEAD.size))


class RowCodec:
    """Pack entries into rows and back. Packing is single-threaded; unpacking may run concurrently.

    Attributes:
        tables: what the rows refer to.
    """

    _max_folders = FOLDERS
    _max_templates = TEMPLATES

    def __init__(self) -> None:
        self.tables = Tables()
        self._kept_templates = 0
        self._folder_numbers: dict[tuple[Scope, str], int] = {}
        self._last_head: tuple[tuple[tuple[str, str], ...] | None, bytes] = (None, b"")
        self._folder_characters = 0
        self._template_numbers: dict[tuple[object, ...], int] = {}
        self._fields: list[dict[str, Any]] = []  # of each template

    @property
    def is_crowded(self) -> bool:
        """Whether there may soon be no room for another template; further entries would have no rows."""
        return len(self._fields) >= (self._max_templates + self._kept_templates) // 2

    def keep_templates(self) -> None:
        """Note that the templates so far are in use."""
        self._kept_templates = len(self._fields)

    def restore(self, tables: Tables) -> None:
        """Restore the tables, with their numbers, for a codec that has packed nothing yet."""
        for scope, folder in tables.folders:
            self._add_folder(scope, folder)
        for template in tables.templates:
            self._add_template(msgspec.structs.astuple(template))

    def _add_template(self, values: tuple[Any, ...]) -> int:
        number = self._template_numbers[values] = len(self._fields)
        self.tables.templates.append(Template(*values))
        self._fields.append(dict(zip(Template.__struct_fields__, values, strict=True)))
        return number

    def check(self, columns: RowColumns) -> None:
        """Check that loaded rows are rows of these tables.

        Raises:
            IndexError, ValueError: these are no rows, or not of these tables.
        """
        import numpy as np  # noqa: PLC0415 - the caller has loaded it

        raw, starts, ends, bodies = columns
        if not len(ends) or ends[-1] != len(raw) or (np.diff(ends) > len(raw)).any():  # differences have no sign
            raise ValueError("ends of rows that are elsewhere")
        flags, rest = raw[bodies], bodies + np.uint64(_BODY.size)
        having = (flags & _EXTRA).nonzero()[0]
        begins = rest[having] + np.uint64(_LENGTH.size)
        rest[having] = begins + _numbers(raw, rest[having])
        for begin, end in zip(begins.tolist(), rest[having].tolist(), strict=True):
            _decode_extra(raw[begin:end].tobytes())
        rest += np.where(flags & _HEX, np.uint64(_ETAG_BYTES), np.uint64(0))
        if (flags & ~np.uint8(_FLAGS)).any() or (rest > ends).any() or (ends - starts > MAX_ROW_BYTES).any():
            raise ValueError("bytes that are no row, or a row that is cut")
        folders, templates = _numbers(raw, starts), _numbers(raw, bodies + 1, 2)
        if folders.max() >= len(self.tables.folders) or templates.max() >= len(self._fields):
            raise ValueError("a row of another table")
        heads = starts + np.uint64(_HEAD.size)
        # of each row, the bytes of its numbers, of its name, of its numbers and etag, of its version
        sizes = np.stack((heads - starts, bodies - heads, rest - bodies, ends - rest), axis=1).ravel()
        other = np.repeat(np.tile([False, True], 2 * len(ends)), sizes.astype(np.intp)) & (raw > _LAST_ASCII)
        having = ends.searchsorted(other.nonzero()[0], side="right")
        for at in having[np.diff(having, prepend=-1) > 0].tolist():
            for begin, end in ((heads[at], bodies[at]), (rest[at], ends[at])):
                raw[int(begin) : int(end)].tobytes().decode("utf-8", "surrogatepass")

    # ---- keys

    def head(self, key: OffsetManagerKey, *, add: bool = False) -> bytes | None:
        """Return the head of every row of that key; None when its folder is unknown, unless `add`."""
        properties = key.properties
        last, known = self._last_head
        if properties == last:  # several look-ups of an object follow each other
            return known
        match properties:
            case (("bucket", bucket), ("key", name)):
                number, cut = self._folder(bucket, name, add=add)
            case (("bucket", bucket), ("key", name), ("share", split)):
                number, cut = self._folder((("bucket", bucket), ("share", split)), name, add=add)
            case _:
                return None
        if number is None:
            return None
        raw = name[cut:].encode("utf-8", "surrogatepass")
        head = _HEAD.pack(number, len(raw)) + raw
        self._last_head = properties, head
        return head

    def _folder(self, scope: Scope, name: str, *, add: bool) -> tuple[int | None, int]:
        """Return the folder's number, and its length within the name."""
        cut = name.rfind("/") + 1
        number = self._folder_numbers.get((scope, name[:cut]))
        if number is None and cut and self._has_all_folders:
            cut = 0  # the table is full, and stays so: equal keys have equal heads
            number = self._folder_numbers.get((scope, ""))
        if number is None and add:
            number = self._add_folder(scope, name[:cut])
        return number, cut

    @property
    def _has_all_folders(self) -> bool:
        return len(self.tables.folders) >= self._max_folders or self._folder_characters >= FOLDER_CHARACTERS

    def _add_folder(self, scope: Scope, folder: str) -> int:
        number = self._folder_numbers[scope, folder] = len(self.tables.folders)
        self.tables.folders.append((scope, folder))
        self._folder_characters += len(folder)
        return number

    # ---- entries

    def row(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> tuple[bytes, bytes] | None:
        """Return head and body of an entry's row; None when it does not fit the form of a row."""
        done, time, flags = entry.records_done, f"@{entry.modified_ms}", 0
        if type(entry) is not OffsetManagerEntry or key != entry.get_manager_key():
            return None
        if entry.mark is not None or not done == entry.records_saved == entry.total:
            return None
        version, packed_etag, extra = entry.version, b"", b""
        if version.endswith(time):
            version, flags = version[: -len(time)], _TIMED
        etag = version[:_ETAG_CHARACTERS]
        try:
            if len(etag) == _ETAG_CHARACTERS and bytes.fromhex(etag).hex() == etag:  # false for capitals or spaces
                packed_etag, version, flags = bytes.fromhex(etag), version[_ETAG_CHARACTERS:], flags | _HEX
        except ValueError:  # it is no etag
            pass
        values = _template_of(entry)
        try:
            if entry.extra:
                packed = _packed_extra(entry.extra)
                extra, flags = _LENGTH.pack(len(packed)) + packed, flags | _EXTRA
            number = self._template_numbers.get(values)
            if number is None and len(self._fields) < self._max_templates:
                number = self._add_template(values)
            numbers = _BODY.pack(flags, number, entry.modified_ms, done)
        except (struct.error, ValueError, TypeError, OverflowError):
            return None  # no room for a template, a number too large, or an extra of an unsupported type
        head = self.head(key, add=True)
        body = numbers + extra + packed_etag + version.encode("utf-8", "surrogatepass")
        return (head, body) if head is not None and len(head) + len(body) <= MAX_ROW_BYTES else None

    def entry_of(self, row: bytes) -> OffsetManagerEntry:
        """Return the entry of a row."""
        folder, length = _HEAD.unpack_from(row)
        scope, prefix = self.tables.folders[folder]
        at = _HEAD.size + length
        flags, template, modified_ms, records_done = _BODY.unpack_from(row, at)
        extra: Any = {}
        if flags & _EXTRA:
            extra = _decode_extra(row[at + _BODY.size + _LENGTH.size : _end_of_extra(row, at)])
        return OffsetManagerEntry(
            bucket=scope if isinstance(scope, str) else scope[0][1],
            key=prefix + row[_HEAD.size : at].decode("utf-8", "surrogatepass"),
            version=_unpacked_version(row, at, flags, modified_ms),
            modified_ms=modified_ms,
            records_done=records_done,
            records_saved=records_done,
            total=records_done,
            extra=extra,
            **self._fields[template],
        )

    def sum_records(self, columns: RowColumns, wanted: NDArray[np.bool_]) -> int:
        """Return the total records of these rows, those of an object with parts once."""
        counts = self._of_templates(lambda fields: fields["split_size"] >= 0 or fields["split_number"] == 1, columns)
        return int(_numbers(columns.raw, columns.bodies + _RECORDS_AT)[wanted & counts].sum())

    def may_be_compacted(self, columns: RowColumns, before_ms: int) -> NDArray[np.bool_]:
        """Return which rows a compaction must look at: of older objects, and of splits."""
        modified_ms = _numbers(columns.raw, columns.bodies + _MODIFIED_AT, 8).view("i8")
        old = (modified_ms > 0) & (modified_ms < before_ms)  # an object without a time is never compacted
        wanted: NDArray[np.bool_] = old | self._of_templates(lambda fields: fields["split_size"] != 0, columns)
        return wanted

    def failed(self, columns: RowColumns) -> NDArray[np.bool_]:
        """Return which rows are of failed objects."""
        return self._of_templates(operator.itemgetter("failed"), columns)

    @property
    def has_failed(self) -> bool:
        """Whether any row may be of a failed object."""
        return any(fields["failed"] for fields in self._fields)

    def _of_templates(self, value_of: Callable[[dict[str, Any]], bool], columns: RowColumns) -> NDArray[np.bool_]:
        """Return a value of the template of each row."""
        import numpy as np  # noqa: PLC0415 - the caller has loaded it

        values = np.fromiter(map(value_of, self._fields), bool)
        of_rows: NDArray[np.bool_] = values[_numbers(columns.raw, columns.bodies + 1, 2)]
        return of_rows

    def whole_version(self, row: bytes) -> str | None:
        """Return the version of a row's entry, cheaper than the entry; None for the position of a split, or of a failed object."""
        at = _HEAD.size + _HEAD.unpack_from(row)[1]
        flags, template, modified_ms, _ = _BODY.unpack_from(row, at)
        fields = self._fields[template]
        return None if fields["split_size"] or fields["failed"] else _unpacked_version(row, at, flags, modified_ms)


_template_of = attrgetter(*Template.__struct_fields__)


def _numbers(raw: NDArray[np.uint8], places: NDArray[Any], size: int = 4) -> NDArray[Any]:
    """Return the unsigned values of `size` bytes at these places."""
    return functools.reduce(operator.add, (raw[places + at].astype("u8") << 8 * at for at in range(size)))


_SCALARS = {str, int, float, bool, type(None)}
_encode_extra = msgspec.msgpack.Encoder().encode
_decode_extra = msgspec.msgpack.Decoder(dict[str, str | int | float | bool | None]).decode


def _packed_extra(extra: Mapping[str, Any]) -> bytes:
    """Return the stored form of extra.

    Raises:
        TypeError, ValueError, OverflowError: it has none.
    """
    if not ({*map(type, extra)} <= {str} and {*map(type, extra.values())} <= _SCALARS):
        raise TypeError("a value of another type")
    return _encode_extra(extra)


def _end_of_extra(row: bytes, at: int) -> int:
    """Return where the extra ends in a row whose body begins at this place."""
    end: int = at + _BODY.size + _LENGTH.size + _LENGTH.unpack_from(row, at + _BODY.size)[0]
    return end


def _unpacked_version(row: bytes, at: int, flags: int, modified_ms: int) -> str:
    at = _end_of_extra(row, at) if flags & _EXTRA else at + _BODY.size
    etag = ""
    if flags & _HEX:
        etag = row[at : at + _ETAG_BYTES].hex()
        at += _ETAG_BYTES
    text = etag + row[at:].decode("utf-8", "surrogatepass")
    return f"{text}@{modified_ms}" if flags & _TIMED else text
