"""Headers: cut into legal pieces, and put together again."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.iggy.header_decoding import (
    join_provenance,
    merge_headers,
    split_of,
)
from framework.model import header_encoding as headers_module
from framework.model.header_encoding import (
    MAX_HEADERS_BYTES,
    MAX_OWN_HEADERS_BYTES,
    EncodedHeaders,
    encode_headers,
    headers_error,
    own_headers_room,
    provenance,
)
from framework.model.objects import NativeObject
from framework.model.splits import Split
from tests.support.header_blocks import decode_headers, header_fields

keys = st.text(max_size=1024).filter(lambda key: len(key.encode()) <= 1024)


@given(keys)
@example("")
@example("a" * 255)
@example("a" * 256)
@example("a" * 254 + "\u00fc")
@example("\U0001f600" * 256)
def test_any_key_comes_back_from_legal_pieces(key):
    block = encode_headers({"bucket": "b", "key": key, "version": "v"})
    for (name_kind, name), (value_kind, value) in header_fields(block):
        assert (name_kind, value_kind) == (2, 2)
        assert 1 <= len(name) <= 255
        assert 1 <= len(value) <= 255
        value.decode()
    expected = {"bucket": "b", "version": "v"} | ({"key": key} if key else {})
    assert join_provenance(decode_headers(block)) == expected


@pytest.mark.parametrize(("length", "pieces"), [(1, 1), (254, 1), (255, 1), (256, 2), (510, 2), (511, 3), (1024, 5)])
def test_no_more_pieces_than_needed(length, pieces):
    headers = decode_headers(encode_headers({"key": "x" * length}))
    assert list(headers) == ["key", *(f"key.{number}" for number in range(1, pieces))]


def test_a_key_that_is_no_unicode_is_stored_raw_and_comes_back():
    key = "caf\udce9" * 100
    block = encode_headers({"key": key})
    assert {kind for _, (kind, _) in header_fields(block)} == {1}
    assert join_provenance(decode_headers(block)) == {"key": key}


def test_a_name_that_would_stand_twice_is_refused():
    with pytest.raises(
        ValueError, match="'key' is longer than 255 bytes, and another has the name of its continuation"
    ):
        encode_headers({"key": "x" * 300, "key.1": "y"})


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("key", {"bucket", "version"}),
        ("key.1", {"bucket", "version"}),  # the name of the second piece of a long key
        ("version.23", {"bucket", "key"}),
        ("key.id", {"bucket", "key", "version"}),
        ("version.app", {"bucket", "key", "version"}),
        ("key.id.1", {"bucket", "key", "version"}),
        ("key.01", {"bucket", "key", "version"}),
        ("key.", {"bucket", "key", "version"}),
        ("keys", {"bucket", "key", "version"}),
    ],
)
def test_only_a_header_of_the_same_name_or_of_a_piece_replaces_one_of_the_object(name, left):
    of_object = {"bucket": "lake", "key": "k" * 300, "version": "v"}
    merged = merge_headers(of_object, {name: "own" * 100})
    assert merged.keys() == left | {name}
    assert join_provenance(decode_headers(encode_headers(merged)))[name] == "own" * 100


@pytest.mark.parametrize("name", ["", "n" * 256, "\u00fc" * 128])
def test_a_name_of_another_length_is_refused(name):
    with pytest.raises(ValueError, match="1 to 255 bytes"):
        encode_headers({name: "x"})


def test_too_many_bytes_are_refused():
    with pytest.raises(ValueError, match="more than 100,000 bytes"):
        encode_headers({"key": "x" * 100_000})


def test_a_value_of_many_megabytes_is_not_divided_into_more_pieces_than_are_stored(monkeypatch):
    cut, made = headers_module._cut, []

    def counted(*value, **options):
        for piece in cut(*value, **options):
            made.append(piece)
            yield piece

    monkeypatch.setattr(headers_module, "_cut", counted)
    reason = "headers take more than 100,000 bytes"
    assert headers_error({"n": "x" * 10_000_000}).startswith(
        f"its {reason}, at most 90,000 can be stored; the longest is 'n'"
    )
    assert len(made) < 400


def test_headers_of_others_do_no_harm():
    assert join_provenance({"a.1": "lonely", "n": 7, "t": True, b"raw": b"\xff"}) == {
        "a.1": "lonely",
        "n": "7",
        "t": "True",
        "b'raw'": "\\xff",
    }


def test_split_is_there_when_split():
    native = NativeObject(bucket="b", key="k", size=1, version="v")
    assert provenance(native) == {"bucket": "b", "key": "k", "version": "v"}
    split = provenance(native, split=Split(12, 1 << 26))
    assert split["share"] == "12/67108864"
    assert split_of(split) == Split(12, 1 << 26)
    assert split_of(provenance(native)) is None


@pytest.mark.parametrize("value", ["", "3", "0/5", "3/0", "-1/5", "3/5 ", "3/5/7", "x/y", "\u0663/5", "3/" + "9" * 30])
def test_a_split_that_is_none_of_ours_is_none(value):
    assert split_of({"share": value}) is None


values = (
    st.text(max_size=600)
    | st.binary(max_size=600)
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
)


@given(st.dictionaries(st.text(min_size=1, max_size=20), values, max_size=5))
def test_values_of_every_kind_come_back(headers):
    if headers_error(headers) is not None:
        return
    block = encode_headers(headers)
    found = decode_headers(block)
    for name, value in headers.items():
        if value in ("", b""):
            assert name not in found
        elif not isinstance(value, str | bytes):
            assert (found[name], type(found[name])) == (value, type(value))
        elif len(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")) <= 255:
            assert found[name] == (
                value if isinstance(value, bytes) or is_unicode(value) else value.encode("utf-8", "surrogatepass")
            )


def is_unicode(text):
    return text == text.encode("utf-8", "ignore").decode()


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"": "x"}, "1 to 255 bytes"),
        ({"n" * 256: "x"}, "1 to 255 bytes"),
        ({"n" * 255: "x" * 256}, "with the number of its continuation"),
        ({5: "x"}, "is int, not text"),
        ({"\udc00": "x"}, "not valid Unicode"),
        ({"n": None}, "is NoneType"),
        ({"n": [1]}, "is list"),
        ({"n": 2**64}, "more than 64 bits"),
        ({"n": -(2**63) - 1}, "more than 64 bits"),
        ({"n": "x" * 90_000}, "at most 90,000"),
        ({"n": "x" * 600, "n.1": "y"}, "name of its continuation"),
        ({"n.1": "y", "n": b"x" * 256}, "name of its continuation"),
        ({"n": "x" * 256, 5: ""}, "is int, not text"),
        ({"n": "x" * 256, "": b""}, "1 to 255 bytes"),
    ],
)
def test_headers_that_cannot_be_stored(headers, reason):
    assert reason in headers_error(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"n": "x" * 255, "n.1": "y"},
        {"n": b"x" * 255, "n.1": "y"},
        {"n": "x" * 600, "n.x": "y", "n.": "y", "m.1": "y", ".1": "y"},
        {"n": "x" * 64, "n.1": "y"},
    ],
)
def test_headers_beside_each_other_that_can_be_stored(headers):
    assert headers_error(headers) is None
    assert encode_headers(headers)


near = st.sampled_from(["n", "n.1", "n.2", "n.x", "n.1.1", "m"])


@given(st.dictionaries(st.text(min_size=1, max_size=260) | near, values, max_size=4))
@example({"n": b"x" * 256, "n.1": "y"})
def test_headers_without_an_error_can_be_encoded(headers):
    if headers_error(headers) is None:
        assert len(encode_headers(headers)) <= 100_000


@given(st.dictionaries(st.text(max_size=260), values, max_size=4))
@example({"": "x"})
@example({"n": "x" * 600, "n.1": "y"})
@example({"n": "x" * 90_000})
def test_shared_headers_are_checked_and_encoded_as_any(headers):
    shared = EncodedHeaders(headers)
    assert headers_error(shared) == headers_error(headers)
    assert headers_error(shared, 40) == headers_error(headers, 40)
    if headers_error(headers) is None:
        assert [encode_headers(shared), encode_headers(shared)] == [encode_headers(headers)] * 2


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
@pytest.mark.parametrize("characters", [1, 200, 1024, 10_000])
def test_what_a_records_own_headers_may_take_fits_beside_those_of_its_object(characters, character):
    """A key of a store of one's own has up to 10,000 characters; that of S3 leaves the usual room."""
    native = NativeObject(bucket="b" * 255, key=character * characters, size=1, version="v" * 60)
    of_object = provenance(native, split=Split(2**24 - 1, 10**18))
    room = own_headers_room(native)
    assert room == MAX_OWN_HEADERS_BYTES or characters == 10_000
    assert len(encode_headers(of_object)) + room <= MAX_HEADERS_BYTES
    assert headers_error({"n": b"x" * (room * 9 // 10)}, room) is None
    assert "can be stored" in headers_error({"n": "x" * room}, room)
