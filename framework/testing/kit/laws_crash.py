"""Laws of crashes: crashes and lost answers, at any event, lose and repeat nothing.

`framework.testing.sweep` tries every pair of events.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from framework.errors import SourceError
from framework.model.positions import OffsetManagerEntry
from framework.testing.kit.crash import EVENTS, Bench, CrashPoint, LostAck
from framework.testing.kit.law import Comparing, law
from framework.testing.kit.scenario import PLAIN, TOGETHER, Contents
from framework.testing.rig import SourceRig

OBJECTS = 3
"""Few are enough: three of them make partitions, edges of batches and of the queue meet."""


@law("D1", "a crash at any event loses and repeats nothing, and positions only grow, to the end")
def crash_sweep(rig: SourceRig, comparing: Comparing) -> None:
    """Check a crash at every event of a clean run, followed by a run to the end."""
    contents = PLAIN.fill(rig, rig.counts[:OBJECTS])
    events = count_events(rig, comparing, contents)
    comparing.same(
        sorted(set(EVENTS) - set(events)), [], "events that a clean run does not have: nothing is proven of them"
    )
    for at in range(1, len(events) + 1):
        run_lives(rig, comparing, contents, [CrashPoint(at), CrashPoint()], f"a crash at event {at}")


@law("D2", "two crashes in a row, or confirmations that are lost, do no more harm than one crash")
def double_crash(rig: SourceRig, comparing: Comparing) -> None:
    """Check every lost confirmation, and pairs of crashes by the seed; the second is in the recovering run."""
    contents = PLAIN.fill(rig, rig.counts[:OBJECTS])
    events = count_events(rig, comparing, contents)
    confirmations = [at for at, name in enumerate(events, 1) if name in LOSABLE]
    for at in confirmations:
        lose_ack(rig, comparing, contents, at, [])
    chance = random.Random(comparing.seed)  # noqa: S311 - an order, not a secret
    for number in range(rig.crash_pairs):
        first, second = chance.randint(1, len(events)), chance.randint(1, len(events))
        crashes = [CrashPoint(first), CrashPoint(second), CrashPoint()]
        run_lives(rig, comparing, contents, crashes, f"crashes at events {first} and {second}")
        if number % 4 == 0:
            lose_ack(rig, comparing, contents, chance.choice(confirmations), [CrashPoint(second)])


@law(
    "D6",
    "with splits, several tasks and bad records a crash loses and repeats nothing, and every bad record has its dead letter",
)
def crashes_together(rig: SourceRig, comparing: Comparing) -> None:
    """Check two tasks, with splits and bad records if the rig can: crashes by the seed, of one process or of all."""
    contents = TOGETHER.within(rig.capabilities).fill(rig, rig.counts[:OBJECTS])
    events = count_events(rig, comparing, contents)
    chance = random.Random(comparing.seed)  # noqa: S311 - an order, not a secret
    for number in range(rig.crash_pairs):
        at, alone = chance.randint(1, len(events)), number % 2 == 0
        run_lives(rig, comparing, contents, [CrashPoint(at, alone=alone), CrashPoint()], f"a crash at event {at}")


LOSABLE = ("ack", "appended")
"""Events between what was done and the answer that says so."""


def count_events(rig: SourceRig, comparing: Comparing, contents: Contents) -> list[str]:
    """Return the events of a clean run, which must deliver everything."""
    clean = CrashPoint()
    run_lives(rig, comparing, contents, [clean], "without a crash")
    return clean.events


def lose_ack(rig: SourceRig, comparing: Comparing, contents: Contents, at: int, crashes: list[CrashPoint]) -> None:
    """Run once with the answer at that event lost, then with crashes, then to the end."""
    bench = contents.bench(rig)
    lost = LostAck(bench.server, at)
    then = f", and a crash at event {crashes[0].at}" if crashes else ""
    run_lives(rig, comparing, contents, [lost, *crashes, CrashPoint()], f"no answer at event {at}{then}", bench)


def run_lives(
    rig: SourceRig,
    comparing: Comparing,
    contents: Contents,
    crashes: Sequence[CrashPoint],
    example: str,
    bench: Bench | None = None,
) -> None:
    """Run several times over one server; check that every record is there once and positions never went back."""
    bench = bench or contents.bench(rig)
    entries: list[OffsetManagerEntry] = []
    for life, crash in enumerate(crashes, 1):
        known = {(entry.key, entry.version, entry.split_number): entry.records_done for entry in bench.known}
        if contents.scenario.bad_records or contents.scenario.filters or contents.scenario.by_key:
            # at the end, bad and filtered records and those of other parts leave nothing in the topic, and are read again
            stored = contents.highest(bench)
            known = {one: min(done, stored.get((one[0], one[2]), 0)) for one, done in known.items()}
        try:
            entries = bench.live(crash)
        except SourceError as error:
            raise comparing.broken(f"{example}: life {life} failed: {type(error).__name__}: {error}") from error
        if crash.place:
            example = f"{example} ({crash.place})"
        if bench.recovered is not None:
            found = {(entry.key, entry.version, entry.split_number): entry.records_done for entry in bench.recovered}
            back = {one: done for one, done in known.items() if found.get(one, 0) < done}
            comparing.that(not back, f"{example}: positions went back when life {life} began: from {back} to {found}")
    contents.compare(comparing, bench, entries, example)
