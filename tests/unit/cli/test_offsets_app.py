"""The options of the commands that choose objects."""

from __future__ import annotations

import pytest

from framework.cli.app import run
from framework.cli.offsets_commands import _entry_lines, count_entries, unknown_text
from framework.model.objects import NativeObject, ObjectState, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.position_filter import PositionFilter
from s3_source.task import S3SourceTask
from tests.support.positions import position

COMMANDS = [
    ("offsets", "reset", "--yes"),
    ("offsets", "show"),
    ("offsets", "export"),
    ("dead-letter", "show"),
    ("dead-letter", "replay"),
]


@pytest.mark.parametrize("option", ["--key", "--prefix"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_empty_key_or_prefix_chooses_nothing_rather_than_everything(command, option, tmp_path, capsys):
    """`--prefix "$DAY"` with a variable that is not set."""
    code = run("s3_source", S3SourceTask, [*command, "--config", str(tmp_path / "s3.toml"), option, ""])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {option} is empty: name the objects, or leave the option out")
    assert ("; --all selects every object" in err) == ("reset" in command)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (PositionFilter(key="a.jsonl"), "no object with the key 'a.jsonl' has a position"),
        (PositionFilter(prefix="in/"), "no object below the prefix 'in/' has a position"),
        (
            PositionFilter(key="s3://lake/a.jsonl"),
            "no object with the key 's3://lake/a.jsonl' has a position; give what follows the bucket's name",
        ),
        (
            PositionFilter(prefix="lake/in/"),
            "no object below the prefix 'lake/in/' has a position; give what follows the bucket's name",
        ),
    ],
)
def test_an_unknown_key_is_named(choice, text):
    native = NativeObject(bucket="lake", key="other", size=9, version="v", modified_ms=1)
    assert unknown_text(choice, [OffsetManagerEntry.start(native, TopicPartition("records", 0))]) == text


def test_records_of_an_unfinished_object_are_counted_as_the_least_there_is():
    """Killed by `kill -9`, a source may have sent more than it saved."""
    native = NativeObject(bucket="b", key="k", size=9, version="v", modified_ms=1)
    begun = OffsetManagerEntry.start(native, TopicPartition("records", 0))
    reading = begun.advanced(5, state=ObjectState.READING)
    done = begun.advanced(7, state=ObjectState.DONE).changed(records_saved=7)
    assert count_entries([done]) == (1, 7, 0)
    assert count_entries([done, reading]) == (2, 12, 1)


def test_the_saved_count_is_shown_where_a_crash_of_the_server_can_take_records():
    lines = [list(_entry_lines([position("a", 7).changed(records_saved=saved)]))[1] for saved in (5, 7)]
    assert ["  records 7, saved 5  " in line for line in lines] == [True, False]
    assert "  records 7  " in lines[1]


def test_an_object_whose_partition_is_gone_is_shown_as_one_that_begins_again():
    left = position("a", 7, numbering_options='{"format":"jsonl"}').abandoned()
    lines = list(_entry_lines([left]))
    assert lines[1].startswith("  version v1  records 0  reading")
    assert lines[2] == "  begins again in another partition: its own is gone"
