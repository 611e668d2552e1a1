"""Log lines, and the progress bar below them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import warnings

import pytest

from framework.cli import trace
from framework.cli.error_reporter import ErrorReporter
from framework.cli.progress_text import Rate, duration_text, progress_text, seconds_left
from framework.cli.terminal import Output
from framework.cli.text import error_text, json_text, printable
from framework.config.loading import ConfigWarning
from framework.engine.log_forwarding import TRACE
from framework.engine.process_exit import LAST_SECONDS
from framework.engine.run_statistics import RunStatistics
from framework.errors import ConfigError, ObjectError

LOGGER = logging.getLogger("framework.something")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def written(act, **options):
    stream = io.StringIO()
    with Output(stream=stream, **options) as output:
        act(output)
    return stream.getvalue()


def test_plain_lines_have_time_level_message_and_fields():
    text = written(lambda _: LOGGER.info("opened %s", "a b", extra={"bucket": "lake", "count": 3, "what": "x y"}))
    assert re.fullmatch(rf'{TIME} INFO    opened a b  bucket=lake  count=3  what="x y"\n', text)


def test_json_lines_are_one_object_each():
    def act(_):
        LOGGER.warning("line\nbreak", extra={"key": "\U0001f600\n", "level": "mine", "n": 1})
        LOGGER.error("no value", extra={"thing": object})

    first, second = map(json.loads, written(act, format="json").splitlines())
    assert re.fullmatch(TIME, first.pop("time"))
    assert first == {
        "level": "warning", "logger": "framework.something", "message": "line\nbreak", "key": "\U0001f600\n", "n": 1,
    }  # fmt: skip
    assert second["thing"] == "<class 'object'>"


def test_a_key_cannot_forge_a_line_or_move_the_cursor():
    text = written(lambda _: LOGGER.info("read %s", "a\nERROR x\x1b[2J", extra={"key": "k\r\n", "other": "a\tb c"}))
    assert text.count("\n") == 1
    assert r"read a\nERROR x\x1b[2J  key=k\r\n" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert printable("ä \U0001f600") == "ä \U0001f600"


def test_a_reader_that_stands_still_holds_up_no_stop(tmp_path):
    """Before, lines wait for it: none is lost."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "w") as stream, Output(stream=stream) as output:

        def fill():
            for number in range(1000):
                LOGGER.warning("%d %s", number, "x" * 5000)

        writer = threading.Thread(target=fill, daemon=True)
        writer.start()
        first = reader.read(3_000_000)
        writer.join(0.5)
        assert writer.is_alive()
        output.stopping()
        writer.join(30)
        assert not writer.is_alive()
        os.set_blocking(read_end, False)
        rest = reader.read()
        LOGGER.warning("read again")
        assert reader.read().endswith(b"read again\n")
    whole = [line for line in (first + rest).splitlines() if line.endswith(b"x" * 5000)]
    assert [int(line.split()[2]) for line in whole] == list(range(len(whole)))
    assert len(whole) > 590


