"""A final position as a row of bytes: data common to many objects is stored once.

    row  = head | body
    head = folder u32 | length of the name u32 | name             equal for equal keys, and only for them
    body = flags u8 | template u16 | modified i64 | records u32 | [length of extra u32 | extra] | version

A *folder* is a bucket with the part of the key up to its last slash. A *template* holds every field of an entry except
its key, version, modified_ms, the counts and extra; new fields of an entry belong to it automatically. The etag of an
S3 version is packed to its 16 bytes, and its time is that of the entry. Extra is MessagePack. Entries that do not fit this
form are pickled: larger, but exact. Snapshots store the other rows unchanged, with the tables (`RowCodec.tables`): this
layout is stored data. Whoever may write to the offsets topic may have made what is loaded, so that is checked, and never
unpickled.
"""

from __future__ import annotations

import functools
import operator
import pickle
import struct
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import attrs
import msgspec

from framework.model.objects import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

FOLDERS = 1 << 15
"""Maximum number of shared folders; other keys store theirs in the row. Bounds the cost of a folder per object."""

FOLDER_CHARACTERS = 4_000_000
"""Maximum of the characters of shared folders together: a snapshot stores them in one part."""

TEMPLATES = 1 << 13

MAX_STORED_BYTES = 2000
"""Longer rows have no stored form. The rows of stores with keys of 1,024 bytes are shorter."""

_HEAD = struct.Struct("<II")
_BODY = struct.Struct("<BHqI")
_MODIFIED_AT, _RECORDS_AT = 3, 11
_TEMPLATE = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_TIMED, _HEX, _EXTRA, _PICKLED = 1, 2, 4, 8
_STORED = _TIMED | _HEX | _EXTRA
_LAST_ASCII = 127
_ETAG_CHARACTERS, _ETAG_BYTES = 32, 16


class RowFacts(NamedTuple):
    """The facts of an entry for a compaction: `done`, whether the object is read `whole`, the `records` it adds, and others."""

    bucket: str
    key: str
    modified_ms: int
    generation: int
    done: bool
    whole: bool
    records: int


class _Named(NamedTuple):
    """What a codec needs of a key: its properties."""

    properties: tuple[tuple[str, str], ...]


Scope: TypeAlias = "str | tuple[Any, ...]"
"""A key without its name: the bucket; else its other properties; else, in a 1-tuple, the whole key."""


