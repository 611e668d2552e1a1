"""How long something took, less what a busy machine made it wait.

A bound such as "a stop ends within five seconds" is a promise for a machine that has time for the program. Where other
work takes the cores it says nothing about the program, and a test that reads a plain clock fails by chance. The kernel
counts for how long some task stood waiting for a core or a disk, and for how long a host lent the core to somebody else:
that time is taken off. On a quiet machine it is next to nothing, and the bound is checked as it stands. Never all of it is taken
off: on a machine that is busy all the time the bound is ten times as wide, and something that hangs still breaks it.
"""

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PRESSURE = [Path("/proc/pressure/cpu"), Path("/proc/pressure/io")]
STAT = Path("/proc/stat")


def lost():
    """Seconds for which something on this machine waited for a core or a disk, since it was started; 0 where none tells."""
    total = 0.0
    with suppress(OSError, IndexError, ValueError):
        total += int(STAT.read_text().split("\n", 1)[0].split()[8]) / os.sysconf("SC_CLK_TCK")
    for one in PRESSURE:
        with suppress(OSError, IndexError, ValueError):
            total += int(one.read_text().split("\n", 1)[0].rpartition("total=")[2]) / 1e6
    return total


def crowd():
    """By how much more is to be done than there are cores, where the kernel counts no waits: 1 when it fits."""
    if PRESSURE[0].exists():
        return 1.0
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self):
        self._began, self._lost = time.monotonic(), lost()

    @property
    def seconds(self):
        """What it took so far, on a machine that had time for it."""
        took = self._took
        return max(took / 10, (took - (lost() - self._lost)) / crowd())

    @property
    def waited(self):
        """The rest of it: for how long the machine kept it waiting."""
        return self._took - self.seconds

    @property
    def _took(self):
        return time.monotonic() - self._began


def run_within(seconds, command, **options):
    """`subprocess.run` of a program that hangs if it takes longer on a machine that has time for it."""
    watch = Stopwatch()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        while True:
            try:
                out, err = process.communicate(timeout=1)
            except subprocess.TimeoutExpired:
                if watch.seconds > seconds:
                    process.kill()
                    out, err = process.communicate()
                    raise AssertionError(f"{command} did not end within {seconds} seconds: {out}{err}") from None
            else:
                return subprocess.CompletedProcess(command, process.returncode, out, err)
