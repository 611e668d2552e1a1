"""Memory settings of a process, applied once at its start: for the C library, and for pyarrow when it is loaded."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_ARENAS = 1
_KEPT_BYTES = 32 << 20
_MAX_HEAP_BLOCK_BYTES = 16 << 20


def limit_arenas() -> None:
    """Limit glibc to one arena that keeps what it frees, and make pyarrow use glibc's allocator.

    By default each reading thread gets its own arena, and memory that it frees is unusable for other arenas. That cost
    15 to 30 MB more at the peak, as measured, and gained no speed. pyarrow's own allocator retains freed memory:
    another 20 MB for Parquet. Blocks and requests of some megabytes come and go all the time: returned to the system
    they would cost a page fault each 4 KB, 8 % of the CPU for JSON lines. The peak stays the same. Does nothing with
    another C library; a pool that the user chose in the environment stays.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAX_HEAP_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    except (AttributeError, OSError):
        return
