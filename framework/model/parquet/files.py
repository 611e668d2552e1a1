"""Files as pyarrow reads them: their base, and one that is never read."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress

from typing_extensions import override


class SeekableFile(io.RawIOBase):
    """Base of the files that pyarrow reads; a subclass reads from `_at` on, and moves it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at


class ProbeFile(SeekableFile):
    """A file that is never read: it shows whether pyarrow can open columns."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._asked = False

    def is_asked(self, read: Callable[[], object]) -> bool:
        """Return whether `read` comes so far as to read the file."""
        self._asked = False
        with suppress(Exception):
            read()
        return self._asked

    @override
    def read(self, size: int = -1, /) -> bytes:
        self._asked = True
        return b""  # not an error, whose traceback pyarrow formats each time
