"""Reading of small files: whole, up to a limit, and without a wait that never ends."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

PIPE_SECONDS = 30.0
"""How long a pipe or a terminal is waited for, such as that of `--config <(sops -d s3.toml)`."""

_PIECE_BYTES = 1 << 16


def read_file(path: Path, max_bytes: int, *, may_wait: bool = True) -> bytes:
    """Return the content of a file or a pipe.

    Args:
        path: the file.
        max_bytes: the longest content that makes sense.
        may_wait: whether it may be a pipe, or another thing that is waited for, such as a terminal.

    Raises:
        OSError: it cannot be read, is longer, or is a pipe or a terminal into which nothing is written.
    """
    data = _first_bytes(path, max_bytes + 1, may_wait=may_wait)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {max_bytes >> 20} MiB")
    return data


def read_text(path: Path, max_bytes: int, *, may_wait: bool = True) -> str:
    """Return the text of a file, as `read_file` its bytes, without a byte order mark.

    Raises:
        OSError: as for `read_file`; or it is not UTF-8.
    """
    try:
        return read_file(path, max_bytes, may_wait=may_wait).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text") from None


def _first_bytes(path: Path, number: int, *, may_wait: bool) -> bytes:
    with open(path, "rb", opener=_without_wait) as file:
        is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        if not (is_pipe or file.isatty()):
            return file.read(number)
        kind = "a pipe" if is_pipe else "a terminal"
        if not may_wait:
            raise OSError(errno.EINVAL, f"it is {kind}, not a file, and is read more than once")
        poll, data = select.poll(), bytearray()
        poll.register(file, select.POLLIN)
        while len(data) < number:
            if not poll.poll(PIPE_SECONDS * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"it is {kind}, and nothing came within {PIPE_SECONDS:g} seconds")
            piece = os.read(file.fileno(), _PIECE_BYTES)
            if not piece:
                break
            data += piece
        return bytes(data)


def _without_wait(path: str, flags: int) -> int:
    """Open a file; of a pipe, without a wait for a writer, which has no end."""
    return os.open(path, flags | os.O_NONBLOCK)
