"""The way of a record that the architecture page tells: a run calls each of its steps."""

import importlib
import inspect
import re
import shutil
import sys
import threading

from framework.cli.app import run
from tests.support.docs import ROOT

PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
STEPS = "\n".join(re.findall(r"^\d+\. +(.*(?:\n +.*)*)", PAGE, re.MULTILINE))
OTHER_STORE = "s3_source/"  # a folder is read here; the store's own two steps are `ShelfStore`'s


def code_of(file, name):
    """The code of a function or method that the page names."""
    found = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    return getattr(found, "__func__", found).__code__


def test_a_run_calls_every_step(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from shelf import ShelfStore, ShelfTask

    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    (tmp_path / "examples" / "data" / "blank.jsonl").write_text('{"n": 1}\n\n{"n": 2}\n')  # not read at once
    monkeypatch.chdir(tmp_path)
    named = {
        f"{file}: {name}": code_of(file, name)
        for file, name in re.findall(r"`(\w+(?:/\w+)+\.py):\s+([\w.]+)`", STEPS)
        if not file.startswith(OTHER_STORE)
    }
    assert len(named) > 20
    steps = named | {"list_page": ShelfStore.list_page.__code__, "open": ShelfStore.open.__code__}
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        assert run("shelf", ShelfTask, ["--config", str(ROOT / "examples" / "shelf.toml"), "--once"]) == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert [name for name, code in steps.items() if code not in called] == []
