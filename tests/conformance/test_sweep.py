"""The sweep of crashes: it finds what is broken, tries what it says, and is a program."""

import json
import os
import re

import pytest

from framework.testing.kit import crash as crash_bench
from framework.testing.kit.crash import LEADER, CrashPoint
from framework.testing.kit.law import Comparing, LawBrokenError
from framework.testing.kit.laws_crash import run_lives
from framework.testing.kit.scenario import (
    BAD_RECORDS,
    KEYED,
    KEYED_TASKS,
    SPLITS,
    TASKS,
    TOGETHER,
    TRANSFORM_TASKS,
    TRANSFORMS,
)
from framework.testing.rig import Capability
from framework.testing.sweep import main, sweep
from tests.conformance.broken import crashes
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
    assert result.singles > 40
    assert result.pairs >= 100
    assert result.lost > 10
    assert result.comparisons > result.singles + result.pairs + result.lost


# ---- splits, several tasks, bad records


@pytest.mark.parametrize(
    ("scenario", "objects", "least"),
    [
        (SPLITS, 3, 60),
        (TASKS, 3, 80),
        (BAD_RECORDS, 3, 50),
        (TOGETHER, 2, 100),
        (TRANSFORMS, 3, 40),
        (TRANSFORM_TASKS, 2, 80),
        (KEYED, 2, 40),
        (KEYED_TASKS, 2, 80),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_crash_at_every_event_loses_and_repeats_nothing(scenario, objects, least, record_property):
    result = sweep(MemoryRig, scenario=scenario, objects=objects, pairs=3)
    print(result)
    record_property("tried", str(result))
    assert result.broken == ()
    assert result.singles > least
    assert result.missed <= result.singles // 10
    assert result.pairs == 3
    assert result.lost > 10


def lived(scenario, *lives, rig=None, objects=3):
    """Lives of a source that keeps its promise, and what they leave."""
    rig = rig or MemoryRig()
    contents, comparing = scenario.fill(rig, rig.counts[:objects]), Comparing("a test", 1)
    bench = contents.bench(rig)
    run_lives(rig, comparing, contents, [*lives, CrashPoint()], "a run", bench)
    return bench, contents


def test_together_every_task_sends_splits_and_dead_letters():
    clean = CrashPoint()
    bench, contents = lived(TOGETHER, clean, objects=2)
    sent = {process for name, process in zip(clean.events, clean.processes, strict=True) if name == "send"}
    assert sent == {"task-0", "task-1"}
    assert {entry.split_number for entry in bench.known} >= {1, 2, 3}
    assert len(bench.dead_letters()) == sum(map(len, contents.bad.values())) == 4


class AtTheFirstRecord(CrashPoint):
    """Threads take turns in another order each time: the number of the event is known when it comes."""

    def _count(self, name, process):
        super()._count(name, process)
        if self.at is None and name == "record":
            self.at = len(self.events)


def others_after_a_crash(*, alone):
    """The processes in which something happened after another one, or all of them, died."""
    crash = AtTheFirstRecord(alone=alone)
    lived(TASKS, crash)
    assert crash.struck
    dead, later = crash.processes[crash.at - 1], set(crash.processes[crash.at :])
    assert dead.startswith("task-")
    assert dead not in later
    return later


def test_of_several_tasks_one_dies_alone():
    """The others go on until they are told, which may be before they had a turn."""
    assert any(others_after_a_crash(alone=True) for _ in range(20))


def test_of_several_tasks_all_die():
    assert not others_after_a_crash(alone=False)


MISTAKES = [
    (SPLITS, crashes.split_elsewhere, "is in several partitions"),
    (SPLITS, crashes.SplitFromItsBeginning, "the topic's records of"),
    (BAD_RECORDS, crashes.SwallowsBadRecords, "bad records with a dead letter"),
    (BAD_RECORDS, crashes.letters_behind_positions, "bad records with a dead letter"),
    (BAD_RECORDS, crashes.letters_under_new_ids, "ids of dead letters"),
    (TRANSFORMS, crashes.numbers_anew, "numbers of its records"),
    (TRANSFORMS, crashes.forgets_what_it_filtered, "positions at the end"),
    (KEYED, crashes.parts_drop_what_another_has, "the topic's records of"),
    (KEYED, crashes.reads_from_the_furthest_part, "the topic's records of"),
    (KEYED, crashes.bad_records_of_two_parts, "ids of dead letters"),
    (KEYED, crashes.keys_of_another_partition, "partitions of"),
    (TOGETHER, crashes.letters_without_splits, "dead letters"),
]


def named(value):
    return getattr(value, "__name__", getattr(value, "name", None))


@pytest.mark.parametrize(("scenario", "mistake", "said"), MISTAKES, ids=named)
def test_a_mistake_is_found(scenario, mistake, said, monkeypatch):
    rig = mistake
    if not isinstance(mistake, type):
        mistake(monkeypatch)
        rig = MemoryRig
    assert re.search(said, first_break(rig, scenario))


class WhenPositionsBegin(CrashPoint):
    """The leader dies as it stores that positions begin, after something of them was confirmed."""

    def __init__(self):
        super().__init__(alone=True)

    def _count(self, name, process):
        super()._count(name, process)
        if self.at is None and (name, process) == ("append", LEADER) and "ack" in self.of_workers():
            self.at = len(self.events)

    def of_workers(self):
        return [name for name, process in zip(self.events, self.processes, strict=True) if process != LEADER]


@pytest.mark.parametrize("scenario", [TASKS, TOGETHER], ids=named)
def test_progress_without_a_beginning_is_found(scenario, monkeypatch):
    """It cannot be recovered. What is seen first depends on what the worker did before the crash."""
    crashes.hands_out_before_it_begins(monkeypatch)
    said = "numbers of its records, in the topic's order|positions went back when life 2 began"
    crash = WhenPositionsBegin()
    with pytest.raises(LawBrokenError, match=said):
        lived(scenario, crash)
    assert crash.struck


def test_tasks_that_never_end_are_broken_and_not_waited_for(monkeypatch):
    """Workers that read nothing of what they were given make no progress, so their leader would wait."""
    monkeypatch.setattr(crashes.StoreRecordIterator, "next_batch", lambda iterator: None)
    monkeypatch.setattr(crash_bench, "HANGS_SECONDS", 0.5)
    with pytest.raises(LawBrokenError, match="life 1 failed: FatalError: the tasks did not end"):
        lived(TOGETHER)


def first_break(make_rig, scenario):
    """The message of a crash that breaks the law; several sweeps, since threads decide the order of events.

    From the last event to the first: most mistakes need a process that has sent something.
    """
    comparing = Comparing("a test", 1)
    for _ in range(5):
        rig, clean = make_rig(), CrashPoint()
        contents = scenario.fill(rig, rig.counts[:3])
        try:
            run_lives(rig, comparing, contents, [clean], "without a crash")
            for at in range(len(clean.events), 0, -1):
                lives = [CrashPoint(at, alone=scenario.tasks > 1), CrashPoint()]
                run_lives(rig, comparing, contents, lives, f"a crash at event {at}")
        except LawBrokenError as error:
            return str(error)
    return "nothing"


def test_a_rig_is_asked_only_for_what_it_can_do():
    class Poor(MemoryRig):
        capabilities = frozenset({Capability.BAD_RECORDS})

    rig = Poor()
    contents = TOGETHER.within(rig.capabilities).fill(rig, rig.counts[:2])
    assert contents.split_size == 0
    assert contents.bad
    assert contents.scenario.tasks == 2


# ---- pairs, and the program


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


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rig", "no.such:Rig"], "'no.such:Rig' is no module:Class: No module named 'no'"),
        (["--rig", "tests.conformance.rigs:Nope"], "has no attribute 'Nope'"),
        (["--rig", ""], "is no module:Class"),
        (["--rig", "json:loads"], "'json:loads' is no subclass of SourceRig"),
        (["--pairs", "many"], "'many' is no number from 0 on"),
        (["--pairs", "-1"], "'-1' is no number from 0 on"),
        (["--objects", "0"], "'0' is no number from 1 on"),
        (["--jobs", "0"], "'0' is no number from 1 on"),
    ],
)
def test_a_mistake_in_the_arguments_of_the_program_is_no_broken_sweep(arguments, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_the_program_tries_one_scenario_or_all(capsys, monkeypatch):
    few = ["--objects", "1", "--pairs", "0", "--rig", "tests.conformance.broken.crashes:SwallowsBadRecords"]
    assert main(["--scenario", "splits", *few]) == 0
    assert ", 0 broken, in " in capsys.readouterr().out
    monkeypatch.setattr("framework.testing.sweep.SCENARIOS", {one.name: one for one in (SPLITS, BAD_RECORDS)})
    assert main(["--scenario", "all", *few]) == 1
    said = capsys.readouterr().out
    assert "splits: " in said
    assert "dead-letters: " in said
    assert "bad records with a dead letter: 0 instead of 2" in said
