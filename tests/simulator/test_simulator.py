"""Random histories find nothing, ten thousand in CI; each planted mistake is found; what once went wrong goes well.

Each runs in processes of its own, since their clocks and threads are simulated.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HISTORIES, SEEDS = (10_000, 10) if os.environ.get("CI") else (2_000, 3)
"""What so many histories find: docs/development/fault-injection.md#simulated-histories. And the seeds of a scenario: what it
tells is the same with each, and only who waits for whom differs."""

PARTS = 10
"""As many tests have them: whoever is idle takes one, and none ends long after all others."""


def start(*arguments):
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulator", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, seconds):
    """What it said, and its exit code."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        pytest.fail(f"not done in {seconds} seconds: {said[-2000:]}")
    return said, process.returncode


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_find_nothing(part):
    """Every theme of `plans` is in each part."""
    count = HISTORIES // PARTS
    numbers = ["--histories", str(count), "--seed", str(part), "--step", str(PARTS)]
    said, code = finish(start("--theme", "mixed", *numbers), 580)
    assert code == 0, said[-4000:]
    assert f"{count} histories, 0 wrong" in said


def test_a_seed_is_one_history():
    told = [finish(start("--one", "7", "-v"), 100)[0].rpartition("(")[0] for _ in range(2)]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) > 100


def test_scenarios():
    said, code = finish(start("--scenarios", str(SEEDS)), 250)
    assert code == 0, said[-4000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(2))
def test_planted_mistakes_are_found(part):
    """Each in the history where it last showed, or within so many others (`exhibits.EXHIBITS`)."""
    said, code = finish(start("--museum", str(part), "2"), 580)
    assert code == 0, said[-4000:]
