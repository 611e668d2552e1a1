"""What the server says: one line each, in one write, so that threads do not mix theirs."""

from __future__ import annotations

import sys


def announce(line: str) -> None:
    """Write a line to standard output, for whoever started the server."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
