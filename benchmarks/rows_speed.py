"""Rows 1 to 4: records and objects a second against bare loops, and the processor's time for a record."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks.contestants import (
    Contestant,
    Run,
    bare_decode,
    bare_get,
    bare_pool,
    bare_send,
    check_same,
    contestant,
    drop_stream,
    load,
    make_topic,
    ours,
    transform,
    ways,
)
from benchmarks.data import Store, ensure_many
from benchmarks.delay_proxy import delaying
from benchmarks.responder import prefix_of, responding
from benchmarks.table import Row, at_least, spread

BATCHES = (1000, 5000)
THREADS = (8, 16, 32)
DELAYS_MS = (None, 0, 20)
SMALL_OBJECTS = 5000
SMALL_ROUNDS = 2
JSONL_RATIO = 3.5
JSONL_RATIO_SHORT = 2.0
"""The same, where both send 1,000 records a request."""

STORE_RATIO = 5.0
RATIO = {"avro": 0.8, "csv": 0.8, "parquet": 0.6}
RECORDS_PER_SECOND = {"jsonl": 1_000_000, "avro": 350_000, "parquet": 700_000}
CPU_MICROSECONDS = {"jsonl": 0.9, "avro": 2.8, "csv": 1.2, "parquet": 1.2}


@attrs.frozen(kw_only=True)
class Server:
    """An Iggy server that records are sent to."""

    name: str
    url: str


@attrs.frozen(kw_only=True)
class Bench:
    """What the rows need.

    Attributes:
        store: the S3 server.
        servers: the Iggy servers, the embedded one first.
        folder: for what a row leaves on the disk for a while.
        rounds: how many are counted.
        quick: a look whether everything runs: tiny data, and no figure that means anything.
        keep: leave large objects in the store.
    """

    store: Store
    servers: tuple[Server, ...]
    folder: Path
    rounds: int
    quick: bool
    keep: bool

    def scaled(self, full: int, tiny: int) -> int:
        """The first size, or the second for a quick look."""
        return tiny if self.quick else full


def config(
    store: Store, server_url: str, stream: str, topic: str, prefix: str, kind: str, **more: dict[str, Any]
) -> dict[str, Any]:
    """The sections of a source that is new, so that it begins with nothing."""
    sections: dict[str, Any] = {
        "source": {"name": f"bench-{uuid.uuid4().hex[:8]}"},
        "s3": store.section(prefix),
        "input": {"format": kind},
        "iggy": {"url": server_url, "stream": stream, "topic": topic, "partitions": 1},
        "runner": {"engine": "local"},
    }
    for name, options in more.items():
        sections[name] = {**sections.get(name, {}), **options}
    return sections


@contextmanager
def new_stream(helper: Contestant, server: Server) -> Iterator[str]:
    """A stream of its own for one round, dropped afterwards."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    try:
        yield name
    finally:
        helper(drop_stream, server.url, name)


