"""`input.columns`: the same bytes without the other keys, the same record numbers, and no byte of another column's chunk."""

import csv
import datetime as dt
import io
import json
import os
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import ConfigError, CorruptObjectError, ObjectError, RecordError
from framework.model.batches import SkippedRecord
from framework.transformer import BatchLimits, InputOptions
from tests.support.examples import examples
from tests.unit.transformers.test_lines import flat
from transformers import BytesInput, make_transformer
from transformers.avro import format as avro
from transformers.columns import Field, choose, nothing_inside
from transformers.parquet import format as parquet
from transformers.parquet import row_groups

LIMITS = BatchLimits(records=7, size_bytes=300)


def read(form, data, *columns, skip=0, source=None, limits=LIMITS, **options):
    transformer = make_transformer(InputOptions(format=form, columns=columns, **options))
    return flat(transformer.read(source or BytesInput(data, f"k.{form}"), skip=skip, limits=limits))


def pruned(value, paths):
    """A value without the members that no path leads to."""
    if isinstance(value, list):
        return [pruned(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, member in value.items():
        inside = [path[len(name) + 1 :] for path in paths if path.startswith(f"{name}.")]
        if name in paths:
            kept[name] = member
        elif inside:
            kept[name] = pruned(member, inside)
    return kept


def check(form, data, columns, **options):
    whole = read(form, data, **options)
    assert whole
    expected = [
        (number, msgspec.json.encode(pruned(msgspec.json.decode(payload), columns))) for number, payload in whole
    ]
    assert read(form, data, *columns, **options) == expected
    for skip in (1, len(expected) - 1, len(expected)):
        assert read(form, data, *columns, skip=skip, **options) == expected[skip:]


# ---- CSV

cells = st.sampled_from(["", "a", "b c", 'q"uote', "co,mma", "l\nine", "é", "\\", "0"])


@given(
    st.lists(st.lists(cells, min_size=5, max_size=5), min_size=1, max_size=20),
    st.sets(st.sampled_from("abcde"), min_size=1),
)
def test_rows_of_csv_are_the_whole_rows_without_the_other_keys(rows, chosen):
    text = io.StringIO()
    csv.writer(text).writerows([list("abcde"), *rows])
    check("csv", text.getvalue().encode(), sorted(chosen, reverse=True))


def test_bad_rows_of_csv_keep_their_numbers_and_what_is_not_read_makes_none_bad():
    data = b"a,b,c\n1,2,3\n1,2\n1,\xff,3\n\xff,2,3\n1,2,3,4\n5,6,7\n"
    bad = RecordError
    assert read("csv", data, "a") == [
        (1, b'{"a":"1"}'),
        (2, bad),
        (3, b'{"a":"1"}'),
        (4, bad),
        (5, bad),
        (6, b'{"a":"5"}'),
    ]
    assert [number for number, _ in read("csv", data)] == [1, 2, 3, 4, 5, 6]


# ---- Parquet

INNER = pa.struct(
    [("x", pa.int64()), ("y", pa.string()), ("deep", pa.struct([("p", pa.float64()), ("q", pa.bool_())]))]
)
PARQUET_SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("day", pa.date32()),
        ("money", pa.decimal128(10, 2)),
        ("one", INNER),
        ("many", pa.list_(INNER)),
        ("large", pa.large_list(pa.list_(INNER))),
        ("by name", pa.map_(pa.string(), INNER)),
        ("dotted.name", pa.int32()),
        ("dotted", pa.struct([("name", pa.string()), ("other", pa.int8())])),
        ("old", pa.struct([("a", pa.timestamp("ns")), ("b", pa.int64())])),
        ("bytes", pa.binary()),
        ("code", pa.dictionary(pa.int32(), pa.string())),
    ]
)
PARQUET_PATHS = [
    *PARQUET_SCHEMA.names,
    *(f"{place}.{path}" for place in ("one", "many", "large") for path in ("x", "y", "deep", "deep.p", "deep.q")),
    "dotted.other",
    "old.a",
    "old.b",
]


