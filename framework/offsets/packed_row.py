"""A final position as a row of bytes: data common to many objects is stored once.

    row  = head | body
    head = folder u32 | length of the name u32 | name             equal for equal keys, and only for them
    body = flags u8 | template u16 | modified i64 | records u32 | [length of extra u32 | extra] | version

A *folder* is a bucket with the part of the key up to its last slash. A *template* holds every field of an entry except
its key, version, modified_ms, the counts and extra; new fields of an entry belong to it automatically. The etag of an
S3 version is packed to its 16 bytes, and its time is that of the entry. Entries that do not fit this form have no row.
Snapshots store rows unchanged, with the tables (`RowCodec.tables`): this layout is stored data.
"""

from __future__ import annotations

import functools
import marshal
import struct
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import attrs

from framework.model.objects import TopicPartition

if TYPE_CHECKING:
    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

FOLDERS = 1 << 15
"""Maximum number of shared folders; other keys store theirs in the row. Bounds the cost of a folder per object."""

FOLDER_CHARACTERS = 4_000_000
"""Maximum of the characters of shared folders together: a snapshot stores them in one part."""

TEMPLATES = 1 << 13

MAX_ROW_BYTES = 2000
"""Maximum size of a row. The rows of stores with keys of 1,024 bytes are shorter."""

HEAD = struct.Struct("<II")
_BODY = struct.Struct("<BHqI")
_LENGTH = struct.Struct("<I")
_TIMED, _HEX, _EXTRA = 1, 2, 4
_ETAG_CHARACTERS, _ETAG_BYTES = 32, 16


class RowFacts(NamedTuple):
    """The facts of an entry for a compaction: `done`, and whether the object is read `whole`, among others."""

    bucket: str
    key: str
    modified_ms: int
    generation: int
    done: bool
    whole: bool
    records: int


def facts_of(entry: OffsetManagerEntry) -> RowFacts:
    """Return the facts of an entry that has no row."""
    records = entry.records_done if entry.counts_object else 0
    return RowFacts(
        entry.bucket, entry.key, entry.modified_ms, entry.generation, entry.done, entry.whole, records=records
    )


