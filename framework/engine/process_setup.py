"""Settings of a process, applied once at its start: for the C library, Python, and for pyarrow and numpy when they are loaded."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os

_STDERR = 2
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_ARENAS = 1
_KEPT_BYTES = 32 << 20
_MAX_HEAP_BLOCK_BYTES = 16 << 20

OBJECTS_PER_COLLECTION = 50_000
"""Number of new Python objects after which cycles are looked for."""


def set_up_process() -> None:
    """Set up the memory of the C library, Python's search for cycles, the threads of numpy, and what a crash leaves.

    glibc gets one arena, which keeps what it frees, and pyarrow uses it.

    By default each reading thread gets its own arena, and memory that it frees is unusable for other arenas. That cost
    15 to 30 MB more at the peak, as measured, and gained no speed. pyarrow's own allocator retains freed memory:
    another 20 MB for Parquet. Blocks and requests of some megabytes come and go all the time: returned to the system
    they would cost a page fault each 4 KB, 8 % of the CPU for JSON lines. The peak stays the same. By default Python
    looks for cycles after 700 new objects: a run makes hardly any cycles, and looking took 12 % of the CPU for small
    objects, and still 4 % after 10,000. Another C library stays as it is, and so does a pool that the user chose in the
    environment.

    numpy's library for linear algebra starts a thread for each core, each with a buffer of its own, when numpy is imported;
    they wait for work in a loop for some 0.1 s of CPU, while a source is starting. No source has such work.

    A library in C that crashes over the bytes of an object leaves the stack trace of each thread on stderr.
    """
    faulthandler.enable(_STDERR)
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAX_HEAP_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    except (AttributeError, OSError):
        return
