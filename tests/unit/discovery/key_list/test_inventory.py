"""S3 inventories: manifests and data files, in CSV and in Parquet; everything that is not whole is refused."""

import codecs
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.discovery.key_list import inventory as inventory_module
from framework.discovery.key_list.inventory import DataFile, copy_checked, data_rows, parse_manifest
from framework.errors import KeyListError
from tests.support import parquet_parts as parts
from tests.support.inventory import Line, csv_data, manifest, parquet_data

FORMS = {"CSV": (csv_data, "data.csv.gz"), "Parquet": (parquet_data, "data.parquet")}


def told(form="CSV", files=(("d/1", b"x"),), **changed):
    content = manifest("lake", "reports", dict(files), form) | changed
    return json.dumps({name: value for name, value in content.items() if value is not None}).encode()


def rows_of(form, lines):
    make, name = FORMS[form]
    inventory = parse_manifest(told(form), "manifest.json")
    return list(data_rows(inventory, io.BytesIO(make(lines, "lake")), name))


def as_line(row):
    """The line that a row was made of; what a file cannot tell apart is left as it reads."""
    return Line(
        key=row.key,
        size=row.size,
        etag=row.etag or None,
        modified_ms=row.modified_ms,
        latest=row.latest,
        delete_marker=row.delete_marker,
        bucket=row.bucket,
        storage_class=row.storage_class or None,
    )


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
lines = st.builds(
    Line,
    key=texts,
    size=st.none() | st.integers(0, 5 << 40),
    etag=st.none() | st.sampled_from(["d41d8cd98f00b204e9800998ecf8427e", "ab-17"]),
    modified_ms=st.none() | st.integers(0, 4_000_000_000_000),
    version_id=st.none() | st.just("3HL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY"),
    latest=st.booleans(),
    delete_marker=st.booleans(),
    bucket=st.just("lake"),
    storage_class=st.sampled_from([None, "STANDARD", "GLACIER"]),
)
ODD = ["a b", "a+b", "a%2Fb", '"', "'", ",", "line\nbreak\r", "日本", "\uffff\U0010ffff", " ", "\x01"]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=50, deadline=None)  # the first one loads pyarrow
@given(some=st.lists(lines, max_size=20))
@example(some=[Line(key=key, latest=True, delete_marker=False, bucket="lake") for key in ODD])
def test_any_inventory_comes_back_as_it_was_written(form, some):
    assert [as_line(row) for row in rows_of(form, some)] == [attrs.evolve(line, version_id=None) for line in some]


def test_what_a_version_is_stays_true_when_the_inventory_does_not_say_it():
    for form in FORMS:
        (row,) = rows_of(form, [Line(key="a")])
        assert row.latest
        assert not row.delete_marker
        assert (row.size, row.etag, row.modified_ms) == (None, "", None)


def test_parquet_times_in_other_units_are_milliseconds_all_the_same():
    for unit, factor in (("s", 0.001), ("us", 1000), ("ns", 1_000_000)):
        values = pa.array([int(1_717_156_800_000 * factor)], pa.timestamp(unit, "UTC"))
        table = pa.table({"key": ["a"], "last_modified_date": values})
        out = io.BytesIO()
        pq.write_table(table, out)
        inventory = parse_manifest(told("Parquet"), "manifest.json")
        (row,) = data_rows(inventory, io.BytesIO(out.getvalue()), "data.parquet")
        assert row.modified_ms == 1_717_156_800_000


# ---- manifests


def test_a_manifest_says_where_its_files_lie():
    inventory = parse_manifest(told(files=[("d/1", b"one"), ("d/2", b"")]), "manifest.json")
    assert inventory.source_bucket == "lake"
    assert inventory.files == (
        DataFile(key="d/1", size=3, md5="f97c5d29941bfb1b2fdab0874906ab82"),
        DataFile(key="d/2", size=0, md5="d41d8cd98f00b204e9800998ecf8427e"),
    )
    assert parse_manifest(told(sourceBucket="arn:aws:s3:::lake"), "m").source_bucket == "lake"
    assert parse_manifest(told(destinationBucket=None), "m").files


def test_a_manifest_with_a_byte_order_mark_is_read():
    assert parse_manifest(codecs.BOM_UTF8 + told(), "manifest.json") == parse_manifest(told(), "manifest.json")


def test_a_manifest_cut_anywhere_is_refused():
    content = told()
    for cut in range(len(content)):
        with pytest.raises(
            KeyListError, match=r"manifest\.json: no JSON .*cut short: supply the whole inventory again"
        ):
            parse_manifest(content[:cut], "manifest.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            told("ORC"),
            "its data files are ORC, which cannot be read here; have the inventory written as CSV or Parquet",
        ),
        (told(files=[], sourceBucket=None), "no manifest of an S3 Inventory .* missing required field `sourceBucket`"),
        (told(fileSchema=None), "missing required field `fileSchema`"),
        (b"[]", "no manifest of an S3 Inventory"),
        (b'"text"', "no manifest of an S3 Inventory"),
        (b'{"entries": []}', "no manifest of an S3 Inventory"),
        (told() + b"\xff", "no JSON"),
        (told(files=[("", b"x")]), "`str` of length >= 1 - at .*files.*key"),
        (told(fileSchema="Bucket, Size"), "none of its columns is named key"),
    ],
)
def test_what_is_no_manifest_is_refused(content, said):
    with pytest.raises(KeyListError, match=said):
        parse_manifest(content, "manifest.json")


