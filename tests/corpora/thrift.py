"""Thrift's compact protocol as a tree that can be changed: the footer of a Parquet file, whatever it says.

A value is (type, content): a number, bytes, a list of [type, values], or a structure of [field, value] pairs.
"""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
NUMBERS = {I16, I32, I64}
LISTS = {LIST, SET}


def parse(data, at=0, kind=STRUCT):
    """Return the value that begins at a place, and the place behind it."""
    if kind in {TRUE, FALSE}:
        return (kind, None), at
    if kind == BYTE:
        return (kind, data[at]), at + 1
    if kind in NUMBERS:
        number, at = _unsigned(data, at)
        return (kind, number >> 1 ^ -(number & 1)), at
    if kind == DOUBLE:
        return (kind, data[at : at + 8]), at + 8
    if kind == BINARY:
        size, at = _unsigned(data, at)
        return (kind, data[at : at + size]), at + size
    return _parse_list(data, at, kind) if kind in LISTS else _parse_struct(data, at)


def _parse_list(data, at, kind):
    count, inner, at = data[at] >> 4, data[at] & 15, at + 1
    if count == 15:
        count, at = _unsigned(data, at)
    values = []
    for _ in range(count):
        if inner in {TRUE, FALSE}:  # a byte each
            value, at = (data[at], None), at + 1
        else:
            value, at = parse(data, at, inner)
        values.append(value)
    return (kind, [inner, values]), at


def _parse_struct(data, at):
    fields, field = [], 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            number, at = _unsigned(data, at)
            field = number >> 1 ^ -(number & 1)
        value, at = parse(data, at, head & 15)
        fields.append([field, value])
    return (STRUCT, fields), at + 1


def write(value):
    """Return the bytes of a value."""
    kind, content = value
    if kind in {TRUE, FALSE}:
        return b""
    if kind == BYTE:
        return bytes([content])
    if kind in NUMBERS:
        return _varint((content << 1 ^ content >> 63) & (1 << 64) - 1)
    if kind in {DOUBLE, BINARY}:
        return content if kind == DOUBLE else _varint(len(content)) + content
    return _write_list(*content) if kind in LISTS else _write_struct(content)


def _write_list(inner, values):
    few = len(values) < 15
    head = bytes([len(values) << 4 | inner]) if few else bytes([0xF0 | inner]) + _varint(len(values))
    return head + b"".join(bytes([value[0]]) if inner in {TRUE, FALSE} else write(value) for value in values)


def _write_struct(fields):
    out, last = b"", 0
    for field, value in fields:
        step, last = field - last, field
        out += bytes([step << 4 | value[0]]) if 0 < step < 16 else bytes([value[0]]) + _varint(field << 1)
        out += write(value)
    return out + b"\0"


def _unsigned(data, at):
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])
