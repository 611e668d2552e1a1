"""A start by a fork is like a start by `python -W error -m`: arguments, environment, output, signals, warnings and exit codes."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.preloaded import ROOT, Preloaded

SAYS = """
import faulthandler, os, signal, sys, threading, warnings
ours = sys.modules["__main__"]
handlers = {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()}
held = sorted(os.readlink(f"/proc/self/fd/{one}") for one in (0, 1, 2))
kinds = [(one[0], one[2].__name__) for one in warnings.filters if one[0] == "error"]
print(sys.argv[1:], dict(os.environ), os.getcwd(), ours.__spec__.name, handlers, held, kinds, sys.flags, threading.active_count())
print(faulthandler.is_enabled(), len(os.listdir("/proc/self/fd")), sys.path[0], signal.pthread_sigmask(0, []), file=sys.stderr)
sys.stdout.flush()
sys.stderr.flush()
os._exit(7)
"""


def by_fork(arguments, environment, out, err):
    return Preloaded("timeit", arguments, environment=environment, stdout=out, stderr=err)


def by_python(arguments, environment, out, err):
    command = [sys.executable, "-W", "error", "-m", "timeit", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)


@pytest.fixture
def sigint():
    """What runs in the background may have begun with SIGINT ignored, and passes that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_a_program_finds_what_it_finds_after_a_start(tmp_path):
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "WORD": "a\nb"}
    said = []
    for start in (by_fork, by_python):
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            running = start(["-n", "1", SAYS], environment, out, err)
            assert running.wait(60) == 7
        said.append(((tmp_path / "out").read_text(), (tmp_path / "err").read_text()))
    assert said[0] == said[1]
    assert "'a\\nb'" in said[0][0]


@pytest.mark.parametrize(("name", "code"), [("timeit.default_number", 0), ("timeit.no_such_limit", 1)])
def test_a_constant_of_a_module_has_another_value_if_it_is_there(tmp_path, name, code):
    with (tmp_path / "out").open("w+b") as out:
        asked = {"environment": os.environ, "stdout": out, "stderr": out, "constants": {name: 3}}
        assert Preloaded("base64", ["-h"], **asked).wait(60) == code
        out.seek(0)
        assert (b"AttributeError" in out.read()) == (code == 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_can_be_waited_for_and_ended(tmp_path, number):
    with (tmp_path / "out").open("wb") as out:
        running = by_fork(["-n", "1", "import signal; signal.pause()"], {}, out, out)
    assert running.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.01)
    running.send_signal(number)
    assert running.wait(60) == -number == running.poll()
    running.kill()  # nothing is there any more
    assert not os.path.exists(f"/proc/{running.pid}")  # noqa: PTH110