def jsonl_rows(bench: Bench) -> Iterator[Row]:
    """JSON lines against the official client's loop.

    So many that the beginning and the end of a run, some 30 ms of listing, first answers and saving, count little.
    """
    objects, lines = bench.scaled(120, 4), bench.scaled(10_000, 500)
    prefix = prefix_of("jsonl")
    for server in bench.servers:
        mine: list[Run] = []
        short: list[Run] = []
        loops: dict[int, list[Run]] = {batch: [] for batch in BATCHES}
        with responding("jsonl", objects, lines) as store, contestant() as we, contestant() as bare:
            bare(load, store, prefix, "jsonl")
            only = bare(bare_get, store, prefix, objects * lines)
            for number in range(bench.rounds + 1):
                with new_stream(bare, server) as stream:
                    place = (store, server.url, stream)
                    one = we(ours, config(*place, "ours", prefix, "jsonl"))
                    other = we(ours, config(*place, "short", prefix, "jsonl", iggy={"batch_length": min(BATCHES)}))
                    made = {}
                    for batch in BATCHES:
                        bare(make_topic, server.url, stream, f"bare-{batch}")
                        made[batch] = bare(bare_send, server.url, stream, f"bare-{batch}", batch)
                if {run.records for run in (one, other, *made.values())} != {objects * lines}:
                    raise RuntimeError(f"not everything was sent: {one}, {other}, {made}")
                if number:
                    mine.append(one)
                    short.append(other)
                    for batch, run in made.items():
                        loops[batch].append(run)
                else:
                    first = one
        best = [max(runs, key=lambda run: run.records_per_second) for runs in zip(*loops.values(), strict=True)]
        rate, theirs = _median(mine), _median(best)
        yield at_least(
            f"JSONL, {objects} x {lines:,} x 200 B, memory to {server.name}, records/s against the official client's loop",
            _ratios(mine, best),
            JSONL_RATIO,
            f"{rate:,.0f}/s against {theirs:,.0f}/s; the process's first run, which loads the libraries: "
            f"{first.records_per_second:,.0f}/s; clients, recovery and closing, apart: "
            f"{statistics.median(run.start_seconds for run in mine):.2f} s",
        )
        yield _rate_row("jsonl", server, mine)
        loop = statistics.median(_micros(best))
        yield _cpu_row("jsonl", server, mine, f"; the official client's loop, which only sends: {loop:.2f} us")
        yield at_least(
            f"a loop that only fetches the same objects, records/s against ours, {server.name}",
            [only.records_per_second / run.records_per_second for run in mine],
            STORE_RATIO,
            f"{only.records_per_second:,.0f}/s: the store is not the bottleneck",
        )
        theirs = _median(loops[min(BATCHES)])
        yield at_least(
            f"ours against that loop, both with {min(BATCHES):,} records a request, {server.name}",
            _ratios(short, loops[min(BATCHES)]),
            JSONL_RATIO_SHORT,
            f"{_median(short):,.0f}/s against {theirs:,.0f}/s; CPU {statistics.median(_micros(short)):.2f} us/record",
        )


def format_row(bench: Bench, kind: str) -> Iterator[Row]:
    """A format against a loop that only decodes."""
    objects, lines = bench.scaled(40, 4), bench.scaled(10_000, 500)
    prefix = prefix_of(kind)
    for server in bench.servers:
        mine: list[Run] = []
        best: list[Run] = []
        alone: list[Run] = []
        with (
            responding(kind, objects, lines) as store,
            contestant() as we,
            contestant() as bare,
            contestant() as part,
        ):
            bare(load, store, prefix, kind)
            part(load, store, prefix, kind)
            part(check_same, kind)
            for number in range(bench.rounds + 1):
                with new_stream(bare, server) as stream:
                    one = we(ours, config(store, server.url, stream, "ours", prefix, kind))
                loops = [bare(bare_decode, kind, way) for way in range(ways(kind))]
                only = part(transform, kind)
                if {run.records for run in (one, only, *loops)} != {objects * lines}:
                    raise RuntimeError(f"not the same records: {one}, {only}, {loops}")
                if number:
                    mine.append(one)
                    best.append(max(loops, key=lambda run: run.records_per_second))
                    alone.append(only)
        yield at_least(
            f"{kind}, same shape, memory to {server.name}, records/s against a loop that only decodes from memory",
            _ratios(mine, best),
            RATIO[kind],
            f"{_median(mine):,.0f}/s against {_median(best):,.0f}/s; our decoding alone "
            f"{_median(alone) / _median(best):.2f} x",
        )
        if kind in RECORDS_PER_SECOND:
            yield _rate_row(kind, server, mine)
        yield _cpu_row(kind, server, mine)


@attrs.frozen(kw_only=True)
class Change:
    """What a source does with records on their way, and what it may cost.

    Attributes:
        name: of the row.
        kind: of the objects (`benchmarks.data.encode`).
        sections: of the configuration.
        goal: records a second.
    """

    name: str
    kind: str = "jsonl"
    sections: dict[str, Any]
    goal: int


