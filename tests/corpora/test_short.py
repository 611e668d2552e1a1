"""The long form in short: files made here agree, and mistakes in a format are found."""

import datetime as dt
import json
import subprocess
import sys

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.corpora.__main__ import look, readings
from tests.support.packing import PACK
from transformers import csv_rows, jsonl
from transformers.avro import flat as avro_flat
from transformers.parquet import arrow_texts
from transformers.split_lines import SplitLines

ROWS = [
    {
        "id": n,
        "name": f"näme {n}",
        "day": dt.date(1969, 12, 25) + dt.timedelta(n),
        "in": {"x": n / 3, "y": [n]},
    }
    for n in range(23)
]
INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "double"}]}
FLAT = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
DEEP = {**FLAT, "fields": [*FLAT["fields"], {"name": "in", "type": ["null", INNER, {"type": "array", "items": "I"}]}]}
LINES = [json.dumps({"id": row["id"], "name": row["name"]}).encode() for row in ROWS]


def write_avro(path, schema, rows):
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec="deflate", sync_interval=90)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "a.parquet", row_group_size=7)
    flat = [{"id": row["id"], "name": row["name"] if row["id"] % 3 else None} for row in ROWS]
    write_avro(folder / "flat.avro", FLAT, flat)
    write_avro(
        folder / "deep.avro", DEEP, [{**row, "in": {"x": float("inf")} if row["id"] % 2 else None} for row in flat]
    )
    (folder / "a.jsonl").write_bytes(b"\n".join([*LINES, b"{", b"", b'"\xff"', *LINES]))
    (folder / "a.json").write_bytes(b" [" + b",\n".join(LINES) + b"]")
    (folder / "plain.csv").write_text("id,name\n" + "".join(f"{n},n{n}\n" for n in range(23)))
    (folder / "quoted.csv").write_text('id,name\r\n1,"a\r\n""b"""\r\n2\r\n3,c\n"4"x,d\n5,"e')
    for path in list(folder.iterdir()):
        (folder / f"cut-{path.name}").write_bytes(path.read_bytes()[:-9])
    for name in ("flat.avro", "quoted.csv"):
        (folder / f"{name}.gz").write_bytes(PACK["gzip"]((folder / name).read_bytes()))
    return folder


def test_all_ways_agree_with_the_other_readers(folder):
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpora", folder], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = {line.split()[0]: line.split()[-8:] for line in done.stdout.splitlines()[1:]}
    assert len(files) == 16
    assert int(files["a.parquet"][1]) == 23
    assert int(files["cut-flat.avro"][3]) == 1


def found(path, number=0):
    """The differences of a file, looked at in this process."""
    reports = []
    look(path, list(readings(path))[number][1], reports.append)
    assert reports[-1]["complete"]
    assert reports[-1]["ways"] > 20
    return reports[-1]["differences"]


def test_a_wrong_value_is_found(folder, monkeypatch):
    monkeypatch.setattr(arrow_texts, "date_texts", lambda array: pa.array(["1970-01-01"] * len(array)))
    assert any(text.startswith("oracle: record 1:") for text in found(folder / "a.parquet"))


def test_a_wrong_quick_way_is_found(folder, monkeypatch):
    forms = avro_flat._forms
    monkeypatch.setattr(avro_flat, "_forms", lambda field, values: forms(field, values)[::-1])
    differences = found(folder / "flat.avro")
    assert not any(text.startswith("oracle") for text in differences)
    assert any(text.startswith("quick_ways") for text in differences)


def test_a_bad_record_that_passes_is_found(folder, monkeypatch):
    monkeypatch.setattr(jsonl.JsonlTransformer, "_problem", lambda _, __: None)
    assert any(text.startswith("oracle: record 24:") for text in found(folder / "a.jsonl"))


def test_a_resume_one_record_off_is_found(folder, monkeypatch):
    read = csv_rows.CsvTransformer._read
    monkeypatch.setattr(
        csv_rows.CsvTransformer,
        "_read",
        lambda self, source, skip, mark, builder: read(self, source, max(0, skip - 1), mark, builder),
    )
    assert any("from 1, None" in text for text in found(folder / "plain.csv"))


def test_a_line_of_two_splits_is_found(folder, monkeypatch):
    seek = SplitLines.seek
    monkeypatch.setattr(SplitLines, "seek", lambda self: setattr(self, "_begins_line", True) or seek(self))
    assert any(text.startswith("split size") for text in found(folder / "a.jsonl"))
