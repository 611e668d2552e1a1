"""Headers of stored messages: joining long values, and what they say of a record's object.

`framework.model.header_encoding` encodes them and describes the layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from framework.model.header_encoding import HeaderValue, provenance
from framework.model.objects import NativeObject
from framework.model.splits import KeyPart, Split

_SPLIT = re.compile(r"([1-9][0-9]{0,7})/([1-9][0-9]{0,18})", re.ASCII)
_PART = re.compile(r"([1-9][0-9]{0,7})/([1-9][0-9]{0,7})", re.ASCII)
_PIECE = re.compile(r"\.[1-9][0-9]*\Z")


def split_of(headers: Mapping[str, str]) -> Split | None:
    """Parse the split that `provenance` wrote; None when the object is not split."""
    found = _SPLIT.fullmatch(headers.get("share", ""))
    return Split(int(found[1]), int(found[2])) if found else None


def position_headers(native: NativeObject, division: Split | KeyPart | None) -> dict[str, str]:
    """Return the headers that identify a position: those of `provenance`, and the part if the object is divided by key."""
    if isinstance(division, KeyPart):
        return {**provenance(native), "part": f"{division.number}/{division.parts}"}
    return provenance(native, split=division)


def division_of(headers: Mapping[str, str]) -> Split | KeyPart | None:
    """Parse the split or part that `position_headers` wrote; None when the object has one position."""
    found = _PART.fullmatch(headers.get("part", ""))
    return KeyPart(int(found[1]), int(found[2])) if found else split_of(headers)


def replaced_names(of_object: Mapping[str, str], own: Mapping[str, HeaderValue]) -> set[str]:
    """Return which headers that name the object a record's own replace, by their name or that of a piece."""
    return {_PIECE.sub("", name) for name in own} & of_object.keys()


def merge_headers(of_object: Mapping[str, str], own: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
    """Return the headers of an object's record: its own replace those that name the object."""
    replaced = replaced_names(of_object, own)
    return {**{name: value for name, value in of_object.items() if name not in replaced}, **own}


def join_provenance(headers: Mapping[str, HeaderValue]) -> dict[str, str]:
    """Return the mapping that was passed to `encode_headers`, from the headers of a stored message.

    Numbered pieces are appended to the value they belong to; a gap in the numbers ends a value. Headers
    of other kinds become text; bytes that are not text become backslash escapes.
    """
    raw = {str(name): _to_bytes(value) for name, value in headers.items()}
    whole: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(raw):  # a piece's name sorts behind the name it belongs to
        if name in taken:
            continue
        value, number = raw[name], 1
        while (piece := raw.get(f"{name}.{number}")) is not None:
            taken.add(f"{name}.{number}")
            value += piece
            number += 1
        try:
            whole[name] = value.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # bytes of another program
            whole[name] = value.decode("utf-8", "backslashreplace")
    return whole


def _to_bytes(value: HeaderValue) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
