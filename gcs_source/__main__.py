"""`python -m gcs_source --config gcs.toml`: the program of the GCS source."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules load: no traceback; `run` takes it over
if __name__ == "__main__" and os.getpid() == 1:  # a container's first process ends by no signal without a handler
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
    signal.signal(signal.SIGINT, lambda number, _frame: os._exit(128 + number))

import contextlib
import sys
from pathlib import Path

# `python -m` puts the working directory first: a folder there that is called like one of our packages would hide it.
with contextlib.suppress(FileNotFoundError):  # it was removed
    if sys.path and sys.path[0] == str(Path.cwd()) and Path(__file__).resolve().parents[1] != Path.cwd():
        sys.path.append(sys.path.pop(0))

try:
    from framework.cli import leave, run
    from gcs_source.demo import demo
    from gcs_source.task import GcsSourceTask
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    sys.stderr.write(
        f"error: {sys.executable} has no package {missing.name}: start the program with the Python of the environment in which "
        "it is installed; in a checkout that is .venv/bin/python, which `make demo` makes\n"
    )
    sys.exit(3)  # a person must act

if __name__ == "__main__":
    leave(run("gcs_source", GcsSourceTask, demo=demo))
