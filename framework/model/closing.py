"""Closing of abandoned iterators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)


def close_iterator(iterator: Iterator[object] | None) -> None:
    """Close a generator now, in this thread, so that it releases its resources. Other iterators need no close.

    An abandoned generator may be part of a reference cycle, or of the traceback of a stored error. Then the garbage
    collector closes it at any time and in any thread, even in a thread that holds the lock for the release.

    A close that fails is logged: it may not hide why the work ended.
    """
    close: Callable[[], None] | None = getattr(iterator, "close", None)
    if close is not None:
        try:
            close()
        except Exception:
            log.exception("the close of %s failed; going on without it", type(iterator).__qualname__)