def inner(n):
    return None if n % 5 == 0 else {"x": n, "y": f"y{n}", "deep": None if n % 7 == 0 else {"p": n / 3, "q": n % 2 == 0}}


def parquet_rows(count):
    return [
        {
            "n": n,
            "s": None if n % 4 == 0 else f"text {n}",
            "day": dt.date(2024, 1, 1 + n % 28),
            "money": Decimal(n) / 4,
            "one": inner(n),
            "many": None if n % 6 == 0 else [inner(n + at) for at in range(n % 4)],
            "large": [[inner(n)], [], [inner(n + 1), None]],
            "by name": [(f"k{at}", inner(n + at)) for at in range(n % 3)],
            "dotted.name": n,
            "dotted": {"name": f"d{n}", "other": n % 100},
            "old": {"a": dt.datetime(2001, 1, 1, 0, 0, n % 60), "b": n},  # noqa: DTZ001 - INT96 has no zone
            "bytes": bytes([n % 256]),
            "code": f"c{n % 3}",
        }
        for n in range(1, count + 1)
    ]


def parquet_file(rows=None, **options):
    out = io.BytesIO()
    table = pa.Table.from_pylist(rows or parquet_rows(40), PARQUET_SCHEMA)
    pq.write_table(table, out, **{"row_group_size": 13, "use_deprecated_int96_timestamps": True} | options)
    return out.getvalue()


PARQUET = parquet_file()


@settings(max_examples=examples(30))
@given(st.sets(st.sampled_from(PARQUET_PATHS), min_size=1, max_size=6))
@example({"dotted.name"})
@example({"dotted"})
@example({"old.b"})
@example({"one", "one.x"})
def test_rows_of_parquet_are_the_whole_rows_without_the_other_keys(paths):
    check("parquet", PARQUET, sorted(paths))


@settings(max_examples=examples(30))
@given(st.sets(st.sampled_from(PARQUET_PATHS), min_size=1, max_size=3))
def test_rows_of_parquet_by_ranges_are_the_same(paths):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_SMALL_OBJECT_BYTES", 0)
        check("parquet", PARQUET, sorted(paths))


def wide(rows, columns, **options):
    table = pa.table({f"c{at}": pa.array(os.urandom(8 * rows).hex(" ", 8).split()) for at in range(columns)})
    out = io.BytesIO()
    pq.write_table(table, out, use_dictionary=False, compression="none", **options)
    return out.getvalue()


class Watched(BytesInput):
    """Notes what is asked for."""

    def __init__(self, data, key="k"):
        super().__init__(data, key)
        self.asked = []

    def open(self, start=0, end=None):
        self.asked.append((start, self.size if end is None else end))
        return super().open(start, end)


def test_only_the_chunks_of_the_chosen_columns_are_fetched():
    data = wide(20_000, 30, row_group_size=9000)
    source = Watched(data)
    chosen = (3, 17, 29)
    assert len(read("parquet", data, *(f"c{at}" for at in chosen), source=source)) == 20_000
    groups = pq.ParquetFile(io.BytesIO(data)).metadata
    allowed, chunks = set(), 0
    for index in range(groups.num_row_groups):
        for at in chosen:
            chunk = groups.row_group(index).column(at)
            chunks += chunk.total_compressed_size
            allowed.add((chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size))
    footer = 1 << 16
    for start, end in source.asked:
        beside_data = end <= 16 or start >= len(data) - footer
        assert beside_data or any(begin <= start and end <= stop for begin, stop in allowed), (start, end)
    assert sum(end - start for start, end in source.asked) <= chunks + 2 * footer
    assert len(data) > 8 * chunks


def test_a_giant_column_that_is_not_chosen_limits_nothing():
    rows = [{"n": n, "blob": bytes(1 << 16)} for n in range(100)]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, use_dictionary=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "_MAX_ROW_BYTES", 1 << 15)
        with pytest.raises(CorruptObjectError, match="a row of row group 1"):
            read("parquet", out.getvalue())
        assert len(read("parquet", out.getvalue(), "n")) == 100
        with pytest.raises(CorruptObjectError, match="a row of row group 1"):
            read("parquet", out.getvalue(), "blob")


