"""The sweep of crashes: it finds what is broken, tries what it says, and is a program."""

import json
import os

import pytest

from framework.testing.sweep import main, sweep
from tests.conformance.broken.delivery import TrustsItselfAfterARecovery
from tests.conformance.rigs import MemoryRig

PAIRS = os.environ.get("SWEEP_PAIRS", "100")
"""How many pairs of crashes are tried; "all", of a longer run, takes some minutes."""


@pytest.mark.timeout(1500)
def test_every_single_crash_and_pairs_of_them_lose_and_repeat_nothing(record_property):
    result = sweep(MemoryRig, pairs=100) if PAIRS != "all" else sweep(MemoryRig, pairs=None, objects=5, jobs=2)
    print(result)
    record_property("tried", str(result))
    assert result.broken == ()
    assert result.singles == result.events > 40
    assert result.pairs >= 100
    assert result.lost > 10
    assert result.comparisons > result.singles + result.pairs + result.lost


def test_a_source_that_survives_one_crash_and_not_two_is_found():
    result = sweep(TrustsItselfAfterARecovery, pairs=25)
    assert any("crashes at events" in message for message in result.broken)
    assert not any(message.startswith("the sweep of single") for message in result.broken)


def test_all_pairs_are_every_event_of_every_recovery():
    result = sweep(MemoryRig, pairs=None, objects=1)
    assert result.broken == ()
    assert result.pairs > result.events * 10


def test_the_program_tells_its_seed_and_what_it_tried(capsys):
    assert main(["--pairs", "2", "--seed", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pairs"], told["seed"], told["broken"]) == (2, 7, [])
    assert main(["--pairs", "25", "--rig", "tests.conformance.broken.delivery:TrustsItselfAfterARecovery"]) == 1
    assert "crashes at events" in capsys.readouterr().out
