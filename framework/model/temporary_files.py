"""Errors of temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from framework.errors import FatalError


@contextmanager
def temporary_for(origin: str, *, made: str = "copied") -> Iterator[None]:
    """Turn an error of a temporary file into one that names its folder, what it is for, and a way out.

    Args:
        origin: what the file is made from.
        made: how, for the message.

    Raises:
        FatalError: the temporary file cannot be made, or written.
    """
    try:
        yield
    except OSError as error:
        # `gettempdir` would raise again where no folder can be written, as in a container of a read-only image
        folder = f"in {tempfile.tempdir}" if tempfile.tempdir else "anywhere"
        raise FatalError(
            f"{origin}: cannot be {made} into a temporary file {folder} ({error.strerror}); make room there, or set TMPDIR to "
            f"another folder"
        ) from error


@contextmanager
def closed_at_end(file: BinaryIO) -> Iterator[BinaryIO]:
    """Close a temporary file at the end. That may fail: Python writes again what a full disk did not take."""
    try:
        yield file
    finally:
        with suppress(OSError):
            file.close()