_ARCHIVE = {"input": {"envelope": "iggy-s3-sink"}}
RESTORES = (
    Change(name="restore", kind="archive", sections=_ARCHIVE, goal=500_000),
    Change(name="restore with two headers each", kind="archive-headers", sections=_ARCHIVE, goal=300_000),
)
_ADD = {"type": "add_fields", "fields": [{"key": "source", "value": {"static": "archive"}}]}
_DELETE = {"type": "delete_fields", "fields": ["pad", "ok"]}
_FILTER = {"type": "filter", "field": "ok", "value_pattern": {"equals": True}}
_UNWRAP = {"type": "unwrap_envelope", "field": "payload"}
TRANSFORMS = (
    Change(name="add_fields and delete_fields", sections={"transforms": [_ADD, _DELETE]}, goal=400_000),
    Change(name="filter that keeps two of three", sections={"transforms": [_FILTER]}, goal=600_000),
    Change(name="unwrap_envelope", kind="archive", sections={"transforms": [_UNWRAP]}, goal=500_000),
)


def change_rows(bench: Bench, changes: tuple[Change, ...]) -> Iterator[Row]:
    """Records that are changed on their way, against the same messages as plain lines, without provenance headers."""
    objects, lines = bench.scaled(40, 4), bench.scaled(10_000, 500)
    server = bench.servers[-1]
    with responding("jsonl", objects, lines) as plain, contestant() as we, contestant() as bare:
        for change in changes:
            mine: list[Run] = []
            other: list[Run] = []
            with responding(change.kind, objects, lines) as store:
                for number in range(bench.rounds + 1):
                    with new_stream(bare, server) as stream:
                        made = [
                            we(ours, _changing("changed", change.kind, change.sections, store, server.url, stream)),
                            bare(ours, _changing("plain", "jsonl", {}, plain, server.url, stream)),
                        ]
                    if {run.records for run in made} != {objects * lines}:
                        raise RuntimeError(f"not everything was read: {made}")
                    if number:
                        mine.append(made[0])
                        other.append(made[1])
            cpu, plain_cpu = (statistics.median(_micros(runs)) for runs in (mine, other))
            yield _rate_at_least(
                f"{change.name}, {objects} x {lines:,} x 200 B, memory to {server.name}, records/s",
                [run.records_per_second for run in mine],
                change.goal,
                f"{spread(_ratios(mine, other))} x plain lines, {_median(other):,.0f}/s; "
                f"CPU {cpu:.2f} us/record against {plain_cpu:.2f}",
            )


def _changing(
    topic: str, kind: str, sections: dict[str, Any], store: Store, server_url: str, stream: str
) -> dict[str, Any]:
    """The sections of a source that changes records by these, and sends no headers of its own."""
    made = config(store, server_url, stream, topic, prefix_of(kind), "jsonl", iggy={"headers": "none"})
    for name, options in sections.items():
        made[name] = {**made[name], **options} if isinstance(options, dict) else options
    return made


def small_rows(bench: Bench) -> Iterator[Row]:
    """Many small objects against a pool of GETs."""
    prefix = ensure_many(bench.store, "jsonl", bench.scaled(SMALL_OBJECTS, 60), 5)
    rounds = min(bench.rounds, SMALL_ROUNDS)
    server = bench.servers[0]
    for delay in DELAYS_MS:
        if delay is None:
            yield _small(bench, server, bench.store, prefix, "", rounds)
            continue
        with delaying(bench.store.endpoint, delay / 1000) as endpoint:
            store = attrs.evolve(bench.store, endpoint=endpoint)
            path = f", {delay} ms before each answer (proxy)"
            yield _small(bench, server, store, prefix, path, rounds if delay else 1)


