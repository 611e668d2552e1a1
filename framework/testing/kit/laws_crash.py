"""Laws of crashes: one or two of them, at any event, and answers that never came, lose and repeat nothing.

`framework.testing.sweep` tries every pair of events.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from framework.model.positions import OffsetManagerEntry
from framework.testing.kit.crash import EVENTS, Bench, CrashPoint, LostAck
from framework.testing.kit.law import BATCH, QUEUE, Comparing, fill, law
from framework.testing.rig import SourceRig

OBJECTS = 3
"""Few are enough: three of them make partitions, edges of batches and of the queue meet."""


@law("D1", "a crash at any event loses and repeats nothing, and positions only grow, to the end")
def crash_sweep(rig: SourceRig, comparing: Comparing) -> None:
    """One crash at every event of a clean run, then a restart that drains."""
    written = fill(rig, rig.counts[:OBJECTS])
    events = count_events(rig, comparing, written)
    comparing.same(
        sorted(set(EVENTS) - set(events)), [], "events that a clean run does not have: nothing is proven of them"
    )
    for at, name in enumerate(events, 1):
        run_lives(rig, comparing, written, [CrashPoint(at), CrashPoint()], f"a crash at event {at} ({name})")


@law("D2", "two crashes in a row, or confirmations that are lost, do no more harm than one crash")
def double_crash(rig: SourceRig, comparing: Comparing) -> None:
    """Every confirmation lost; pairs of crashes by the seed, the second in the run that recovers from the first."""
    written = fill(rig, rig.counts[:OBJECTS])
    events = count_events(rig, comparing, written)
    confirmations = [at for at, name in enumerate(events, 1) if name in LOSABLE]
    for at in confirmations:
        lose_ack(rig, comparing, written, at, [])
    chance = random.Random(comparing.seed)  # noqa: S311 - an order, not a secret
    for number in range(rig.crash_pairs):
        first, second = chance.randint(1, len(events)), chance.randint(1, len(events))
        crashes = [CrashPoint(first), CrashPoint(second), CrashPoint()]
        run_lives(rig, comparing, written, crashes, f"crashes at events {first} and {second}")
        if number % 4 == 0:
            lose_ack(rig, comparing, written, chance.choice(confirmations), [CrashPoint(second)])


LOSABLE = ("ack", "appended")
"""Events between what was done and the answer that says so."""


def count_events(rig: SourceRig, comparing: Comparing, written: Mapping[str, Sequence[bytes]]) -> list[str]:
    """The events of a clean run, which must deliver everything."""
    clean = CrashPoint()
    run_lives(rig, comparing, written, [clean], "without a crash")
    return clean.events


def bench_for(rig: SourceRig) -> Bench:
    """A new server, and sizes that do not divide each other."""
    return Bench(rig, batch_length=BATCH, queue_records=QUEUE, linger_time=0.0, prefetch_objects=2)


def lose_ack(
    rig: SourceRig, comparing: Comparing, written: Mapping[str, Sequence[bytes]], at: int, crashes: list[CrashPoint]
) -> None:
    """One life in which the answer at that event does not come, then crashes, then one life to the end."""
    bench = bench_for(rig)
    lost = LostAck(bench.server, at)
    then = f", and a crash at event {crashes[0].at}" if crashes else ""
    run_lives(rig, comparing, written, [lost, *crashes, CrashPoint()], f"no answer at event {at}{then}", bench)


def run_lives(
    rig: SourceRig,
    comparing: Comparing,
    written: Mapping[str, Sequence[bytes]],
    crashes: Sequence[CrashPoint],
    example: str,
    bench: Bench | None = None,
) -> None:
    """Processes one after the other over one server; then everything is there once, and positions never went back."""
    bench = bench or bench_for(rig)
    entries: list[OffsetManagerEntry] = []
    for life, crash in enumerate(crashes, 1):
        known = {(entry.key, entry.version): entry.records_done for entry in bench.known}
        entries = bench.live(crash)
        if bench.recovered is not None:
            found = {(entry.key, entry.version): entry.records_done for entry in bench.recovered}
            back = {one: done for one, done in known.items() if found.get(one, 0) < done}
            comparing.that(not back, f"{example}: positions went back when life {life} began: from {back} to {found}")
    stored = bench.stored()
    for key, records in written.items():
        comparing.same(
            [payload for _, payload in stored.get(key, [])], records, f"{example}: the topic's records of {key!r}"
        )
    ends = {entry.key: (entry.records_done, entry.finished) for entry in entries}
    comparing.that(
        ends == {key: (len(records), True) for key, records in written.items()},
        f"{example}: positions at the end {ends}",
    )
