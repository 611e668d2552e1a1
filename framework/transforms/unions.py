"""The branch of each union in JSON that becomes Avro, for schemas where fastavro's choice takes too long or is wrong.

With types that hold themselves, fastavro tries every branch at every level, each time down to the last value: a record of
400 bytes in such unions takes days. Here a value is compared once with each type, and the writer gets the name of its
branch.

Of a union with `float` or `double` before `int` or `long`, fastavro takes the first for a whole number too, and rounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.errors import RecordError
from framework.model.avro_limits import DEEPEST

MAX_COMPARED = 1_000_000
"""How often the objects and lists of a record are compared with a type: what is remembered of that takes 300 MB."""

_MISFIT = object()


def rounds_numbers(schema: Any) -> bool:
    """Return whether a schema, as its JSON stands, has a union in which fastavro would round whole numbers."""
    if isinstance(schema, list):
        kinds = [branch.get("type") if isinstance(branch, dict) else branch for branch in schema]
        floats = [at for at, kind in enumerate(kinds) if kind in ("float", "double")]
        if floats and any(kind in ("int", "long") for kind in kinds[floats[0] :]):
            return True
    inside = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return any(map(rounds_numbers, inside))


class UnionResolver:
    """Compares values with a schema, and chooses branches as fastavro's writer does, but for whole numbers.

    Args:
        schema: as parsed by fastavro.
        named: its named types.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._schema = schema
        self._named = named
        self._known: dict[tuple[int, int], Any] = {}  # by the ids of a value and a type

    def resolve(self, value: Any) -> Any:
        """Return a value for fastavro's writer, with the branches of its unions.

        Raises:
            RecordError: it does not fit the schema, is nested too deeply, or too much had to be tried.
        """
        try:
            found = self._fit(value, self._schema, 0)
        finally:
            self._known.clear()
        if found is _MISFIT:
            raise RecordError("it does not fit the schema: its types differ")
        return found

    def _fit(self, value: Any, schema: Any, depth: int) -> Any:
        """Return a value with the branches of its unions, or `_MISFIT`."""
        whole = self._whole(schema)
        if not isinstance(whole, list):
            return self._fit_one(value, whole, depth)
        if type(value) is int and (name := _whole_number(value, whole)) is not None:
            return name, value
        best, most = _MISFIT, -1
        for branch in whole:
            kind = self._whole(branch)
            found = self._fit_one(value, kind, depth)
            if found is _MISFIT:
                continue
            if not isinstance(value, dict | list):  # the writer finds it as quickly
                return value
            name = branch if isinstance(branch, str) else kind.get("name", kind["type"])
            if kind["type"] in {"array", "map"}:
                return name, found
            fields = sum(field["name"] in value for field in kind["fields"])
            if fields > most:
                best, most = (name, found), fields
        return best

    def _fit_one(self, value: Any, schema: Any, depth: int) -> Any:
        from fastavro import validate  # noqa: PLC0415  loaded when used

        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind not in {"record", "error", "array", "map"}:
            return value if validate(value, schema, raise_errors=False) else _MISFIT
        if type(value) is not (list if kind == "array" else dict):
            return _MISFIT
        if depth >= DEEPEST:
            raise RecordError(f"it is nested more than {DEEPEST} levels deep")
        pair = id(value), id(schema)
        if pair not in self._known:
            if len(self._known) >= MAX_COMPARED:
                raise RecordError(f"its objects and lists need more than {MAX_COMPARED:,} comparisons with the schema")
            self._known[pair] = self._fit_inside(value, schema, depth)
        return self._known[pair]

    def _fit_inside(self, value: Any, schema: Any, depth: int) -> Any:
        made = self._types_inside(value, schema, depth)
        if made is None:
            return _MISFIT
        for place in range(len(made)) if isinstance(made, list) else made:
            found = self._fit(value[place], made[place], depth + 1)
            if found is _MISFIT:
                return _MISFIT
            made[place] = found
        return made if isinstance(made, list) else {**value, **made}

    def _types_inside(self, value: Any, schema: Any, depth: int) -> Any:
        """Return the type of each value inside; None when a field without a value must have one."""
        if schema["type"] == "array":
            return [schema["items"]] * len(value)
        if schema["type"] == "map":
            return dict.fromkeys(value, schema["values"])
        types = {field["name"]: field for field in schema["fields"]}
        for name, field in types.items():
            if name not in value and self._fit(field.get("default"), field["type"], depth + 1) is _MISFIT:
                return None
        return {name: field["type"] for name, field in types.items() if name in value}

    def _whole(self, schema: Any) -> Any:
        """Return a type in place of its name."""
        while True:
            if isinstance(schema, str) and schema in self._named:
                schema = self._named[schema]
            elif isinstance(schema, dict) and (not isinstance(schema["type"], str) or schema["type"] in self._named):
                schema = schema["type"]
            else:
                return schema


def _whole_number(value: int, branches: list[Any]) -> str | None:
    """Return the branch for a whole number, if there is one that is neither a time nor another logical type."""
    from fastavro import validate  # noqa: PLC0415  loaded when used

    for branch in branches:
        kind = branch if isinstance(branch, str) else None if "logicalType" in branch else branch["type"]
        if kind in ("int", "long") and validate(value, kind, raise_errors=False):
            return str(kind)
    return None
