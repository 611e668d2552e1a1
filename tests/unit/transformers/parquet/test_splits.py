"""Splits of Parquet: the row groups that begin in the split, by a footer that every split reads."""

import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import CorruptObjectError, StoreUnavailableError, TruncatedObjectError
from framework.model.parquet.files import ProbeFile
from framework.model.splits import Split
from framework.transformer import BatchLimits, InputOptions
from tests.support.packing import PACK
from tests.unit.transformers.avro.test_splits import splits_of
from tests.unit.transformers.test_columns import PARQUET_SCHEMA, parquet_rows
from tests.unit.transformers.test_lines import flat
from tests.unit.transformers.test_split_lines import Watched
from transformers import BytesInput, make_transformer


def transformer(**options):
    return make_transformer(InputOptions(**{"format": "parquet", "compression": "none"} | options))


def read(source, split, form=None, **more):
    return flat((form or transformer()).read_split(source, split, **more))


def write(table, **options):
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def numbers(count, **options):
    table = pa.table({"n": range(count), "s": [f"text {n}" for n in range(count)]})
    return write(table, **{"row_group_size": 13} | options)


def begins(data):
    meta = pq.ParquetFile(io.BytesIO(data)).metadata
    chunks = [meta.row_group(index).column(0) for index in range(meta.num_row_groups)]
    return [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]


