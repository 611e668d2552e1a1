"""Rows of a supplied list of keys, as text or CSV.

Text: one literal key per line. CSV: columns by the names of a header; without a header one column of
keys, or `bucket,key[,version]` with URL-encoded keys, as S3 Batch Operations writes it. Files are
streamed: memory does not grow with the list.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, BinaryIO
from urllib.parse import unquote_plus

import attrs

from framework.errors import KeyListError
from framework.model.objects import MAX_SIZE, size_of
from framework.storage.timestamps import moment_ms

MAX_KEY_BYTES = 1024
"""Maximum length of a key in S3 and GCS."""

_MAX_LINE_BYTES = 16 * MAX_KEY_BYTES
_MAX_SHOWN = 500
"""Maximum characters of a list or manifest that an error repeats."""

_BOM = b"\xef\xbb\xbf"

FIELDS = {
    "bucket": "bucket",
    "key": "key",
    "size": "size",
    "etag": "etag",
    "lastmodified": "modified_ms",
    "lastmodifieddate": "modified_ms",
    "islatest": "latest",
    "isdeletemarker": "delete_marker",
    "storageclass": "storage_class",
}
"""Column names -> fields. Names are compared in lower case, letters and digits only: `e_tag` equals `ETag`."""


@attrs.frozen(kw_only=True, slots=True)
class KeyRow:
    """The data of a list about one object.

    Attributes:
        key: exactly as stored.
        bucket: the object's bucket; empty when the list does not state it.
        size: bytes; None when the list does not state it.
        etag: empty when the list does not state it.
        modified_ms: last-modified, milliseconds since 1970 UTC; None when the list does not state it.
        latest: whether a listing would show that version.
        delete_marker: whether that version marks the object as deleted.
        storage_class: empty when the list does not state it.
        origin: the file, for messages.
        number: number of the row in the file, counted from 1.
    """

    key: str
    bucket: str = ""
    size: int | None = None
    etag: str = ""
    modified_ms: int | None = None
    latest: bool = True
    delete_marker: bool = False
    storage_class: str = ""
    origin: str = ""
    number: int = 0

    @property
    def place(self) -> str:
        """The row's place, for messages."""
        return f"{self.origin}, row {self.number}"


class RowReader:
    """Converts rows to `KeyRow` by the names of their columns.

    Args:
        names: the columns, in order; unknown names are ignored.
        origin: the file, for messages.
        encoded: whether keys are URL-encoded, a space as `+` or `%20`.

    Raises:
        KeyListError: no column is named `key`.
    """

    def __init__(self, names: Sequence[str], origin: str, *, encoded: bool) -> None:
        self._columns = [(names[at], at, field, *_KINDS.get(field, _TEXT)) for field, at in columns_of(names, origin)]
        self._width = len(names)
        self._origin = origin
        self._encoded = encoded

    def row(self, values: Sequence[Any], number: int) -> KeyRow:
        """Convert one row of texts, or of the values of Parquet; None or an empty text is no value.

        Raises:
            KeyListError: the number of fields differs from the number of columns, or a field is invalid.
        """
        if len(values) != self._width:
            raise KeyListError(
                f"{self._origin}, row {number}: {len(values)} fields where {self._width} are expected; "
                "if the list was cut short, supply all of it"
            )
        cells: dict[str, Any] = {"key": ""}
        for name, at, field, convert, kind in self._columns:
            value = values[at]
            if value is None or value == "":
                continue
            try:
                cells[field] = convert(value)
            except (LookupError, TypeError, ValueError):
                raise KeyListError(f"{self._origin}, row {number}: its {shown(name)} is no {kind}") from None
        cells["key"] = checked_key(cells["key"], self._origin, number, encoded=self._encoded)
        return KeyRow(origin=self._origin, number=number, **cells)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _etag(value: object) -> str:
    return _text(value).strip('"')


def _size(value: object) -> int:
    if isinstance(value, str):
        return size_of(value, "")
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise ValueError
    return value


def _moment(value: object) -> int:
    if type(value) is int:  # milliseconds, of Parquet
        return value
    moment = value
    if isinstance(value, str):  # Python 3.10 does not read the usual Z
        moment = datetime.fromisoformat(f"{value[:-1]}+00:00" if value[-1] in "zZ" else value)
    if not isinstance(moment, datetime):
        raise TypeError
    return moment_ms(moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc))


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[_text(value).lower()]


_TEXT = (_text, "text")
_KINDS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "etag": (_etag, "text"),
    "size": (_size, "number of bytes"),
    "modified_ms": (_moment, "timestamp, such as 2024-05-31T12:00:00.000Z"),
    "latest": (_truth, "boolean"),
    "delete_marker": (_truth, "boolean"),
}
"""Fields -> the conversion of a value, and what it has to be."""


