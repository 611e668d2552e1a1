"""A finished position as a row of bytes: what is the same for many objects is kept once.

    row  = head | body
    head = folder u32 | length of the name u32 | name             equal for equal keys, and only for them
    body = flags u8 | template u16 | modified i64 | records u32 | [length of extra u32 | extra] | version

A *folder* is a bucket with the part of the key up to its last slash. A *template* is everything of an entry but its key,
version, modified_ms, records_done and extra: a field that an entry gets one day is in it without a word here. The etag of an
S3 version is packed to its 16 bytes, and its time is that of the entry. What does not fit this form is pickled: larger, but
exact. Rows live in memory only, so their layout may change at any time.
"""

from __future__ import annotations

import marshal
import pickle
import struct
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

if TYPE_CHECKING:
    from framework.offsets import OffsetManagerEntry, OffsetManagerKey

FOLDERS = 1 << 15
"""Folders that are kept once; keys of later ones hold theirs in the row. It bounds what a folder for each object costs."""

TEMPLATES = 1 << 13

_HEAD = struct.Struct("<II")
_BODY = struct.Struct("<BHqI")
_LENGTH = struct.Struct("<I")
_TIMED, _HEX, _EXTRA, _PICKLED = 1, 2, 4, 8
_ETAG_CHARACTERS, _ETAG_BYTES = 32, 16
_PLAIN_BYTES = 64
"""What the numbers of a row take as text, and its etag more than here, at most."""

RowFacts: TypeAlias = tuple[str, str, int, bool, bool]
"""Bucket, key and last-modified of an entry, whether it is done, and whether the object is read whole."""

Scope: TypeAlias = "str | tuple[Any, ...]"
"""A key without its name: the bucket; else its other properties; else, in a tuple of one, the whole key."""


