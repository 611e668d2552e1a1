"""Names that tests and benchmarks put in place of the framework's exist there: one that is gone changes nothing, unnoticed."""

import ast
import builtins
import importlib
import inspect
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ("framework", "s3_source", "gcs_source", "transformers")


def imported(tree):
    """Alias -> what is imported from our packages under it, as (module, name or None)."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            found |= {one.asname or one.name: (node.module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.asname: (one.name, None) for one in node.names if one.asname and one.name.startswith(OURS)}
    return found


def resolved(node, aliases):
    """The module or class that an expression names; None when it names none of ours."""
    if isinstance(node, ast.Attribute):
        outer = resolved(node.value, aliases)
        return getattr(outer, node.attr, None) if outer is not None else None
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    module, name = aliases[node.id]
    found = importlib.import_module(module)
    if name is None:
        return found
    if not hasattr(found, name):
        return importlib.import_module(f"{module}.{name}")
    return getattr(found, name)


def replaced_names(source):
    """(line, name) of each assignment to a name of a module or class of ours that has no such name."""
    tree = ast.parse(source)
    aliases = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = resolved(node.value, aliases)
            if (inspect.ismodule(owner) or inspect.isclass(owner)) and not hasattr(owner, node.attr):
                yield node.lineno, node.attr


ATTRIBUTES_OF_INSTANCES = {"tests/simulator/museum.py: floor"}
"""Properties in place of attributes that only instances have."""


def test_whatever_is_put_in_place_of_a_name_of_ours_has_a_place():
    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for _, name in replaced_names(path.read_text())
        if not hasattr(builtins, name)
    }
    assert gone == ATTRIBUTES_OF_INSTANCES


def test_a_name_that_is_gone_is_found():
    source = """
from framework.iggy.offset_log import codec as stored
from framework.offsets.position_map import PositionMap
import framework.offsets.table as table
def f():
    stored.PART_BYTES = stored.PART_CHUNKS = 1
    PositionMap.gone = PositionMap.view = table.PositionTable.gone = table.threading.gone = None
"""
    assert sorted(replaced_names(source)) == [(6, "PART_BYTES"), (7, "gone"), (7, "gone"), (7, "gone")]
