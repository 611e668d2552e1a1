"""`python -m tests.corpora FOLDER`: files that others wrote, read in every way, and compared with other readers.

FOLDER holds a folder for each corpus. Each file is read in a process of its own, which ends when it takes too long. See
docs/development/measurements.md for the corpora.
"""

import argparse
import bz2
import collections
import contextlib
import gzip
import importlib
import io
import json
import lzma
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from framework.transformer import InputOptions
from tests.corpora.oracle_avro import avro
from tests.corpora.oracle_lines import BAD, csv_rows, json_array, jsonl
from tests.corpora.oracle_parquet import parquet
from tests.corpora.ways import Reading, columns, differences, read, values
from transformers import make_transformer
from transformers.local_inputs import BytesInput

ADDRESS_BYTES, CPU_SECONDS = 8 << 30, 300
"""What the process of a file may take, with all ways of reading and the oracle."""
MOST_MEMORY, MOST_SECONDS = 450 << 20, 10
"""What a plain reading of a file of corpora may take."""
FORMATS = {
    ".parquet": ["parquet"],
    ".encrypted": ["parquet"],
    ".csv": ["csv", "csv without header"],
    ".tsv": ["csv", "csv without header"],
    ".jsonl": ["jsonl"],
    ".ndjson": ["jsonl"],
    ".avro": ["avro"],
    ".json": ["json", "jsonl"],
}
UNPACK = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}
COLUMNS = ("files", "records", "bad", "errors", "ways", "differ", "MiB", "seconds")
"""Of the table; the last two are of the worst file."""
ORACLES = {"jsonl": jsonl, "json": json_array, "avro": avro, "parquet": parquet}


def readings(path):
    """Yield the formats that a file is read as, and the options of each."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = next((suffix for suffix in reversed(suffixes) if suffix not in UNPACK), "")
    formats = FORMATS.get(last, [])
    if path.name.startswith("clusterfuzz"):  # without a suffix, in a folder of the format's name
        formats = next((FORMATS["." + part] for part in path.parts if part in {"csv", "parquet"}), [])
    for name in formats:
        options = {"format": name.split()[0]}
        if options["format"] == "csv":
            head = unpacked(path).partition(b"\n")[0].decode("latin-1")
            options |= {"csv_header": name == "csv", "csv_delimiter": max(",\t|;", key=head.count)}
        yield name, options


def unpacked(path):
    return UNPACK.get(path.suffix, bytes)(path.read_bytes())


def oracle(path, options):
    """Return what another reader has: rows, and whether the rest of the object cannot be read."""
    data = unpacked(path)
    if not data:
        return [], False
    if options["format"] == "csv":
        return csv_rows(data, header=options["csv_header"], delimiter=options["csv_delimiter"])
    return ORACLES[options["format"]](data)


def look(path, options, report):
    """Compare one reading of a file; `report` takes what was found so far, which counts if the process ends early."""
    data, key = path.read_bytes(), path.name
    memory, begun = peak_bytes(), time.process_time()
    with contextlib.suppress(Exception):
        for _ in make_transformer(InputOptions(**options)).read(BytesInput(data, key)):
            pass
    found = {"memory": peak_bytes() - memory, "seconds": time.process_time() - begun, "ways": 0, "differences": []}
    report(found)
    whole = read(make_transformer(InputOptions(**options)).read(BytesInput(data, key)))
    found |= {"records": len(whole.records), "bad": whole.bad, "error": whole.error}
    rows, failed = oracle(path, options)
    load = bytes if options["format"] in {"json", "jsonl"} else json.loads
    wanted = Reading([BAD if row is BAD else repr(row) for row in rows], failed)
    if difference := Reading(values(whole, load), whole.error is not None).difference(wanted):
        found["differences"].append(f"oracle: {difference}")
    report(found)
    ways = [differences(whole, data, key, options)]
    if (
        options["format"] in {"avro", "csv", "parquet"}
        and options.get("csv_header", True)
        and not (whole.error or whole.bad)
    ):
        ways.append(columns(whole, data, key, options))
    for way in ways:
        for difference in way:
            found["ways"] += 1
            if difference:
                found["differences"].append(difference)
    report({**found, "complete": True})


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def begin(path, options, out):
    """Begin a reading in a process of its own, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        look(path, options, lambda found: out.write_text(json.dumps(found)))
        status = 0
    except BaseException:  # noqa: BLE001 - a report for the parent
        out.with_suffix(".failure").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def finished(task, out, status):
    """Return the report of a reading whose process ended."""
    path, name, _ = task
    found = {
        "path": path,
        "format": name,
        "memory": 0,
        "seconds": 0.0,
        "records": 0,
        "bad": 0,
        "ways": 0,
        "error": None,
    }
    found |= {"differences": []} | (json.loads(out.read_text()) if out.exists() else {})
    failure = out.with_suffix(".failure")
    if not found.get("complete"):
        why = failure.read_text()[-2000:] if failure.exists() else f"status {status}"
        found["differences"].append(f"its process ended early: {why}")
    if found["memory"] > MOST_MEMORY or found["seconds"] > MOST_SECONDS:
        found["differences"].append(f"it took {found['memory'] >> 20} MiB and {found['seconds']:.1f} seconds")
    return found


def warm_up():
    """Import what readings do, so that it is no memory of theirs."""
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), out)
    list(make_transformer(InputOptions(format="parquet")).records(BytesInput(out.getvalue())))
    for name in ("fastavro", "polars"):
        importlib.import_module(name)


def run(folder, jobs=2):
    """Yield the report of each reading."""
    tasks = [(path, *reading) for path in sorted(folder.rglob("*")) if path.is_file() for reading in readings(path)]
    warm_up()
    running = {}
    with tempfile.TemporaryDirectory() as reports:
        for number, task in enumerate([*tasks, *[None] * jobs]):
            while len(running) >= (jobs if task else 1):
                pid, status = os.wait()
                yield finished(*running.pop(pid), status)
            if task:
                out = pathlib.Path(reports, str(number))
                running[begin(task[0], task[2], out)] = task, out


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.corpora", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2, help="files side by side")
    given = parser.parse_args(arguments)
    table = collections.defaultdict(lambda: dict.fromkeys(COLUMNS, 0))
    for found in run(given.folder, given.jobs):
        path = found["path"].relative_to(given.folder)
        for difference in found["differences"]:
            print(f"{path} as {found['format']}: {difference}", flush=True)
        row = table[path.parts[0], found["format"]]
        row["files"] += 1
        row["errors"] += found["error"] is not None
        row["differ"] += bool(found["differences"])
        for name in ("records", "bad", "ways"):
            row[name] += found[name]
        row["MiB"] = max(row["MiB"], found["memory"] >> 20)
        row["seconds"] = max(row["seconds"], round(found["seconds"], 1))
    print(f"{'corpus':24}{'format':20}" + "".join(f"{name:>9}" for name in COLUMNS))
    for (corpus, name), row in sorted(table.items()):
        print(f"{corpus[:22]:24}{name:20}" + "".join(f"{figure:>9}" for figure in row.values()))
    return int(any(row["differ"] for row in table.values()))


if __name__ == "__main__":
    sys.exit(main())
