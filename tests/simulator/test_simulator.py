"""Random histories find nothing, ten thousand in CI; each planted mistake is found; what once went wrong goes well.

Each runs in processes of its own, since their clocks and threads are simulated.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.support.stopwatch import run_within

ROOT = Path(__file__).parents[2]
HISTORIES, SEEDS = (10_000, 10) if os.environ.get("CI") else (2_000, 3)
"""What so many histories find: docs/development/fault-injection.md#simulated-histories. And the seeds of a scenario: what it
tells is the same with each, and only who waits for whom differs."""

PARTS = 10
"""As many tests have them: whoever is idle takes one, and none ends long after all others."""


pytestmark = pytest.mark.timeout(3000)  # each process has a limit of its own, on a machine that has time for it


def run(seconds, *arguments):
    """What it said, and its exit code."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    ended = run_within(seconds, [sys.executable, "-m", "tests.simulator", *arguments], cwd=ROOT, env=environment)
    return ended.stdout + ended.stderr, ended.returncode


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_find_nothing(part):
    """Every theme of `plans` is in each part."""
    count = HISTORIES // PARTS
    numbers = ["--histories", str(count), "--seed", str(part), "--step", str(PARTS)]
    said, code = run(300, "--theme", "mixed", *numbers)
    assert code == 0, said[-4000:]
    assert f"{count} histories, 0 wrong" in said


def test_a_seed_is_one_history():
    told = [run(60, "--one", "7", "-v")[0].rpartition("(")[0] for _ in range(2)]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) > 100


def test_scenarios():
    said, code = run(120, "--scenarios", str(SEEDS))
    assert code == 0, said[-4000:]


@pytest.mark.parametrize("part", range(2))
def test_planted_mistakes_are_found(part):
    """Each in the history where it last showed, or within so many others (`exhibits.EXHIBITS`)."""
    said, code = run(300, "--museum", str(part), "2")
    assert code == 0, said[-4000:]