@pytest.fixture
def full_pipe():
    """A pipe that takes nothing more, and its two ends."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "w") as stream:
        os.set_blocking(write_end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write_end, b"." * 4096)
        os.set_blocking(write_end, True)
        yield reader, stream


def done_within(seconds, act):
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def lines_of(reader, last):
    found = b""
    while last not in found:
        found += os.read(reader.fileno(), 65536)
    return found.lstrip(b".").decode().splitlines()


def test_no_caller_waits_for_the_reader_and_what_is_lost_is_counted(full_pipe):
    reader, stream = full_pipe

    def fill():
        for number in range(1000):
            LOGGER.warning("%d %s", number, "x" * 5000)

    with Output(stream=stream, waits=False):
        assert done_within(20, fill)
        lines = lines_of(reader, b"lost here")
        assert done_within(20, lambda: LOGGER.warning("read again"))
        lines += lines_of(reader, b"read again")
    *kept, lost, again = lines
    assert [int(line.split()[2]) for line in kept] == list(range(len(kept)))
    assert 150 < len(kept) < 220
    assert lost.endswith(f"WARNING lost here, because this log took no more: {1000 - len(kept)} lines")
    assert again.endswith("read again")


def test_what_a_full_pipe_did_not_take_during_a_stop_is_counted(full_pipe):
    reader, stream = full_pipe
    with Output(stream=stream, waits=False) as output:
        output.stopping()
        for number in range(3):
            LOGGER.warning("line %d", number)
        time.sleep(2 * LAST_SECONDS)
        os.set_blocking(reader.fileno(), False)
        assert not reader.read().strip(b".")
        os.set_blocking(reader.fileno(), True)
        LOGGER.warning("read again")
        lost, again = lines_of(reader, b"read again")
    assert lost.endswith("this log took no more: 3 lines")
    assert again.endswith("read again")


def test_what_a_full_disk_did_not_take_is_counted():
    class Disk(io.StringIO):
        full = True

        def write(self, text):
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Disk()
    with Output(stream=stream, waits=False):
        for number in range(3):
            LOGGER.warning("line %d", number)
            time.sleep(0.2)
        stream.full = False
        LOGGER.warning("room again")
    lost, again = stream.getvalue().splitlines()
    assert lost.endswith("this log took no more: 3 lines")
    assert again.endswith("room again")


def test_the_end_waits_a_second_for_the_reader(full_pipe):
    _, stream = full_pipe
    output = Output(stream=stream, waits=False).__enter__()
    LOGGER.warning("a line without a reader")
    started = time.monotonic()
    assert done_within(20, output.__exit__)
    assert 0.5 * LAST_SECONDS < time.monotonic() - started < 4 * LAST_SECONDS


def test_the_end_writes_what_waits():
    text = written(lambda _: [LOGGER.info("line %d", number) for number in range(5000)], waits=False)
    assert [int(line.split()[-1]) for line in text.splitlines()] == list(range(5000))


def test_a_line_that_cannot_be_written_is_one_sentence():
    (line,) = written(lambda _: LOGGER.warning("%d objects", "no number")).splitlines()
    assert " ERROR   a line of the log framework.something could not be written: TypeError" in line


def test_a_line_that_cannot_be_written_is_json_in_a_log_of_json():
    (line,) = written(lambda _: LOGGER.warning("%d objects", "no number"), format="json").splitlines()
    assert json.loads(line)["message"].startswith("a line of the log framework.something could not be written: TypeE")


def test_levels_and_foreign_packages():
    def act(_):
        LOGGER.debug("own debug")
        logging.getLogger("botocore.hooks").debug("their debug")
        logging.getLogger("botocore.hooks").info("their info")
        logging.getLogger("botocore.hooks").warning("their warning")
        LOGGER.error("own error")

    lines = written(act, level="debug")
    assert [word in lines for word in ("own debug", "their debug", "their info", "their warning")] == [
        True, False, False, True,
    ]  # fmt: skip
    assert "their warning" not in written(act, level="error")
    assert "own error" in written(act, level="error")


@pytest.fixture
def traces(tmp_path, monkeypatch):
    monkeypatch.setattr(trace.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(trace, "_name", None)
    return trace.folder()


def fail(_):
    try:
        raise ValueError("bad\x1b[2J")  # noqa: TRY301
    except ValueError:
        LOGGER.exception("failed")


def test_an_exception_is_one_plain_line_that_names_the_file_of_its_trace(traces):
    (line,) = written(fail).splitlines()
    (file,) = traces.iterdir()
    assert r"ERROR   failed: ValueError: bad\x1b[2J (the trace is in" in line
    assert str(file) in line
    assert "Traceback" in file.read_text()


def test_an_exception_is_said_where_no_folder_takes_its_trace(monkeypatch):
    """As on a disk that is full, or a system that is read-only."""

    def no_folder():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(trace.tempfile, "gettempdir", no_folder)
    reason = "the trace could not be written: No usable temporary directory found in ['/tmp']"
    assert trace.keep("x") == reason
    (line,) = written(fail).splitlines()
    assert reason in line


def test_whatever_happens_to_a_trace_raises_nothing(traces, monkeypatch):
    monkeypatch.setattr(trace, "_write", lambda *_: {}["of ours"])
    assert trace.keep("x") == f"the trace could not be written to {traces}: KeyError"


def test_a_json_line_holds_class_and_trace(traces):
    told = json.loads(written(fail, format="json"))
    assert told["error"] == "ValueError"
    assert "ValueError: bad" in told["traceback"]
    assert not traces.exists()


def test_a_trace_of_another_process_is_no_part_of_the_line(traces):
    text = written(lambda _: LOGGER.error("failed: E", extra={TRACE: "Traceback\n  of another process\n", "key": "a"}))
    assert text.count("\n") == 1
    assert "of another process" not in text
    assert "key=a" in text
    (file,) = traces.iterdir()
    assert "of another process" in file.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=hunter22 failed",
        "headers: {'Authorization': 'Bearer hunter22'}",
        "Authorization: AWS4-HMAC-SHA256 hunter22",
        "iggy://ann:hunter22@h:1 refused",
        "password='hunter22'",
        r"invalid XML received:\nb'<Credentials><SecretAccessKey>hunter22</SecretAccessKey><SessionToken>hunter22",
    ],
)
def test_a_trace_shows_no_secret_that_a_library_has_put_into_its_error(traces, text):
    def act(_):
        try:
            raise ValueError(text)  # noqa: TRY301
        except ValueError:
            LOGGER.exception("failed")

    assert "hunter22" not in written(act) + written(act, format="json")
    (file,) = traces.iterdir()
    assert "hunter22" not in file.read_text()


def test_a_command_without_an_output_shows_no_secret_of_a_warning(traces, capsys):
    log = logging.getLogger("botocore.credentials")
    with ErrorReporter().log_written():
        try:
            raise ValueError("b'<SecretAccessKey>hunter22")  # noqa: TRY301
        except ValueError:
            log.warning("not renewed, secret=hunter22", exc_info=True)
    (file,) = traces.iterdir()
    shown = capsys.readouterr().err
    assert "not renewed, secret=***: ValueError: b'<SecretAccessKey>*** (the trace is in" in shown
    assert "hunter22" not in shown + file.read_text()


@pytest.mark.parametrize("form", ["plain", "json"])
def test_a_message_of_a_library_shows_no_secret(form):
    log = logging.getLogger("botocore.utils")
    assert "got b'<Token>***" in written(lambda _: log.warning("got %r", b"<Token>hunter22"), format=form)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_thread_raises_and_nobody_waits_for_is_a_line(traces, capsys):
    def act(_):
        thread = threading.Thread(target=lambda: int("x"), name="listing")
        thread.start()
        thread.join()

    text = written(act)
    assert "ERROR   the thread listing ended: ValueError: invalid literal" in text
    assert "Traceback" not in text + capsys.readouterr().err


def test_warnings_become_lines_and_everything_is_given_back():
    root_before = logging.getLogger().handlers[:], logging.getLogger().level, warnings.showwarning

    def act(_):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning("[s3] kind: now called style.", ConfigWarning, "f", 1)
            warnings.showwarning("old", FutureWarning, "f", 1)

    lines = written(act).splitlines()
    assert lines[0].endswith(" WARNING [s3] kind: now called style.")
    assert lines[1].endswith(" WARNING FutureWarning: old")
    assert (logging.getLogger().handlers[:], logging.getLogger().level, warnings.showwarning) == root_before


def test_without_a_terminal_progress_is_a_line_every_ten_seconds_and_the_last_one():
    clock = Clock()

    def act(output):
        for step in range(7):
            output.update(
                RunStatistics(objects=step, objects_total=40, object_bytes=step * 10, bytes_total=100, records=step)
            )
            clock.now += 4

    lines = [json.loads(line) for line in written(act, format="json", clock=clock).splitlines()]
    assert [line["objects_done"] for line in lines] == [3, 6]
    assert lines[0]["message"] == "progress"
    assert lines[0]["seconds_left"] == 28


def test_an_idle_run_does_not_repeat_its_progress():
    clock = Clock()

    def act(output):
        for number in range(10):
            clock.now += 60
            output.update(RunStatistics(records=5, state="waiting" if number % 2 else "listing", list_requests=number))

    assert written(act, clock=clock).count("progress") == 1


def test_a_run_that_stands_still_says_where_its_threads_are(traces):
    clock = Clock()

    def act(output):
        for seconds in range(0, 2000, 10):
            clock.now = 100.0 + seconds
            output.update(RunStatistics(state="sending", objects_total=2, records=5 if seconds < 100 else 6))

    lines = [line for line in written(act, clock=clock).splitlines() if "WARNING" in line]
    assert [line.partition("confirmed for ")[2].partition(";")[0] for line in lines] == [
        f"{minutes} minutes (sending)" for minutes in (5, 10, 20)
    ]
    (file,) = traces.iterdir()
    assert str(file) in lines[0]
    assert "test_a_run_that_stands_still_says_where_its_threads_are" in file.read_text()


@pytest.mark.parametrize(
    ("state", "step", "figures", "said"),
    [
        ("waiting", 4000, {}, ["4,000 records"]),
        ("sending", 30, {}, []),
        ("waiting", 30, {"records": 1}, []),
        ("waiting", 30, {"skipped": 1}, []),
        ("waiting", 0, {}, []),
    ],
)
def test_a_filter_that_drops_everything_is_doubted_once_while_the_run_goes_on(state, step, figures, said):
    def act(output):
        for number in range(1, 9):
            output.update(RunStatistics(state=state, records_filtered=step * number, **figures))

    lines = [line for line in written(act).splitlines() if "WARNING" in line]
    assert [line.partition("filtered by the transforms: ")[2].partition(":")[0] for line in lines] == said
    assert all("every record that was read so far. Is a condition wrong?" in line for line in lines)


@pytest.mark.parametrize(
    "figures",
    [
        lambda seconds: {"state": "waiting"},
        lambda seconds: {"state": "reconnecting"},
        lambda seconds: {"state": "listing", "listed": seconds},
        lambda seconds: {"state": "sending", "records_filtered": seconds},
        lambda seconds: {"state": "listing" if seconds // 100 % 2 else "waiting"},
    ],
)
def test_a_run_that_waits_or_moves_is_not_warned_of(figures, traces):
    clock = Clock()

    def act(output):
        for seconds in range(0, 2000, 10):
            clock.now = 100.0 + seconds
            output.update(RunStatistics(**figures(seconds)))

    assert "WARNING" not in written(act, clock=clock)
    assert not traces.exists()


def test_on_a_terminal_lines_stand_whole_above_the_bar():
    def act(output):
        output.update(
            RunStatistics(objects=3, objects_total=40, object_bytes=5_000_000, bytes_total=9_000_000, records=12_000)
        )
        LOGGER.warning("a line %s", "x" * 300, extra={"key": "[bold]k[/bold]"})
        output.update(RunStatistics(objects=4, objects_total=40, state="[red]odd", records=13_000))

    text = written(act, terminal=True)
    assert re.search(rf"{TIME} WARNING a line x{{300}}  key=\[bold\]k\[/bold\]\n", text)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "4/40 objects" in plain
    assert "[red]odd" in plain
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h") < text.index("a line"), (
        "a killed process leaves the cursor"
    )
    assert text.count("\x1b[?25l") == 1


def test_a_terminal_that_is_gone_does_not_hide_how_the_run_ended():
    class Terminal(io.StringIO):
        gone = False

        def write(self, text):
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    def run():
        with Output(stream=terminal, terminal=True) as output:
            output.update(RunStatistics(records=1))
            terminal.gone = True
            raise ConfigError("why it ended")

    terminal, before = Terminal(), logging.getLogger().handlers[:]
    with pytest.raises(ConfigError, match="why it ended"):
        run()
    assert logging.getLogger().handlers == before


@pytest.mark.parametrize("format_", ["plain", "json"])
def test_a_named_format_has_no_bar_on_a_terminal(format_):
    def act(output):
        output.update(RunStatistics(records=5))

    assert "\x1b" not in written(act, format=format_, terminal=True)


def test_rate_covers_the_last_ten_seconds():
    rate = Rate()
    assert rate.records_per_second == 0
    for second in range(31):
        rate.add(
            second,
            RunStatistics(records=second * 100 if second <= 15 else 1500 + (second - 15) * 7, object_bytes=second),
        )
    assert rate.records_per_second == pytest.approx(7)
    assert rate.bytes_per_second == pytest.approx(1)
    assert seconds_left(RunStatistics(object_bytes=30, bytes_total=90), rate) == pytest.approx(60)
    assert seconds_left(RunStatistics(object_bytes=30), rate) is None


def test_texts():
    assert [duration_text(value) for value in (0, 12, 187, 3723)] == ["0:00", "0:12", "3:07", "1:02:03"]
    rate = Rate()
    assert progress_text(RunStatistics(objects=1234, records=5, object_bytes=12), rate) == (
        "1,234 objects  12 B  5 records  0/s"
    )
    rate.add(0, RunStatistics())
    rate.add(2, RunStatistics(records=82_000, object_bytes=3_100_000))
    full = RunStatistics(
        objects=12,
        objects_total=40,
        object_bytes=3_100_000,
        bytes_total=9_000_000,
        records=82_000,
        skipped=2,
        failed=1,
    )
    assert (
        progress_text(full, rate)
        == "12/40 objects  3.1/9.0 MB  82,000 records  41,000/s  2 bad records  1 bad object  0:04 left"
    )


def test_rich_is_loaded_for_a_terminal_only():
    code = (
        "import sys, logging\nfrom framework.cli.terminal import *\n"
        "with Output(terminal=False) as o:\n    o.update(RunStatistics(records=1))\n"
        "    logging.getLogger('framework').info('x')\n"
        "sys.exit('rich' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


EVIL = "k\nok   credentials    FORGED\x1b]0;title\x07\x9b2J\x7f\u202e\u2028"
"""A key that begins a line, gives the terminal orders in old and new form, and turns the direction of what follows."""


def test_an_error_is_one_line_whatever_key_it_names():
    text = error_text(ObjectError("gone", location=f"s3://lake/{EVIL}"))
    assert text.isprintable()
    assert text.startswith(r"s3://lake/k\nok   credentials    FORGED\x1b]0;title\x07\x9b2J")


def test_several_mistakes_are_a_line_each():
    text = error_text(ConfigError(["one", f"two {EVIL}"], origin="a.toml"))
    assert text.split("\n") == ["a.toml: 2 mistakes:", "  - one", f"  - two {printable(EVIL)}"]
    assert error_text(ConfigError(f"two {EVIL}")) == f"two {printable(EVIL)}"


@pytest.mark.parametrize("indent", [False, True])
@pytest.mark.parametrize(
    "value",
    [{"key": EVIL}, [EVIL, 10**200], {"\x9b": {"a": ["ä", "\U0001f600", "\U000e0001"]}}, "\udcff", {"a": 1, "b": []}],
)
def test_json_for_a_terminal_is_the_same_json_without_orders(value, indent):
    text = json_text(value, indent=indent)
    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n"))
    assert indent or "\n" not in text


def test_json_keeps_what_can_be_printed():
    assert json_text({"a": "ä\U0001f600"}) == '{"a":"ä\U0001f600"}'


def test_the_error_of_a_line_gives_the_terminal_no_orders():
    def act(_):
        try:
            int(EVIL)
        except ValueError:
            LOGGER.exception("failed")

    (line,) = written(act).rstrip("\n").split("\n")
    assert "failed: ValueError: invalid literal" in line
    assert line.isprintable()
