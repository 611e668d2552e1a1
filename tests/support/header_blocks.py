"""A header block as values of Python."""

from framework.iggy.headers import BOOL, STRING, header_fields
from framework.model.header_kinds import number_of


def decode_headers(block):
    """Name -> text, truth value, number or bytes."""
    fields = header_fields(block)
    return {name.decode(): value_of(*field) for (_, name), field in zip(fields[::2], fields[1::2], strict=True)}


def value_of(kind, data):
    if kind in {STRING, BOOL}:
        return data.decode() if kind == STRING else data != b"\x00"
    number = number_of(kind, data)
    return data if number is None else number[1]
