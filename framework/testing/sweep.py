"""A sweep of crashes: at every event of a run, at pairs of events, and with every confirmation lost.

    python -m framework.testing.sweep                          every single event, and 100 pairs by the seed
    python -m framework.testing.sweep --pairs all --jobs 2     every pair

It does completely what laws D1 and D2 do in part: on the store in memory, or on a rig (`--rig
package.module:Class`). The second event of a pair belongs to the run that recovers from the first, so
every event of every recovery is tried, too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
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
from framework.testing.kit.law import Comparing, LawBrokenError, fill
from framework.testing.kit.laws_crash import LOSABLE, OBJECTS, bench_for, count_events, lose_ack, run_lives
from framework.testing.rig import SourceRig

MakeRig = Callable[[], SourceRig]
_PAIRS = 100


@attrs.frozen(kw_only=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        events: events of a clean run.
        singles: single crashes.
        lost: lost confirmations.
        pairs: pairs of crashes.
        comparisons: total number of comparisons.
        broken: messages, one for each crash or pair that lost or repeated records.
    """

    events: int = 0
    singles: int = 0
    lost: int = 0
    pairs: int = 0
    comparisons: int = 0
    broken: tuple[str, ...] = ()

    def __add__(self, other: SweepResult) -> SweepResult:
        return SweepResult(
            events=max(self.events, other.events),
            singles=self.singles + other.singles,
            lost=self.lost + other.lost,
            pairs=self.pairs + other.pairs,
            comparisons=self.comparisons + other.comparisons,
            broken=self.broken + other.broken,
        )

    @override
    def __str__(self) -> str:
        return (
            f"{self.events} events: {self.singles} crashes, {self.lost} confirmations lost, {self.pairs} pairs of crashes, "
            f"{self.comparisons} comparisons, {len(self.broken)} broken"
        )


def sweep(
    make_rig: MakeRig = MemoryRig,
    *,
    pairs: int | None = None,
    objects: int = OBJECTS,
    jobs: int = 1,
    seed: int = SEED,
) -> SweepResult:
    """Try every single event, every lost confirmation, and pairs of crashes.

    Args:
        make_rig: returns a rig over an empty bucket; picklable when `jobs` is above 1.
        pairs: number of pairs, chosen by the seed; None = all.
        objects: number of objects; each makes a run some fifteen events longer.
        jobs: number of processes.
        seed: chooses pairs.
    """
    rig = make_rig()
    try:
        comparing = Comparing("the sweep of crashes", seed)
        events = count_events(rig, comparing, fill(rig, rig.counts[:objects]))
    finally:
        rig.close()
    result = SweepResult(events=len(events), comparisons=comparing.count)
    # first event, and what chooses the second; negative: every one
    firsts: Sequence[tuple[int, int]] = [(first, -1) for first in range(1, len(events) + 1)]
    if pairs is not None:
        chance = random.Random(seed)  # noqa: S311 - an order, not a secret
        firsts = [(chance.randint(1, len(events)), chance.randint(1, 1 << 30)) for _ in range(pairs)]
    work: list[Callable[[], SweepResult]] = [
        partial(_singles, make_rig, seed, objects, jobs, part) for part in range(jobs)
    ]
    work += [partial(_pairs, make_rig, seed, objects, first, chosen) for first, chosen in firsts]
    return sum(_carry_out(work, jobs), result)


def _carry_out(work: Sequence[Callable[[], SweepResult]], jobs: int) -> Iterator[SweepResult]:
    if jobs == 1:
        for one in work:
            yield one()
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(one) for one in work]:
            yield future.result()


def _singles(make_rig: MakeRig, seed: int, objects: int, jobs: int, part: int) -> SweepResult:
    """Try each `jobs`-th event: a crash there, and its confirmation lost if it is one."""
    rig = make_rig()
    comparing = Comparing("the sweep of single crashes", seed)
    broken: list[str] = []
    singles = lost = 0
    try:
        written = fill(rig, rig.counts[:objects])
        events = count_events(rig, comparing, written)
        for at, name in list(enumerate(events, 1))[part::jobs]:
            with _noting(broken):
                run_lives(rig, comparing, written, [CrashPoint(at), CrashPoint()], f"a crash at event {at} ({name})")
            singles += 1
            if name in LOSABLE:
                with _noting(broken):
                    lose_ack(rig, comparing, written, at, [])
                lost += 1
    finally:
        rig.close()
    return SweepResult(singles=singles, lost=lost, comparisons=comparing.count, broken=tuple(broken))


def _pairs(make_rig: MakeRig, seed: int, objects: int, first: int, chosen: int) -> SweepResult:
    """Try a crash at `first`, and at each event of the next run, or at one of them that `chosen` selects."""
    rig = make_rig()
    comparing = Comparing("the sweep of pairs of crashes", seed)
    broken: list[str] = []
    try:
        written = fill(rig, rig.counts[:objects])
        bench, recovering = bench_for(rig), CrashPoint()
        run_lives(rig, comparing, written, [CrashPoint(first), recovering], f"a crash at event {first}", bench)
        seconds = range(1, len(recovering.events) + 1)
        if chosen >= 0:
            seconds = range(1 + chosen % len(seconds), 2 + chosen % len(seconds))
        for second in seconds:
            with _noting(broken):
                crashes = [CrashPoint(first), CrashPoint(second), CrashPoint()]
                run_lives(rig, comparing, written, crashes, f"crashes at events {first} and {second}")
    except LawBrokenError as error:
        return SweepResult(comparisons=comparing.count, broken=(str(error),))
    finally:
        rig.close()
    return SweepResult(pairs=len(seconds), comparisons=comparing.count, broken=tuple(broken))


@contextlib.contextmanager
def _noting(broken: list[str]) -> Iterator[None]:
    try:
        yield
    except LawBrokenError as error:
        broken.append(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sweep; print its size and every break. Exit code 1 when there is one."""
    parser = argparse.ArgumentParser(
        prog="python -m framework.testing.sweep", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pairs", default=str(_PAIRS), help=f'how many pairs, or "all" (default {_PAIRS})')
    parser.add_argument(
        "--objects", type=int, default=OBJECTS, help=f"objects that the source reads (default {OBJECTS})"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--seed", type=int, default=SEED, help="chooses the pairs")
    parser.add_argument("--rig", default="framework.testing.fakes.memory_rig:MemoryRig", help="module:Class of a rig")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    given = parser.parse_args(arguments)
    module, _, name = given.rig.partition(":")
    make_rig: MakeRig = getattr(importlib.import_module(module), name)
    began = time.monotonic()
    pairs = None if given.pairs == "all" else int(given.pairs)
    result = sweep(make_rig, pairs=pairs, objects=given.objects, jobs=given.jobs, seed=given.seed)
    seconds = time.monotonic() - began
    lines = [f"{result}, in {seconds:.0f} seconds, seed {given.seed}", *result.broken]
    if given.json:
        lines = [json.dumps({**attrs.asdict(result), "seconds": round(seconds, 1), "seed": given.seed})]
    print("\n".join(lines))  # noqa: T201 - a program's output
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
