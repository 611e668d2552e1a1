"""Tracebacks of unexpected errors: kept in a file of the machine, never on the terminal or in the log.

    /tmp/iggy-cloud-sources-1000/error-20260731T120000-4711.txt

One file per process, and the newest twenty of a user: a supervisor that restarts endlessly does not fill
the disk.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import time
from pathlib import Path

from framework.model.secret_masking import without_secrets

MAX_FILES = 20
MAX_BYTES = 256 * 1024
"""Maximum per process; later traces are dropped."""

_lock = threading.Lock()
_name: str | None = None


def folder() -> Path:
    """Return the folder of this user's traces; `TMPDIR` moves it."""
    return Path(tempfile.gettempdir()) / f"iggy-cloud-sources-{os.getuid()}"


def keep(trace: str) -> str:
    """Store a traceback; return its place as the end of a sentence: `the trace is in FILE`. Never raises."""
    where = ""
    try:
        place = folder()  # there may be no folder for temporary files
        where = f" to {place}"
        return f"the trace is in {_write(place, without_secrets(trace))}"
    except Exception as exc:  # noqa: BLE001  whatever it is, the error that the trace is of must be said
        reason = exc.strerror if isinstance(exc, OSError) else None
        return f"the trace could not be written{where}: {reason or type(exc).__name__}"


def _write(place: Path, trace: str) -> Path:
    global _name  # noqa: PLW0603 - one file a process
    with _lock:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        # anybody may make a folder of that name in a shared one
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(1, "the folder belongs to another user")
        if _name is None or not (place / _name).exists():
            _name = f"error-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.txt"
            _forget_old(place)
        path = place / _name
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
            if os.fstat(descriptor).st_size < MAX_BYTES:
                file.write(f"{trace.rstrip()[-MAX_BYTES:]}\n\n")
        return path


def _forget_old(place: Path) -> None:
    files = sorted(place.glob("error-*.txt"))
    for old in files[: max(0, len(files) - MAX_FILES + 1)]:
        with contextlib.suppress(OSError):
            old.unlink()
