"""Projection of Avro: which fields of the schema are decoded, and which members of the data are kept.

Fields at the top that are not chosen are skipped by the decoder, in C. fastavro does so for the fields that a reader's
schema does not have; the types there are taken out, so that it decodes the chosen fields as if there were no reader's
schema. What is not chosen further inside is decoded and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from framework.model.avro_indexes import blocks_of
from framework.model.avro_limits import type_of
from transformers.columns import Choice, Field, choose

Pick = Callable[[Any], Any]


class Projection:
    """The chosen columns of a schema.

    Args:
        schema: the writer's, with names resolved.
        columns: their names.

    Attributes:
        pick: returns the chosen part of a datum, of which the decoder may have skipped the rest.
        names: the chosen fields at the top.
        at_top: whether all choices are whole fields at the top.

    Raises:
        CorruptObjectError: a column does not exist.
    """

    def __init__(self, schema: Any, columns: Sequence[str]) -> None:
        self._named: dict[str, Any] = {}
        self._collect(schema)
        choice = choose(columns, self._fields(schema))
        record = self._record(schema)
        assert record is not None, "a choice of columns is one of a record"
        fields = record["fields"]
        self.names = tuple(fields[place]["name"] for place in choice)
        self.at_top = not any(choice.values())
        self.pick = self._pick(schema, choice)

    def reader_schema(self, plain: Any) -> Any:
        """Return a reader's schema with the chosen fields, for a decoder of the record `plain`; see `decode_chosen`."""
        return {
            "type": "record",
            "name": plain["name"],
            "fields": [{"name": name, "type": "null"} for name in self.names],
        }

    def _collect(self, schema: Any) -> None:
        """Note each record by its name."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch)
            return
        kind = type_of(schema)
        if kind in {"array", "map"}:
            self._collect(schema["items" if kind == "array" else "values"])
        elif kind in {"record", "error"}:
            self._named[schema["name"]] = schema
            for field in schema["fields"]:
                self._collect(field["type"])

    def _record(self, schema: Any) -> Any:
        """Return the record that a type is, may be, or holds in arrays; None without one."""
        while True:
            if isinstance(schema, list):
                branches = [branch for branch in schema if type_of(branch) != "null"]
                if len(branches) != 1:
                    return None
                schema = branches[0]
                continue
            kind = type_of(schema)
            if kind == "array":
                schema = schema["items"]
            elif kind in {"record", "error"}:
                return schema
            else:
                return self._named.get(kind)

    def _fields(self, schema: Any) -> Sequence[Field]:
        return [Field(field["name"], partial(self._fields, field["type"])) for field in self._parts(schema)]

    def _parts(self, schema: Any) -> Sequence[Any]:
        """Return the fields of the record in a type."""
        record = self._record(schema)
        return [] if record is None else record["fields"]

    def _pick(self, schema: Any, choice: Choice) -> Pick:
        """Return the function that keeps the chosen part of a value."""
        if isinstance(schema, list):
            (branch,) = [branch for branch in schema if type_of(branch) != "null"]
            inside = self._pick(branch, choice)
            return lambda value: None if value is None else inside(value)
        if type_of(schema) == "array":
            item = self._pick(schema["items"], choice)
            return lambda value: list(map(item, value))
        parts = self._parts(schema)
        kept: list[tuple[str, Pick | None]] = []
        for place, inner_choice in choice.items():
            field = parts[place]
            kept.append((field["name"], None if inner_choice is None else self._pick(field["type"], inner_choice)))
        return lambda value: {name: value[name] if pick is None else pick(value[name]) for name, pick in kept}


def decode_chosen(blocks: Any) -> None:
    """Let a fastavro reader with a reader's schema decode the fields in it as the writer's schema says."""
    for field in blocks.reader_schema["fields"]:
        field["type"] = None


@cache
def decodes_chosen() -> bool:
    """Return whether the installed fastavro skips fields as this module expects."""
    kinds = ["string", {"type": "map", "values": "int"}, ["null", "int"], ["null", "long"]]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)],
    }
    chosen = {"type": "record", "name": "R", "fields": [{"name": "f3", "type": "null"}]}
    text, entries, branch = b"\x02\xff", b"\x01\x06\x02\xff\x02\x00", b"\x02\x02"
    for data, expected in (
        (text + entries + branch + b"\x02\x0a", [{"f3": 5}]),
        (text + entries + b"\x01\x02" + b"\x02\x0a", None),  # the number -1 of a branch
        (b"\x03\xff" + entries + branch + b"\x02\x0a", None),  # a length below zero
        (text + entries + branch + b"\x02", None),
    ):
        try:
            blocks = blocks_of(schema, data, reader_schema=chosen)
            decode_chosen(blocks)
            found = list(next(blocks))
        except Exception:  # noqa: BLE001 - whatever it raises for what cannot be decoded
            found = None
        if found != expected:
            return False
    return True


__all__ = ["Projection", "decode_chosen", "decodes_chosen"]
