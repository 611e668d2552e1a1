"""Objects that do not come from a store: a file on disk, or bytes in memory. For library use and for tests."""

from __future__ import annotations

import io
import os
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from framework.errors import ObjectChangedError, ObjectNotFoundError, TruncatedObjectError
from framework.transformer import ReadStream


class _CheckedStream:
    """Reads exactly `remaining` bytes of a file, and fails when there are fewer."""

    def __init__(self, raw: BinaryIO, remaining: int, location: str) -> None:
        self._raw = raw
        self._remaining = remaining
        self._location = location

    def read(self, size: int, /) -> bytes:
        data = self._raw.read(min(size, self._remaining))
        self._remaining -= len(data)
        if not data and self._remaining and size > 0:
            raise TruncatedObjectError("it is shorter than it was when listed", location=self._location)
        return data

    def close(self) -> None:
        self._raw.close()


class BytesInput:
    """An object whose bytes are in memory."""

    def __init__(self, data: bytes, key: str = "memory") -> None:
        self._data = data
        self.key = key
        self.location = f"memory://{key}"
        self.size = len(data)

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        """Open the bytes `start .. end - 1`."""
        part = self._data[start:end]
        return _CheckedStream(io.BytesIO(part), len(part), self.location)


class LocalFileInput:
    """A file as it is on creation; reading it after a change raises.

    Args:
        path: the file.
        key: its key; by default the file's name.
        version: the expected version, from an earlier instance; None: any.

    Attributes:
        size: its size in bytes.
        version: a text that changes with the content, unless the file is written in place within a clock tick.
        modified_ms: its last-modified time, milliseconds since 1970 UTC.

    Raises:
        ObjectNotFoundError: there is no such file.
        ObjectChangedError: it has another version.
    """

    def __init__(self, path: str | os.PathLike[str], key: str | None = None, *, version: str | None = None) -> None:
        self._path = Path(path)
        self.key = key if key is not None else self._path.name
        self.location = f"file://{self._path.absolute()}"
        try:
            stat = self._path.stat()
        except FileNotFoundError as exc:
            raise ObjectNotFoundError("there is no such file", location=self.location) from exc
        self.size = stat.st_size
        self.modified_ms = stat.st_mtime_ns // 1_000_000
        self.version = _version_of(stat)
        self._check_version(version)

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        """Open the bytes `start .. end - 1`.

        Raises:
            ObjectNotFoundError: the file was deleted.
            ObjectChangedError: the file was changed.
        """
        try:
            raw = self._path.open("rb")
        except FileNotFoundError as exc:
            raise ObjectNotFoundError("the file was deleted", location=self.location) from exc
        with ExitStack() as if_not:
            if_not.enter_context(raw)
            self._check_version(_version_of(os.fstat(raw.fileno())))
            raw.seek(start)
            if_not.pop_all()  # the reader closes it
        stop = self.size if end is None else min(end, self.size)
        return _CheckedStream(raw, max(0, stop - start), self.location)

    def _check_version(self, version: str | None) -> None:
        if version not in {None, self.version}:
            raise ObjectChangedError("the file was changed after it was listed", location=self.location)


def _version_of(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns}-{stat.st_size}-{stat.st_ino}"
