"""The page that says what was kept and made better names a test for each row, and each of them is there."""

import ast
import re

import pytest

from framework.testing.kit import LAWS
from tests.support.docs import ROOT

PAGE = (ROOT / "docs" / "development" / "better-than.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| --- ", "| elsewhere ", "| what "))
]
NODE = re.compile(r"`(tests/[\w/]+\.py)::((?:\w+::)?\w+)`")


def names_in(file):
    """The node ids of a file, without their parameters."""
    names = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
            if any(isinstance(base, ast.Name) and base.id == "ConformanceLaws" for base in node.bases):
                names |= {f"{node.name}::test_{law}" for law in LAWS}
    return {name for name in names if name.rpartition("::")[2].startswith("test_")}


def test_the_page_has_its_rows():
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_every_row_names_a_test_that_is_there(row):
    nodes = NODE.findall(row.rpartition(" | ")[2])
    assert nodes, "no test is named"
    for file, name in nodes:
        assert name in names_in(file), f"{file}::{name}"


def test_what_is_not_there_is_found():
    assert "test_that_is_nowhere" not in names_in("tests/unit/docs/test_better_than.py")
    assert "TestMemoryStore::test_L1" in names_in("tests/conformance/test_memory_store.py")
