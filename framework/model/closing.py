"""Closing of abandoned iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def close_iterator(iterator: Iterator[object] | None) -> None:
    """Close a generator now, in this thread, so that it releases its resources. Other iterators need no close.

    An abandoned generator may be part of a reference cycle, or of the traceback of a stored error. Then the garbage
    collector closes it at any time and in any thread, even in a thread that holds the lock for the release.
    """
    close: Callable[[], None] | None = getattr(iterator, "close", None)
    if close is not None:
        close()
