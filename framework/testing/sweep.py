"""A sweep of crashes: at every event of a run, at pairs of events, and with every confirmation lost.

    python -m framework.testing.sweep                          every single event, and 100 pairs by the seed
    python -m framework.testing.sweep --pairs all --jobs 2     every pair
    python -m framework.testing.sweep --scenario all           also with splits, several tasks and bad records

It does completely what laws D1, D2 and D6 do in part: on the store in memory, or on a rig (`--rig
package.module:Class`). The second event of a pair belongs to the run that recovers from the first, so
every event of every recovery is tried, too.

With several tasks every event is tried twice: all processes die at once, as with a host; and the process of
the event dies alone. Threads decide the order of events, so a run may miss an event. It is tried again, and
counted if it is missed again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import attrs
from typing_extensions import override

from framework.testing.fakes.memory_rig import MemoryRig
from framework.testing.kit import SEED
from framework.testing.kit.crash import CrashPoint
from framework.testing.kit.law import Comparing, LawBrokenError
from framework.testing.kit.laws_crash import LOSABLE, OBJECTS, count_events, lose_ack, run_lives
from framework.testing.kit.scenario import PLAIN, SCENARIOS, Contents, Scenario
from framework.testing.rig import SourceRig

MakeRig = Callable[[], SourceRig]
_PAIRS = 100
_TRIES = 3


@attrs.frozen(kw_only=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        events: events of a clean run, summed over the scenarios.
        singles: single crashes that struck.
        missed: events that a later run did not reach.
        lost: lost confirmations.
        pairs: pairs of crashes.
        comparisons: total number of comparisons.
        broken: messages, one for each crash or pair that lost or repeated records.
    """

    events: int = 0
    singles: int = 0
    missed: int = 0
    lost: int = 0
    pairs: int = 0
    comparisons: int = 0
    broken: tuple[str, ...] = ()

    def __add__(self, other: SweepResult) -> SweepResult:
        return SweepResult(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in attrs.fields(SweepResult)
            }
        )

    @override
    def __str__(self) -> str:
        return (
            f"{self.events} events: {self.singles} crashes ({self.missed} missed), {self.lost} confirmations lost, "
            f"{self.pairs} pairs of crashes, {self.comparisons} comparisons, {len(self.broken)} broken"
        )


@attrs.frozen(kw_only=True)
class _Work:
    """What every part of a sweep needs; picklable."""

    make_rig: MakeRig
    scenario: Scenario
    objects: int
    seed: int

    @contextlib.contextmanager
    def filled(self) -> Iterator[tuple[SourceRig, Contents]]:
        """Give a rig with its objects; meanwhile the source logs errors only, as it skips thousands of records."""
        rig, logger = self.make_rig(), logging.getLogger("framework")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield rig, self.scenario.within(rig.capabilities).fill(rig, rig.counts[: self.objects])
        finally:
            logger.setLevel(level)
            rig.close()

    def comparing(self, of: str) -> Comparing:
        """Return what counts and names the part."""
        named = "" if self.scenario == PLAIN else f", {self.scenario.name}"
        return Comparing(f"the sweep of {of}{named}", self.seed)


def sweep(
    make_rig: MakeRig = MemoryRig,
    *,
    scenario: Scenario = PLAIN,
    pairs: int | None = None,
    objects: int = OBJECTS,
    jobs: int = 1,
    seed: int = SEED,
) -> SweepResult:
    """Try every single event, every lost confirmation, and pairs of crashes.

    Args:
        make_rig: returns a rig over an empty bucket; picklable when `jobs` is above 1.
        scenario: how the source reads, as far as the rig can.
        pairs: number of pairs, chosen by the seed; None = all.
        objects: number of objects; each makes a run some fifteen events longer.
        jobs: number of processes.
        seed: chooses pairs.
    """
    work = _Work(make_rig=make_rig, scenario=scenario, objects=objects, seed=seed)
    comparing = work.comparing("crashes")
    with work.filled() as (rig, contents):
        try:
            events = len(count_events(rig, comparing, contents))
        except LawBrokenError as error:
            return SweepResult(comparisons=comparing.count, broken=(str(error),))
    result = SweepResult(events=events, comparisons=comparing.count)
    # first event, and what chooses the second; negative: every one
    firsts: Sequence[tuple[int, int]] = [(first, -1) for first in range(1, events + 1)]
    if pairs is not None:
        chance = random.Random(seed)  # noqa: S311 - an order, not a secret
        firsts = [(chance.randint(1, events), chance.randint(1, 1 << 30)) for _ in range(pairs)]
    parts: list[Callable[[], SweepResult]] = [partial(_singles, work, jobs, part) for part in range(jobs)]
    parts += [partial(_pairs, work, first, chosen) for first, chosen in firsts]
    return sum(_carry_out(parts, jobs), result)