# ---- data files that are not whole


def checked(data, told_by):
    (file,) = parse_manifest(told(files=[("d/1", told_by)]), "manifest.json").files
    target = io.BytesIO()
    copy_checked(io.BytesIO(data), target, file, "d/1")
    return target.getvalue()


def test_a_data_file_is_compared_with_its_manifest():
    assert checked(b"content", b"content") == b"content"
    with pytest.raises(KeyListError, match="d/1: 4 bytes, but the manifest says 7; none of it was used"):
        checked(b"cont", b"content")
    with pytest.raises(KeyListError, match="d/1: its MD5 is not that of the manifest; none of it was used"):
        checked(b"c0ntent", b"content")


def test_without_a_checksum_the_length_counts():
    copy_checked(io.BytesIO(b"abc"), None, DataFile(key="d", size=3), "d")
    copy_checked(io.BytesIO(b"abc"), None, DataFile(key="d"), "d")
    with pytest.raises(KeyListError):
        copy_checked(io.BytesIO(b"abc"), None, DataFile(key="d", size=4), "d")


@pytest.mark.parametrize("form", FORMS)
def test_data_that_are_not_what_they_say_are_refused(form):
    inventory = parse_manifest(told(form), "manifest.json")
    make, name = FORMS[form]
    whole = make([Line(key=f"k{n}", bucket="lake") for n in range(30)], "lake")
    for content in (b"no such thing", whole[:-9], b"PAR1" + whole[4:-4] + b"PAR2"):
        with pytest.raises(KeyListError, match=name):
            list(data_rows(inventory, io.BytesIO(content), name))


def test_a_row_with_too_few_fields_is_named():
    inventory = parse_manifest(told(), "manifest.json")
    short = gzip.compress(b'"lake","a","","","","1","","",""\n"lake","b"\n')
    with pytest.raises(KeyListError, match=r"data\.csv\.gz, row 2: 2 fields where 9 are expected"):
        list(data_rows(inventory, io.BytesIO(short), "data.csv.gz"))


def test_parquet_without_a_key_or_with_senseless_times_is_refused():
    inventory = parse_manifest(told("Parquet"), "manifest.json")
    for columns, said in (
        ({"name": ["a"]}, "none of its columns"),
        ({"key": ["a"], "last_modified": ["soon"]}, "timestamp"),
    ):
        out = io.BytesIO()
        pq.write_table(pa.table(columns), out)
        with pytest.raises(KeyListError, match=said):
            list(data_rows(inventory, io.BytesIO(out.getvalue()), "data.parquet"))


@pytest.mark.parametrize("content", [b"[" * 200_000, told().replace(b'"size": 1', b'"size": 1e999')])
def test_a_manifest_that_no_program_would_write_is_refused_by_its_name(content):
    assert content != told()
    with pytest.raises(KeyListError, match=r"manifest\.json"):
        parse_manifest(content, "manifest.json")


NO_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"key": NO_TEXT}, "no Parquet file of an inventory"),
        ({"key": [["a"]]}, "key is no column of texts"),
        ({"key": ["a"], "size": ["5.0"]}, "its size is no number of bytes"),
        ({"key": ["a"], "size": [float("nan")]}, "its size is no number of bytes"),
        ({"key": ["a"], "size": [-5]}, "its size is no number of bytes"),
        ({"key": ["a"], "etag": [5]}, "its etag is no text"),
        ({"key": ["a"], "bucket": [[5]]}, "bucket is no column of texts"),
        ({"key": ["a"], "size": [[5]]}, "size is no column of texts, numbers"),
        ({"key": ["a"], "etag": [{"x": "y"}]}, "etag is no column of texts"),
        ({"key": ["a"], "etag": pa.array([b"abc"], pa.binary(3))}, "etag is no column of texts"),
        ({"key": ["a" * 2_000_000]}, "the pages that are read at once take more than the limit of an inventory"),
        ({"key": ["a"], "is_latest": ["no"]}, "its is_latest is no boolean"),
        ({"key": ["a"], "is_delete_marker": [0]}, "its is_delete_marker is no boolean"),
    ],
)
def test_parquet_with_values_of_another_kind_is_refused(columns, reason):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    out.seek(0)
    inventory = parse_manifest(told("Parquet"), "manifest.json")
    with pytest.raises(KeyListError, match=rf"data\.parquet[,:] .*{reason}"):
        list(data_rows(inventory, out, "data.parquet"))


