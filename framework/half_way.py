"""What becomes of an iterator that nobody will go on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def give_up(iterator: Iterator[object] | None) -> None:
    """Ends a generator where it stands, in this thread: what it holds is given back now. Anything else has nothing to end.

    Left alone it may be part of a circle, or of the traceback of an error that somebody keeps. Then the collector ends it, at
    any time, in any thread, also in one that holds the lock that giving back needs.
    """
    close: Callable[[], None] | None = getattr(iterator, "close", None)
    if close is not None:
        close()