def _carry_out(work: Sequence[Callable[[], SweepResult]], jobs: int) -> Iterator[SweepResult]:
    if jobs == 1:
        for part in work:
            yield part()
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(part) for part in work]:
            yield future.result()


def _singles(work: _Work, jobs: int, part: int) -> SweepResult:
    """Try each `jobs`-th event: a crash there, and its confirmation lost if it is one."""
    comparing = work.comparing("single crashes")
    broken: list[str] = []
    singles = missed = lost = 0
    with work.filled() as (rig, contents):
        events = count_events(rig, comparing, contents)
        for at, name in list(enumerate(events, 1))[part::jobs]:
            for alone in (False, True)[: min(2, work.scenario.tasks)]:
                struck = False
                for _ in range(_TRIES):
                    crash = CrashPoint(at, alone=alone)
                    with _noting(broken):
                        run_lives(rig, comparing, contents, [crash, CrashPoint()], f"a crash at event {at}")
                    struck = crash.struck
                    if struck:
                        break
                singles, missed = singles + struck, missed + (not struck)
            if name in LOSABLE:
                with _noting(broken):
                    lose_ack(rig, comparing, contents, at, [])
                lost += 1
    return SweepResult(singles=singles, missed=missed, lost=lost, comparisons=comparing.count, broken=tuple(broken))


def _pairs(work: _Work, first: int, chosen: int) -> SweepResult:
    """Try a crash at `first`, and at each event of the next run, or at one of them that `chosen` selects.

    With several tasks one of the two crashes ends all processes, and the other ends one of them.
    """
    comparing = work.comparing("pairs of crashes")
    broken: list[str] = []
    several = work.scenario.tasks > 1
    with work.filled() as (rig, contents):
        try:
            recovering, alone = CrashPoint(), several and first % 2 == 0
            lives = [CrashPoint(first, alone=alone), recovering]
            run_lives(rig, comparing, contents, lives, f"a crash at event {first}")
        except LawBrokenError as error:
            return SweepResult(comparisons=comparing.count, broken=(str(error),))
        seconds = range(1, len(recovering.events) + 1)
        if chosen >= 0:
            seconds = range(1 + chosen % len(seconds), 2 + chosen % len(seconds))
        for second in seconds:
            with _noting(broken):
                lives = [CrashPoint(first, alone=alone), CrashPoint(second, alone=several and not alone), CrashPoint()]
                run_lives(rig, comparing, contents, lives, f"crashes at events {first} and {second}")
    return SweepResult(pairs=len(seconds), comparisons=comparing.count, broken=tuple(broken))


@contextlib.contextmanager
def _noting(broken: list[str]) -> Iterator[None]:
    try:
        yield
    except LawBrokenError as error:
        broken.append(str(error))


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} on")
    return int(text)


def _pair_count(text: str) -> int | None:
    return None if text == "all" else _at_least(0, text)


def _rig_class(text: str) -> MakeRig:
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no module:Class: {error}") from None
    if not (isinstance(found, type) and issubclass(found, SourceRig)):
        raise argparse.ArgumentTypeError(f"{text!r} is no subclass of SourceRig")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sweep; print its size and every break. Exit code 1 when there is one, 2 for a mistake in the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m framework.testing.sweep", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--scenario",
        default=PLAIN.name,
        choices=[*SCENARIOS, "all"],
        help=f"how the source reads (default {PLAIN.name})",
    )
    parser.add_argument(
        "--pairs",
        type=_pair_count,
        default=_PAIRS,
        help=f'how many pairs, or "all", in each scenario (default {_PAIRS})',
    )
    number = partial(_at_least, 1)
    parser.add_argument(
        "--objects", type=number, default=OBJECTS, help=f"objects that the source reads (default {OBJECTS})"
    )
    parser.add_argument("--jobs", type=number, default=1, help="processes (default 1)")
    parser.add_argument("--seed", type=int, default=SEED, help="chooses the pairs")
    parser.add_argument("--rig", type=_rig_class, default=MemoryRig, help="module:Class of a rig (default MemoryRig)")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    chosen = SCENARIOS.values() if given.scenario == "all" else [SCENARIOS[given.scenario]]
    result = SweepResult()
    for scenario in chosen:
        part = sweep(
            given.rig, scenario=scenario, pairs=given.pairs, objects=given.objects, jobs=given.jobs, seed=given.seed
        )
        result += part
        if len(chosen) > 1 and not given.json:
            print(f"{scenario.name}: {part}", flush=True)  # noqa: T201 - all of them take hours
    seconds = time.monotonic() - began
    lines = [f"{result}, in {seconds:.0f} seconds, seed {given.seed}", *result.broken]
    if given.json:
        lines = [json.dumps({**attrs.asdict(result), "seconds": round(seconds, 1), "seed": given.seed})]
    print("\n".join(lines))  # noqa: T201 - a program's output
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
