"""What rows in Arrow take as values of Python and as JSON, before they become either."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from transformers.parquet.row_encoder import plain_lists
from transformers.row_json import name_bytes


@attrs.frozen(slots=True)
class Sizes:
    """What an array or a batch takes.

    Attributes:
        values: number of values, those in lists counted one by one.
        dictionary_bytes: bytes that values take from dictionaries.
        name_bytes: bytes of the names of fields in the JSON of all rows.
    """

    values: int
    dictionary_bytes: int = 0
    name_bytes: int = 0


def row_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return what all rows of a batch take."""
    names = Sizes(0, 0, batch.num_rows * name_bytes(batch.schema.names))
    return _sum([names, *map(_sizes, batch.columns)])


def text_bytes(array: Any) -> int:
    """Return how many bytes the texts in an array have, which as JSON are no shorter; those in dictionaries not counted."""
    kind = array.type
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return pc.sum(pc.binary_length(array)).as_py() or 0
    return sum(map(text_bytes, _inside(array)))


def _is_compound(kind: Any) -> bool:
    """Return whether a row may have several values of a type, or take them from a dictionary."""
    return _is_nested(kind) or pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType)


def _is_nested(kind: Any) -> bool:
    types = pa.types  # which do not call a list view nested
    return bool(types.is_nested(kind) or types.is_list_view(kind) or types.is_large_list_view(kind))


def _sizes(array: Any) -> Sizes:
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary)
        return Sizes(len(array), pc.sum(lengths.cast("int64").take(array.indices)).as_py() or 0)
    if not _is_compound(kind):
        return Sizes(len(array))
    names = 0
    if pa.types.is_struct(kind):
        names = (len(array) - array.null_count) * name_bytes([kind.field(at).name for at in range(kind.num_fields)])
    own = Sizes(0 if hasattr(array, "storage") else len(array), 0, names)
    return _sum([own, *map(_sizes, _inside(array))])


def _sum(sizes: list[Sizes]) -> Sizes:
    return Sizes(
        sum(each.values for each in sizes),
        sum(each.dictionary_bytes for each in sizes),
        sum(each.name_bytes for each in sizes),
    )


def _inside(array: Any) -> list[Any]:
    """Return the arrays in an array: fields of records, keys and values of maps, items of lists, what an extension stores.

    Not by pyarrow's `flatten`, which fails where all lists are null and would hold a UUID.
    """
    kind = array.type
    if hasattr(array, "storage"):
        return [array.storage]
    if pa.types.is_struct(kind):
        return [array.field(at) for at in range(kind.num_fields)]
    if not _is_nested(kind):
        return []
    array = plain_lists(array)
    if pa.types.is_fixed_size_list(kind):
        begin, end = (at * kind.list_size for at in (array.offset, array.offset + len(array)))
    else:
        begin, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
    inner = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
    return [each.slice(begin, end - begin) for each in inner]


__all__ = ["Sizes", "row_sizes", "text_bytes"]
