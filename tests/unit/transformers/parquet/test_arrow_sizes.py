"""What rows take is counted as their values are, wherever in a column they begin."""

import pyarrow as pa
import pytest

from transformers.parquet.arrow_sizes import Sizes, row_sizes, text_bytes

NAMED = pa.struct([("abc", pa.int8()), ("d", pa.string())])
UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 4, pa.binary(16)))
WORDS = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1], "int32"), pa.array(["x" * 10, "y" * 20]))
OF_ABC, OF_D, OF_V = len('"abc":,'), len('"d":,'), len('"v":,')


def lists(items, *ends):
    return pa.ListArray.from_arrays(pa.array([0, *ends], "int32"), items)


def views(items, *sizes):
    """As Parquet gives them: each begins where the one before it ends."""
    counts = [size or 0 for size in sizes]
    offsets = [sum(counts[:at]) for at in range(len(counts))]
    null = pa.array([size is None for size in sizes])
    return pa.LargeListViewArray.from_arrays(pa.array(offsets), pa.array(counts), items, mask=null)


@pytest.mark.parametrize(
    ("array", "values", "dictionary_bytes", "names", "texts"),
    [
        (pa.array([1, None, 3]), 3, 0, 0, 0),
        (pa.array(["é", None, "xyz"]), 3, 0, 0, 5),
        (pa.array([b"ab"], pa.large_binary()), 1, 0, 0, 2),
        (WORDS, 4, 50, 0, 0),
        (UUIDS, 4, 0, 0, 0),
        (pa.array([{"abc": 1, "d": "xy"}, None], NAMED), 6, 0, OF_ABC + OF_D, 2),
        (pa.array([[{"abc": 1, "d": "xy"}] * 3, None, []], pa.list_(NAMED)), 12, 0, 3 * (OF_ABC + OF_D), 6),
        (views(pa.array([{"abc": 1}], NAMED), 1, None), 5, 0, OF_ABC + OF_D, 0),
        (pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8()), 1)), 8, 0, 0, 0),
        (pa.array([[("k", {"abc": 1})], []], pa.map_(pa.string(), NAMED)), 6, 0, OF_ABC + OF_D, 1),
        (lists(WORDS, 1, 4), 6, 50, 0, 0),
        (lists(UUIDS, 1, 4), 6, 0, 0, 0),
    ],
)
def test_what_stands_in_an_array_is_counted(array, values, dictionary_bytes, names, texts):
    found = row_sizes(pa.RecordBatch.from_arrays([array], ["v"]))
    assert found == Sizes(values, dictionary_bytes, names + OF_V * len(array))
    assert text_bytes(array) == texts
    around = pa.concat_arrays([array, array, array]).slice(len(array), len(array))
    assert row_sizes(pa.RecordBatch.from_arrays([around], ["v"])) == found
    assert text_bytes(around) == texts
