"""A column's texts are those of its values one by one, whatever they are."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformers.json_time import date_text, time_text, timestamp_text
from transformers.parquet.arrow_texts import date_texts, decimal_texts, time_texts, timestamp_texts

DAY_SECONDS = 86_400
FIRST_DAY, END_DAY = -719_162, 2_932_897
"""0001-01-01, and the day after 9999-12-31."""


def columns(first, end, bits):
    """Lists of integers or nulls around a range of usual values, and how many of them to leave out in front."""
    usual = st.integers(first, end - 1)
    edges = st.sampled_from([first, first - 1, end - 1, end, 0, -1]).filter(lambda value: abs(value) < 2 ** (bits - 1))
    any_value = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    lists = [st.lists(st.none() | values, max_size=5) for values in (usual, usual | edges, any_value)]
    return st.tuples(st.one_of(lists), st.integers(0, 2))


def each(values, convert):
    return [None if value is None else convert(value) for value in values]


@pytest.mark.parametrize("zone", ["", "Z"])
@pytest.mark.parametrize("digits", [0, 3, 6, 9])
def test_timestamps(digits, zone):
    day = DAY_SECONDS * 10**digits
    first, end = max(FIRST_DAY * day, -(2**63)), min(END_DAY * day, 2**63 - 1)

    @given(columns(first, end, 64))
    def check(column):
        values, left_out = column
        texts = timestamp_texts(pa.array(values, pa.int64())[left_out:], digits, zone)
        assert texts.to_pylist() == each(values[left_out:], lambda value: timestamp_text(value, digits, zone))

    check()


@given(columns(FIRST_DAY, END_DAY, 32))
def test_dates(column):
    values, left_out = column
    assert date_texts(pa.array(values, pa.int32())[left_out:]).to_pylist() == each(values[left_out:], date_text)


@pytest.mark.parametrize(("digits", "bits"), [(0, 32), (3, 32), (6, 64), (9, 64)])
def test_times_of_day(digits, bits):
    @given(columns(0, DAY_SECONDS * 10**digits, bits))
    def check(column):
        values, left_out = column
        texts = time_texts(pa.array(values, pa.int32() if bits == 32 else pa.int64())[left_out:], digits)
        assert texts.to_pylist() == each(values[left_out:], lambda value: time_text(value, digits))

    check()


@given(st.integers(-4, 12), st.lists(st.none() | st.integers(-(10**9), 10**9) | st.integers(-99, 99), max_size=5))
def test_decimals(scale, values):
    decimals = [None if value is None else Decimal(value).scaleb(-scale) for value in values]
    for kind in (pa.decimal128(20, scale), pa.decimal256(40, scale)):
        texts = decimal_texts(pa.array(decimals, kind)[1:])
        assert texts.to_pylist() == [None if value is None else format(value, "f") for value in decimals[1:]]