@pytest.mark.parametrize(
    ("chosen", "said"), [("n", "[b'{\"n\":1}', b'{\"n\":2}']"), ("s", "memory://memory, record 1: ")]
)
def test_an_encrypted_column_that_is_not_chosen_is_not_needed(chosen, said):
    # in a process of its own, which the library may end
    script = f"""
import io, base64
import pyarrow as pa, pyarrow.parquet as pq, pyarrow.parquet.encryption as encryption
from framework.errors import CorruptObjectError
from framework.transformer import InputOptions
from transformers import BytesInput, make_transformer

class Keys(encryption.KmsClient):
    def __init__(self, config):
        super().__init__()
    def wrap_key(self, key, _):
        return base64.b64encode(key)
    def unwrap_key(self, wrapped, _):
        return base64.b64decode(wrapped)

configuration = encryption.EncryptionConfiguration(footer_key="f", column_keys={{"c": ["s"]}}, plaintext_footer=True)
properties = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), configuration)
out = io.BytesIO()
table = pa.table({{"s": ["a", "b"], "n": [1, 2]}})
with pq.ParquetWriter(out, table.schema, encryption_properties=properties) as writer:
    writer.write_table(table)
try:
    options = InputOptions(format="parquet", columns=({chosen!r},))
    print(list(make_transformer(options).records(BytesInput(out.getvalue()))))
except CorruptObjectError as exc:
    print(exc)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(said)


# ---- Avro

NAMED = {"type": "record", "name": "Inner", "namespace": "a.b", "fields": [
    {"name": "x", "type": "long"},
    {"name": "y", "type": ["null", "string"]},
    {"name": "f", "type": "double"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
]}  # fmt: skip
AVRO_SCHEMA = {"type": "record", "name": "Row", "namespace": "c", "fields": [
    {"name": "n", "type": "long"},
    {"name": "one", "type": NAMED},
    {"name": "again", "type": ["null", "a.b.Inner"]},
    {"name": "many", "type": {"type": "array", "items": "a.b.Inner"}},
    {"name": "lists", "type": ["null", {"type": "array", "items": {"type": "array", "items": ["null", "a.b.Inner"]}}]},
    {"name": "map", "type": {"type": "map", "values": "a.b.Inner"}},
    {"name": "either", "type": ["null", "long", "string", "a.b.Inner"]},
    {"name": "kind", "type": "a.b.Kind"},
    {"name": "raw", "type": ["null", "a.b.Raw"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "d", "type": ["null", "double"]},
    {"name": "bytes", "type": "bytes"},
    {"name": "self", "type": ["null", "Row"]},
    {"name": "nothing", "type": "null"},
]}  # fmt: skip
INNER_PATHS = ("x", "y", "f", "kind", "raw")
AVRO_PATHS = [
    *(field["name"] for field in AVRO_SCHEMA["fields"]),
    *(
        f"{place}.{path}"
        for place in ("one", "again", "many", "lists", "self.one", "self.many")
        for path in INNER_PATHS
    ),
    "self.n",
    "self.self.d",
]


def avro_inner(n):
    return {
        "x": n,
        "y": None if n % 3 else f"é{n}",
        "f": float("nan") if n % 5 == 0 else n / 7,
        "kind": "AB"[n % 2],
        "raw": b"\1\2",
    }


def avro_row(n, depth=2):
    return {
        "n": n,
        "one": avro_inner(n),
        "again": avro_inner(n) if n % 2 else None,
        "many": [avro_inner(n + at) for at in range(n % 4)],
        "lists": [[avro_inner(n), None], []] if n % 4 else None,
        "map": {"k": avro_inner(n)},
        "either": (None, n, f"s{n}", ("a.b.Inner", avro_inner(n)))[n % 4],
        "kind": "AB"[n % 2],
        "raw": b"\3\4" if n % 2 else None,
        "at": dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=n),
        "money": Decimal(n) / 4,
        "d": (None, float("inf"), n / 3)[n % 3],
        "bytes": bytes([n % 256]),
        "self": avro_row(n + 1, depth - 1) if depth and n % 3 else None,
        "nothing": None,
    }


def avro_file(schema, rows, **options):
    out = io.BytesIO()
    fastavro.writer(out, schema, rows, **{"sync_interval": 300} | options)
    return out.getvalue()


AVRO = avro_file(AVRO_SCHEMA, [avro_row(n) for n in range(1, 31)])


@pytest.mark.parametrize("skipped", [True, False], ids=["skipped by the decoder", "decoded"])
def test_data_of_avro_are_the_whole_data_without_the_other_keys(skipped, monkeypatch):
    if not skipped:
        monkeypatch.setattr(avro, "decodes_chosen", lambda: False)

    @settings(max_examples=examples(30))
    @given(st.sets(st.sampled_from(AVRO_PATHS), min_size=1, max_size=5))
    @example({"either"})
    @example({"self.n", "n"})
    @example({"kind"})
    @example({"one", "one.x"})
    def check_paths(paths):
        check("avro", AVRO, sorted(paths))

    check_paths()


def test_the_installed_decoder_skips_what_is_not_chosen():
    assert avro.decodes_chosen()


@pytest.mark.parametrize(
    ("schema", "rows"),
    [
        (["null", NAMED], [None, avro_inner(1), avro_inner(2)]),
        ({"type": "array", "items": NAMED}, [[avro_inner(1)], [], [avro_inner(2), avro_inner(3)]]),
    ],
)
def test_a_schema_that_is_no_record_but_has_one_inside_is_projected_too(schema, rows):
    check("avro", avro_file(schema, rows), ["raw", "y"])


def test_text_that_is_not_utf8_in_a_column_that_is_not_chosen_makes_no_record_bad():
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": "string"} for name in "ab"]}
    data = avro_file(schema, [{"a": f"a{n}", "b": "xx"} for n in range(3)]).replace(b"xx", b"\xff\xfe")
    assert read("avro", data) == [(1, RecordError), (2, RecordError), (3, RecordError)]
    assert read("avro", data, "a") == [(1, b'{"a":"a0"}'), (2, b'{"a":"a1"}'), (3, b'{"a":"a2"}')]


def test_a_branch_that_is_not_there_is_an_error_in_a_column_that_is_not_chosen_too():
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "u", "type": ["null", "string"]}],
    }
    good = avro_file(schema, [{"a": 1, "u": "zzzz"}] * 2)
    at = good.rindex(b"\x02\x02\x08zzzz")
    for branch in (b"\x01", b"\x04"):
        with pytest.raises(CorruptObjectError, match=r"record 2: .*a union has no branch"):
            read("avro", good[: at + 1] + branch + good[at + 2 :], "a")


# ---- what is not there, and where the option has no sense


@pytest.mark.parametrize(
    ("form", "data", "columns", "said"),
    [
        ("parquet", PARQUET, ["n", "on"], r"it has no column 'on' .*'n', 's', 'day'"),
        ("parquet", PARQUET, ["one.z", "nope"], r"no column 'one.z', 'nope' .*it has 'one.x', 'one.y', 'one.deep'$"),
        ("parquet", PARQUET, ["by name.x"], r"no column 'by name.x'"),
        ("parquet", PARQUET, ["n.x"], r"no column 'n.x'"),
        ("avro", AVRO, ["many.f.g"], r"no column 'many.f.g' .*it has 'many.x', 'many.y'"),
        ("avro", AVRO, ["either.x"], r"no column 'either.x'"),
        ("avro", AVRO, ["map.x"], r"no column 'map.x'"),
        ("avro", avro_file("string", ["a"]), ["x"], r"no column 'x' .*it has no columns"),
        ("csv", b"amount,name\n1,2\n", ["amuont"], r"no column 'amuont' .*it has 2, among them 'amount'$"),
        ("csv", b"secret,4711\n1,2\n", ["name"], r"no column 'name' .*it has 2$"),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_column_that_does_not_exist_is_an_error_of_the_object_that_names_those_that_do(form, data, columns, said):
    with pytest.raises(CorruptObjectError, match=said) as caught:
        read(form, data, *columns)
    assert isinstance(caught.value, ObjectError)
    assert caught.value.location == f"memory://k.{form}"
    assert caught.value.record_number == 1


def test_the_error_is_short_and_printable_however_many_columns_there_are():
    table = pa.table({f"column\n{at}" * 30: [1] for at in range(500)})
    out = io.BytesIO()
    pq.write_table(table, out)
    with pytest.raises(CorruptObjectError, match="and more") as caught:
        read("parquet", out.getvalue(), "x")
    assert len(str(caught.value)) < 5000
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("form", ["jsonl", "json", "text", "bytes"])
def test_formats_that_send_what_they_read_refuse_the_option(form):
    with pytest.raises(ConfigError, match=rf"input.columns: records of {form} have no columns .*filter_fields"):
        make_transformer(InputOptions(format=form, columns=("a",)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "csv", "columns": ("a",), "csv_header": False}, "only with input.csv_header"),
        ({"format": "auto", "columns": ("a",), "csv_header": False}, "only with input.csv_header"),
        ({"format": "csv", "columns": ("a", "")}, "must not be empty"),
        ({"format": "avro", "columns": ("a", "a")}, "must not be there twice"),
    ],
)
def test_names_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        make_transformer(InputOptions(**options))


def test_by_the_keys_name_an_object_without_columns_is_an_error_of_the_object():
    transformer = make_transformer(InputOptions(format="auto", columns=("n",)))
    lines = BytesInput(b'{"n":1}\n', "a.jsonl")
    with pytest.raises(ObjectError, match=r"memory://a.jsonl: .*records of jsonl have no columns"):
        flat(transformer.read(lines))
    assert flat(transformer.read(BytesInput(PARQUET, "a.parquet")))[0] == (1, b'{"n":1}')
    assert flat(transformer.read(BytesInput(b"m,n\n1,2\n", "a.csv"))) == [(1, b'{"n":"2"}')]


def test_a_half_read_object_goes_on_with_other_columns():
    for form, data in (("parquet", PARQUET), ("avro", AVRO), ("csv", b"n,m\n1,2\n3,4\n5,6\n")):
        first = make_transformer(InputOptions(format=form, columns=("n",)))
        other = make_transformer(InputOptions(format=form))
        assert first.numbering_options() == other.numbering_options()
        run = next(iter(first.read(BytesInput(data, f"k.{form}"), limits=BatchLimits(records=2))))
        assert not isinstance(run, SkippedRecord)
        rest = flat(other.read(BytesInput(data, f"k.{form}"), skip=2, mark=run.mark))
        assert rest == read(form, data)[2:]


def test_only_one_of_two_columns_with_the_same_name_is_no_choice():
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([n]) for n in (1, 2, 3)], ["a", "b", "a"]), out)
    assert read("parquet", out.getvalue(), "b") == [(1, b'{"b":2}')]
    with pytest.raises(CorruptObjectError, match="two columns of the Parquet file have the same name"):
        read("parquet", out.getvalue(), "a")


def test_max_record_bytes_counts_what_is_sent():
    rows = [{"n": n, "text": "x" * 100} for n in range(5)]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    assert all(isinstance(found, type) for _, found in read("parquet", out.getvalue(), max_record_bytes=50))
    assert json.loads(read("parquet", out.getvalue(), "n", max_record_bytes=50)[4][1]) == {"n": 4}


def test_thousands_of_columns_are_found_in_a_few_steps_each():
    """Each name was compared with each column, which took a minute for each object."""
    fields = [Field(f"c{number}", nothing_inside) for number in range(20_000)]
    began = time.process_time()
    chosen = choose([f"c{number}" for number in range(0, 20_000, 2)], fields)
    assert time.process_time() - began < 2
    assert chosen == dict.fromkeys(range(0, 20_000, 2))


def test_many_missing_columns_are_a_short_error():
    fields = [Field(f"c{number}", nothing_inside) for number in range(2000)]
    with pytest.raises(CorruptObjectError) as error:
        choose([f"d{number}" for number in range(5000)], fields, listed=False)
    assert len(str(error.value)) < 1000
    assert "and more" in str(error.value)
