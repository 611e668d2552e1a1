"""Lines of several processes in one stream."""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import pty
import subprocess
import sys
import threading

import pytest

from framework.cli.error_reporter import ErrorReporter
from framework.cli.line_writer import LineWriter
from framework.cli.terminal import Output
from framework.engine.run_statistics import RunStatistics

LINES = 150
LENGTHS = (30, 3000, 12_000)
"""Less than a pipe takes at once, and more."""

WRITER = f"""
import logging, sys
from framework.cli.terminal import Output
name = sys.argv[1]
with Output(source=name, waits=name != "a"):
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for number in range({LINES}):
        logging.getLogger("framework.x").info("%d %s", number, name * {LENGTHS}[number % 3])
"""

HOLDER = """
import fcntl, sys
fcntl.lockf(2, fcntl.LOCK_EX)
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def begin(program, stream, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


def end(process):
    with process:
        process.stdin.close()
    assert process.returncode == 0


@pytest.fixture
def pipe():
    """The ends of a pipe: the reader's, and the stream."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "w") as stream:
        yield reader, stream


def test_a_file_takes_each_line_at_once(tmp_path):
    """The system then puts no line of another process into it."""
    writes = []

    class Raw(io.FileIO):
        def write(self, data):
            writes.append(len(data))
            return super().write(data)

    with io.TextIOWrapper(io.BufferedWriter(Raw(tmp_path / "log", "w"))) as stream, Output(stream=stream):
        for length in LENGTHS:
            logging.getLogger("framework.x").warning("x" * length)
    assert writes == [len(line) for line in (tmp_path / "log").read_bytes().splitlines(keepends=True)]
    assert len(writes) == len(LENGTHS)


def test_lines_of_several_processes_in_a_pipe_are_whole(pipe):
    reader, stream = pipe
    processes = [begin(WRITER, stream, name) for name in "ab"]
    stream.close()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    text = b"".join(iter(lambda: os.read(reader.fileno(), 1000), b""))  # slower than the writers
    for process in processes:
        end(process)
    found = {"a": [], "b": []}
    for line in text.decode().splitlines():
        _, level, number, content, source = line.split()
        name = source.removeprefix("source=")
        found[name].append(int(number))
        assert (level, content) == ("INFO", name * LENGTHS[int(number) % 3])
    assert found == {name: list(range(LINES)) for name in "ab"}


def test_a_process_that_stands_still_within_a_line_holds_up_no_stop(pipe):
    reader, stream = pipe
    holder = begin(HOLDER, stream)
    lines, written = LineWriter(stream), []
    thread = threading.Thread(target=lambda: written.append(lines.write("first\n")), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    lines.stopping = True
    thread.join(20)
    assert written == [False]
    end(holder)
    assert lines.write("second\n")
    assert os.read(reader.fileno(), 100) == b"second\n"


def test_who_waits_for_the_reader_lets_other_processes_write(pipe):
    """Else a process that logs much would leave the others no turn."""
    reader, stream = pipe
    os.set_blocking(stream.fileno(), False)
    full = 0
    while full < 65536:
        full += os.write(stream.fileno(), b"." * 4096)
    lines = LineWriter(stream)
    thread = threading.Thread(target=lines.write, args=("x" * 100 + "\n",), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    holder = begin(HOLDER, stream)
    end(holder)
    assert len(reader.read(full)) == full
    thread.join(20)
    assert os.read(reader.fileno(), 200) == b"x" * 100 + b"\n"


def test_a_stream_without_locks_takes_lines(pipe, monkeypatch):
    def none(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(fcntl, "lockf", none)
    reader, stream = pipe
    assert LineWriter(stream).write("ä\n")
    assert os.read(reader.fileno(), 100) == "ä\n".encode()


@pytest.fixture
def terminal():
    """The ends of a terminal: the reader's, and the stream."""
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
    os.close(reader)


@pytest.mark.parametrize("may_open", [True, False])
def test_a_terminal_that_takes_no_more_holds_up_no_stop(terminal, monkeypatch, may_open):
    """A write to a terminal waits for its reader, although there was room for a byte."""
    if not may_open:
        monkeypatch.setattr(os, "ttyname", lambda _: "/no/such/terminal")
    _, stream = terminal
    lines = LineWriter(stream)

    def write_until_full():
        while lines.write(f"{'x' * 1500}\n"):
            pass

    thread = threading.Thread(target=write_until_full, daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    lines.stopping = True
    thread.join(5)
    assert not thread.is_alive()
    assert os.get_blocking(stream.fileno())  # other processes write to it


def test_a_bar_on_a_terminal_that_takes_no_more_holds_up_no_stop(terminal):
    _, stream = terminal
    output = Output(stream=stream, terminal=True)

    def run():
        with output:
            for number in range(100):
                logging.getLogger("framework.x").warning("x" * 1500)
                output.update(RunStatistics(records=number))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    output.stopping()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("may_open", [True, False])
def test_a_terminal_takes_whole_lines(terminal, monkeypatch, may_open):
    if not may_open:
        monkeypatch.setattr(os, "ttyname", lambda _: "/no/such/terminal")
    reader, stream = terminal
    thread = threading.Thread(target=LineWriter(stream).write, args=(f"{'x' * 50_000}\n",), daemon=True)
    thread.start()
    taken = b""
    while not taken.endswith(b"\n"):
        taken += os.read(reader, 1000)
    thread.join(20)
    assert taken == b"x" * 50_000 + b"\r\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_only_the_first_line_has_a_byte_order_mark(pipe, encoding):
    reader, stream = pipe
    stream.reconfigure(encoding=encoding)
    lines = LineWriter(stream)
    assert lines.write("ä\n")
    assert lines.write("b\n")
    assert os.read(reader.fileno(), 100) == "ä\nb\n".encode(encoding)


def test_a_report_waits_for_the_line_of_another_process(pipe, monkeypatch):
    reader, stream = pipe
    monkeypatch.setattr(sys, "stderr", stream)
    holder = begin(HOLDER, stream)
    thread = threading.Thread(target=ErrorReporter().warn, args=("late",), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    end(holder)
    thread.join(20)
    assert os.read(reader.fileno(), 100) == b"warning: late\n"