Scope: TypeAlias = "str | tuple[tuple[str, str], ...]"
"""A key without its name: the bucket; of a split, all other properties."""


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
        self._folder_numbers: dict[tuple[Scope, str], int] = {}
        self._last_head: tuple[tuple[tuple[str, str], ...] | None, bytes] = (None, b"")
        self._folders: list[tuple[Scope, str]] = []
        self._folder_characters = 0
        self._template_numbers: dict[tuple[object, ...], int] = {}
        self._templates: list[Mapping[str, Any]] = []

    @property
    def is_crowded(self) -> bool:
        """Whether there may soon be no room for another template; further entries would have no row."""
        return 2 * len(self._templates) > self._max_templates

    def successor(self) -> RowCodec:
        """Return an empty codec of the same kind: with the entries that are left, it has only the templates in use."""
        return RowCodec(self._entry_class, folders=self._max_folders, templates=self._max_templates)

    # ---- stored

    def tables(self) -> dict[str, Any]:
        """Return the tables that rows refer to by number, as JSON; `restore` in a new process keeps the numbers."""
        templates = [
            {**template, "topic_partition": list(attrs.astuple(template["topic_partition"]))}
            for template in self._templates
        ]
        return {"folders": self._folders, "templates": templates}

    def restore(self, tables: Mapping[str, Any]) -> None:
        """Restore the tables; the inverse of `tables`, for a codec that has packed nothing yet.

        Raises:
            KeyError, TypeError, ValueError: the stored form is not valid.
        """
        for scope, folder in tables["folders"]:
            self._add_folder(scope if isinstance(scope, str) else tuple(map(tuple, scope)), folder)
        for stored in tables["templates"]:
            topic, partition = stored["topic_partition"]
            template = {name: stored[name] for name in self._arguments}  # without fields that only earlier builds had
            template["topic_partition"] = TopicPartition(topic, partition)
            self._template_numbers[tuple(template.values())] = len(self._templates)
            self._templates.append(template)

    # ---- keys

    def head(self, key: OffsetManagerKey, *, add: bool = False) -> bytes | None:
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
        head = HEAD.pack(folder, len(raw)) + raw
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
        return row[: HEAD.size + HEAD.unpack_from(row)[1]]

    def _named(self, row: bytes) -> tuple[str, str, int]:
        """Return the bucket and the key of a row's object, and where its body begins."""
        folder, length = HEAD.unpack_from(row)
        scope, prefix = self._folders[folder]
        end = HEAD.size + length
        name = row[HEAD.size : end].decode("utf-8", "surrogatepass")
        return scope if isinstance(scope, str) else dict(scope)["bucket"], prefix + name, end

    # ---- entries

    def pack(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> tuple[bytes, bytes] | None:
        """Return the head and the row of an entry; None when it has none."""
        done = entry.records_done
        if type(entry) is not self._entry_class or key != entry.get_manager_key():
            return None
        if entry.mark is not None or not done == entry.records_saved == entry.total:
            return None
        version, flags = self._packed_version(entry)
        try:
            extra = b""
            if entry.extra:
                flags |= _EXTRA
                packed = marshal.dumps(dict(entry.extra))
                extra = _LENGTH.pack(len(packed)) + packed
            numbers = _BODY.pack(flags, self._template_of(entry), entry.modified_ms, done)
        except (struct.error, ValueError, TypeError):
            return None  # a number too large, an extra of an unsupported type, an unhashable field, or no room
        head = self.head(key, add=True)
        assert head is not None
        row = head + numbers + extra + version
        return (head, row) if len(row) <= MAX_ROW_BYTES else None

    def _template_of(self, entry: OffsetManagerEntry) -> int:
        """Return the number of the entry's template. Raises ValueError when there is no room for another."""
        values = self._rest_of(entry)
        number = self._template_numbers.get(values)
        if number is None:
            if len(self._templates) >= self._max_templates:
                raise ValueError
            number = self._template_numbers[values] = len(self._templates)
            self._templates.append(dict(zip(self._arguments, values, strict=True)))
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
        bucket, name, at = self._named(row)
        flags, template, modified_ms, records_done = _BODY.unpack_from(row, at)
        at += _BODY.size
        extra: dict[str, Any] = {}
        if flags & _EXTRA:
            end = at + _LENGTH.size + _LENGTH.unpack_from(row, at)[0]
            extra = marshal.loads(row[at + _LENGTH.size : end])  # noqa: S302 - packed above, by this process
            at = end
        return self._entry_class(
            bucket=bucket,
            key=name,
            version=_unpacked_version(row, at, flags, modified_ms),
            modified_ms=modified_ms,
            records_done=records_done,
            records_saved=records_done,
            total=records_done,
            extra=extra,
            **self._templates[template],
        )

    def facts(self, row: bytes) -> RowFacts:
        """Return the facts of a row for a compaction, cheaper than its entry."""
        bucket, name, at = self._named(row)
        _, number, modified_ms, records = _BODY.unpack_from(row, at)
        template = self._templates[number]
        split_size = template["split_size"]
        counts = split_size >= 0 or template["split_number"] == 1  # see `OffsetManagerEntry.counts_object`
        return RowFacts(
            bucket,
            name,
            modified_ms,
            template["generation"],
            not template["failed"],
            not split_size,
            records if counts else 0,
        )

    def whole_version(self, row: bytes) -> str | None:
        """Return the version of a row's entry, cheaper than the entry; None for the position of a split."""
        flags, template, modified_ms, _ = _BODY.unpack_from(row, at := HEAD.size + HEAD.unpack_from(row)[1])
        if self._templates[template]["split_size"]:
            return None
        if flags & _EXTRA:
            return self.entry_of(row).version
        return _unpacked_version(row, at + _BODY.size, flags, modified_ms)


@functools.cache
def _rest_of(entry_class: type[Any]) -> tuple[Callable[[Any], Any], list[str]]:
    """Return what gives the fields that templates hold, and their arguments."""
    own = {"bucket", "key", "version", "modified_ms", "records_done", "records_saved", "total", "mark", "extra"}
    rest = [field for field in attrs.fields(entry_class) if field.init and field.name not in own]
    return attrgetter(*(field.name for field in rest)), [field.alias or field.name for field in rest]


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
    return tuple(pair for pair in properties if pair[0] != "key"), dict(properties).get("key", "")
