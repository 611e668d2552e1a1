"""Branches of unions and symbols of enums, such that the decoder finds no other than those that are there.

fastavro looks them up in lists, and in a list of Python -1 is the last one: damage would give a wrong value. So the lists
of the schema that it has parsed are replaced by mappings, which know the numbers from 0 on and no others. Both ways of
fastavro to look up, in C and in Python, take what the schema holds; `refuses_indexes` tries it.
"""

from __future__ import annotations

import io
from functools import cache
from typing import Any


def refuse_indexes(parsed: Any) -> None:
    """Replace the lists in a schema that fastavro has parsed. The schema itself must not be a union.

    What it decodes from then on raises `KeyError` at the number of a branch or symbol that is not there.
    """
    level = [parsed]
    while level:
        part = level.pop()
        if not isinstance(part, dict):
            continue
        if "symbols" in part:
            part["symbols"] = dict(enumerate(part["symbols"]))
        for name in ("type", "items", "values"):
            inner = part.get(name)
            if isinstance(inner, list):
                part[name] = {"type": "union"} | dict(enumerate(inner))
                level += inner
            else:
                level.append(inner)
        level += part.get("fields", ())


def blocks_of(schema: Any, data: bytes, **options: Any) -> Any:
    """Return fastavro's reader of a file with a block of one datum, to try what the installed version does with it."""
    import fastavro  # noqa: PLC0415 - only who reads Avro pays for it

    file, sync = io.BytesIO(), bytes(16)
    fastavro.writer(file, schema, [], sync_marker=sync)
    file.write(b"\x02" + bytes([2 * len(data)]) + data + sync)
    file.seek(0)
    blocks = fastavro.block_reader(file, **options)
    refuse_indexes(blocks.writer_schema)
    return blocks


@cache
def refuses_indexes() -> bool:
    """Return whether the installed fastavro looks up branches and symbols where `refuse_indexes` puts them."""
    for kind in (["int"], {"type": "enum", "name": "E", "symbols": ["X"]}):
        schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}, {"name": "n", "type": "int"}]}
        try:
            list(next(blocks_of(schema, b"\x01\x00")))  # the number -1, and 0
        except KeyError:
            continue
        return False
    return True
