"""What a process of ours says about memory, once, at its start: to the C library, and to pyarrow for when it is loaded."""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8
_ARENAS = 1


def limit_arenas() -> None:
    """Keeps glibc to one arena, and pyarrow to glibc.

    By default each of the reading threads gets an arena of its own, and what one frees no other can use: 15 to 30 MB more at
    the peak, measured, for no speed. pyarrow's own allocator keeps what it had: another 20 MB for Parquet. Does nothing
    where the C library is another one; a pool that the user chose in the environment stays.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    except (AttributeError, OSError):
        return
