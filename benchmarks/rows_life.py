"""What an idle source costs, and how long it takes from the start to the first confirmed record."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.contestants import Contestant, contestant, drop_stream
from benchmarks.data import ensure_many
from benchmarks.program import Program
from benchmarks.rows_speed import Bench, Server, config
from benchmarks.table import Row, spread
from framework.testing.servers.ports import free_port

IDLE_SECONDS = 30.0
IDLE_SHARE = 0.01
START_SECONDS = 1.5
SPARK_START_SECONDS = 6.0
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 60.0


def idle_row(bench: Bench) -> Iterator[Row]:
    """A source that has read everything and looks for more, with every option as it comes."""
    keys = bench.scaled(1000, 20)
    prefix = ensure_many(bench.store, "jsonl", keys, 5)
    port = free_port()
    sections = config(bench.store, bench.servers[0].url, f"bench-{uuid.uuid4().hex[:8]}", "ours", prefix, "jsonl")
    sections["metrics"] = {"address": f"127.0.0.1:{port}"}
    poll = {"poll_interval": 0.2} if bench.quick else {}
    sections["discovery"] = poll
    with Program(bench.folder, sections) as program:
        ask = _Metrics(port, program)
        ask.until(lambda: ask("records") == keys * 5 and ask("passes") >= 2)
        asked, passes, cpu, began = ask("list_requests"), ask("passes"), program.cpu_seconds, time.perf_counter()
        time.sleep(bench.scaled(int(IDLE_SECONDS), 1))
        cpu, took = program.cpu_seconds - cpu, time.perf_counter() - began
        asked, passes = ask("list_requests") - asked, ask("passes") - passes
    share, chain = cpu / took, asked / max(1, passes)
    yield Row(
        what=f"idle, nothing new, {keys:,} keys: CPU of the process",
        target=f"< {IDLE_SHARE:.0%} of a core",
        measured=f"**{share:.2%}**",
        reached=share < IDLE_SHARE,
        note=f"over {took:.0f} s, {passes:.0f} passes",
    )
    yield Row(
        what="the same: LIST requests a pass",
        target="2",  # a page, and a look for more behind it, as on any store but AWS and Google
        measured=f"**{chain:g}**",
        reached=chain <= 2,
        note=f"{asked:.0f} requests, one pass every {took / max(1, passes):.1f} s",
    )


class _Metrics:
    """The program's own figures, asked for where Prometheus would."""

    def __init__(self, port: int, program: Program) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._program = program

    def __call__(self, name: str) -> float:
        with urllib.request.urlopen(self._url, timeout=5) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^\w*_{name}(?:_total)?(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def until(self, check: Callable[[], bool]) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit:
            self._program.check()
            try:
                if check():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("the program did not become idle")


def start_rows(bench: Bench) -> Iterator[Row]:
    """From the command to the first confirmed record, seen from outside: when another client finds it in the topic."""
    prefix = ensure_many(bench.store, "jsonl", 1, 10)
    with contestant() as watcher:
        for server in (*bench.servers, None):
            seconds = [_start(bench, server, watcher, prefix) for _ in range(bench.rounds + 1)][1:]
            name = server.name + ", running already" if server is not None else "embedded Iggy, started by it"
            yield Row(
                what=f"start to first confirmed record, {name}",
                target=f"< {START_SECONDS:g} s",
                measured=f"{spread(seconds)} s",
                reached=statistics.median(seconds) < START_SECONDS,
                note="a fresh process; `python -m s3_source`, to the moment another client can read the record",
            )


def spark_start_rows(bench: Bench) -> Iterator[Row]:
    """The same on Spark, with its defaults: Java, a context and Python workers are started by the program."""
    prefix = ensure_many(bench.store, "jsonl", 1, 10)
    with contestant() as watcher:
        for server in bench.servers:
            seconds = [_start(bench, server, watcher, prefix, engine="spark") for _ in range(bench.rounds + 1)][1:]
            yield Row(
                what=f"start to first confirmed record on Spark local[*], {server.name}, running already",
                target=f"< {SPARK_START_SECONDS:g} s",
                measured=f"{spread(seconds)} s",
                reached=statistics.median(seconds) < SPARK_START_SECONDS,
                note="a fresh process; `python -m s3_source`, to the moment another client can read the record",
            )


def _start(bench: Bench, server: Server | None, watcher: Contestant, prefix: str, engine: str = "local") -> float:
    stream = f"bench-{uuid.uuid4().hex[:8]}"
    folder = bench.folder / f"start-{stream}"
    folder.mkdir()
    url = server.url if server is not None else f"embedded:{folder / 'iggy'}"
    sections = config(bench.store, url, stream, "ours", prefix, "jsonl", runner={"engine": engine})
    with Program(folder, sections) as program:
        seen = watcher(wait_for_record, server.url if server is not None else None, str(folder / "iggy"), stream)
        took = seen - program.began
        program.check()
    if server is not None:
        watcher(drop_stream, server.url, stream)
    return took


def wait_for_record(url: str | None, folder: str, stream: str) -> float:
    """`time.perf_counter()`, which all processes of a machine share, when the topic's first record can be read."""
    return asyncio.run(asyncio.wait_for(_wait_for_record(url, Path(folder), stream), PATIENCE_SECONDS))


async def _wait_for_record(url: str | None, folder: Path, stream: str) -> float:
    from apache_iggy import Consumer, PollingStrategy

    from benchmarks.contestants import connect
    from framework.config.iggy_address import IggyAddress

    while url is None:
        try:
            address = json.loads((folder / "server.json").read_bytes())
            url = f"iggy://iggy:{address['password']}@127.0.0.1:{address['port']}"
        except (OSError, ValueError):
            await asyncio.sleep(LOOK_SECONDS)
    client = await connect(IggyAddress.parse(url))
    while True:
        try:
            found = await client.poll_messages(
                stream,
                "ours",
                consumer=Consumer.Single(1),
                polling_strategy=PollingStrategy.Offset(0),
                count=1,
                auto_commit=False,
                partition_id=0,
            )
        except RuntimeError:  # no such stream or topic yet
            found = []
        if found:
            return time.perf_counter()
        await asyncio.sleep(LOOK_SECONDS)
