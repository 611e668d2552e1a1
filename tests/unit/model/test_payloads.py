"""A column of payloads is the same sequence as their list, however it was made, cut and joined."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.model.payloads import (
    ParsedRows,
    PayloadColumn,
    column_of,
    count_within,
    decode_objects,
    join_payloads,
    line_feeds,
    size_of,
)

lines = st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"-")), max_size=9)
cuts = st.lists(st.integers(-12, 12) | st.none(), min_size=2, max_size=2)


def column(payloads):
    return PayloadColumn(b"".join(payload + b"\n" for payload in payloads))


def same(made, payloads):
    assert len(made) == len(payloads)
    assert list(made) == payloads
    assert [made[number] for number in range(-len(payloads), len(payloads))] == payloads * 2
    assert made == payloads
    assert payloads == made
    assert made == column(payloads)
    assert made != column([*payloads, b""])
    assert size_of(made) == size_of(payloads)
    assert made.sizes.tolist() == list(map(len, payloads))
    assert made.ended_with(b"<end>") == b"".join(payload + b"<end>" for payload in payloads)
    for limit in range(30):
        assert count_within(made, limit) == count_within(payloads, limit)
    if all(payloads):
        assert made.first_bytes.tolist() == [payload[0] for payload in payloads]
        assert made.last_bytes.tolist() == [payload[-1] for payload in payloads]


@given(lines, cuts, cuts)
def test_a_column_is_its_list(payloads, cut, again):
    same(column(payloads), payloads)
    part = column(payloads)[slice(*cut)]
    same(part, payloads[slice(*cut)])
    same(part[slice(*again)], payloads[slice(*cut)][slice(*again)])


@given(st.lists(st.tuples(lines, st.booleans(), cuts), min_size=1, max_size=5))
def test_joined_parts_are_all_payloads(parts):
    made = [(column(part) if is_column else part)[slice(*cut)] for part, is_column, cut in parts]
    joined, expected = join_payloads(made), [payload for part in made for payload in part]
    if any(is_column for _, is_column, _ in parts):
        same(joined, expected)
    else:
        assert joined == expected


@given(st.lists(st.tuples(lines, st.sampled_from([None, "one", "other"]), cuts), min_size=1, max_size=4))
def test_rows_of_a_parser_stay_with_their_payloads(parts):
    made = []
    for payloads, decoder, cut in parts:
        parsed = None if decoder is None else ParsedRows(decoder, [payload.hex() for payload in payloads])
        made.append(column(payloads).with_parsed(parsed)[slice(*cut)])
    joined = PayloadColumn.join(made)
    assert joined.with_parsed(None).parsed is None
    decoders = {decoder for _, decoder, _ in parts}
    if len(decoders) > 1 or None in decoders:
        assert joined.parsed is None
    else:
        assert joined.parsed.decoder in decoders
        assert joined.parsed.rows == [payload.hex() for payload in joined]


def test_objects_that_a_decoder_has_parsed_are_not_decoded_again():
    decoder, rows = msgspec.json.Decoder(dict), [{"a": 1}]
    parsed = column([b'{"a":1}']).with_parsed(ParsedRows(decoder, rows))
    assert decode_objects(parsed, decoder) is rows
    decoded = decode_objects(parsed, msgspec.json.Decoder(dict))
    assert decoded == rows
    assert decoded is not rows


def test_payloads_with_line_feeds_stay_a_list():
    assert column_of([b"a\nb"]) is None
    assert join_payloads([column([b"c"]), [b"a\nb", b""]]) == [b"c", b"a\nb", b""]


@given(st.lists(st.integers(0, 40), max_size=20))
def test_line_feeds_are_found_at_every_distance(distances):
    data = b"".join(b"x" * distance + b"\n" for distance in distances)
    for extra in range(9):
        assert line_feeds(data + b"x" * extra).tolist() == [at for at, byte in enumerate(data) if byte == 10]


def test_a_slice_copies_nothing():
    whole = column([b"first", b"second", b"third"])
    assert whole[1:].data.obj is whole.data


def test_steps_and_indexes_beyond_the_end():
    made = column([b"a", b"b", b"c"])
    assert made[::-2] == [b"c", b"a"]
    for index in (3, -4):
        with pytest.raises(IndexError):
            made[index]


@pytest.mark.parametrize("data", [b"a", b"a\nb"])
def test_the_last_payload_has_an_end(data):
    with pytest.raises(ValueError, match="line feed"):
        PayloadColumn(data)
