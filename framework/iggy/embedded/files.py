"""Writes that last: whole-buffer writes, syncs, and the atomic replacement of small files.

`FileOps` is the seam through which tests make a disk fail; everything that must be durable goes through one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class FileOps:
    """The file operations that a disk can refuse.

    Attributes:
        sync: Whether writes are flushed to the disk before they count. Without it a message survives the death
            of the process but not of the machine.
    """

    def __init__(self, *, sync: bool = True) -> None:
        """Keep the setting."""
        self.sync = sync

    def write(self, fd: int, data: memoryview, position: int) -> int:
        """Write `data` or a first part of it at `position`, and return how many bytes were written."""
        return os.pwrite(fd, data, position)

    def flush(self, fd: int) -> None:
        """Return when the file's data and size are on the disk."""
        if self.sync:
            os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def write_all(self, fd: int, data: memoryview, position: int) -> None:
        """Write all of `data` at `position`.

        Raises:
            OSError: The disk refused; a first part may have been written.
        """
        while data:
            written = self.write(fd, data, position)
            data, position = data[written:], position + written

    def flush_directory(self, path: Path) -> None:
        """Return when the names in the directory `path` are on the disk."""
        if not self.sync:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, content: bytes) -> None:
        """Make `content` the file's whole content, or on an error leave the file as it was."""
        beside = path.with_name(path.name + ".new")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            self.write_all(fd, memoryview(content), 0)
            self.flush(fd)
        finally:
            os.close(fd)
        beside.replace(path)
        self.flush_directory(path.parent)
