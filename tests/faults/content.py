"""What the harness puts into the bucket, and what must come of it.

Each record says whose it is and which one: key, number of the version, number of the record. The bytes of an object are made
with the usual libraries; what must be in the topic is worked out from the values, never from the product's reading.
"""

import io
import json
from collections import defaultdict

import attrs
import fastavro
import pyarrow.parquet as pq

from tests.faults.checker import Version
from tests.integration.program_rig import encoded
from tests.support.keys import partition_of_key

FORMS = ("jsonl", "jsonl.gz", "csv", "avro", "parquet", "json", "txt")
"""By the suffix; `bin` is read as chunks and needs a configuration of its own."""

CHUNK = 401
"""Room for the longest key, since every chunk says whose it is."""
SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "of", "type": "string"},
        {"name": "v", "type": "long"},
        {"name": "n", "type": "long"},
        {"name": "text", "type": "string"},
    ],
}


TRANSFORMS = """
[[transforms]]
type = "filter"
field = "text"
value_pattern = { regex = "^x{10}" }
action = "drop"

[[transforms]]
type = "add_fields"
fields = [{ key = "seen", value = { static = true } }]
"""


BY_KEY = """
[[transforms]]
type = "partition_by"
field = "text"
"""


def transformed(records):
    """What is left of records, place -> record, after `TRANSFORMS`: rows change or go, bytes are no JSON and pass."""
    return {
        place: row if isinstance(row, bytes) else {**row, "seen": True}
        for place, row in records.items()
        if isinstance(row, bytes) or not row["text"].startswith("x" * 10)
    }


def archived(rows):
    """Rows as Iggy's S3 sink would have archived them, a line each; bad lines stay as they are."""
    return [
        row
        if isinstance(row, bytes)
        else {"offset": row["n"], "timestamp": f"2024-03-16T{row['n'] // 100 % 24:02}:00:00Z", "payload": row}
        for row in rows
    ]


BAD_EVERY = 37
"""With bad records, so many lines of JSON hold one that is no JSON."""


def values(form, key, version, count, *, bad=False):
    """The records of an object: dicts; bytes for the forms that have no fields, and for lines that are bad."""
    if form == "txt":
        return [f"{key}|{version}|{n}|".encode() + b"x" * (n * 7 % 23) for n in range(1, count + 1)]
    if form == "bin":
        heads = [f"{key}|{version}|{n}|".encode() for n in range(1, count + 1)]
        return [head + bytes((n * 31 + at) % 256 for at in range(CHUNK - len(head))) for n, head in enumerate(heads)]
    rows = [
        {"of": key, "v": version, "n": n, "text": "x" * (n % 17) + ("\n" if n % 11 == 0 else "") + ', "' * (n % 3)}
        for n in range(1, count + 1)
    ]
    if bad and form == "jsonl":
        rows[count % 5 :: BAD_EVERY] = [
            f"{key}|{version}|{row['n']}|is no JSON".encode() for row in rows[count % 5 :: BAD_EVERY]
        ]
    return rows


def body(form, rows):
    """The bytes of an object."""
    if form == "txt":
        return b"".join(row + b"\n" for row in rows)
    if form == "jsonl":
        return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
    if form == "bin":
        return b"".join(rows)
    return encoded(form, rows, SCHEMA)


def records_of(form, rows, data, split_size=None, *, key_partitions=0):
    """(share, record number) -> what the message must hold. By key the share is the partition and 1; of bad records 1."""
    if form == "csv":
        rows = [{name: str(value) for name, value in row.items()} for row in rows]
    if key_partitions:
        shares = [1 if isinstance(row, bytes) else 1 + partition_of_key(row["text"], key_partitions) for row in rows]
        return {(share, number): row for number, (share, row) in enumerate(zip(shares, rows, strict=True), 1)}
    if split_size is None or form not in BEGINS or len(data) <= split_size:
        return {(0, number): row for number, row in enumerate(rows, 1)}
    found, counts = {}, defaultdict(int)
    for row, begin in zip(rows, BEGINS[form](data), strict=True):
        split_number = begin // split_size + 1
        counts[split_number] += 1
        found[split_number, counts[split_number]] = row
    return found


