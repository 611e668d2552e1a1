"""Values as TOML, for generated files and pages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from framework.config.option import Option

_LONG = 10_000
_HOUR = 3600
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: object) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value}"
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        return "{ " + ", ".join(f"{toml_name(str(name))} = {toml_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return toml_string(str(value))


def toml_string(text: str) -> str:
    """Return a text as a TOML string: literal where that saves escapes, otherwise a basic string."""
    if ('"' in text or "\\" in text) and "'" not in text and text.isprintable():
        return f"'{text}'"
    # JSON's escapes are TOML's, except that JSON leaves DEL, and what else a terminal may obey, as it is
    return "".join(
        char if char.isprintable() else f"\\U{ord(char):08X}" for char in json.dumps(text, ensure_ascii=False)
    )


def toml_name(name: str) -> str:
    """Return a name of a table as TOML, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else toml_string(name)


def table_lines(header: str, values: Mapping[str, object]) -> list[str]:
    """Return the lines of a table as TOML, with an empty line before it; `header`: `[s3]` or `[[transforms]]`."""
    return ["", header, *(f"{toml_name(name)} = {toml_value(value)}" for name, value in values.items())]


def default_text(option: Option) -> str:
    """Return the default of an option as a file would have it: durations and sizes with their units."""
    value, kind = option.default, option.type_text
    if isinstance(value, (int, float)) and kind.startswith("duration"):
        if value >= _HOUR and value % _HOUR == 0:
            return f'"{value // _HOUR:g}h"'
        return f'"{value * 1000:g}ms"' if 0 < value < 1 else f'"{value:g}s"'
    if isinstance(value, int) and not isinstance(value, bool):
        if kind == "size" and value % 1024**2 == 0:
            return f'"{value // 1024**2}MiB"'
        return f"{value:_}" if value >= _LONG else f"{value}"
    return toml_value(value)
