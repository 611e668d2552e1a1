"""Avro data -> JSON, losslessly. The mapping is written down in docs/reference/record-json.md.

The schema is rewritten before fastavro sees it, without a change to what the bytes mean:
- logical types are taken off, so that values come as Avro holds them, and their JSON form is made here (a datetime has
  no nanoseconds and ends with the year 9999);
- a branch of a union with several branches becomes a record with one field that has the branch's name. Such a record has
  the very bytes of its field, so the name of the branch comes out of the decoder for nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

from framework.model.avro_limits import NAMED, PRIMITIVES, branch_name, is_decimal, type_of
from framework.model.avro_values import decimal_text
from transformers.json_time import date_text, time_text, timestamp_text
from transformers.row_json import encode, encode_all, float_form, interval_form, uuid_text

Convert = Callable[[Any], Any]


def plain_schema(schema: Any) -> Any:
    """The schema for the decoder."""
    return _Plain().rewrite(schema)


class _Plain:
    def __init__(self) -> None:
        self._branches = 0
        self._names: dict[str, str] = {}  # type -> record of a branch that is no more than its name

    def rewrite(self, schema: Any) -> Any:  # noqa: PLR0911 - one for each kind of schema
        if isinstance(schema, list):
            several = len([branch for branch in schema if type_of(branch) != "null"]) > 1
            return [self._branch(branch) if several else self.rewrite(branch) for branch in schema]
        kind = type_of(schema)
        if kind == "array":
            return {"type": kind, "items": self.rewrite(schema["items"])}
        if kind == "map":
            return {"type": kind, "values": self.rewrite(schema["values"])}
        if kind not in NAMED:
            return kind if kind in PRIMITIVES else _plain_name(kind)
        name = _plain_name(schema["name"])
        if kind == "fixed":
            return {"type": kind, "name": name, "size": schema["size"]}
        if kind == "enum":
            return {"type": kind, "name": name, "symbols": schema["symbols"]}
        fields = [{"name": field["name"], "type": self.rewrite(field["type"])} for field in schema["fields"]]
        return {"type": "record", "name": name, "fields": fields}

    def _branch(self, branch: Any) -> Any:
        kind = type_of(branch)
        if kind == "null" or kind in self._names:
            return self._names.get(kind, kind)
        self._branches += 1
        name = f"iggy_cloud_sources.branch{self._branches}"  # before those of the unions inside, which count on
        if kind not in NAMED and kind not in {"array", "map"}:
            self._names[kind] = name
        field = {"name": branch_name(branch), "type": self.rewrite(branch)}
        # A dot in the field's name is no mistake to fastavro, and its record's name cannot be one of the file's.
        return {"type": "record", "name": name, "fields": [field]}


def _plain_name(name: str) -> str:
    """The full name of a type, in a namespace in every case: without one it would get that of the record around it."""
    return name if "." in name else f"iggy_cloud_sources.bare.{name}"


class JsonEncoder:
    """Data as the decoder gives them -> JSON.

    Args:
        schema: the writer's.
        partial: whether members of records may be missing.
    """

    def __init__(self, schema: Any, *, partial: bool = False) -> None:
        self._convert = _Converters(floats=False, partial=partial).build(schema)
        self._convert_floats = _Converters(floats=True, partial=partial).build(schema)

    def encode_all(self, batch: list[Any]) -> Sequence[bytes]:
        """All or none: the first datum without a JSON form raises. May be called again with the same data."""
        convert, floats = self._convert, self._convert_floats
        if convert is not None:
            batch = list(map(convert, batch))
        payloads = encode_all(batch, len(batch))
        if floats is None:
            return payloads
        # The encoder writes NaN and infinities as null; only a record with a null in it can hold one.
        changed = {
            place: named
            for place, payload in enumerate(payloads)
            if b"null" in payload and (named := encode(floats(batch[place]))) != payload
        }
        return [changed.get(place, payload) for place, payload in enumerate(payloads)] if changed else payloads

    def encode(self, datum: Any) -> bytes:
        """The JSON of one datum."""
        return self.encode_all([datum])[0]


class _Converters:
    """Builds the function that makes a datum ready for the encoder; None when it is as it comes.

    With `floats` it is the one for NaN and infinities only, else the one for everything but them. With `partial` members
    of records may be missing. Functions never change what they are given.
    """

    def __init__(self, *, floats: bool, partial: bool) -> None:
        self._floats = floats
        self._partial = partial
        self._named: dict[str, Convert | None] = {}
        self._building: set[str] = set()

    def build(self, schema: Any) -> Convert | None:  # noqa: PLR0911 - one for each kind of schema
        if isinstance(schema, list):
            return self._union(schema)
        kind = type_of(schema)
        if kind == "array":
            item = self.build(schema["items"])
            return None if item is None else lambda value: list(map(item, value))
        if kind == "map":
            inner = self.build(schema["values"])
            if inner is None:
                return None
            return lambda value: {key: inner(entry) for key, entry in value.items()}
        if kind in {"record", "error"}:
            return self._record(schema)
        if self._floats:
            return float_form if kind in {"float", "double"} else self._reference(kind)
        leaf = _leaf(schema, kind)
        if kind == "fixed":
            self._named[schema["name"]] = leaf
        elif kind == "enum":
            self._named[schema["name"]] = None
        return leaf if kind in PRIMITIVES or kind in NAMED else self._reference(kind)

    def _reference(self, name: str) -> Convert | None:
        if name in self._building:
            named = self._named  # a record inside itself: looked up when it is met
            return lambda value: value if (convert := named[name]) is None else convert(value)
        return self._named.get(name)

    def _union(self, branches: list[Any]) -> Convert | None:
        several = len([branch for branch in branches if type_of(branch) != "null"]) > 1
        built = [(branch_name(branch), self.build(branch)) for branch in branches]
        converts = {name: convert for name, convert in built if convert is not None}
        if not converts:
            return None
        if not several:
            (convert,) = converts.values()
            return lambda value: None if value is None else convert(value)

        def convert_branch(value: Any) -> Any:
            if value is None:
                return None
            ((name, inner),) = value.items()
            found = converts.get(name)
            return value if found is None else {name: found(inner)}

        return convert_branch

    def _record(self, schema: Any) -> Convert | None:
        name = schema["name"]
        self._building.add(name)
        fields = [
            (field["name"], convert) for field in schema["fields"] if (convert := self.build(field["type"])) is not None
        ]
        self._building.discard(name)
        if not fields:
            self._named[name] = None
            return None

        def convert_record(value: Any) -> Any:
            out = value.copy()
            for field, convert in fields:
                out[field] = convert(out[field])
            return out

        def convert_part(value: Any) -> Any:
            out = value.copy()
            for field, convert in fields:
                if field in out:
                    out[field] = convert(out[field])
            return out

        self._named[name] = convert_part if self._partial else convert_record
        return self._named[name]


def converter(schema: Any) -> Convert | None:
    """The function that makes values of a type ready for the encoder, but for NaN and infinities; None: as they come."""
    return _Converters(floats=False, partial=False).build(schema)


def _leaf(schema: Any, kind: str) -> Convert | None:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if is_decimal(schema):
        scale = schema.get("scale", 0)
        return lambda value: decimal_text(value, scale)
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:  # noqa: PLR2004
        return uuid_text
    if logical == "duration" and kind == "fixed" and schema["size"] == 12:  # noqa: PLR2004
        return interval_form
    if kind in {"bytes", "fixed"}:
        return lambda value: b64encode(value).decode()
    return _TIMES.get((kind, logical))


def _times() -> dict[tuple[str, str | None], Convert]:
    def time(digits: int) -> Convert:
        return lambda value: time_text(value, digits)

    def timestamp(digits: int, zone: str) -> Convert:
        return lambda value: timestamp_text(value, digits, zone)

    times: dict[tuple[str, str | None], Convert] = {
        ("int", "date"): date_text,
        ("int", "time-millis"): time(3),
        ("long", "time-micros"): time(6),
    }
    for unit, digits in (("millis", 3), ("micros", 6), ("nanos", 9)):
        times["long", f"timestamp-{unit}"] = timestamp(digits, "Z")
        times["long", f"local-timestamp-{unit}"] = timestamp(digits, "")
    return times


_TIMES = _times()
