"""What a datum of an Avro schema can take: how much memory, how many levels, how few bytes.

fastavro's reader in C believes every count in the data and recurses without a limit, so 100 bytes can name 2^60 items
or end the process. Here the schema alone tells whether that can be: each datum takes at most `fixed` bytes of memory and
`dense` more for each of its own bytes. Only where that is too much for a block, or a type holds itself, its bytes are
walked through before they are decoded.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs

from framework.model.varints import signed_at

MEMORY_BYTES = 1 << 27
"""What a batch of data, and so a single datum, may take in memory when it is decoded."""

DEEPEST = 250
"""How deep records, arrays and maps may stand in each other."""

_DEEPEST_JSON = 2 * DEEPEST

SCHEMA_PARTS = 200_000
"""How many values the JSON of a schema may have."""

MAX_DECIMAL_DIGITS = 10_000
"""Of a decimal, behind the point."""

EMPTY_DATA = 1_000_000
"""How many data of no bytes, as of the schema `"null"`, an object may have: nothing else bounds their number."""

_TOO_DEEP = f"a record is nested more than {DEEPEST} levels deep"
_PRIMITIVES = {  # least bytes, memory; null and booleans take some for their JSON alone, twice as in `_json_bytes`
    "null": (0, 10),
    "boolean": (1, 12),
    "int": (1, 36),
    "long": (1, 36),
    "float": (4, 24),
    "double": (8, 24),
    "bytes": (1, 56),
    "string": (1, 56),
}
PRIMITIVES = frozenset(_PRIMITIVES)
NAMED = frozenset(("record", "error", "enum", "fixed"))
TEXT_MEMORY = 6
"""Memory for each byte of text or bytes: as a value, in base64, and as JSON, where a control character takes six."""
_LOGICAL = 100
_LIST, _SLOT, _DICT, _ENTRY = 72, 8, 100, 160


REST_OF_BLOCK = ", and so the rest of its block cannot either"
"""The end of an error that concerns all data behind a datum."""


class UnusableSchemaError(Exception):
    """A schema whose data cannot be read within the limits."""


class UnusableDatumError(Exception):
    """A datum that cannot be read within the limits."""


def undecodable(cause: str) -> str:
    """Return the error for a datum that cannot be decoded."""
    return f"a record cannot be decoded ({cause}){REST_OF_BLOCK}"


def cut_short() -> str:
    """The same, where its bytes end."""
    return undecodable("its bytes end too early, or a length is below zero")


def not_there(number: object) -> str:
    """The same, where it names a branch or a symbol that is not in the schema."""
    return undecodable(f"a union has no branch, or an enum no symbol, with the number {number}")


@attrs.frozen(slots=True)
class Weight:
    """What one datum takes.

    Attributes:
        least: bytes in the file, at least.
        fixed: memory, at most, besides what its bytes take.
        dense: memory for each of its bytes, at most.
        depth: levels of records, arrays and maps; of what holds itself, those before.
        recursive: whether something in it holds itself.
    """

    least: int
    fixed: int
    dense: float = 0.0
    depth: int = 0
    recursive: bool = False

    def must_walk(self, size: int) -> bool:
        """Return whether a block of `size` bytes could take more than allowed."""
        return self.recursive or self.dense * size > MEMORY_BYTES

    @property
    def at_once(self) -> int:
        """Return the number of data that may be decoded at a time."""
        return max(1, MEMORY_BYTES // max(1, self.fixed))


def check_parts(schema: Any) -> None:
    """Refuse a schema whose JSON has too many parts or levels for the functions that go through it.

    Raises:
        UnusableSchemaError: it has.
    """
    level, depth, parts = [schema], 0, 0
    while level:
        depth, parts = depth + 1, parts + len(level)
        if depth > _DEEPEST_JSON or parts > SCHEMA_PARTS:
            what = f"{_DEEPEST_JSON} levels" if depth > _DEEPEST_JSON else f"{SCHEMA_PARTS} parts"
            raise UnusableSchemaError(f"its JSON has more than {what}")
        level = [
            inner
            for part in level
            if isinstance(part, dict | list)
            for inner in (part.values() if isinstance(part, dict) else part)
        ]


def resolve_names(schema: Any, namespace: str = "") -> Any:
    """Return a schema with full names, and none of its types inside of another `type`; for all functions that go through it.

    A text in it is a primitive type, or refers to a named type by its full name.

    Raises:
        LookupError, TypeError, AttributeError: it has not the form of a schema.
    """
    if isinstance(schema, list):
        return [resolve_names(branch, namespace) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full_name(schema, namespace)
    kind = schema["type"]
    if not isinstance(kind, str):
        return resolve_names(kind, namespace)
    if kind in {"array", "map"}:
        inner = "items" if kind == "array" else "values"
        return {**schema, inner: resolve_names(schema[inner], namespace)}
    if kind not in NAMED:
        return schema if kind in PRIMITIVES else _full_name(kind, namespace)
    named = {**schema, "name": _full_name(schema["name"], schema.get("namespace", namespace))}
    if kind in {"record", "error"}:
        space = named["name"].rpartition(".")[0]
        named["fields"] = [{**field, "type": resolve_names(field["type"], space)} for field in schema["fields"]]
    return named


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _refuse_twins(what: str, names: Sequence[str], why: str) -> None:
    if len(set(names)) < len(names):
        ((twice, _),) = Counter(names).most_common(1)
        raise UnusableSchemaError(f"two {what} have the same name, {twice}: {why}")


def _extra(schema: Any) -> int:
    """Memory for the text of a logical type."""
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return 0
    return _LOGICAL + (4 * int(schema.get("scale", 0)) if is_decimal(schema) else 0)


def _json_bytes(name: str) -> int:
    """Return what a name takes in JSON, at most, twice: all records of a block are one text before they are split."""
    return 2 * len(json.dumps(name))


Walk = Callable[[int], int]
_Built = tuple[Weight, Walk]


class Walker:
    """Goes through the bytes of data before they are decoded, and adds up what they will take.

    Args:
        schema: with names resolved.

    Attributes:
        weight: of a datum.
    """

    def __init__(self, schema: Any) -> None:
        self._data = b""
        self._at = 0
        self._taken = 0
        self._depth = 0
        self._named: dict[str, _Built | None] = {}  # None: under way
        self.weight, self._walk = self._build(schema)

    def put(self, data: bytes) -> None:
        """The data of the next block."""
        self._data, self._at = data, 0

    def count(self, most: int) -> int:
        """Return how many data of the block come next that may be decoded at once: one to `most`.

        Raises:
            UnusableDatumError: not even one.
        """
        self._taken, counted = 0, 0
        while counted < most:
            try:
                self._at = self._one(self._at)
            except UnusableDatumError:
                if counted:
                    break
                raise
            counted += 1
        return counted

    def _one(self, at: int) -> int:
        """Return the end of the datum that begins at `at`."""
        self._depth = 0
        try:
            end = self._walk(at)
        except (IndexError, OverflowError):
            end = len(self._data) + 1
        except RecursionError:
            raise UnusableDatumError(_TOO_DEEP) from None
        if end > len(self._data):
            raise UnusableDatumError(cut_short())
        return end

    def _long(self, at: int) -> tuple[int, int]:
        return signed_at(self._data, at)

    def _take(self, memory: int) -> None:
        self._taken += memory
        if self._taken > MEMORY_BYTES:
            raise UnusableDatumError(
                f"a record takes more than {MEMORY_BYTES} bytes of memory when it is decoded, which no record may"
            )

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UnusableDatumError(_TOO_DEEP)

    def _build(self, schema: Any) -> _Built:
        if isinstance(schema, list):
            names = list(map(branch_name, schema))
            valued = [name for name in names if name != "null"]
            _refuse_twins("branches of a union", valued, "as JSON they could not be distinguished")
            return self._union([self._build(branch) for branch in schema], names)
        kind = type_of(schema)
        if kind in {"array", "map"}:
            return self._many(*self._build(schema["items" if kind == "array" else "values"]), keyed=kind == "map")
        if kind in _PRIMITIVES:
            return self._primitive(kind, _PRIMITIVES[kind][1] + _extra(schema))
        if kind not in NAMED:
            return self._reference(kind)
        name = schema["name"]
        self._named[name] = None
        if kind == "enum":
            built = self._enum(schema["symbols"])
        elif kind == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or size < 0:
                raise UnusableSchemaError("the size of a fixed type is no number of bytes")
            built = Weight(size, 56 + _extra(schema), TEXT_MEMORY), self._fixed(size, 56 + _extra(schema))
        else:
            fields = [field["name"] for field in schema["fields"]]
            _refuse_twins(f"fields of the record {name}", fields, "as JSON one of them would be lost")
            built = self._record(
                [self._build(field["type"]) for field in schema["fields"]], sum(map(_json_bytes, fields))
            )
        self._named[name] = built
        return built

    def _reference(self, name: str) -> _Built:
        if name not in self._named:
            raise UnusableSchemaError(f"it has no type {name}")
        named = self._named
        if (built := named[name]) is not None:
            return built
        # it holds itself: known when it is met
        return Weight(0, 0, math.inf, recursive=True), lambda at: cast("_Built", named[name])[1](at)  # noqa: PLW0108

    def _primitive(self, kind: str, memory: int) -> _Built:
        def text(at: int) -> int:
            size, at = self._long(at)
            if size < 0 or at + size > len(self._data):
                raise IndexError
            self._take(memory + TEXT_MEMORY * size)
            return at + size

        def number(at: int) -> int:
            self._take(memory)
            return self._long(at)[1]

        least = _PRIMITIVES[kind][0]
        if kind in {"bytes", "string"}:
            return Weight(least, memory, TEXT_MEMORY), text
        return Weight(least, memory), number if kind in {"int", "long"} else self._fixed(least, memory)

    def _enum(self, symbols: list[str]) -> _Built:
        memory, count = max(map(_json_bytes, symbols), default=0), len(symbols)

        def enum(at: int) -> int:
            number, at = self._long(at)
            if not 0 <= number < count:
                raise UnusableDatumError(not_there(number))
            self._take(memory)
            return at

        return Weight(1, memory), enum

    def _fixed(self, size: int, memory: int) -> Walk:
        memory += TEXT_MEMORY * size

        def fixed(at: int) -> int:
            self._take(memory)
            return at + size

        return fixed

    def _record(self, fields: list[_Built], names: int) -> _Built:
        memory = _DICT + names + _ENTRY * len(fields)
        weights, walks = [weight for weight, _ in fields], [walk for _, walk in fields]

        def record(at: int) -> int:
            self._take(memory)
            self._deeper()
            for walk in walks:
                at = walk(at)
            self._depth -= 1
            return at

        weight = Weight(
            sum(field.least for field in weights),
            memory + sum(field.fixed for field in weights),
            max((field.dense for field in weights), default=0),
            1 + max((field.depth for field in weights), default=0),
            any(field.recursive for field in weights),
        )
        return weight, record

    def _union(self, branches: list[_Built], names: list[str]) -> _Built:
        memory = [_ENTRY + _DICT + _json_bytes(name) for name in names]
        weights, walks = [weight for weight, _ in branches], [walk for _, walk in branches]

        def union(at: int) -> int:
            number, at = self._long(at)
            if not 0 <= number < len(walks):
                raise UnusableDatumError(not_there(number))
            self._take(memory[number])
            return walks[number](at)

        own = max(memory) if len(branches) > 1 else 0
        weight = Weight(
            1 + min((branch.least for branch in weights), default=0),
            0,
            # a branch takes its least bytes and one more for its number
            max((branch.dense + (own + branch.fixed) / (1 + branch.least) for branch in weights), default=0),
            max((branch.depth for branch in weights), default=0),
            any(branch.recursive for branch in weights),
        )
        return weight, union

    def _many(self, inner: Weight, walk: Walk, *, keyed: bool) -> _Built:
        memory, own, least = (_ENTRY, _DICT, 1 + inner.least) if keyed else (_SLOT, _LIST, inner.least)
        # Items of no bytes are not gone through: there may be 2^60. What holds itself has bytes, or no end.
        empty = not least and not inner.recursive

        def many(at: int) -> int:
            self._take(own)
            self._deeper()
            while True:
                count, at = self._long(at)
                if not count:
                    break
                if count < 0:
                    count = -count
                    _, at = self._long(at)
                if empty:
                    self._take(count * (memory + inner.fixed))
                    continue
                for _ in range(count):
                    self._take(memory)
                    if keyed:
                        size, at = self._long(at)
                        if size < 0 or at + size > len(self._data):
                            raise IndexError
                        self._take(TEXT_MEMORY * size)
                        at += size
                    at = walk(at)
                    if at > len(self._data):
                        raise IndexError
            self._depth -= 1
            return at

        each = (memory + inner.fixed) / least if least else math.inf
        dense = max(inner.dense, TEXT_MEMORY if keyed else 0) + each
        return Weight(1, own, dense, inner.depth + 1, inner.recursive), many


def weigh(schema: Any) -> Weight:
    """Return the memory of a datum of a schema, whose names are resolved.

    Raises:
        UnusableSchemaError: more than is allowed, whatever its bytes.
    """
    weight = Walker(schema).weight
    if weight.depth > DEEPEST:
        raise UnusableSchemaError(f"its types stand more than {DEEPEST} levels deep in each other")
    if weight.fixed > MEMORY_BYTES:
        raise UnusableSchemaError(f"a datum without any content takes more than {MEMORY_BYTES} bytes of memory")
    return weight


def branch_name(branch: Any) -> str:
    """The name of a union's branch, as in Avro's own JSON encoding: the full name of a named type, else the type."""
    kind = type_of(branch)
    return str(branch["name"] if kind in NAMED else kind)


def is_decimal(schema: Any) -> bool:
    """Return whether values are decimals: the logical type on bytes, with a scale and a precision as Avro demands them.

    Raises:
        ValueError: its scale is more than can be written.
    """
    if (
        not isinstance(schema, dict)
        or schema.get("logicalType") != "decimal"
        or schema["type"] not in ("bytes", "fixed")
    ):
        return False
    scale, precision = schema.get("scale", 0), schema.get("precision", 0)
    if type(scale) is not int or type(precision) is not int or not 0 <= scale <= precision or not precision:
        return False
    if scale > MAX_DECIMAL_DIGITS:
        raise ValueError(f"a decimal with more than {MAX_DECIMAL_DIGITS} digits behind the point")
    return True


def type_of(schema: Any) -> str:
    """Return the type of a schema that is no union: of a reference, the full name."""
    return str(schema["type"] if isinstance(schema, dict) else schema)