def test_parquet_with_texts_for_numbers_and_booleans_means_what_they_say():
    """A text "false" that counted as true would make every row a delete marker."""
    out = io.BytesIO()
    pq.write_table(pa.table({"key": ["a"], "size": ["5"], "is_latest": ["true"], "is_delete_marker": ["false"]}), out)
    out.seek(0)
    (row,) = data_rows(parse_manifest(told("Parquet"), "manifest.json"), out, "data.parquet")
    assert (row.size, row.latest, row.delete_marker) == (5, True, False)


@pytest.mark.parametrize("changed", [{"fileSchema": "a," * 1_000_000}, {"fileFormat": "C" * 1_000_000}])
def test_an_error_repeats_little_of_a_manifest(changed):
    content = json.dumps({**json.loads(told()), **changed}).encode()
    with pytest.raises(KeyListError) as caught:
        parse_manifest(content, "manifest.json")
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    ("length", "said"),
    [(5_000, "etag has 50,000,000 bytes in 10,000 rows"), (100_000, "the pages .* take more .* from column etag on")],
)
def test_parquet_with_a_long_value_in_every_row_is_refused(stored, length, said):
    rows, value = 10_000, "x" * length
    etags = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value]))
    out = io.BytesIO()
    pq.write_table(pa.table({"key": [f"k{row}" for row in range(rows)], "etag": etags}), out, store_schema=stored)
    assert out.tell() < 200_000
    inventory = parse_manifest(told("Parquet"), "manifest.json")
    with pytest.raises(KeyListError, match=rf"data\.parquet, behind row 0: {said}"):
        list(data_rows(inventory, io.BytesIO(out.getvalue()), "data.parquet"))


def test_parquet_with_pages_that_unfold_is_refused_before_they_do(monkeypatch):
    """All words are in the dictionary, which the number of rows allows; the rows name the first."""
    monkeypatch.setattr(inventory_module, "_MAX_PAGES_AT_ONCE", 1 << 20)
    rows, words = 10_000, [f"{number:08}" + "a" * 50_000 for number in range(100)]
    keys = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["k", *words]))
    out = io.BytesIO()
    pq.write_table(
        pa.table({"key": keys}), out, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False
    )
    assert out.tell() < 10_000
    inventory = parse_manifest(told("Parquet"), "manifest.json")
    before = pa.default_memory_pool().max_memory()
    reason = r"data\.parquet, behind row 0: the pages that are read at once take more than the limit of an inventory"
    with pytest.raises(KeyListError, match=reason):
        list(data_rows(inventory, io.BytesIO(out.getvalue()), "data.parquet"))
    assert pa.default_memory_pool().max_memory() - before < 3 << 20


def test_parquet_of_long_keys_in_several_row_groups_is_read():
    rows = 30_000
    keys = [f"{row:06}" + "k" * 1000 for row in range(rows)]
    columns = {
        "bucket": ["lake"] * rows,
        "key": keys,
        "size": range(rows),
        "e_tag": [f"{row:032}" for row in range(rows)],
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=12_000)
    inventory = parse_manifest(told("Parquet"), "manifest.json")
    found = list(data_rows(inventory, io.BytesIO(out.getvalue()), "data.parquet"))
    assert [row.key for row in found] == keys
    assert [row.number for row in found] == list(range(1, rows + 1))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_parquet_whose_row_group_has_other_columns_than_its_schema_is_refused(count, monkeypatch):
    monkeypatch.setattr(inventory_module, "columns_of", lambda names, _: [("key", 0)] if names else [])
    page = parts.data_page(1, parts.string(b"a"))
    content = parts.parquet(*[parts.column([page], rows=1)] * count, rows=1, in_schema=2)
    inventory = parse_manifest(told("Parquet"), "manifest.json")
    with pytest.raises(KeyListError, match=rf"data\.parquet: row group 1 has {count} columns, its schema 2"):
        list(data_rows(inventory, io.BytesIO(content), "data.parquet"))


def test_parquet_with_an_encrypted_column_is_an_error_and_never_the_end_of_the_process():
    # in a process of its own, which the library may end
    script = """
import base64, io
import pyarrow as pa, pyarrow.parquet as pq, pyarrow.parquet.encryption as encryption
from framework.discovery.key_list.inventory import data_rows, parse_manifest
from framework.errors import KeyListError
from tests.unit.discovery.key_list.test_inventory import told

class Keys(encryption.KmsClient):
    def __init__(self, config):
        super().__init__()
    def wrap_key(self, key, _):
        return base64.b64encode(key)
    def unwrap_key(self, wrapped, _):
        return base64.b64decode(wrapped)

configuration = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["e_tag"]}, plaintext_footer=True)
properties = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), configuration)
out = io.BytesIO()
table = pa.table({"key": ["a", "b"], "e_tag": ["1", "2"]})
with pq.ParquetWriter(out, table.schema, encryption_properties=properties) as writer:
    writer.write_table(table)
try:
    print(list(data_rows(parse_manifest(told("Parquet"), "m"), io.BytesIO(out.getvalue()), "data.parquet")))
except KeyListError as exc:
    print(exc)
"""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data.parquet: the columns of row group 1 cannot be opened; are they encrypted?")
