"""Log lines, and the progress bar below them."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import warnings

import pytest

from framework.cli.output import Output, printable
from framework.cli.progress import Rate, duration_text, progress_text, seconds_left
from framework.config.loading import ConfigWarning
from framework.progress import Progress

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


def test_an_exception_gets_its_traceback():
    def act(_):
        try:
            raise ValueError("bad")  # noqa: TRY301
        except ValueError:
            LOGGER.exception("failed")

    assert "ValueError: bad" in written(act)
    assert "ValueError: bad" in json.loads(written(act, format="json"))["traceback"]


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
                Progress(objects_done=step, objects_total=40, bytes_done=step * 10, bytes_total=100, records=step)
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
            output.update(Progress(records=5, state="waiting" if number % 2 else "listing", list_requests=number))

    assert written(act, clock=clock).count("progress") == 1


def test_on_a_terminal_lines_stand_whole_above_the_bar():
    def act(output):
        output.update(
            Progress(objects_done=3, objects_total=40, bytes_done=5_000_000, bytes_total=9_000_000, records=12_000)
        )
        LOGGER.warning("a line %s", "x" * 300, extra={"key": "[bold]k[/bold]"})
        output.update(Progress(objects_done=4, objects_total=40, state="[red]odd", records=13_000))

    text = written(act, terminal=True)
    assert re.search(rf"{TIME} WARNING a line x{{300}}  key=\[bold\]k\[/bold\]\n", text)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "4/40 objects" in plain
    assert "[red]odd" in plain
    assert text.rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


@pytest.mark.parametrize("format_", ["plain", "json"])
def test_a_named_format_has_no_bar_on_a_terminal(format_):
    def act(output):
        output.update(Progress(records=5))

    assert "\x1b" not in written(act, format=format_, terminal=True)


def test_results_go_to_stdout(capsys):
    assert written(lambda output: output.say("result [x]")) == ""
    assert capsys.readouterr().out == "result [x]\n"


def test_rate_covers_the_last_ten_seconds():
    rate = Rate()
    assert rate.records_per_second == 0
    for second in range(31):
        rate.add(
            second, Progress(records=second * 100 if second <= 15 else 1500 + (second - 15) * 7, bytes_done=second)
        )
    assert rate.records_per_second == pytest.approx(7)
    assert rate.bytes_per_second == pytest.approx(1)
    assert seconds_left(Progress(bytes_done=30, bytes_total=90), rate) == pytest.approx(60)
    assert seconds_left(Progress(bytes_done=30), rate) is None


def test_texts():
    assert [duration_text(value) for value in (0, 12, 187, 3723)] == ["0:00", "0:12", "3:07", "1:02:03"]
    rate = Rate()
    assert progress_text(Progress(objects_done=1234, records=5, bytes_done=12), rate) == (
        "1,234 objects  12 B  5 records  0/s"
    )
    rate.add(0, Progress())
    rate.add(2, Progress(records=82_000, bytes_done=3_100_000))
    full = Progress(
        objects_done=12,
        objects_total=40,
        bytes_done=3_100_000,
        bytes_total=9_000_000,
        records=82_000,
        skipped=2,
        failed=1,
    )
    assert (
        progress_text(full, rate)
        == "12/40 objects  3.1/9.0 MB  82,000 records  41,000/s  2 bad records  1 bad objects  0:04 left"
    )


def test_rich_is_loaded_for_a_terminal_only():
    code = (
        "import sys, logging\nfrom framework.cli.output import *\n"
        "with Output(terminal=False) as o:\n    o.update(Progress(records=1))\n"
        "    logging.getLogger('framework').info('x')\n"
        "sys.exit('rich' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
