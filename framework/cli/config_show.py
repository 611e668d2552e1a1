"""The command `config show`: every option with its value and where the value comes from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from framework.cli.run import load_checked
from framework.cli.text import write_lines
from framework.config.option import Option, options_of
from framework.config.sections import ordered_sections
from framework.config.substitution import is_reference
from framework.config.toml_text import default_text, toml_value
from framework.errors import EXIT_DONE

if TYPE_CHECKING:
    from framework.cli.config_file import ConfigFile
    from framework.config.layers import Merged
    from framework.task import AbstractSourceTask

MASK = "***"
_MAX_WIDTH = 60


@attrs.frozen(kw_only=True)
class ShownOption:
    """An option as it is printed.

    Attributes:
        section: its section.
        name: its name.
        value: the value as it was written, secrets masked.
        text: the value as TOML; empty when it has none.
        origins: where the value comes from.
    """

    section: str
    name: str
    value: Any
    text: str
    origins: tuple[str, ...]


def show_config(task_class: type[AbstractSourceTask], file: ConfigFile, *, with_defaults: bool, as_json: bool) -> int:
    """Print the configuration as TOML, the origin of each value behind it.

    Raises:
        ConfigError: mistakes in the configuration; they name the origins, too.
    """
    loaded = load_checked(task_class, file)
    path = str(file.path)
    shown = [
        option
        for option in shown_options(type(loaded.config), loaded.merged, str(loaded.config.iggy.server()), path)
        if with_defaults or option.origins != ("default",)
    ]
    entries = loaded.merged.values.get("transforms")
    transforms: list[dict[str, object]] = [dict(entry) for entry in entries] if isinstance(entries, list) else []
    if as_json:
        found: dict[str, object] = {**_as_json(shown), **({"transforms": _plain(transforms)} if transforms else {})}
        sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
    else:
        write_lines([*_lines(shown), *_transform_lines(transforms)])
    return EXIT_DONE


def shown_options(root: type, merged: Merged, address: str, file: str) -> Iterator[ShownOption]:
    """Yield every option. `address` is that of Iggy, without its secrets."""
    for section, cls in ordered_sections(root).items():
        for option in options_of(cls):
            path = (*section.split("."), option.name)
            origins = tuple(origin or file for origin in merged.origins_of(path))
            if not _is_given(merged.values, path):
                text = "" if option.default is None else default_text(option)
                value = _plain(option.default)
                yield ShownOption(section=section, name=option.name, value=value, text=text, origins=("default",))
                continue
            value = _masked(option, _given(merged.values, path))
            if path == ("iggy", "url") and value == MASK:
                value = address
            yield ShownOption(
                section=section, name=option.name, value=value, text=toml_value(value), origins=origins or (file,)
            )


def _given(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def _is_given(values: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    for name in path:
        if name not in values:
            return False
        values = values[name]
    return True


def _masked(option: Option, value: Any) -> Any:
    """Return the value as it was written. A secret is masked unless it is a reference."""
    if isinstance(value, Mapping):
        return {name: _masked(option, item) for name, item in value.items()}
    if isinstance(value, str):
        return MASK if option.metadata.secret and value and not is_reference(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [_masked(option, item) for item in value]
    return _plain(MASK if option.metadata.secret else value)


def _plain(value: Any) -> Any:
    """Return the value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    finite = not isinstance(value, float) or abs(value) != float("inf")
    return value if isinstance(value, (str, bool, int, float, type(None))) and finite else str(value)


def _lines(shown: list[ShownOption]) -> Iterator[str]:
    section = None
    width = min(_MAX_WIDTH, max((len(f"{each.name} = {each.text}") for each in shown), default=0))
    for option in shown:
        if option.section != section:
            if section is not None:
                yield ""
            section = option.section
            yield f"[{section}]"
        line = f"{option.name} = {option.text}" if option.text else f"# {option.name} ="
        yield f"{line:<{width}}  # {', '.join(option.origins)}"


def _transform_lines(transforms: list[dict[str, object]]) -> Iterator[str]:
    """Yield the list of transforms as TOML, as it was written. It holds no secrets."""
    for entry in transforms:
        yield ""
        yield "[[transforms]]"
        yield from (f"{name} = {toml_value(value)}" for name, value in entry.items())


def _as_json(shown: list[ShownOption]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for option in shown:
        found.setdefault(option.section, {})[option.name] = {"value": option.value, "origins": list(option.origins)}
    return found
