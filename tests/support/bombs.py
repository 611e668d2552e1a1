"""Objects of little size that unfold to much, each read between two good ones in a process of its own.

    python -m tests.support.bombs

prints a line of JSON for each: what came out, and how much memory the process took at most.
"""

import bz2
import io
import json
import lzma
import multiprocessing
import os
import resource
import struct
import sys
import zlib

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from framework.testing.fakes.memory_store import MemoryStore
from tests.support import parquet_parts as made
from tests.support.core import iterator_over

MIB = 1 << 20
SYNC = b"S" * 16


def varint(value):
    value = value << 1 ^ value >> 63
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def text(data):
    return varint(len(data)) + data


def avro(schema, count, data, codec=b"null"):
    schema = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    meta = varint(2) + text(b"avro.schema") + text(schema) + text(b"avro.codec") + text(codec) + varint(0)
    return b"Obj\x01" + meta + SYNC + varint(count) + text(data) + SYNC


def deflated(part, times, level=9):
    """A part so many times, compressed once: nothing behind a full flush refers to what is before it."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return (packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)) * times


DEFLATE_END = zlib.compressobj(9, zlib.DEFLATED, -15).flush()


def gz(*parts_and_times):
    out, checksum, size = [b"\x1f\x8b\x08" + bytes(6) + b"\xff"], 0, 0
    for part, times in parts_and_times:
        out.append(deflated(part, times, level=1))
        size += len(part) * times
        for _ in range(times):
            checksum = zlib.crc32(part, checksum)
    return b"".join([*out, DEFLATE_END, struct.pack("<II", checksum, size % 2**32)])


def zstd(mebibytes, part=bytes(MIB), **parameters):
    parameters = zstandard.ZstdCompressionParameters.from_level(1, **parameters)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return b"".join(packer.compress(part) for _ in range(mebibytes)) + packer.flush()


def parquet(table, **options):
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def repeated(words, rows):
    """A column of strings that stand once in a dictionary."""
    return pa.DictionaryArray.from_arrays(pa.array([n % len(words) for n in range(rows)], pa.int32()), pa.array(words))


def repeats(values, *levels):
    """A page of the first value of a dictionary."""
    return made.data_page(values, b"".join(levels) + b"\1" + made.run(values, 0, 1), made.RLE_DICTIONARY)


LINK = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 2**31, "scale": 2**31}
LONG_NAME = "n" * 1_000_000

OPTIONS = {
    "zstd allowed window": {"max_window_bytes": 256 * MIB},
    "parquet columns": {"max_page_bytes": 64 * MIB},
    "parquet prefix": {"max_page_bytes": 64 * MIB},
    "parquet long list": {"max_page_bytes": 64 * MIB},
}
"""What each is read under, besides the format."""


def bombs():
    """Name -> format and bytes."""
    zeros = bytes(8 * MIB)
    yield "avro deflate", "avro", avro("bytes", 1, deflated(bytes(MIB), 600) + DEFLATE_END, b"deflate")
    yield "avro bzip2", "avro", avro("bytes", 1, bz2.compress(zeros) * 75, b"bzip2")
    yield "avro xz", "avro", avro("bytes", 1, lzma.compress(zeros, preset=0) * 75, b"xz")
    yield "avro zstd", "avro", avro("bytes", 1, zstd(600), b"zstandard")
    streams = bz2.compress(b"") * 400_000 + bz2.compress(varint(1))
    yield "avro empty streams", "avro", avro("long", 1, streams, b"bzip2")
    yield "avro snappy", "avro", avro("bytes", 1, b"\xff\xff\xff\xff\x0f" + bytes(9), b"snappy")
    yield "avro items", "avro", avro({"type": "array", "items": "null"}, 1, varint(2**60) + b"\0")
    empty = varint(12_000_000) + bytes(12_000_001)
    kind = {"type": "array", "items": {"type": "array", "items": "int"}}
    yield "avro empty arrays", "avro", avro(kind, 1, deflated(empty, 1) + DEFLATE_END, b"deflate")
    yield "avro records", "avro", avro("null", 2**60, b"")
    yield "avro list", "avro", avro(LINK, 1, b"\2" * 100_000 + b"\0")
    yield "avro itself", "avro", avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "R"}]}, 1, b"")
    yield "avro schema", "avro", avro(b'{"type":"array","items":' * 100_000 + b'"null"' + b"}" * 100_000, 1, b"\0")
    yield "avro scale", "avro", avro(DECIMAL, 1, text(b"1"))
    yield "avro decimal", "avro", avro(DECIMAL | {"scale": 2}, 1, text(b"\1" * MIB))
    parts = [part for n in range(60) for part in ((text(b"%d" % n) + varint(10 * MIB), 1), (bytes(MIB), 10))]
    yield "avro header", "avro", gz((b"Obj\x01" + varint(60), 1), *parts)
    field = {"name": LONG_NAME, "type": "boolean"}
    inner = {"type": "record", "name": LONG_NAME, "fields": [field]}
    yield "avro names", "avro", avro({**inner, "name": "R"}, 1000, b"\1" * 1000)
    kind = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": inner}}]}
    yield "avro list of names", "avro", avro(kind, 1, varint(100_000) + b"\1" * 100_000 + b"\0")
    yield "avro symbols", "avro", avro({"type": "enum", "name": "E", "symbols": [LONG_NAME]}, 1000, b"\0" * 1000)
    kind = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", inner | {"fields": []}]}]}
    yield "avro branches", "avro", avro(kind, 1000, b"\2" * 1000)
    kinds = [{"type": "record", "name": f"K{n}", "fields": [{"name": "a", "type": "int"}]} for n in range(1000)]
    unions = [kinds, *[[f"K{n}" for n in range(1000)]] * 180]
    fields = [{"name": f"f{n}", "type": union} for n, union in enumerate(unions)]
    yield "avro unions", "avro", avro({"type": "record", "name": "R", "fields": fields}, 1, (varint(999) + b"\2") * 181)
    yield "parquet names", "parquet", parquet(pa.table({LONG_NAME: [0] * 1000}))
    inside = pa.StructArray.from_arrays([pa.array([0] * 1_000_000)], ["n" * 1000])
    ends = pa.array([0, 1_000_000], pa.int32())
    yield "parquet list of names", "parquet", parquet(pa.table({"a": pa.ListArray.from_arrays(ends, inside)}))
    yield "parquet text", "parquet", parquet(pa.table({"a": ["\1" * 80_000_000]}), compression="zstd")
    yield "csv names", "csv", f"{LONG_NAME},b\n".encode() + b"1,2\n" * 1000
    yield "csv quoted names", "csv", f'{LONG_NAME},"b\n"\n'.encode() + b'1,"2"\n' * 1000
    yield "parquet words", "parquet", parquet(pa.table({
        "a": repeated(["x" * 100_000], 2500), "b": repeated(["y" * 100_000], 2500),
    }))  # fmt: skip
    yield "parquet one word", "parquet", parquet(pa.table({"a": repeated(["x" * 10_000_000], 5000)}))
    late = pa.table({"a": repeated([str(n) for n in range(5000)] + ["x" * 300_000], 5001)})
    many = late.take(pa.array(list(range(5001)) + [5000] * 1500))
    yield "parquet late word", "parquet", parquet(many)
    page = made.data_page(1, b"", packed=zstd(1100), unpacked=1100 * MIB)
    yield "parquet page", "parquet", made.parquet(made.column([page], rows=1), rows=1)
    pages = [made.dictionary_page(1, made.string(bytes(16 * MIB))), repeats(24)]
    yield "parquet dictionary", "parquet", made.parquet(made.column(pages, rows=24, dictionary=True), rows=24)
    pages = [made.dictionary_page(1, b"", packed=zstd(200), unpacked=200 * MIB), repeats(5)]
    yield "parquet empty words", "parquet", made.parquet(made.column(pages, rows=5, dictionary=True), rows=5)
    count = 10_000_000
    numbers = made.unsigned(count) + b"\1" + made.unsigned(count + 1) + b"\0\0" + bytes([32]) + bytes(4 * count)
    runs = made.levels(made.run(1, 0, 1) + made.run(count, 1, 1)) + made.levels(made.run(count + 1, 1, 1))
    page = made.data_page(count + 1, runs + numbers, made.DELTA_BYTE_ARRAY)
    column = made.column([page], rows=count + 1, repetition=made.REPEATED)
    yield "parquet one miniblock", "parquet", made.parquet(column, rows=1)
    page = made.data_page(24, made.prefixed(16 * MIB, 24), made.DELTA_BYTE_ARRAY)
    yield "parquet prefix", "parquet", made.parquet(made.column([page], rows=24), rows=24)
    page = made.data_page(1, made.string(bytes(4 * MIB)))
    yield "parquet columns", "parquet", made.parquet(*[made.column([page], rows=1)] * 500, rows=1)
    words = repeated(["x" * 1000], 500_000)
    for name, rows, count in (("parquet list of words", 1, 4), ("parquet lists of words", 50, 1)):
        ends = pa.array(range(0, 500_001, 500_000 // rows), pa.int32())
        columns = {f"c{number}": pa.ListArray.from_arrays(ends, words) for number in range(count)}
        yield name, "parquet", parquet(pa.table(columns), store_schema=False)
    words = pa.ListArray.from_arrays(pa.array([0, 300_000], pa.int32()), pa.array(["x" * 1000] * 300_000))
    encoding = {"c.list.element": "DELTA_BYTE_ARRAY"}
    table = pa.table({"c": words})
    yield "parquet delta list", "parquet", parquet(table, use_dictionary=False, column_encoding=encoding)
    for name, values in (("parquet list", 2**28), ("parquet long list", 5_000_000)):
        runs = [made.levels(made.run(1, 0, 1) + made.run(values - 1, 1, 1)), made.levels(made.run(values, 1, 1))]
        pages = [made.dictionary_page(1, b"\7\0\0\0"), repeats(values, *runs)]
        column = made.column(pages, rows=values, kind=made.INT32, repetition=made.REPEATED, dictionary=True)
        yield name, "parquet", made.parquet(column, rows=1)
    yield "json objects", "json", gz((b"[[", 1), (b"{}," * 300_000, 60), (b"{}]]", 1))
    yield "json text", "json", gz((b'["\xf0\x9f\x98\x80', 1), (b"x" * MIB, 60), (b'"]', 1))
    yield "jsonl text", "jsonl", gz((b'"\xf0\x9f\x98\x80', 1), (b"x" * MIB, 60), (b'"', 1))
    yield "csv fields", "csv", gz((b"a\n", 1), (b"ab," * 300_000, 60), (b"\n", 1))
    yield "csv quoted fields", "csv", gz((b'"a"\n', 1), (b"ab," * 300_000, 60), (b"\n", 1))
    yield "csv rows", "csv", gz((b'"a"\n"', 1), (b'ab","\n","' * 100_000, 60), (b'"\n', 1))
    yield (
        "csv header",
        "csv",
        gz(
            (b"a," * 100_000, 100),
        ),
    )
    yield "text line", "text", gz((b"x" * MIB, 450))
    yield "jsonl lines", "jsonl", gz((b"0\n" * 500_000, 60))
    chunk = b"\x01\xff\xff\xff" + bytes(0xFFFFFF)
    yield "snappy", "text", b"\xff\x06\x00\x00sNaPpY" + chunk * 3
    packed = bytearray(lzma.compress(zeros, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}]))
    packed[16] = 37  # a dictionary of 1.5 GiB
    packed[20:24] = zlib.crc32(bytes(packed[12:20])).to_bytes(4, "little")
    yield "xz", "text", bytes(packed)
    line = b"x" * (MIB - 1) + b"\n"
    yield "zstd window", "text", zstd(450, line, window_log=31)
    yield "zstd allowed window", "text", zstd(450, line, window_log=28)


def good(name):
    """An object of three records."""
    if name == "avro":
        out = io.BytesIO()
        fastavro.writer(out, "long", [1, 2, 3])
        return out.getvalue()
    if name == "parquet":
        return parquet(pa.table({"n": [1, 2, 3]}))
    return {"json": b"[1,2,3]", "csv": b"n\n1\n2\n3\n"}.get(name, b"1\n2\n3\n")


def read(name, data, **options):
    """Reads the bomb between two good objects; what came of each."""
    store = MemoryStore()
    for key, content in (("a", good(name)), ("b", data), ("c", good(name))):
        store.put(key, content)
    counts, errors = dict.fromkeys("abc", 0), []
    iterator = iterator_over(store, once=True, format=name, **options, tolerance="skip_record")
    try:
        while (batch := iterator.next_batch()) is not None:
            counts[batch.native.key] += len(batch.payloads)
            errors += [str(skip.error) for skip in batch.skipped]
            if batch.failure is not None:
                errors.append(str(batch.failure.error))
    finally:
        iterator.close()
    return counts, errors


def build(wanted, out):
    """Sends the bombs, one by one."""
    for name, form, data in bombs():
        if not wanted or name in wanted:
            out.send((name, form, data))
    out.send(None)


def main():
    # Built in a process of their own: what a build took would count for the readers that are forked here.
    process = multiprocessing.get_context("fork")
    found, out = process.Pipe(duplex=False)
    builder = process.Process(target=build, args=(sys.argv[1:], out), daemon=True)
    builder.start()
    while (bomb := found.recv()) is not None:
        name, form, data = bomb
        end, begin = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(end)
            limit = 3 << 30  # a reader without a limit of its own must not take all there is
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
            try:
                came = read(form, data, **OPTIONS.get(name, {}))
            except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
                came = {}, [f"{type(exc).__name__}: {exc}"]
            with os.fdopen(begin, "w") as out:
                json.dump(came, out)
            os._exit(0)
        os.close(begin)
        with os.fdopen(end) as answer:
            came = answer.read()
        _, status, used = os.wait4(child, 0)
        counts, errors = json.loads(came or "[{}, []]")
        print(json.dumps({
            "name": name, "bytes": len(data), "counts": counts, "errors": errors, "status": status,
            "peak_mb": used.ru_maxrss / 1024, "seconds": used.ru_utime,
        }), flush=True)  # fmt: skip
    builder.join()


if __name__ == "__main__":
    main()
