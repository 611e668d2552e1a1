"""Standard streams of the program: there even if the parent process closed them, and one sentence if stdout is full."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.errors import RetriableError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER_BYTES = 64 * 1024


class OutputError(RetriableError):
    """The result of a command cannot be written."""


class ReaderGoneError(OutputError):
    """The reader of the output has seen enough: `... | head`."""


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Open the standard streams that are closed, and have every failure to write to stdout be an `OutputError`."""
    _open_closed()
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper) or stdout is not sys.__stdout__:
        yield  # of a test or a notebook
        return
    stdout.flush()
    file = _Stdout(stdout.fileno(), "w", closefd=False)
    sys.stdout = text = io.TextIOWrapper(
        io.BufferedWriter(file, _BUFFER_BYTES),
        encoding=stdout.encoding,
        errors="backslashreplace",  # as stderr: on a terminal of another encoding, an escape is better than no answer
        line_buffering=stdout.line_buffering or stdout.write_through,
    )
    try:
        yield
        text.flush()
    finally:
        with contextlib.suppress(OutputError):  # after another error: what was printed before it
            text.flush()
        file.over = True
        sys.stdout = stdout


def _open_closed() -> None:
    """Open what is closed: the next socket would get its number, and whatever is printed there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(opened, True)  # noqa: FBT003 - positional only
            stream = open(opened, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


class _Stdout(io.FileIO):
    """The file below stdout.

    Attributes:
        over: whether further data is dropped. From Python 3.13 on, a buffer that cannot be written at its end prints a traceback.
    """

    over = False

    @override
    def write(self, data: Buffer, /) -> int | None:  # type: ignore[override]
        if self.over:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise ReaderGoneError("stdout is no longer read") from error
        except OSError as error:
            raise OutputError(f"stdout cannot be written: {error.strerror}") from error