def _small(bench: Bench, server: Server, store: Store, prefix: str, path: str, rounds: int) -> Row:
    objects = bench.scaled(SMALL_OBJECTS, 60)
    mine: list[Run] = []
    pools: dict[int, list[Run]] = {threads: [] for threads in THREADS}
    with contestant() as we, contestant() as bare:
        for number in range(rounds + 1):
            with new_stream(bare, server) as stream:
                one = we(ours, config(store, server.url, stream, "ours", prefix, "jsonl"))
            # The first round only warms up, and a pool needs that less than a few seconds of everybody's time.
            made = {threads: bare(bare_pool, store, prefix, threads) for threads in THREADS} if number else {}
            if one.objects != objects or one.records != objects * 5:
                raise RuntimeError(f"not everything was sent: {one}")
            if number:
                mine.append(one)
                for threads, run in made.items():
                    pools[threads].append(run)
    medians = {threads: statistics.median(run.objects_per_second for run in runs) for threads, runs in pools.items()}
    best = max(medians, key=lambda threads: medians[threads])
    ratios = [a.objects_per_second / b.objects_per_second for a, b in zip(mine, pools[best], strict=True)]
    rate = statistics.median(run.objects_per_second for run in mine)
    return at_least(
        f"{objects:,} objects of 1 KB{path}, S3 to {server.name}, objects/s against boto3 GETs in a pool",
        ratios,
        0.8,
        f"{rate:,.0f}/s against " + ", ".join(f"{value:,.0f}/s ({threads})" for threads, value in medians.items()),
    )


MEMORY_OBJECTS = 20_000
MEMORY_TARGETS = {0: 5000, 20: 2500}
OBJECT_CPU_MICROSECONDS = 180.0


def small_memory_rows(bench: Bench) -> Iterator[Row]:
    """Many small objects of a store that is not the bottleneck, near and far."""
    objects = bench.scaled(MEMORY_OBJECTS, 60)
    server = bench.servers[-1]
    for delay, target in MEMORY_TARGETS.items():
        mine: list[Run] = []
        with (
            responding("jsonl", objects, 5, delay_seconds=delay / 1000) as store,
            contestant() as we,
            contestant() as bare,
        ):
            for _ in range(bench.rounds + 1):
                with new_stream(bare, server) as stream:
                    mine.append(we(ours, config(store, server.url, stream, "ours", prefix_of("jsonl"), "jsonl")))
                if mine[-1].objects != objects or mine[-1].records != objects * 5:
                    raise RuntimeError(f"not everything was sent: {mine[-1]}")
        rates = [run.objects_per_second for run in mine[1:]]
        micros = [run.cpu_seconds / run.objects * 1e6 for run in mine[1:]]
        what = f"{objects:,} objects of 1 KB, {delay} ms before each answer, from memory to {server.name}"
        yield _rate_at_least(f"{what}, objects/s", rates, target)
        yield Row(
            what="the same, CPU of the process per object",
            target=f"< {OBJECT_CPU_MICROSECONDS:g} us",
            measured=f"{spread(micros, '{:.0f}')} us",
            reached=statistics.median(micros) < OBJECT_CPU_MICROSECONDS,
            note="S3 read to confirmation, all threads",
        )


def _rate_row(kind: str, server: Server, runs: list[Run]) -> Row:
    rates = [run.records_per_second for run in runs]
    return _rate_at_least(f"the same, records/s, {server.name}", rates, RECORDS_PER_SECOND[kind])


def _rate_at_least(what: str, rates: list[float], target: int, note: str = "") -> Row:
    return Row(
        what=what,
        target=f">= {target:,}",
        measured=spread(rates, "{:,.0f}"),
        reached=statistics.median(rates) >= target,
        note=note,
    )


def _cpu_row(kind: str, server: Server, runs: list[Run], more: str = "") -> Row:
    target = CPU_MICROSECONDS[kind]
    return Row(
        what=f"the same, CPU of the process per record, {server.name}",
        target=f"< {target:g} us",
        measured=f"{spread(_micros(runs))} us",
        reached=statistics.median(_micros(runs)) < target,
        note=f"S3 read to confirmation, all threads{more}",
    )


def _micros(runs: list[Run]) -> list[float]:
    """Microseconds of CPU per record."""
    return [run.cpu_seconds / run.records * 1e6 for run in runs]


def _ratios(runs: list[Run], others: list[Run]) -> list[float]:
    return [a.records_per_second / b.records_per_second for a, b in zip(runs, others, strict=True)]


def _median(runs: list[Run]) -> float:
    return statistics.median(run.records_per_second for run in runs)
