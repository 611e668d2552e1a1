"""The columns of a Parquet file: its leaves, in the order of its schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transformers.columns import Choice, Field, choose, nothing_inside

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def read_leaves(file: pq.ParquetFile, index: int, leaves: list[int] | None, size: int) -> Iterator[pa.RecordBatch]:
    """Return the batches of a row group, of all columns or of leaves by their places: two may have the path `a.b`."""
    if leaves is None:
        return file.iter_batches(size, row_groups=[index], use_threads=False)  # type: ignore[no-any-return]
    return file.reader.iter_batches(size, row_groups=[index], column_indices=leaves, use_threads=False)  # type: ignore[no-any-return]


def int96_leaves(parquet: pq.ParquetFile, chosen: list[int] | None) -> list[int]:
    """Return the leaves of those columns at the top in which there is INT96."""
    schema = parquet.schema
    leaves = range(len(schema)) if chosen is None else chosen
    old = {leaf for leaf in leaves if schema.column(leaf).physical_type == "INT96"}
    if not old:
        return []
    found: list[int] = []
    begin = 0
    for field in parquet.schema_arrow:
        column = range(begin, begin := begin + _leaf_count(field.type))
        if not old.isdisjoint(column):
            found += [leaf for leaf in leaves if leaf in column]
    return found


def chosen_leaves(columns: Sequence[str], parquet: pq.ParquetFile) -> list[int]:
    """Return the places of the chosen columns' leaves, in the file's order.

    Raises:
        CorruptObjectError: a column does not exist.
    """
    kinds = [(field.name, field.type) for field in parquet.schema_arrow]
    choice = choose(columns, [_field(*kind) for kind in kinds])
    return list(_leaves_of(choice, [kind for _, kind in kinds], 0))


def _field(name: str, kind: Any) -> Field:
    struct = _struct_in(kind)
    if struct is None:
        return Field(name, nothing_inside)
    return Field(
        name, lambda: [_field(struct.field(at).name, struct.field(at).type) for at in range(struct.num_fields)]
    )


def _leaves_of(choice: Choice, kinds: Sequence[Any], begin: int) -> Iterator[int]:
    """Yield the leaves of the chosen of some fields, the first of which begins with leaf `begin`."""
    for place, kind in enumerate(kinds):
        end = begin + _leaf_count(kind)
        if place in choice:
            inner, struct = choice[place], _struct_in(kind)
            if inner is None or struct is None:
                yield from range(begin, end)
            else:
                yield from _leaves_of(inner, [struct.field(at).type for at in range(struct.num_fields)], begin)
        begin = end


def _struct_in(kind: Any) -> Any:
    """Return the struct that a type is, or holds in lists; None when it is another."""
    from pyarrow import types  # noqa: PLC0415

    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind if types.is_struct(kind) else None


def _leaf_count(kind: Any) -> int:
    """Return the number of Parquet's columns that an Arrow type takes."""
    from pyarrow import types  # noqa: PLC0415

    if hasattr(kind, "storage_type"):
        return _leaf_count(kind.storage_type)
    if types.is_struct(kind):
        return sum(_leaf_count(kind.field(at).type) for at in range(kind.num_fields))
    if types.is_map(kind):
        return _leaf_count(kind.key_type) + _leaf_count(kind.item_type)
    if types.is_dictionary(kind):
        return 1
    return _leaf_count(kind.value_type) if hasattr(kind, "value_type") else 1
