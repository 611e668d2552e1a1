"""Avro by its specification, 1.12, a byte at a time. See `oracle_lines` for what an oracle returns."""

import base64
import bz2
import decimal
import json
import lzma
import struct
import uuid
import zlib

import cramjam
import zstandard

from tests.corpora import oracle_times as times
from tests.corpora.oracle_lines import BAD, is_text

_EXACT = decimal.Context(prec=100_000)
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


def avro(data):
    rows = []
    try:
        file = _Bytes(data)
        if file.take(4) != b"Obj\x01":
            return rows, True
        meta = dict(file.items(lambda: (file.sized(), file.sized())))
        sync = file.take(16)
        form = _Forms().of(json.loads(meta[b"avro.schema"]), "")
        unpack = _CODECS[meta.get(b"avro.codec", b"null").decode() or "null"]
        while file.at < len(data):
            count, stored = file.long(), file.sized()
            if count < 0 or file.take(16) != sync:
                return rows, True
            block, made = _Bytes(unpack(stored)), []
            failed = _read(block, count, form, made)
            if not failed and block.at < len(block.data):
                failed, made = True, made[:-1]
            rows += made
            if failed:
                return rows, True
    except Exception:  # noqa: BLE001 - whatever damaged bytes raise
        return rows, True
    return rows, False


def _read(block, count, form, made):
    """Add the data of a block; return whether that failed."""
    try:
        for _ in range(count):
            value = form(block)
            made.append(value if is_text(value) else BAD)
    except Exception:  # noqa: BLE001
        return True
    return False


class _Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        part = self.data[self.at : self.at + size]
        if size < 0 or len(part) < size:
            raise ValueError("cut short")
        self.at += size
        return part

    def long(self):
        value = shift = 0
        while shift < 70:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                value &= (1 << 64) - 1
                return value >> 1 ^ -(value & 1)
        raise ValueError("a number of more than ten bytes")

    def sized(self):
        return self.take(self.long())

    def index(self, count):
        found = self.long()
        if not 0 <= found < count:
            raise ValueError("no such branch or symbol")
        return found

    def items(self, read):
        while count := self.long():
            if count < 0:
                self.long()
            for _ in range(abs(count)):
                yield read()


def _snappy(data):
    out = bytes(cramjam.snappy.decompress_raw(data[:-4]))
    if zlib.crc32(out) != int.from_bytes(data[-4:], "big"):
        raise ValueError("another checksum")
    return out


_CODECS = {
    "null": bytes,
    "deflate": lambda data: zlib.decompress(data, -15),
    "snappy": _snappy,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "zstandard": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


def _base64(data):
    return base64.b64encode(data).decode()


def _text(file):
    return file.sized().decode("utf-8", "surrogateescape")


_PRIMITIVES = {
    "null": lambda file: None,
    "boolean": lambda file: file.take(1) != b"\0",
    "int": _Bytes.long,
    "long": _Bytes.long,
    "float": lambda file: times.float_value(struct.unpack("<f", file.take(4))[0]),
    "double": lambda file: times.float_value(struct.unpack("<d", file.take(8))[0]),
    "bytes": lambda file: _base64(file.sized()),
    "string": _text,
}
_NAMED = {"record", "error", "enum", "fixed"}


class _Forms:
    """Schemas -> functions from bytes to a value of JSON."""

    def __init__(self):
        self._named = {}

    def of(self, schema, space):  # noqa: PLR0911 - one for each kind
        if isinstance(schema, list):
            return self._union(schema, space)
        if isinstance(schema, str):
            name = _full(schema, space)
            return _PRIMITIVES.get(schema) or (lambda file: self._named[name](file))  # noqa: PLW0108 - it may come later
        kind = schema["type"]
        if kind == "array":
            inner = self.of(schema["items"], space)
            return lambda file: list(file.items(lambda: inner(file)))
        if kind == "map":
            inner = self.of(schema["values"], space)
            return lambda file: dict(file.items(lambda: (_text(file), inner(file))))
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return _logical(schema, _PRIMITIVES[kind], _Bytes.sized)
        if isinstance(kind, str) and kind in _NAMED:
            return self._define(schema, kind, _full(schema["name"], schema.get("namespace", space)))
        return self.of(kind, space)

    def _define(self, schema, kind, name):
        if kind == "enum":
            symbols = schema["symbols"]
            made = lambda file: symbols[file.index(len(symbols))]  # noqa: E731
        elif kind == "fixed":
            made = _logical(
                schema, lambda file: _base64(file.take(schema["size"])), lambda file: file.take(schema["size"])
            )
        else:
            fields = []
            made = lambda file: {field: form(file) for field, form in fields}  # noqa: E731
        self._named[name] = made
        if kind in {"record", "error"}:
            fields += [(field["name"], self.of(field["type"], name.rpartition(".")[0])) for field in schema["fields"]]
        return made

    def _union(self, branches, space):
        forms = [self.of(branch, space) for branch in branches]
        names = [_branch(branch, space) for branch in branches]
        several = len(branches) - names.count("null") > 1

        def read(file):
            at = file.index(len(forms))
            value = forms[at](file)
            return {names[at]: value} if several and names[at] != "null" else value

        return read


def _full(name, space):
    return name if "." in name or not space else f"{space}.{name}"


def _branch(schema, space):
    if isinstance(schema, dict):
        if schema["type"] in ("array", "map"):
            return schema["type"]
        named = isinstance(schema["type"], str) and schema["type"] in _NAMED
        return _full(schema["name"], schema.get("namespace", space)) if named else _branch(schema["type"], space)
    return schema if schema in _PRIMITIVES else _full(schema, space)


def _logical(schema, base, raw):  # noqa: PLR0911 - one for each type
    kind, logical, size = schema["type"], schema.get("logicalType", ""), schema.get("size")
    what, _, unit = logical.rpartition("-")
    scale = schema.get("scale", 0)
    if logical == "decimal" and kind in {"bytes", "fixed"} and 0 <= scale <= schema.get("precision", -1):
        return lambda file: _decimal(raw(file), scale)
    if (logical, kind, size) == ("uuid", "fixed", 16):
        return lambda file: str(uuid.UUID(bytes=raw(file)))
    if (logical, kind, size) == ("duration", "fixed", 12):
        return lambda file: times.interval(raw(file))
    if (logical, kind) == ("date", "int"):
        return lambda file: times.date(file.long())
    if (logical, kind) in {("time-millis", "int"), ("time-micros", "long")}:
        return lambda file: times.clock(file.long(), _UNITS[unit])
    if what in {"timestamp", "local-timestamp"} and kind == "long" and unit in _UNITS:
        return lambda file: times.timestamp(file.long(), _UNITS[unit], "Z" if what == "timestamp" else "")
    return base


def _decimal(value, scale):
    return format(decimal.Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _EXACT), "f")
