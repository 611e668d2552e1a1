"""A split of an object, as the formats read it: requested as far as it reaches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from typing_extensions import override

from framework.transformer import ObjectInput, ReadStream
from transformers.compression import WIDE_BYTES, detect_compression

_FIRST_MORE_BYTES = 1 << 16


class OnwardInput(ObjectInput):
    """An object whose bytes up to `end` are requested at once, and later bytes only when they are read."""

    def __init__(self, source: ObjectInput, end: int) -> None:
        self._source = source
        self._end = end

    @property
    @override
    def location(self) -> str:
        return self._source.location

    @property
    @override
    def key(self) -> str:
        return self._source.key

    @property
    @override
    def size(self) -> int:
        return self._source.size

    @override
    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        return _OnwardStream(self._source.open, start, self._end, self._source.size)


class _OnwardStream(ReadStream):
    """Bytes from `start` on: first up to `end`, then twice as many with each request."""

    def __init__(self, opener: Callable[[int, int], ReadStream], start: int, end: int, size: int) -> None:
        self._opener = opener
        self._end = end
        self._size = size
        self._more = _FIRST_MORE_BYTES
        self._stream = opener(start, end)

    @override
    def read(self, size: int, /) -> bytes:
        while True:
            data = self._stream.read(size)
            if data or self._end >= self._size:
                return data
            self._stream.close()
            start, self._end = self._end, min(self._size, self._end + self._more)
            self._more *= 2
            self._stream = self._opener(start, self._end)

    @override
    def close(self) -> None:
        self._stream.close()


def packing_of(source: ObjectInput) -> str:
    """Return the compression with whose magic bytes the object begins, or `none`; makes a request."""
    return detect_compression(head_of(source), source.key)


def head_of(source: ObjectInput) -> bytes:
    """Return the first bytes of the object, as many as `detect_compression` and `is_wide` need; makes a request."""
    with closing(source.open(0, min(WIDE_BYTES, source.size))) as stream:
        return b"".join(iter(lambda: stream.read(WIDE_BYTES), b""))
