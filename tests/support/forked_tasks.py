"""Tasks of a program that runs in the test's own process, without half a second of imports for each.

The program spawns them. Here they are forks of a process that has loaded what they need, and nothing else that a spawned one
has not. Programs in processes of their own (`preloaded`) spawn theirs as always.
"""

import contextlib
import multiprocessing
import os
from multiprocessing.context import ForkServerProcess

import pytest

from framework.engine import process_group
from tests.support.preloaded import MODULES

multiprocessing.set_forkserver_preload([*MODULES, "s3_source.task", "transformers"])


class _ForkedProcess(ForkServerProcess):
    """With the environment of this moment, not that of the first fork."""

    def start(self):
        self.environment = dict(os.environ)
        super().start()

    def run(self):
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()


class _ForkedContext:
    Pipe = staticmethod(multiprocessing.Pipe)
    Process = _ForkedProcess


@contextlib.contextmanager
def forked_tasks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_group, "SpawnContext", _ForkedContext)
        yield
