"""How a program ends although threads are left behind."""

import signal
import subprocess
import sys

import pytest

# Ended with sys.exit, this aborts ("terminate called without an active exception") or hangs.
LEFT_BEHIND = """
import atexit, io, sys, threading, time
import pyarrow, pyarrow.csv
from framework.engine.process_exit import leave

class Endless(io.RawIOBase):
    def readable(self):
        return True

    def read(self, size=-1):
        time.sleep(0.0005)
        return b"1,2\\n" * (max(size, 4) // 4)

def decode():
    options = pyarrow.csv.ReadOptions(block_size=4096)
    for _ in pyarrow.csv.open_csv(pyarrow.PythonFile(Endless(), mode="r"), read_options=options):
        pass

for _ in range(3):
    threading.Thread(target=decode, daemon=True).start()
atexit.register(print, "registered")
time.sleep(0.3)
print("written", end="")
leave(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_what_was_said_and_nothing_written_is_lost(code):
    done = subprocess.run([sys.executable, "-c", LEFT_BEHIND, str(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stdout == "writtenregistered\n"
    assert done.stderr == ""


def test_what_a_thread_that_was_left_behind_drops_is_not_complained_about():
    script = (
        "import atexit, socket\nfrom framework.engine.process_exit import leave\n"
        "atexit.register(lambda: socket.socket() and None)\nleave(0)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_in_the_last_moment_is_no_traceback():
    script = (
        "import atexit, signal\nfrom framework.engine.process_exit import leave\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background process ignores it
        "atexit.register(signal.raise_signal, signal.SIGINT)\nleave(0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_reader_that_has_gone_away_is_no_failure():
    script = "import sys\nfrom framework.engine.process_exit import leave\nprint('x' * 100_000)\nleave(0)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(30) in {0, 1}
        assert b"Exception ignored" not in process.stderr.read()
