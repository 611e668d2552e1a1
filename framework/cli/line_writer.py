"""Writes whole lines to a stream that other processes write to as well: no line contains part of another."""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import functools
import os
import select
import stat
import time
import weakref
from collections.abc import Callable
from typing import TextIO

from framework.engine.process_exit import LAST_SECONDS

_SLICE_SECONDS = 0.01


class LineWriter:
    """Writes lines to a stream, and waits while a pipe is full; once `stopping`, for `LAST_SECONDS` in all.

    A file takes a line at once. A pipe, socket or terminal takes it in pieces for which it has room, under a lock that all
    processes share that write lines to it. Where the system has no such lock, a line above 4,096 bytes may contain others.
    A terminal is ready when it has room for one byte: it is opened again, so that a write never waits. If it cannot be
    opened, as after `su`, it takes one byte at a time.

    It has the part of a file that rich uses for a bar: `encoding`, `write` and `flush`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stopping = False
        self.encoding = stream.encoding
        self._stream = stream
        self._seconds_left = LAST_SECONDS
        self._descriptor = -1
        self._room = select.poll()
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no file: it takes everything at once
            descriptor = stream.fileno()
            if _may_be_full(descriptor):
                self._descriptor, self._piece = descriptor, select.PIPE_BUF
                self._encode = codecs.getincrementalencoder(self.encoding)(stream.errors or "strict").encode
                if os.isatty(descriptor):
                    self._open_terminal(descriptor)
                self._room.register(self._descriptor, select.POLLOUT)

    def _open_terminal(self, descriptor: int) -> None:
        """Write by a descriptor that does not wait: that of the stream is shared with other processes."""
        self._piece = 1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            self._piece = select.PIPE_BUF
            weakref.finalize(self, os.close, self._descriptor)

    def write_line(self, text: str) -> bool:
        """Write a text and the end of its line; return whether the stream took all of it."""
        return self.write(f"{text}\n")

    def write(self, line: str) -> bool:
        """Write a line, which has its end, or a part of a bar; return whether the stream took all of it."""
        if self._descriptor < 0:
            self._stream.write(line)
            self._stream.flush()
            return True
        data = self._encode(line)
        if not self._wait(self._begins):
            return False
        try:
            while data:
                written = self._wait(functools.partial(self._write_piece, data[: self._piece]))
                if not written:
                    return False
                data = data[written:]
            return True
        finally:
            self._unlock()

    def flush(self) -> None:
        """Do nothing: `write` keeps nothing back."""

    def _write_piece(self, piece: bytes, seconds: float) -> int:
        """Return how many bytes of the piece were written; 0 without room for any."""
        if not self._has_room(seconds):
            return 0
        try:
            return os.write(self._descriptor, piece)
        except BlockingIOError:
            time.sleep(seconds)
            return 0

    def _wait(self, ready: Callable[[float], int]) -> int:
        """Wait for what is asked for some seconds at a time; return its answer, 0 if it did not come."""
        while not (answer := ready(_SLICE_SECONDS if self._seconds_left > 0 else 0)):
            if self._seconds_left <= 0:
                return 0
            if self.stopping:
                self._seconds_left -= _SLICE_SECONDS
        return answer

    def _has_room(self, seconds: float) -> bool:
        """Return whether the stream takes a piece, of `PIPE_BUF` bytes at most, without a wait."""
        return bool(self._room.poll(seconds * 1000))

    def _begins(self, seconds: float) -> bool:
        """Return whether the stream has room and the lock is taken: who waits for a reader does not hold it between lines."""
        if not self._has_room(seconds):
            return False
        if not self._lock():
            time.sleep(seconds)
            return False
        if self._has_room(0):
            return True
        self._unlock()
        return False

    def _lock(self) -> bool:
        """Take the lock of the stream; False while another process holds it. It ends with the process."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in {errno.EAGAIN, errno.EACCES}  # else there is none for such a stream
        return True

    def _unlock(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def _may_be_full(descriptor: int) -> bool:
    """Return whether a write may wait for a reader. The lock of another device, such as `/dev/null`, is everyone's."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
