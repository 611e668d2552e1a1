"""Parquet files made by hand, so that any part of one can lie (parquet.thrift, in Thrift's compact protocol)."""

import itertools
import struct

import zstandard

BYTE_ARRAY, INT32 = 6, 1
REQUIRED, REPEATED = 0, 2
PLAIN, RLE, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 0, 3, 7, 8
UNCOMPRESSED, ZSTD = 0, 6


def unsigned(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def signed(value):
    return unsigned((value << 1 ^ value >> 63) & (1 << 64) - 1)


def i32(value):
    return 5, signed(value)


def i64(value):
    return 6, signed(value)


def text(value):
    return 8, unsigned(len(value)) + value


def structure(fields):
    out, last = b"", 0
    for number, (kind, data) in sorted(fields.items()):
        out += bytes([(number - last) << 4 | kind]) + data
        last = number
    return 12, out + b"\0"


def many(values):
    kind = values[0][0] if values else 12
    head = bytes([len(values) << 4 | kind]) if len(values) < 15 else bytes([0xF0 | kind]) + unsigned(len(values))
    return 9, head + b"".join(data for _, data in values)


def page(kind, body, header, *, codec=ZSTD, unpacked=None, packed=None):
    """A page: 0 data, 2 dictionary. `unpacked` is what its header says of its size."""
    stored = body if packed is None and codec == UNCOMPRESSED else packed or zstandard.compress(body)
    head = {1: i32(kind), 2: i32(len(body) if unpacked is None else unpacked), 3: i32(len(stored)), **header}
    return structure(head)[1] + stored


def data_page(values, body, encoding=PLAIN, **options):
    return page(0, body, {5: structure({1: i32(values), 2: i32(encoding), 3: i32(RLE), 4: i32(RLE)})}, **options)


def dictionary_page(values, body, **options):
    return page(2, body, {7: structure({1: i32(values), 2: i32(PLAIN)})}, **options)


def column(pages, *, rows, kind=BYTE_ARRAY, repetition=REQUIRED, dictionary=False, codec=ZSTD, said=1000, **lies):
    """A column: its pages, and what the footer says of it; `lies` are fields of its metadata."""
    return {
        "pages": pages, "rows": rows, "kind": kind, "repetition": repetition, "dictionary": dictionary, "codec": codec,
        "said": said, "lies": lies,
    }  # fmt: skip


def parquet(*columns, rows, said=1000, rows_said=None, footer_bytes=None, in_schema=None, groups=1):
    """A file of row groups that share their bytes. `in_schema` is how many of the columns stand in its schema, else all."""
    out, chunks = b"PAR1", []
    known = len(columns) if in_schema is None else in_schema
    schema = [structure({4: text(b"schema"), 5: i32(known)})]
    for number, part in zip(range(known), itertools.chain(columns, itertools.repeat(column([], rows=0)))):  # noqa: B905
        kind, repetition = i32(part["kind"]), i32(part["repetition"])
        schema.append(structure({1: kind, 3: repetition, 4: text(b"c%d" % number)}))
    for number, part in enumerate(columns):
        name = b"c%d" % number
        start = len(out)
        first_data = start + (len(part["pages"][0]) if part["dictionary"] else 0)
        out += b"".join(part["pages"])
        encodings = [RLE, PLAIN, *([RLE_DICTIONARY] if part["dictionary"] else [])]
        meta = {
            1: i32(part["kind"]), 2: many([i32(n) for n in encodings]), 3: many([text(name)]), 4: i32(part["codec"]),
            5: i64(part["rows"]), 6: i64(part["said"]), 7: i64(len(out) - start), 9: i64(first_data),
        }  # fmt: skip
        if part["dictionary"]:
            meta[11] = i64(start)
        lies = {
            {"values": 5, "unpacked": 6, "packed": 7, "data_offset": 9, "dictionary_offset": 11}[key]: i64(value)
            for key, value in part["lies"].items()
        }
        chunks.append(structure({2: i64(start), 3: structure(meta | lies)}))
    group = structure({1: many(chunks), 2: i64(said), 3: i64(rows if rows_said is None else rows_said)})
    all_rows = (rows if rows_said is None else rows_said) * groups
    footer = structure({1: i32(2), 2: many(schema), 3: i64(all_rows), 4: many([group] * groups)})
    size = len(footer[1]) if footer_bytes is None else footer_bytes
    return out + footer[1] + struct.pack("<I", size) + b"PAR1"


def string(data):
    return struct.pack("<I", len(data)) + data


def run(count, value, width):
    """Equal values in the hybrid of RLE and bit packing."""
    return unsigned(count << 1) + value.to_bytes((width + 7) // 8, "little")


def levels(data):
    return struct.pack("<I", len(data)) + data


def prefixed(length, count):
    """One string of zeros, `count` times, by DELTA_BYTE_ARRAY: each is all of the one before."""

    def numbers(first, second):
        # one block of 128 in four miniblocks, the first in 32 bits, then blocks without a difference
        head = unsigned(128) + unsigned(4) + unsigned(count) + signed(first)
        block = signed(0 if second >= first else second - first) + bytes([32, 0, 0, 0])
        shift = 0 if second >= first else first - second
        deltas = [second - first + shift, *[shift] * 31]
        assert count <= 32
        return head + block + struct.pack("<32I", *deltas)

    return numbers(0, length) + numbers(length, 0) + bytes(length)
