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
    """A file. Its size is taken when this is made; a file that is shorter when it is read raises."""

    def __init__(self, path: str | os.PathLike[str], key: str | None = None) -> None:
        self._path = Path(path)
        self.key = key if key is not None else self._path.name
        self.location = f"file://{self._path.absolute()}"
        self._stat = self._path.stat()
        self.size = self._stat.st_size

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        """Open the bytes `start .. end - 1`.

        Raises:
            ObjectNotFoundError: the file is gone.
            ObjectChangedError: it was written to since this was made.
        """
        try:
            raw = self._path.open("rb")
        except FileNotFoundError as exc:
            raise ObjectNotFoundError("the file is gone", location=self.location) from exc
        with ExitStack() as if_not:
            if_not.enter_context(raw)
            stat = os.fstat(raw.fileno())
            if (stat.st_size, stat.st_mtime_ns) != (self.size, self._stat.st_mtime_ns):
                raise ObjectChangedError("the file was changed since it was listed", location=self.location)
            raw.seek(start)
            if_not.pop_all()  # it is what was listed: who reads it closes it
        stop = self.size if end is None else min(end, self.size)
        return _CheckedStream(raw, max(0, stop - start), self.location)
