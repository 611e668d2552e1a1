"""The one background thread with an asyncio loop that all connections of a process share.

The official client gives futures and needs a running loop; the rest of the framework is threads and plain calls.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time

# The client's own threads may be calling into Python when the interpreter ends, which aborts the process (44 of 150
# short scripts under load). A moment's wait lets them finish.
atexit.register(time.sleep, 0.05)

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, started at the first call; a forked child starts its own. Never closed."""
    global _loop  # noqa: PLW0603  (one per process is the point)
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="iggy-loop", daemon=True).start()
        return _loop


def _forget() -> None:
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
