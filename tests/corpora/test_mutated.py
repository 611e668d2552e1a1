"""The search by mutated files in short: nothing is found in the formats, and what is wrong with one is."""

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.errors import CorruptObjectError
from tests.corpora import mutated, thrift
from transformers import jsonl
from transformers.parquet import ParquetTransformer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    table = pa.table({"n": [1, None, 3], "s": ["a", "", None], "l": [[1], [], None]})
    pq.write_table(table, folder / "a.parquet", row_group_size=2)
    (folder / "a.jsonl").write_bytes(b'{"n":1}\n' * 9)
    return folder


def test_a_footer_is_written_as_it_was_read(folder):
    data = (folder / "a.parquet").read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    tree, end = thrift.parse(footer)
    assert end == len(footer)
    assert thrift.write(tree) == footer


def test_mutants_differ_and_a_seed_gives_them_again(folder):
    data, chance = (folder / "a.parquet").read_bytes(), random.Random(5)
    changes = [change(data, chance) for _ in range(50) for change in (mutated.changed, mutated.with_changed_footer)]
    assert len(set(changes)) > 80
    assert mutated.changed(data, random.Random(7)) == mutated.changed(data, random.Random(7))


def test_nothing_is_found(folder, tmp_path, capsys):
    assert mutated.main([str(folder), "--mutants", "160", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "160 mutants of 2 readings, seed 1: 0 found\n"


def broken(way):
    """A format that ends the process, raises what is no error of an object, or takes much."""

    def read(*_, **__):
        if way == "ends":
            os.abort()
        if way == "takes":
            bytearray(mutated.MOST_MEMORY + (64 << 20))
        raise KeyError(way) if way == "raises" else CorruptObjectError("damaged")
        yield

    return read


@pytest.mark.parametrize(
    ("way", "said"), [("ends", "its process ended with -6"), ("raises", "KeyError: 'raises'"), ("takes", "it took ")]
)
def test_what_is_wrong_is_found(folder, tmp_path, capsys, monkeypatch, way, said):
    monkeypatch.setattr(mutated, "warm_up", lambda: None)  # it reads a file in this process
    for transformer in (ParquetTransformer, jsonl.JsonlTransformer):
        monkeypatch.setattr(transformer, "read", broken(way))
    assert mutated.main([str(folder), "--mutants", "3", "--out", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().out
    assert list((tmp_path / "out").iterdir())
