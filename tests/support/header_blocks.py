"""The oracle of `framework.model.header_encoding.encode_headers`: reads a header block without the code that wrote it."""

import struct

STRING, BOOL = 2, 3
INTEGERS = {
    4 + at: (name, size)
    for at, (name, size) in enumerate((f"{sign}int{8 * size}", size) for sign in ("", "u") for size in (1, 2, 4, 8, 16))
}
FLOATS = {14: ("float32", "<f"), 15: ("float64", "<d")}


def header_fields(block):
    """Pairs of a name and its value, each with its kind: `kind u8 | length u32 | bytes`."""
    fields = []
    while block:
        kind, length = struct.unpack_from("<BI", block)
        fields.append((kind, bytes(block[5 : 5 + length])))
        assert len(fields[-1][1]) == length
        block = block[5 + length :]
    return list(zip(fields[0::2], fields[1::2], strict=True))


def number_of(kind, data):
    """The name of a kind and the number that it stores so; None for another kind, or another length."""
    name, size = INTEGERS.get(kind, (None, None))
    if size == len(data):
        return name, int.from_bytes(data, "little", signed=not name.startswith("u"))
    name, form = FLOATS.get(kind, (None, "<b"))
    if name is not None and struct.calcsize(form) == len(data):
        return name, struct.unpack(form, data)[0]
    return None


def decode_headers(block):
    """Text, truth values and numbers by name; bytes for any other kind."""
    return {name.decode(): _scalar(*field) for (_, name), field in header_fields(block)}


def _scalar(kind, data):
    if kind == STRING:
        return data.decode()
    if kind == BOOL:
        return data != b"\x00"
    number = number_of(kind, data)
    return data if number is None else number[1]
