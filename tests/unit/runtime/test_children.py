"""The processes of the sources, and their start when the machine has no room for all of it."""

import os
import subprocess

import pytest

from framework.runtime import children
from framework.runtime.children import ChildProcess


def test_a_child_without_a_thread_for_its_line_is_refused_before_its_process_begins(monkeypatch):
    """A worker tries it again later; any other error than OSError would end the worker, and all of its sources."""
    started, lines = [], []

    class Process(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def no_thread(_self, line, _changed):
        lines.append(line)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(children.subprocess, "Popen", Process)
    monkeypatch.setattr(children.WorkerEnd, "__init__", no_thread)
    with pytest.raises(OSError, match="can't start new thread"):
        ChildProcess(["-c", "import time; time.sleep(60)"], "orders", lambda: None)
    assert started == []
    assert lines[0].fileno() == -1


def test_a_signal_of_the_terminal_reaches_the_worker_and_not_its_sources():
    child = ChildProcess(["-c", "import time; time.sleep(60)"], "orders", lambda: None)
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
    finally:
        child.kill()
        child.close()
