"""Lines that arrow-rs writes are those of the row encoder, byte for byte, whatever the columns hold."""

import io
import json
import math
from decimal import Decimal
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformers.parquet import row_encoder
from transformers.parquet.arrow_lines import LineWriter
from transformers.parquet.row_encoder import RowEncoder

texts = st.text() | st.text('"\\/\b\f\n\r\t\0\x1f\x7f\u2028é€😀', max_size=8)
floats = (
    st.floats()
    | st.sampled_from([0.0, -0.0, 1e-5, 9.999999999999999e-06, 1e10, 9999999999.999998, 1e15, 1e16, 5e-324, math.nan])
    | st.floats(1e-5, 1e10, exclude_max=True)
)


def integers(bits, *, signed=True):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def decimals(scale):
    return st.integers(-(10**9), 10**9).map(lambda value: Decimal(value).scaleb(-scale))


LEAVES = [
    (pa.int8(), integers(8)),
    (pa.int64(), integers(64)),
    (pa.uint64(), integers(64, signed=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), texts),
    (pa.large_string(), texts),
    (pa.float64(), floats),
    (pa.null(), st.none()),
]
TOPS = [
    *LEAVES,
    (pa.float32(), st.floats(width=32)),
    (pa.float16(), st.floats(width=16)),
    (pa.decimal128(20, 4), decimals(4)),
    (pa.decimal128(20, 9), decimals(9)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), integers(64)),
    (pa.timestamp("ns"), integers(64)),
    (pa.time64("us"), st.times()),
]
LEFT_TO_ROWS = [(pa.binary(), st.binary(max_size=4)), (pa.duration("s"), st.integers(0, 99))]


def lists(inner):
    return inner.map(lambda pair: (pa.list_(pair[0]), st.lists(st.none() | pair[1], max_size=3)))


def structs(inner):
    return st.lists(inner, min_size=1, max_size=3).map(
        lambda pairs: (
            pa.struct([(f"f\0{at}" if at > 1 else f'"{at}', kind) for at, (kind, _) in enumerate(pairs)]),
            st.fixed_dictionaries(
                {f"f\0{at}" if at > 1 else f'"{at}': st.none() | values for at, (_, values) in enumerate(pairs)}
            ),
        )
    )


nested = st.recursive(st.sampled_from(LEAVES), lambda inner: lists(inner) | structs(inner), max_leaves=4)


@st.composite
def tables(draw, kinds):
    columns = draw(st.lists(kinds, min_size=1, max_size=4))
    names = draw(st.lists(texts, min_size=len(columns), max_size=len(columns), unique=True))
    rows = draw(st.integers(1, 5))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind) for kind, values in columns
    ]
    return pa.table(arrays, names=names)


def both_ways(table, drop=0):
    """The payloads by rows and by lines, of the batch that pyarrow reads of a file."""
    file = io.BytesIO()
    pq.write_table(table, file)
    file = pq.ParquetFile(file)
    batch = next(file.iter_batches()).slice(drop)
    encoder = RowEncoder(batch.schema, file.schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_encoder, "_LINES_ROWS", 0)
        quick = list(encoder.payloads(batch))
        patch.setattr(LineWriter, "lines", lambda _, __: None)
        return list(encoder.payloads(batch)), quick


@given(tables(st.sampled_from(TOPS) | nested), st.integers(0, 2))
@settings(deadline=None)
def test_lines_are_the_rows(table, drop):
    by_rows, by_lines = both_ways(table, drop)
    assert len(by_rows) == max(0, table.num_rows - drop)
    assert by_lines == by_rows


@given(tables(st.sampled_from(LEFT_TO_ROWS) | nested))
@settings(deadline=None)
def test_lines_beside_columns_that_are_left_to_rows(table):
    by_rows, by_lines = both_ways(table)
    assert by_lines == by_rows


def lines(*arrays):
    batch = pa.record_batch(list(arrays), names=[f"c{at}" for at in range(len(arrays))])
    writer = LineWriter.of(batch.schema)
    found = None if writer is None else writer.lines(batch)
    return None if found is None else list(found)


def test_what_is_written_as_lines():
    row = {"s": "é", "l": [1.5, None]}
    assert lines(pa.array([1, None]), pa.array([row, None]), pa.array([0.0, 1e-5])) == [
        '{"c0":1,"c1":{"s":"é","l":[1.5,null]},"c2":0.0}'.encode(),
        b'{"c0":null,"c1":null,"c2":0.00001}',
    ]
    assert lines(pa.array([Decimal("1.50")]), pa.array([0], pa.timestamp("ms", "UTC"))) == [
        b'{"c0":"1.50","c1":"1970-01-01T00:00:00.000Z"}'
    ]


IN_RECORDS = pa.struct([("x", pa.struct([("y", pa.int8())]))])


@pytest.mark.parametrize("kind", [IN_RECORDS, pa.list_(IN_RECORDS), pa.struct([("l", pa.list_(IN_RECORDS))])])
@pytest.mark.parametrize(("begin", "end"), [(0, 9), (0, 3), (1, 9), (4, 7), (4, 4), (9, 9)])
def test_records_in_records_from_within_a_batch(kind, begin, end):
    """A batch that is read on from its middle shares the buffers of the whole one."""
    rows = [{"x": {"y": at}} for at in range(9)]
    if kind != IN_RECORDS:
        rows = [[row, None] if kind == pa.list_(IN_RECORDS) else {"l": [row]} for row in rows]
    array = pa.array(rows, kind)
    expected = [json.dumps({"c0": row}, separators=(",", ":")).encode() for row in rows[begin:end]]
    assert lines(array.slice(begin, end - begin)) == expected
    if kind == IN_RECORDS:
        outer = pa.StructArray.from_arrays([array.slice(begin, end - begin)], ["o"])
        assert lines(outer) == [line.replace(b'{"c0":', b'{"c0":{"o":') + b"}" for line in expected]


def test_what_the_writer_cannot_do_is_left_to_rows(monkeypatch):
    class PanicException(BaseException):
        """As pyo3 has it: no `Exception`."""

    def fail(error):
        monkeypatch.setattr("transformers.parquet.arrow_lines.write_ndjson", Mock(side_effect=error))

    fail(PanicException("assertion failed"))
    assert lines(pa.array([1])) is None
    fail(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        lines(pa.array([1]))


@pytest.mark.parametrize("value", [1e10, 9e-6, -1e10, math.nan, math.inf, -math.inf])
def test_floats_of_another_form_are_left_to_rows(value):
    assert lines(pa.array([1.0, value])) is None
    assert lines(pa.array([[1.0], [value]])) is None
    assert lines(pa.array([{"x": 1.0}, {"x": value}])) is None


@pytest.mark.parametrize("kind", [pa.binary(), pa.map_(pa.string(), pa.int8()), pa.list_(pa.date32()), pa.struct([])])
def test_types_that_are_left_to_rows(kind):
    assert LineWriter.of(pa.schema([("a", pa.int8()), ("b", kind)])) is None


@pytest.mark.parametrize("field", [("a\0", pa.int8()), ("a", pa.struct([("\0b", pa.int8())]))])
def test_names_with_a_zero_are_left_to_rows(field):
    assert LineWriter.of(pa.schema([("a", pa.int8()), field])) is None


@pytest.mark.parametrize("nest", [lambda array: array, lambda array: pa.StructArray.from_arrays([array], ["x"])])
def test_text_that_is_not_utf_8_never_reaches_the_writer(nest):
    """It trusts Arrow's text, so this would be undefined behaviour there."""
    broken = pa.array([b"a", b"\xff"]).view(pa.string())
    assert lines(nest(broken)) is None
