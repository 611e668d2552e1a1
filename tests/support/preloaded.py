"""Programs in processes of their own, without half a second of imports for each.

Tests start programs by the hundred: to kill them, to signal them, to let them share a server. What Python loads before the first
line of `main` is the same each time, and says nothing. So a Python that has it loaded waits, and each start is a fork of it, which
goes on as `python -W error -m MODULE` does: its own arguments, environment and output, signals as at a start, `__main__` run from
the beginning. What a test wants to know of the loading itself, it starts with `subprocess`.

The waiting process has one thread, and nothing open but the socket by which it is asked.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from framework.cli.app import commands

ROOT = Path(__file__).parents[2]

MODULES = (
    "boto3.session",
    "framework.cli.app",
    "framework.engine.epoch_loop",
    "framework.engine.local",
    "framework.engine.process_group",
    "framework.iggy.connection",
    "framework.iggy.embedded.service",
    "framework.runtime.api",
    "framework.runtime.server",
    "gcs_source.demo",
    "gcs_source.task",
    "s3_source.client",
    "s3_source.demo",
    "tests.support.shared_models",
    "transformers.jsonl",
)
"""Loaded before the first start: with what they import, nearly all that a program needs.

Not pyarrow and polars, which start threads: a fork takes none along.
"""

MOST_BYTES = 1 << 17
"""Of a request: arguments and environment."""


class Preloaded:
    """A program under way; as much of `subprocess.Popen` as tests use.

    `constants` are other values for constants of modules, by their full names: a time limit that a test would wait out.
    """

    def __init__(self, module, arguments, *, environment, stdout, stderr, cwd=ROOT, constants=()):
        self.args = [module, *arguments]
        self.returncode = None
        self._report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        asked = {"module": module, "arguments": list(arguments), "environment": dict(environment), "cwd": str(cwd)}
        asked["constants"] = dict(constants)
        with theirs:
            request, passed = json.dumps(asked).encode(), [theirs.fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(_control(), [request], passed)
        self.pid = int(self._report.recv(32))

    def poll(self):
        with self._lock:
            if self.returncode is None:
                self._look(0)
            return self.returncode

    def wait(self, timeout=None):
        with self._lock:
            if self.returncode is None and not self._look(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout)
            return self.returncode

    def _look(self, timeout):
        if not select.select([self._report], [], [], timeout)[0]:
            return False
        self.returncode = os.waitstatus_to_exitcode(int(self._report.recv(32)))
        self._report.close()
        return True

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


_waiting = None


def _control():
    """The socket of the process that waits; it is started when it is needed first, and ends with this one."""
    global _waiting
    if _waiting is None:
        _waiting, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "PYTHONFAULTHANDLER": "1",
            "OPENBLAS_NUM_THREADS": "1",  # or numpy starts threads, which a fork does not take along
        }
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.support.preloaded", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,  # as of every program
                stdout=subprocess.DEVNULL,
            )

        def end():
            _waiting.close()
            process.wait()

        atexit.register(end)
    return _waiting


# ---- the process that waits


def serve(control):
    """Forks for each request; returns in the fork what it is to run, and None when nobody will ask any more."""
    for module in MODULES:
        importlib.import_module(module)
    for program in ("s3_source", "gcs_source"):
        commands(sys.modules[f"{program}.demo"].demo)
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reports = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            tell_ended(reports)
        if control not in ready:
            continue
        request, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 3)
        if not request:
            control.close()
            return None
        report = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the test run itself ignores
            for number, descriptor in enumerate(descriptors[1:], 1):
                os.dup2(descriptor, number)
            for one in (control, report, *reports.values()):
                one.close()
            for one in (woken, wake, *descriptors[1:]):
                os.close(one)
            return json.loads(request)
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        reports[pid] = report
        report.send(str(pid).encode())


def set_constants(values):
    """Gives constants other values; each must be there."""
    for name, value in values.items():
        module, _, constant = name.rpartition(".")
        place = importlib.import_module(module)
        getattr(place, constant)
        setattr(place, constant, value)


def tell_ended(reports):
    """Tells of each process that has ended how it did."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with reports.pop(pid) as report, contextlib.suppress(OSError):  # who asked may be gone
            report.send(str(status).encode())


if __name__ == "__main__":
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        os.environ.clear()
        os.environ.update(program["environment"])
        os.chdir(program["cwd"])
        sys.argv = ["-m", *program["arguments"]]
        set_constants(program["constants"])
        runpy.run_module(program["module"], run_name="__main__", alter_sys=True)