class RowCodec:
    """Pack entries into rows and back. Packing is single-threaded; unpacking may run concurrently.

    Args:
        entry_class: class of the entries. Rows hold its fields `bucket`, `key`, `version`, `modified_ms`,
            `records_done` and `extra`. `records_saved` and `total` equal `records_done`, and `mark` is None; templates
            hold the others.
        folders: maximum number of shared folders.
        templates: maximum number of templates.
    """

    def __init__(
        self, entry_class: type[OffsetManagerEntry], *, folders: int = FOLDERS, templates: int = TEMPLATES
    ) -> None:
        self._entry_class = entry_class
        kind: Any = entry_class  # for mypy, whose hashable classes have no hash of their own
        self._rest_of, self._arguments = _rest_of(kind)
        self._max_folders = folders
        self._max_templates = templates
        self._kept_templates = 0
        self._folder_numbers: dict[tuple[Scope, str], int] = {}
        self._last_head: tuple[tuple[tuple[str, str], ...] | None, bytes] = (None, b"")
        self._folders: list[tuple[Scope, str]] = []
        self._folder_characters = 0
        self._template_numbers: dict[tuple[object, ...], int] = {}
        self._templates: list[Mapping[str, Any]] = []
        self._whole: list[bool] = []
        self._done: list[bool] = []
        self._counts: list[bool] = []

    @property
    def is_crowded(self) -> bool:
        """Whether there may soon be no room for another template; further entries would be pickled."""
        return len(self._templates) >= (self._max_templates + self._kept_templates) // 2

    def successor(self) -> RowCodec:
        """Return an empty codec of the same kind, for the rows that are still there: see `repack`."""
        return RowCodec(self._entry_class, folders=self._max_folders, templates=self._max_templates)

    def repack(self, row: bytes, former: RowCodec) -> bytes:
        """Return a row of the codec before this one as a row of this one, which has only the templates in use."""
        key = _Named(former.key_of(row))
        head = self.head(key, add=True)
        assert head is not None
        body = row[len(former.head_of(row)) :]
        if body[0] & _PICKLED:
            head += self.body(key, former.entry_of(row))
        else:
            template = former._templates[_BODY.unpack_from(body)[1]]
            number = self._number_of(template)
            head += body[:1] + _TEMPLATE.pack(number) + body[1 + _TEMPLATE.size :]
        self._kept_templates = len(self._templates)
        return head

    # ---- stored

    def tables(self) -> dict[str, Any]:
        """Return the tables that rows refer to by number, as JSON; `restore` in a new process keeps the numbers."""
        templates = [
            {**template, "topic_partition": msgspec.to_builtins(template["topic_partition"])}
            for template in self._templates
        ]
        return {"folders": self._folders, "templates": templates}

    def restore(self, tables: Mapping[str, Any]) -> None:
        """Restore the tables; the inverse of `tables`, for a codec that has packed nothing yet.

        Raises:
            KeyError, TypeError, ValueError: the stored form is not valid.
        """
        for scope, folder in tables["folders"]:
            properties = () if isinstance(scope, str) else scope[0] if len(scope) == 1 else scope
            check_types((folder, *(text for name, value in properties for text in (name, value))), str)
            self._add_folder(scope if isinstance(scope, str) else _tuples(scope), folder)
        for stored in tables["templates"]:
            topic, partition = stored["topic_partition"]
            template = {name: stored[name] for name in self._arguments}  # without fields that only earlier builds had
            check_types((topic, template["numbering_options"]), str)
            check_types((partition, *(template[name] for name in _INT_FIELDS)), int)
            check_types((template[name] for name in _BOOL_FIELDS), bool)
            template["topic_partition"] = TopicPartition(topic, partition)
            self._template_numbers[tuple(template[name] for name in self._arguments)] = len(self._templates)
            self._add_template(template)

    def _add_template(self, template: Mapping[str, Any]) -> None:
        self._templates.append(template)
        self._whole.append(not template["split_size"])
        self._done.append(not template["failed"])
        self._counts.append(template["split_size"] >= 0 or template["split_number"] == 1)

    def are_stored(
        self, raw: NDArray[np.uint8], bodies: NDArray[np.uint32], sizes: NDArray[np.uint32]
    ) -> NDArray[np.bool_]:
        """Return which of the rows with these bodies have a stored form: they are neither pickled nor very long."""
        stored: NDArray[np.bool_] = (raw[bodies] & _PICKLED == 0) & (sizes <= MAX_STORED_BYTES)
        return stored

    def checked_bodies(
        self, raw: NDArray[np.uint8], starts: NDArray[np.uint32], ends: NDArray[np.uint32]
    ) -> NDArray[Any]:
        """Return where the bodies of loaded rows begin, between these places.

        Raises:
            IndexError, ValueError: these are no rows with a stored form, or not of these tables.
        """
        import numpy as np  # noqa: PLC0415 - the caller has loaded it

        if not len(ends) or ends[-1] != len(raw) or (np.diff(ends) > len(raw)).any():  # differences have no sign
            raise ValueError("ends of rows that are elsewhere")
        bodies = starts + self.name_lengths(raw, starts)
        flags, rest = raw[bodies], bodies + np.uint64(_BODY.size)
        having = (flags & _EXTRA).nonzero()[0]
        begins = rest[having] + np.uint64(_LENGTH.size)
        rest[having] = begins + _numbers(raw, rest[having])
        for begin, end in zip(begins.tolist(), rest[having].tolist(), strict=True):
            _unpacked_extra(raw[begin:end].tobytes())
        rest += np.where(flags & _HEX, np.uint64(_ETAG_BYTES), np.uint64(0))
        if (flags & ~np.uint8(_STORED)).any() or (rest > ends).any():
            raise ValueError("a row that is no stored one, or is cut")
        folders, templates = _numbers(raw, starts), _numbers(raw, bodies + 1, _TEMPLATE.size)
        if folders.max() >= len(self._folders) or templates.max() >= len(self._templates):
            raise ValueError("a row of another table")
        heads = starts + np.uint64(_HEAD.size)
        # of each row, the bytes of its numbers, of its name, of its numbers and etag, of its version
        sizes = np.stack((heads - starts, bodies - heads, rest - bodies, ends - rest), axis=1).ravel()
        other = np.repeat(np.tile([False, True], 2 * len(ends)), sizes.astype(np.intp)) & (raw > _LAST_ASCII)
        having = ends.searchsorted(other.nonzero()[0], side="right")
        for at in having[np.diff(having, prepend=-1) > 0].tolist():
            for begin, end in ((heads[at], bodies[at]), (rest[at], ends[at])):
                raw[int(begin) : int(end)].tobytes().decode("utf-8", "surrogatepass")
        return bodies

    # ---- keys

    def head(self, key: OffsetManagerKey | _Named, *, add: bool = False) -> bytes | None:
        """Return the head of every row of that key; None when its folder is unknown, unless `add`."""
        properties = key.properties
        last, known = self._last_head
        if properties == last:  # several look-ups of an object follow each other
            return known
        scope, name = _scope_and_name(properties)
        folder, cut = self._folder(scope, name, add=add)
        if folder is None:
            return None
        raw = name[cut:].encode("utf-8", "surrogatepass")
        head = _HEAD.pack(folder, len(raw)) + raw
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
        return len(self._folders) >= self._max_folders or self._folder_characters >= FOLDER_CHARACTERS

    def _add_folder(self, scope: Scope, folder: str) -> int:
        number = self._folder_numbers[scope, folder] = len(self._folders)
        self._folders.append((scope, folder))
        self._folder_characters += len(folder)
        return number

    @staticmethod
    def head_of(row: bytes) -> bytes:
        """Return the head of a row."""
        return row[: _HEAD.size + _HEAD.unpack_from(row)[1]]

    def key_of(self, row: bytes) -> tuple[tuple[str, str], ...]:
        """Return the properties of a row's key."""
        scope, name, _ = self._named(row)
        if isinstance(scope, str):
            return (("bucket", scope), ("key", name))
        return scope[0] if len(scope) == 1 and not name else tuple(sorted((*scope, ("key", name))))

    def _named(self, row: bytes) -> tuple[Scope, str, int]:
        folder, length = _HEAD.unpack_from(row)
        scope, prefix = self._folders[folder]
        end = _HEAD.size + length
        return scope, prefix + row[_HEAD.size : end].decode("utf-8", "surrogatepass"), end

    # ---- entries

    def body(self, key: OffsetManagerKey | _Named, entry: OffsetManagerEntry) -> bytes:
        """Return the rest of a row, after the key's head."""
        version, flags = self._packed_version(entry)
        try:
            extra = b""
            if entry.extra:
                flags |= _EXTRA
                packed = _packed_extra(entry.extra)
                extra = _LENGTH.pack(len(packed)) + packed
            numbers = _BODY.pack(flags, self._template(key, entry), entry.modified_ms, entry.records_done)
        except (struct.error, ValueError, TypeError, OverflowError):
            # a number too large, an extra of an unsupported type, an unhashable field, or another class
            return bytes([_PICKLED]) + pickle.dumps(entry, pickle.HIGHEST_PROTOCOL)
        return numbers + extra + version

    def _template(self, key: OffsetManagerKey | _Named, entry: OffsetManagerEntry) -> int:
        """Return the number of the entry's template. Raises ValueError when the entry must be pickled."""
        scope, name = _scope_and_name(key.properties)
        bucket = scope if isinstance(scope, str) else dict(scope).get("bucket") if len(scope) > 1 else None
        done = entry.records_done
        if type(entry) is not self._entry_class or (entry.bucket, entry.key) != (bucket, name):
            raise ValueError
        if entry.mark is not None or not done == entry.records_saved == entry.total:
            raise ValueError
        values = self._rest_of(entry)
        number = self._template_numbers.get(values)
        if number is None:
            if len(self._templates) >= self._max_templates:
                raise ValueError
            number = self._number_of(dict(zip(self._arguments, values, strict=True)))
        return number

    def _number_of(self, template: Mapping[str, Any]) -> int:
        values = tuple(template[name] for name in self._arguments)
        number = self._template_numbers.get(values)
        if number is None:
            number = self._template_numbers[values] = len(self._templates)
            self._add_template(template)
        return number

    @staticmethod
    def _packed_version(entry: OffsetManagerEntry) -> tuple[bytes, int]:
        text, flags = entry.version, 0
        time = f"@{entry.modified_ms}"
        if text.endswith(time):
            text, flags = text[: -len(time)], _TIMED
        etag = text[:_ETAG_CHARACTERS]
        if len(etag) == _ETAG_CHARACTERS:
            try:
                packed = bytes.fromhex(etag)
            except ValueError:
                packed = b""
            if packed.hex() == etag:  # false for capitals or spaces
                return packed + text[_ETAG_CHARACTERS:].encode("utf-8", "surrogatepass"), flags | _HEX
        return text.encode("utf-8", "surrogatepass"), flags

    def entry_of(self, row: bytes) -> OffsetManagerEntry:
        """Return the entry of a row."""
        scope, name, at = self._named(row)
        flags = row[at]
        if flags & _PICKLED:
            entry: OffsetManagerEntry = pickle.loads(row[at + 1 :])  # noqa: S301 - by this process: see `checked_bodies`
            return entry
        _, template, modified_ms, records_done = _BODY.unpack_from(row, at)
        at += _BODY.size
        extra: dict[str, Any] = {}
        if flags & _EXTRA:
            end = at + _LENGTH.size + _LENGTH.unpack_from(row, at)[0]
            extra = _unpacked_extra(row[at + _LENGTH.size : end])
            at = end
        return self._entry_class(
            bucket=scope if isinstance(scope, str) else dict(scope)["bucket"],
            key=name,
            version=_unpacked_version(row, at, flags, modified_ms),
            modified_ms=modified_ms,
            records_done=records_done,
            records_saved=records_done,
            total=records_done,
            extra=extra,
            **self._templates[template],
        )

    @staticmethod
    def name_lengths(raw: NDArray[np.uint8], starts: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the lengths of the heads of the rows that begin at these places."""
        return _numbers(raw, starts + 4) + _HEAD.size

    def sum_records(self, raw: NDArray[np.uint8], bodies: NDArray[np.uint32]) -> int:
        """Return the total records of the rows whose bodies begin at these places; none of these rows is pickled."""
        records = _numbers(raw, bodies + _RECORDS_AT)
        if not all(self._counts):
            records = records[_of_templates(self._counts, raw, bodies)]
        return int(records.sum())

    def may_be_compacted(self, raw: NDArray[np.uint8], bodies: NDArray[np.uint32], before_ms: int) -> NDArray[np.bool_]:
        """Return which rows a compaction must look at: of older objects, of splits, and what only their entries tell."""
        modified_ms = _numbers(raw, bodies + _MODIFIED_AT, 8).view("i8")
        old = (modified_ms > 0) & (modified_ms < before_ms)  # an object without a time is never compacted
        wanted: NDArray[np.bool_] = raw[bodies] & _PICKLED != 0
        wanted |= old if all(self._whole) else old | ~_of_templates(self._whole, raw, bodies)
        return wanted

    def facts(self, row: bytes) -> RowFacts:
        """Return the facts of a row for a compaction, cheaper than its entry."""
        scope, name, at = self._named(row)
        if row[at] & _PICKLED or not isinstance(scope, str):
            entry = self.entry_of(row)
            times = entry.modified_ms, entry.generation
            return RowFacts(entry.bucket, entry.key, *times, entry.done, entry.whole, records_of(entry))
        _, template, modified_ms, records_done = _BODY.unpack_from(row, at)
        generation: int = self._templates[template]["generation"]
        records = records_done if self._counts[template] else 0
        return RowFacts(scope, name, modified_ms, generation, self._done[template], self._whole[template], records)

    def whole_version(self, row: bytes) -> str | None:
        """Return the version of a row's entry, cheaper than the entry; None for the position of a split."""
        at = _HEAD.size + _HEAD.unpack_from(row)[1]
        flags = row[at]
        if flags & (_PICKLED | _EXTRA):
            entry = self.entry_of(row)
            return entry.version if entry.whole else None
        _, template, modified_ms, _ = _BODY.unpack_from(row, at)
        return _unpacked_version(row, at + _BODY.size, flags, modified_ms) if self._whole[template] else None


def records_of(entry: OffsetManagerEntry) -> int:
    """Return how many records an entry adds to its source: the parts of an object count once."""
    return entry.records_done if entry.counts_object else 0


@functools.cache
def _rest_of(entry_class: type[Any]) -> tuple[Callable[[Any], Any], list[str]]:
    """Return what gives the fields that templates hold, and their arguments."""
    own = {"bucket", "key", "version", "modified_ms", "records_done", "records_saved", "total", "mark", "extra"}
    rest = [field for field in attrs.fields(entry_class) if field.init and field.name not in own]
    return attrgetter(*(field.name for field in rest)), [field.alias or field.name for field in rest]


def _numbers(raw: NDArray[np.uint8], places: NDArray[Any], size: int = 4) -> NDArray[Any]:
    """Return the unsigned values of `size` bytes at these places."""
    return functools.reduce(operator.add, (raw[places + at].astype("u8") << 8 * at for at in range(size)))


def _of_templates(values: list[bool], raw: NDArray[np.uint8], bodies: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return the values of the rows' templates; of a pickled row, which has none, any value."""
    import numpy as np  # noqa: PLC0415 - the caller has loaded it

    of_rows: NDArray[np.bool_] = np.asarray([*values, False])[np.minimum(_numbers(raw, bodies + 1, 2), len(values))]
    return of_rows


_INT_FIELDS = ("generation", "split_number", "split_size", "skipped", "missing_since_ms")
_BOOL_FIELDS = ("failed", "may_begin_again")
"""Fields of a template, by the type of their values."""


def check_types(values: Iterable[Any], *kinds: type) -> None:
    """Raise TypeError for a value of another type, which would show where positions are compared."""
    if not {*map(type, values)} <= {*kinds}:
        raise TypeError("a value of another type")


_SCALARS = str, int, float, bool, type(None)
_encode_extra = msgspec.msgpack.Encoder().encode
_decode_extra = msgspec.msgpack.Decoder(dict[str, str | int | float | bool | None]).decode


def _packed_extra(extra: Mapping[str, Any]) -> bytes:
    """Return the stored form of extra.

    Raises:
        TypeError, ValueError, OverflowError: it has none.
    """
    check_types(extra, str)
    check_types(extra.values(), *_SCALARS)
    return _encode_extra(dict(extra))


def _unpacked_extra(packed: bytes) -> dict[str, Any]:
    """Return extra of its stored form.

    Raises:
        ValueError: it is none.
    """
    try:
        return _decode_extra(packed)
    except msgspec.MsgspecError as exc:
        raise ValueError("extra that cannot be read") from exc


def _tuples(value: Any) -> Any:
    """Convert lists to tuples recursively: JSON has no tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _unpacked_version(row: bytes, at: int, flags: int, modified_ms: int) -> str:
    etag = ""
    if flags & _HEX:
        etag = row[at : at + _ETAG_BYTES].hex()
        at += _ETAG_BYTES
    text = etag + row[at:].decode("utf-8", "surrogatepass")
    return f"{text}@{modified_ms}" if flags & _TIMED else text


def _scope_and_name(properties: tuple[tuple[str, str], ...]) -> tuple[Scope, str]:
    if len(properties) == 2 and properties[0][0] == "bucket" and properties[1][0] == "key":  # noqa: PLR2004
        return properties[0][1], properties[1][1]
    scope = tuple(pair for pair in properties if pair[0] != "key")
    name = dict(properties).get("key", "")
    if len(scope) > 1 and tuple(sorted((*scope, ("key", name)))) == properties:
        return scope, name
    return (properties,), ""
