"""Messages of the server: one line in one write, so that lines of several threads do not mix."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def announce(line: str) -> None:
    """Write a line to standard output, for whoever started the server."""
    _write(sys.stdout, line)


def warn(line: str) -> None:
    """Write a line to standard error."""
    _write(sys.stderr, line)


def _write(stream: TextIO, line: str) -> None:
    # Whoever listened may be gone; the server has others to serve.
    with contextlib.suppress(OSError):
        stream.write(line + "\n")
        stream.flush()
