"""Memory settings of a process, applied once at its start: for the C library, and for pyarrow when it is loaded."""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8
_ARENAS = 1


def limit_arenas() -> None:
    """Limit glibc to one arena, and make pyarrow use glibc's allocator.

    By default each reading thread gets its own arena, and memory that it frees is unusable for other arenas. That cost
    15 to 30 MB more at the peak, as measured, and gained no speed. pyarrow's own allocator retains freed memory:
    another 20 MB for Parquet. Does nothing with another C library; a pool that the user chose in the environment stays.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    except (AttributeError, OSError):
        return
