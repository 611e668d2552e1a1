"""Many rows at once are the same bytes as each row by itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.model.payloads import PayloadColumn, longest
from transformers import row_json
from transformers.row_json import encode, encode_all, row_maker

values = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.lists(st.text("\n\r\0a"))
)


@pytest.mark.parametrize("names", [("a", "b"), ("a\nb", 'c"d')])
@given(rows=st.lists(st.tuples(values, values), max_size=5))
@settings(deadline=None)
def test_many_rows_are_each_row(rows, names):
    make = row_maker(names)
    expected = [encode(make(*row)) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_json, "_COLUMN_ROWS", 0)
        made = encode_all((make(*row) for row in rows), len(rows))
    assert isinstance(made, PayloadColumn)
    assert list(made) == expected == list(encode_all([make(*row) for row in rows], len(rows)))
    assert longest(made) == longest(expected)


def test_makers_of_very_many_names_are_not_kept():
    """A hostile header names 100,000 columns: 64 of them took 2.5 GB."""
    kept = row_json._kept_maker.cache_info
    before = kept().misses
    for names in (tuple(f"c{at}" for at in range(1001)), ("a" * 70_000, "b")):
        assert encode(row_maker(names)(*range(len(names)))) == encode(dict(zip(names, range(len(names)), strict=True)))
    assert kept().misses == before
    assert row_maker(("a", "only here")) is row_maker(("a", "only here"))
    assert kept().misses == before + 1


def test_a_row_without_a_form_fails_all():
    with pytest.raises(ValueError, match="surrogates"):
        encode_all([("a",), ("\ud800",)] * 100, 200)
