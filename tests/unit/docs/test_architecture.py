"""Every place that the architecture page and its notes on changes name exists: the file, and the function in it."""

import ast
import re

import pytest

from tests.support.docs import ROOT

NOTES = (ROOT / "docs" / "development" / "architecture-notes.md").read_text(encoding="utf-8")
CHANGES = NOTES.partition("## Where to change something\n")[2].partition("\n## ")[0]
PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8") + CHANGES
STEPS = re.findall(r"^\d+\. +(.*(?:\n +.*)*)", PAGE, re.MULTILINE)
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!---|question |task )", line)]
PLACE = re.compile(r"`(\w+(?:/\w+)+\.py)(?::\s+([\w.]+))?`")
PLACES = sorted({(file, name) for file, name in PLACE.findall(PAGE)})


def has(file, name):
    """Whether a file defines a function or class of that name, or a class a method."""
    nodes = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        node = next((node for node in nodes if getattr(node, "name", None) == part), None)
        if node is None:
            return False
        nodes = node.body
    return True


def test_one_records_way_has_at_most_25_steps_and_each_names_a_place():
    assert 15 <= len(STEPS) <= 25
    assert [step for step in STEPS if not any(name for _, name in PLACE.findall(step))] == []


def test_every_row_names_a_place():
    assert len(ROWS) >= 30
    assert CHANGES.count("\n| ") >= 10
    assert [row for row in ROWS if not PLACE.findall(row.rpartition(" | ")[2])] == []


@pytest.mark.parametrize(("file", "name"), PLACES, ids=lambda part: part or "file")
def test_the_place_exists(file, name):
    assert (ROOT / file).is_file()
    assert not name or has(file, name)


def test_no_place_is_overlooked():
    """A name in another form, such as a folder or a misspelt path, would not be checked."""
    named = re.findall(r"`([^`]*\.py\b[^`]*)`", PAGE)
    assert [text for text in named if not PLACE.fullmatch(f"`{text}`")] == []


def test_a_name_that_does_not_exist_is_found():
    assert has("framework/pipeline/sender.py", "Sender.run")
    assert not has("framework/pipeline/sender.py", "Sender.walk")
    assert not has("framework/pipeline/sender.py", "run")