def expected(data, split_size):
    """Split -> its records, by the places that the footer tells."""
    whole = [payload for _, payload in flat(transformer().read(BytesInput(data)))]
    meta = pq.ParquetFile(io.BytesIO(data)).metadata
    found = {split.number: [] for split in splits_of(len(data), split_size)}
    for index, begin in enumerate(begins(data)):
        count = meta.row_group(index).num_rows
        found[begin // split_size + 1] += whole[:count]
        whole = whole[count:]
    assert not whole
    return found


files = st.builds(
    numbers,
    st.integers(0, 80),
    row_group_size=st.integers(1, 40),
    compression=st.sampled_from(["none", "snappy", "gzip", "zstd"]),
    use_dictionary=st.booleans(),
    data_page_size=st.sampled_from([64, 1 << 20]),
)
limits = st.builds(BatchLimits, records=st.integers(1, 9), size_bytes=st.integers(1, 400))


@settings(max_examples=40)
@given(files, st.integers(100, 5000), limits, st.data())
def test_each_split_has_the_row_groups_that_begin_in_it_and_goes_on_at_any_record(data, split_size, limit, choice):
    source = BytesInput(data)
    splits = expected(data, split_size)
    for number, records in splits.items():
        assert read(source, Split(number, split_size), limits=limit) == list(enumerate(records, 1))
    number = choice.draw(st.sampled_from(sorted(splits)))
    skip = choice.draw(st.integers(0, len(splits[number]) + 1))
    rest = list(enumerate(splits[number], 1))[skip:]
    assert read(source, Split(number, split_size), skip=skip, limits=limit) == rest


def test_columns_of_every_kind_are_read_in_splits_as_in_the_whole():
    out = io.BytesIO()
    table = pa.Table.from_pylist(parquet_rows(60), PARQUET_SCHEMA)
    pq.write_table(table, out, row_group_size=7, use_deprecated_int96_timestamps=True)
    data = out.getvalue()
    for columns in ((), ("old.a", "many.x")):
        form = transformer(columns=columns)
        whole = [payload for _, payload in flat(form.read(BytesInput(data)))]
        for size in (1024, 7000, len(data) - 1):
            splits = [read(BytesInput(data), split, form) for split in splits_of(len(data), size)]
            assert [payload for records in splits for _, payload in records] == whole


def random_text(rows, **options):
    return write(
        pa.table({"x": os.urandom(8 * rows).hex(" ", 8).split(), "y": os.urandom(8 * rows).hex(" ", 8).split()}),
        use_dictionary=False,
        compression="none",
        **options,
    )


def test_a_split_fetches_the_footer_and_its_row_groups():
    data = random_text(100_000, row_group_size=10_000)
    size = len(data) // 4
    source, total = Watched(data), 0
    footer = 1 << 16  # what pyarrow reads at once
    places = [*begins(data), len(data)]
    for split in splits_of(len(data), size):
        source.asked.clear()
        source.read_bytes = 0
        records = read(source, split)
        own = [(at, end) for at, end in itertools.pairwise(places) if split.holds(at)]
        assert len(records) == 10_000 * len(own)
        for start, end in source.asked:
            assert start >= len(data) - footer or any(at <= start and end <= stop for at, stop in own)
        assert source.read_bytes <= sum(end - at for at, end in own) + 2 * footer
        total += source.read_bytes
    assert total <= len(data) + 5 * 2 * footer


def test_a_split_without_a_row_group_ends_with_no_records_and_fetches_the_footer_only():
    data = random_text(50_000, row_group_size=50_000)
    source = Watched(data)
    for split in splits_of(len(data), len(data) // 8)[1:]:
        assert read(source, split) == []
    assert {start for start, _ in source.asked} == {len(data) - (1 << 16)}
    assert len(read(source, Split(1, len(data) // 8))) == 50_000


def moved(monkeypatch, places):
    """Let row groups begin elsewhere, as the footer tells."""

    class Chunk:
        has_dictionary_page = False
        dictionary_page_offset = None

        def __init__(self, at):
            self.data_page_offset = at

    class Group:
        def __init__(self, group, at):
            self.group = group
            self.at = at

        def column(self, index):
            return Chunk(self.at)

        def __getattr__(self, name):
            return getattr(self.group, name)

    class Meta:
        def __init__(self, meta):
            self.meta = meta

        def row_group(self, index):
            return Group(self.meta.row_group(index), places[index])

        def __getattr__(self, name):
            return getattr(self.meta, name)

    from transformers.parquet.row_groups import RowReader

    find = RowReader._own_row_groups

    def find_moved(self, parquet, *arguments):
        class File:
            metadata = Meta(parquet.metadata)

        real = pq.ParquetFile

        def opened(file, metadata, **options):
            return real(file, metadata=metadata.meta, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pq, "ParquetFile", opened)
            return list(find(self, File(), *arguments))

    monkeypatch.setattr(RowReader, "_own_row_groups", find_moved)


@pytest.mark.parametrize(
    "places", [[900, 4, 1800], [-5, 10**15, 0], [0, 0, 0], [2**62, -(2**62), 2**62], [1200, 1200, 1199]]
)
def test_wherever_the_footer_says_that_row_groups_begin_each_belongs_to_one_split_in_order(places, monkeypatch):
    data = numbers(39)
    whole = [payload for _, payload in flat(transformer().read(BytesInput(data)))]
    moved(monkeypatch, places)
    for split_size in (100, 333, 1024):
        splits = [read(BytesInput(data), split) for split in splits_of(len(data), split_size)]
        assert [payload for records in splits for _, payload in records] == whole


def test_row_groups_behind_a_split_are_not_looked_at(monkeypatch):
    data, looked = numbers(3000, row_group_size=3), []
    is_asked = ProbeFile.is_asked
    monkeypatch.setattr(ProbeFile, "is_asked", lambda self, read: looked.append(1) or is_asked(self, read))
    assert read(BytesInput(data), Split(1, 1024))
    assert len(looked) < 100


@pytest.mark.parametrize(("columns", "said"), [((), "crypt"), (("n",), "[(1, b'{\"n\":1}'), (2, b'{\"n\":2}')]")])
def test_an_encrypted_first_column_is_an_error_and_never_the_end_of_the_process(columns, said):
    # in a process of its own, which the library may end
    script = f"""
import io, base64
import pyarrow as pa, pyarrow.parquet as pq, pyarrow.parquet.encryption as encryption
from framework.errors import CorruptObjectError
from framework.model.splits import Split
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
form = make_transformer(InputOptions(format="parquet", columns={columns!r}))
try:
    for number in (1, 2, 3):
        for run in form.read_split(BytesInput(out.getvalue()), Split(number, 1024)):
            print(list(enumerate(run.payloads, run.first_record)))
except CorruptObjectError as exc:
    print(exc)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert len(done.stdout.splitlines()) == 1


# ---- limits, damage, and what is packed


def test_pages_over_the_limit_fail_the_split_that_they_are_in():
    small = pa.table({"x": ["a" * 10_000] * 10})
    large = pa.table({"x": [os.urandom(1 << 20).hex()]})
    out = io.BytesIO()
    with pq.ParquetWriter(out, small.schema, use_dictionary=False, compression="none") as writer:
        writer.write_table(small)
        writer.write_table(large)
        writer.write_table(small)
    data = out.getvalue()
    form, places = transformer(max_page_bytes=1 << 20), begins(data)
    found = []
    for split in splits_of(len(data), places[1]):
        try:
            found.append(len(read(BytesInput(data), split, form)))
        except CorruptObjectError as exc:
            found.append("input.max_page_bytes" in str(exc))
    assert found[:2] == [10, True]
    assert sum(found[2:]) == 10


def test_the_expansion_is_limited_by_the_bytes_that_a_split_reads(monkeypatch):
    monkeypatch.setattr("transformers.compression.FREE_EXPANSION_BYTES", 1000)
    data = write(pa.table({"x": ["y" * 100] * 10_000}))
    limit = BatchLimits(records=500)
    with pytest.raises(CorruptObjectError, match=r"its records take more than \d+ bytes, of \d+ that are stored"):
        read(BytesInput(data), Split(1, 1024), transformer(max_expansion=5), limits=limit)
    assert len(read(BytesInput(data), Split(1, 1024), transformer(max_expansion=0), limits=limit)) == 10_000


def test_damage_of_the_footer_is_an_error_of_every_split():
    data = numbers(100)
    for damaged in (data[:-4] + b"XXXX", b"XXXX" + data[4:-8] + bytes(8), data[: len(data) // 2]):
        for split in splits_of(len(damaged), 1024):
            with pytest.raises(CorruptObjectError, match=rf"memory://k \(split {split.number} of "):
                read(BytesInput(damaged, "k"), split)


def test_the_stores_error_is_raised_as_it_is():
    data = random_text(20_000, row_group_size=5000)

    class Failing(BytesInput):
        def open(self, start=0, end=None):
            if start < len(data) - (1 << 16):
                raise StoreUnavailableError("away")
            return super().open(start, end)

    with pytest.raises(StoreUnavailableError, match="away"):
        read(Failing(data), Split(1, 100_000))


def test_an_object_shorter_than_listed_is_an_error_of_every_split():
    data = numbers(100)
    source = BytesInput(data[:-10])
    source.size = len(data)
    for split in splits_of(len(data), 1024):
        with pytest.raises(TruncatedObjectError):
            read(source, split)


@pytest.mark.parametrize("packing", ["gzip", "zstd", "snappy", "bzip2", "xz"])
def test_an_object_whose_name_hides_that_it_is_packed_is_read_whole_by_split_1(packing):
    data = PACK[packing](numbers(200))
    form = transformer(compression="auto")
    splits = splits_of(len(data), 500)
    assert [at for at, _ in read(BytesInput(data), splits[0], form)] == list(range(1, 201))
    assert [at for at, _ in read(BytesInput(data), splits[0], form, skip=198)] == [199, 200]
    for split in splits[1:]:
        assert read(BytesInput(data), split, form) == []
