"""Row 5: the most memory the program ever holds, whatever the objects' size.

The program runs as its user runs it, `python -m s3_source --once`, in a process of its own; its highest resident size is
the kernel's (VmHWM of /proc, asked for until it ends: `ru_maxrss` of a child begins with its parent's size).
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import attrs

from benchmarks.contestants import contestant
from benchmarks.data import Large, ensure_large, forget_large
from benchmarks.program import Program
from benchmarks.rows_speed import Bench, config
from benchmarks.table import Row
from framework.iggy.embedded.launcher import EmbeddedServer

MB = 1_000_000
LIMIT_MB = 160
PARQUET_LIMIT_MB = 250
CLOSE = 0.10
CASES = (
    Large(name="JSONL 200 MB", kind="jsonl", suffix="jsonl", size_bytes=200 * MB),
    Large(name="JSONL 2 GB", kind="jsonl", suffix="jsonl", size_bytes=2000 * MB),
    Large(name="JSONL 1 GB, records up to 1 MB", kind="jsonl", suffix="jsonl", size_bytes=1000 * MB, longest=MB),
    Large(name="gzip JSONL 1 GB", kind="jsonl", suffix="jsonl.gz", size_bytes=1000 * MB),
    Large(name="Avro 1 GB", kind="avro", suffix="avro", size_bytes=1000 * MB),
    Large(name="CSV 1 GB", kind="csv", suffix="csv", size_bytes=1000 * MB),
    Large(name="Parquet 1 GB, row groups of 128 MB", kind="parquet", suffix="parquet", size_bytes=1000 * MB),
)


def memory_rows(bench: Bench) -> Iterator[Row]:
    """The peak for each kind of large object, and whether ten times the size changes it."""
    peaks: dict[str, float] = {}
    for case in CASES:
        large = attrs.evolve(case, size_bytes=bench.scaled(case.size_bytes, case.size_bytes // 500))
        limit = PARQUET_LIMIT_MB if large.kind == "parquet" else LIMIT_MB
        with contestant() as maker:  # its memory goes away with it
            maker(ensure_large, bench.store, large)
        peak, took = _peak(bench, large)
        if not bench.keep:
            forget_large(bench.store, large)
        peaks[large.name] = peak
        yield Row(
            what=f"peak memory, {large.name}",
            target=f"< {limit} MB",
            measured=f"**{peak:.0f}** MB",
            reached=peak < limit,
            note=f"whole run {took:.0f} s",
        )
    small, big = peaks["JSONL 200 MB"], peaks["JSONL 2 GB"]
    yield Row(
        what="peak memory, JSONL 2 GB against 200 MB",
        target=f"equal within {CLOSE:.0%}",
        measured=f"**{big / small - 1:+.1%}**",
        reached=abs(big / small - 1) <= CLOSE,
    )


def _peak(bench: Bench, large: Large, **more: dict[str, Any]) -> tuple[float, float]:
    """Megabytes and seconds; the embedded server's data goes to the disk and is deleted at once afterwards."""
    home = bench.folder / f"memory-{uuid.uuid4().hex[:8]}"
    home.mkdir()
    try:
        with EmbeddedServer.start(home / "iggy") as server:
            sections = config(bench.store, server.url, "bench", "ours", large.prefix, large.kind, **more)
            with Program(home, sections, "--once") as program:
                program.wait()
                return program.peak_bytes / MB, program.seconds
    finally:
        shutil.rmtree(home)
