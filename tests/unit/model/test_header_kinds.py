"""Numbers of a certain kind, as Iggy's headers store them."""

import struct

import pytest

from framework.model.header_encoding import encode_headers, headers_error
from framework.model.header_kinds import header_number


@pytest.mark.parametrize(
    ("kind", "value", "code", "data"),
    [
        ("int8", -1, 4, b"\xff"),
        ("int16", -2, 5, b"\xfe\xff"),
        ("int32", 7, 6, b"\7\0\0\0"),
        ("int64", -(1 << 63), 7, b"\0" * 7 + b"\x80"),
        ("int128", -1, 8, b"\xff" * 16),
        ("uint8", 255, 9, b"\xff"),
        ("uint16", 258, 10, b"\2\1"),
        ("uint32", 1, 11, b"\1\0\0\0"),
        ("uint64", (1 << 64) - 1, 12, b"\xff" * 8),
        ("uint128", 1 << 127, 13, b"\0" * 15 + b"\x80"),
        ("uint8", 3.0, 9, b"\3"),
        ("float32", 0.5, 14, struct.pack("<f", 0.5)),
        ("float64", 0.1, 15, struct.pack("<d", 0.1)),
    ],
)
def test_a_number_is_stored_with_its_kind(kind, value, code, data):
    number = header_number(kind, value)
    assert number == (code, data)
    assert headers_error({"n": number}) is None
    name = struct.pack("<BI", 2, 1) + b"n"
    assert encode_headers({"n": number}) == name + struct.pack("<BI", code, len(data)) + data


@pytest.mark.parametrize(
    ("kind", "value"), [("uint8", -1), ("uint8", 256), ("int8", 128), ("int32", 0.5), ("float32", 1e300)]
)
def test_a_number_that_its_kind_cannot_hold_is_refused(kind, value):
    with pytest.raises(ValueError, match=kind):
        header_number(kind, value)
