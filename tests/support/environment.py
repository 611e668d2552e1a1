"""The process's environment, other for a while."""

import contextlib
import os


@contextlib.contextmanager
def environment(ours, *, without=()):
    """Sets some variables and takes others out; afterwards all of them are as they were."""
    names = {*ours, *without}
    kept = {name: os.environ[name] for name in names if name in os.environ}
    for name in kept:
        del os.environ[name]
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
        os.environ.update(kept)