class RowCodec:
    """Packs entries into rows and back. Packing is for one thread at a time; unpacking may go on beside it.

    Args:
        entry_class: what the entries are. Of its fields only `bucket`, `key`, `version`, `modified_ms`, `records_done` and
            `extra` are known here, and `cut`.

    Attributes:
        objects_only: whether every key so far was a bucket and a key, and nothing more.
    """

    def __init__(self, entry_class: type[OffsetManagerEntry], *, folders: int = FOLDERS) -> None:
        own = {"bucket", "key", "version", "modified_ms", "records_done", "extra"}
        rest = [field for field in attrs.fields(entry_class) if field.init and field.name not in own]
        self._entry_class = entry_class
        self._rest_of = attrgetter(*(field.name for field in rest))
        self._arguments = [field.alias or field.name for field in rest]
        self._most_folders = folders
        self._folder_numbers: dict[tuple[Scope, str], int] = {}
        self._folders: list[tuple[Scope, str]] = []
        self._template_numbers: dict[tuple[object, ...], int] = {}
        self._templates: list[Mapping[str, Any]] = []
        self._whole: list[bool] = []
        self._done: list[bool] = []
        self.objects_only = True

    # ---- keys

    def head(self, key: OffsetManagerKey, *, add: bool = False) -> bytes | None:
        """How every row of that key begins; None when no row of it was ever packed, unless `add`."""
        scope, name = _scope_and_name(key.properties)
        folder, cut = self._folder(scope, name, add=add)
        if folder is None:
            return None
        raw = name[cut:].encode("utf-8", "surrogatepass")
        return _HEAD.pack(folder, len(raw)) + raw

    def _folder(self, scope: Scope, name: str, *, add: bool) -> tuple[int | None, int]:
        """The folder's number, and where in the name it ends."""
        cut = name.rfind("/") + 1
        number = self._folder_numbers.get((scope, name[:cut]))
        if number is None and cut and len(self._folders) >= self._most_folders:
            cut = 0  # there is no room for another one, and never will be: equal keys have equal heads
            number = self._folder_numbers.get((scope, ""))
        if number is None and add:
            number = self._folder_numbers[scope, name[:cut]] = len(self._folders)
            self._folders.append((scope, name[:cut]))
            self.objects_only &= isinstance(scope, str)
        return number, cut

    @staticmethod
    def head_of(row: bytes) -> bytes:
        """The head of a row."""
        return row[: _HEAD.size + _HEAD.unpack_from(row)[1]]

    def is_other(self, row: bytes) -> bool:
        """Whether a row's key is more than a bucket and a key."""
        return not isinstance(self._folders[_HEAD.unpack_from(row)[0]][0], str)

    def key_of(self, row: bytes) -> tuple[tuple[str, str], ...]:
        """The properties of the key under which a row is kept."""
        scope, name, _ = self._named(row)
        if isinstance(scope, str):
            return (("bucket", scope), ("key", name))
        return scope[0] if len(scope) == 1 and not name else tuple(sorted((*scope, ("key", name))))

    def _named(self, row: bytes) -> tuple[Scope, str, int]:
        folder, length = _HEAD.unpack_from(row)
        scope, prefix = self._folders[folder]
        end = _HEAD.size + length
        return scope, prefix + row[_HEAD.size : end].decode("utf-8", "surrogatepass"), end

    def stored_bytes(self, row: bytes) -> int:
        """About what the row's entry takes as text, not packed."""
        folder, _ = _HEAD.unpack_from(row)
        return len(row) + len(self._folders[folder][1]) + _PLAIN_BYTES

    # ---- entries

    def body(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> bytes:
        """The rest of a row, behind the key's head."""
        version, flags = self._packed_version(entry)
        try:
            extra = b""
            if entry.extra:
                flags |= _EXTRA
                packed = marshal.dumps(dict(entry.extra))
                extra = _LENGTH.pack(len(packed)) + packed
            numbers = _BODY.pack(flags, self._template(key, entry), entry.modified_ms, entry.records_done)
        except (struct.error, ValueError, TypeError):
            # a number too large, an extra of another kind, a field without a hash, or another class
            return bytes([_PICKLED]) + pickle.dumps(entry, pickle.HIGHEST_PROTOCOL)
        return numbers + extra + version

    def _template(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> int:
        """Raises ValueError when the entry must be kept as it is."""
        scope, name = _scope_and_name(key.properties)
        bucket = scope if isinstance(scope, str) else dict(scope).get("bucket") if len(scope) > 1 else None
        if type(entry) is not self._entry_class or (entry.bucket, entry.key) != (bucket, name):
            raise ValueError
        values = self._rest_of(entry)
        number = self._template_numbers.get(values)
        if number is None:
            if len(self._templates) >= TEMPLATES:
                raise ValueError
            number = self._template_numbers[values] = len(self._templates)
            self._templates.append(dict(zip(self._arguments, values, strict=True)))
            self._whole.append(entry.cut is None)
            self._done.append(entry.done)
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
            if packed.hex() == etag:  # not so with capitals, or with spaces
                return packed + text[_ETAG_CHARACTERS:].encode("utf-8", "surrogatepass"), flags | _HEX
        return text.encode("utf-8", "surrogatepass"), flags

    def entry_of(self, row: bytes) -> OffsetManagerEntry:
        """The entry of a row."""
        scope, name, at = self._named(row)
        flags = row[at]
        if flags & _PICKLED:
            entry: OffsetManagerEntry = pickle.loads(row[at + 1 :])  # noqa: S301 - packed above, by this process
            return entry
        _, template, modified_ms, records_done = _BODY.unpack_from(row, at)
        at += _BODY.size
        extra: dict[str, Any] = {}
        if flags & _EXTRA:
            end = at + _LENGTH.size + _LENGTH.unpack_from(row, at)[0]
            extra = marshal.loads(row[at + _LENGTH.size : end])  # noqa: S302 - packed above, by this process
            at = end
        return self._entry_class(
            bucket=scope if isinstance(scope, str) else dict(scope)["bucket"],
            key=name,
            version=_unpacked_version(row, at, flags, modified_ms),
            modified_ms=modified_ms,
            records_done=records_done,
            extra=extra,
            **self._templates[template],
        )

    def records_of(self, row: bytes) -> int:
        """The `records_done` of a row's entry: cheaper than the entry."""
        at = _HEAD.size + _HEAD.unpack_from(row)[1]
        if row[at] & _PICKLED:
            return self.entry_of(row).records_done
        records_done: int = _BODY.unpack_from(row, at)[3]
        return records_done

    def facts(self, row: bytes) -> RowFacts:
        """What folding asks of a row: cheaper than its entry."""
        scope, name, at = self._named(row)
        if row[at] & _PICKLED or not isinstance(scope, str):
            entry = self.entry_of(row)
            return entry.bucket, entry.key, entry.modified_ms, entry.done, entry.cut is None
        _, template, modified_ms, _ = _BODY.unpack_from(row, at)
        return scope, name, modified_ms, self._done[template], self._whole[template]

    def whole_version(self, row: bytes) -> str | None:
        """The version of a row's entry, cheaper than the entry; None when it is the position of a share."""
        at = _HEAD.size + _HEAD.unpack_from(row)[1]
        flags = row[at]
        if flags & (_PICKLED | _EXTRA):
            entry = self.entry_of(row)
            return entry.version if entry.cut is None else None
        _, template, modified_ms, _ = _BODY.unpack_from(row, at)
        return _unpacked_version(row, at + _BODY.size, flags, modified_ms) if self._whole[template] else None


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
