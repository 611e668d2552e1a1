"""The switch that turns skips into failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPING = """
import pytest

def test_runs():
    pass

def test_skips_itself():
    pytest.skip("no reason at all")

@pytest.mark.skipif(True, reason="root may write everywhere")
def test_is_left_out():
    pass

@pytest.mark.xfail(raises=ZeroDivisionError)
def test_is_known_to_fail():
    1 / 0
"""


def run(folder, *, require_all):
    (folder / "test_it.py").write_text(SKIPPING)
    environment = {name: value for name, value in os.environ.items() if name != "REQUIRE_ALL"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.no_skips", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env=environment | ({"REQUIRE_ALL": "1"} if require_all else {}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def test_a_skip_is_a_skip_on_a_developers_machine(tmp_path):
    code, out = run(tmp_path, require_all=False)
    assert code == 0
    assert "1 passed, 2 skipped, 1 xfailed" in out


@pytest.mark.parametrize("whole_file", [False, True])
def test_a_skip_fails_where_everything_must_run(tmp_path, whole_file):
    if whole_file:
        (tmp_path / "test_other.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    code, out = run(tmp_path, require_all=True)
    assert code != 0
    assert "REQUIRE_ALL=1 forbids it: " + ("could not import" if whole_file else "no reason at all") in out


def test_what_cannot_run_here_may_be_left_out(tmp_path):
    _, out = run(tmp_path, require_all=True)
    expected = "1 failed, 1 passed, 1 skipped" if os.geteuid() == 0 else "2 failed, 1 passed"
    assert f"{expected}, 1 xfailed" in out