def line_begins(data):
    """Where each record begins: its line."""
    at = 0
    for line in data.splitlines(keepends=True):
        yield at
        at += len(line)


def avro_begins(data):
    """The same of Avro: the sync marker before its block."""
    for block in fastavro.block_reader(io.BytesIO(data)):
        yield from [block.offset - 16] * block.num_records


def parquet_begins(data):
    """The same of Parquet: the first column of its row group."""
    meta = pq.ParquetFile(io.BytesIO(data)).metadata
    for group in map(meta.row_group, range(meta.num_row_groups)):
        chunk = group.column(0)
        yield from [chunk.dictionary_page_offset or chunk.data_page_offset] * group.num_rows


BEGINS = {"jsonl": line_begins, "txt": line_begins, "avro": avro_begins, "parquet": parquet_begins}
"""The forms that are split: into the share in which a record begins."""


@attrs.define
class Put:
    """An object's version that was put."""

    form: str
    count: int
    version: str
    records: dict = attrs.field(repr=False)
    letters: dict = attrs.field(repr=False)


class Ledger:
    """All that was put into a bucket, and deleted, in order. The oracle of the checker.

    Args:
        bucket: where it goes.
        split_size: the source's option, None when it has none.
        bad: whether some records are bad, and go to the topic of dead letters.
        transforms: whether `TRANSFORMS` apply.
        archive: whether the objects are an archive of a topic.
        key_partitions: over how many partitions `BY_KEY` spreads the records; 0: it does not apply.
    """

    def __init__(self, bucket, split_size=None, *, bad=False, transforms=False, archive=False, key_partitions=0):
        self.bucket = bucket
        self.archive = archive
        self.key_partitions = key_partitions
        self.transforms = transforms
        self.split_size = split_size
        self.bad = bad
        self.puts = defaultdict(list)
        self.gone = set()

    def made(self, key, form, count):
        """(rows, bytes) of the next version of a key."""
        rows = values(form, key, len(self.puts[key]), count, bad=self.bad)
        return rows, body(form, archived(rows) if self.archive else rows)

    def put(self, key, form, count):
        """Puts the next version of a key."""
        rows, data = self.made(key, form, count)
        records = records_of(form, rows, data, self.split_size, key_partitions=self.key_partitions)
        letters = {place: row for place, row in records.items() if form == "jsonl" and isinstance(row, bytes)}
        good = {place: row for place, row in records.items() if place not in letters}
        if self.transforms:
            good = transformed(good)
        made = Put(form=form, count=count, version="", records=good, letters=letters)
        self.puts[key].append(made)  # first: the source may be quicker than the store's answer
        self.gone.discard(key)
        made.version = self.bucket.put_version(key, data)
        return len(data)

    def delete(self, key):
        """The object is gone; what was sent of it stays."""
        self.gone.add(key)
        self.bucket.delete(key)

    def waits_for(self):
        """(key, number of the version) -> how many records, for all that must be there wholly."""
        return {(key, len(puts) - 1): len(puts[-1].records) for key, puts in self.puts.items() if key not in self.gone}

    def expected(self, what="records"):
        """What the checker compares with."""
        return {
            key: [
                Version(
                    name=one.version, records=getattr(one, what), whole=number == len(puts) - 1 and key not in self.gone
                )
                for number, one in enumerate(puts)
            ]
            for key, puts in self.puts.items()
        }

    def expected_letters(self):
        """The same, of the topic of dead letters."""
        return self.expected("letters")

    def as_json(self):
        """For the evidence: how to make all of it again."""
        told = {
            key: [{"form": one.form, "count": one.count, "version": one.version} for one in puts]
            for key, puts in self.puts.items()
        }
        how = {
            "split_size": self.split_size,
            "bad": self.bad,
            "transforms": self.transforms,
            "archive": self.archive,
            "key_partitions": self.key_partitions,
        }
        return json.dumps({"puts": told, "deleted": sorted(self.gone), **how}, indent=1)
