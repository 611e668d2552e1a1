"""Parquet files as pyarrow reads them."""

from __future__ import annotations

from contextlib import closing

from typing_extensions import override

from framework.errors import TruncatedObjectError
from framework.model.parquet.files import SeekableFile
from framework.transformer import ObjectInput

_KEPT_BYTES = 1 << 25


class RangedFile(SeekableFile):
    """A seekable file whose every read is one ranged read of the object.

    Attributes:
        keeps: whether reads are kept for a repeated read of the same place.
        fetched: number of bytes that were read of the object.
        failure: the store's error, kept because a library may wrap or swallow it.
    """

    def __init__(self, source: ObjectInput) -> None:
        super().__init__(source.size)
        self._source = source
        self.keeps = False
        self.fetched = 0
        self._kept: dict[tuple[int, int], bytes] = {}
        self._kept_bytes = 0  # a sum at each read would take time by the square of a file's columns
        self.failure: Exception | None = None

    def keep(self) -> None:
        """Keep the following reads, up to a limit, for a reader that repeats them."""
        self.forget()
        self.keeps = True

    def forget(self) -> None:
        """Drop the kept reads."""
        self.keeps = False
        self._kept.clear()
        self._kept_bytes = 0

    @override
    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if self._at >= end:
            return b""
        place = self._at, end
        if (kept := self._kept.pop(place, None)) is not None:
            self._kept_bytes -= len(kept)
            self._at = end
            return kept
        data = self._fetch(end)
        if self.keeps and self._kept_bytes < _KEPT_BYTES:
            self._kept[place] = data
            self._kept_bytes += len(data)
        return data

    def _fetch(self, end: int) -> bytes:
        try:
            with closing(self._source.open(self._at, end)) as raw:
                parts = []
                while self._at < end and (part := raw.read(end - self._at)):
                    parts.append(part)
                    self._at += len(part)
                    self.fetched += len(part)
        except Exception as exc:
            self.failure = exc
            raise
        if self._at < end:
            self.failure = TruncatedObjectError("shorter than listed")
            raise self.failure
        return parts[0] if len(parts) == 1 else b"".join(parts)