def shown(text: str) -> str:
    """Return what an error repeats of a text from a list or a manifest."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def columns_of(names: Sequence[str], origin: str) -> list[tuple[str, int]]:
    """Return the known columns and their places; of several columns with one meaning, the first.

    Raises:
        KeyListError: no column is named `key`.
    """
    found: dict[str, int] = {}
    for at, name in enumerate(names):
        field = FIELDS.get(re.sub(r"[^a-z0-9]", "", name.lower()))
        if field is not None:
            found.setdefault(field, at)
    if "key" not in found:
        raise KeyListError(f"{origin}: none of its columns is named key; they are {shown(', '.join(names))}")
    return list(found.items())


def checked_key(text: str, origin: str, number: int, *, encoded: bool) -> str:
    """Return the key of a field.

    Raises:
        KeyListError: it is empty, too long, or not UTF-8 after decoding.
    """
    try:
        key = unquote_plus(text, errors="strict") if encoded else text
    except UnicodeDecodeError:
        raise KeyListError(
            f"{origin}, row {number}: the URL-encoded key is no UTF-8; if keys are not encoded, "
            'set [discovery] keys_encoding = "none"'
        ) from None
    if not key:
        raise KeyListError(f"{origin}, row {number}: the key is empty")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise KeyListError(
            f"{origin}, row {number}: longer than a key can be ({MAX_KEY_BYTES} bytes); is this a list of keys?"
        )
    return key


def text_rows(file: BinaryIO, origin: str, *, encoded: bool = False) -> Iterator[KeyRow]:
    r"""The keys of a text file: one a line, nothing taken off but the line's end (LF or CR LF). Empty lines are none.

    A key with a line break in it cannot stand in it, nor one that ends in CR: use CSV, or URL-encoded lines.

    Args:
        file: its bytes; a byte order mark is dropped.
        origin: its name, for messages.
        encoded: whether each line is URL-encoded.

    Raises:
        KeyListError: a line is no UTF-8, or longer than a key can be.
    """
    number = 0
    while line := file.readline(_MAX_LINE_BYTES):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        if not line:
            continue
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise KeyListError(f"{origin}, row {number}: no UTF-8 text; is this a list of keys?") from None
        yield KeyRow(key=checked_key(text, origin, number, encoded=encoded), origin=origin, number=number)


def csv_rows(file: BinaryIO, origin: str, *, bucket: str, encoded: bool | None = None) -> Iterator[KeyRow]:
    """Yield the rows of a CSV file in UTF-8, with quoted fields where needed (RFC 4180). Empty lines are ignored.

    A first row with a field `key` is a header, unless another of its fields is the bucket's name.

    Args:
        file: its bytes.
        origin: its name, for messages.
        bucket: bucket of the source.
        encoded: whether keys are URL-encoded; None = only in a file without a header and with a column
            for the bucket.

    Raises:
        KeyListError: it is not CSV or not UTF-8, is truncated inside a field, or has neither a header nor
            1 to 3 columns.
    """
    rows = split_rows(file, origin)
    first = next(rows, None)
    if first is None:
        return
    number, values = first
    if any(name.strip().lower() == "key" for name in values) and bucket not in values:
        reader = RowReader(values, origin, encoded=bool(encoded))
    else:
        names = {1: ("key",), 2: ("bucket", "key"), 3: ("bucket", "key", "version_id")}.get(len(values))
        if names is None:
            raise KeyListError(
                f"{origin}: {len(values)} columns and no header; begin it with a row that names the columns, key among them"
            )
        reader = RowReader(names, origin, encoded=len(names) > 1 if encoded is None else encoded)
        yield reader.row(values, number)
    for number, values in rows:
        yield reader.row(values, number)


def split_rows(file: BinaryIO, origin: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file as texts, with their numbers; without empty rows.

    Raises:
        KeyListError: it is not CSV, not UTF-8, or a row is too long.
    """
    number = length = 0
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")

    def lines() -> Iterator[str]:
        nonlocal length
        while line := text.readline(_MAX_LINE_BYTES + 1):
            length += len(line)
            if length > _MAX_LINE_BYTES:
                raise KeyListError(
                    f"{origin}, row {number + 1}: longer than {_MAX_LINE_BYTES} characters; is this a list of keys?"
                )
            yield line

    try:
        for values in csv.reader(lines(), strict=True):
            number, length = number + 1, 0
            if values:
                yield number, values
    except UnicodeDecodeError:
        raise KeyListError(f"{origin}, behind row {number}: no UTF-8 text; is this a list of keys?") from None
    except csv.Error as error:
        raise KeyListError(
            f"{origin}, behind row {number}: no CSV ({error}); if it was cut short, supply all of it"
        ) from None
    finally:
        if not file.closed:
            text.detach()  # the file is closed by who opened it


@contextmanager
def unpacked(file: BinaryIO, origin: str) -> Iterator[BinaryIO]:
    """Give the content of a file, decompressed when the name ends in `.gz`, in any case.

    Raises:
        KeyListError: the gzip data are truncated or damaged.
    """
    if not origin.lower().endswith(".gz"):
        yield file
        return
    try:
        yield io.BufferedReader(gzip.GzipFile(fileobj=file))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise KeyListError(f"{origin}: its gzip data are broken or cut short ({error}); supply all of it") from error
