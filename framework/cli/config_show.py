"""The command `config show`: every option with its value and where the value comes from."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from framework.cli.config_file import ConfigOption, JsonOption, SetOption
from framework.cli.run import load_checked
from framework.cli.text import write_lines
from framework.config.layers import value_at
from framework.config.masked_view import plain, shown_mapping
from framework.config.option import options_of, sections_of
from framework.config.sections import ordered_sections
from framework.config.toml_text import default_text, table_lines, toml_value
from framework.errors import EXIT_DONE

if TYPE_CHECKING:
    from framework.cli.program import Program
    from framework.config.layers import Merged

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


def show(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    no_defaults: Annotated[bool, typer.Option("--no-defaults", help="Only options that are set.")] = False,
    json: JsonOption = False,
) -> int:
    """Show every option with its value and origin. Secrets are masked."""
    program: Program = context.obj
    file = program.choose(config, settings)
    loaded = load_checked(program.task_class, file)
    address = str(loaded.config.iggy.server())
    shown = [
        option
        for option in shown_options(type(loaded.config), loaded.merged, address, str(file.path))
        if not no_defaults or option.origins != ("default",)
    ]
    transforms = shown_mapping({"transforms": loaded.merged.values.get("transforms", [])}, {})["transforms"]
    if json:
        found: dict[str, object] = {**_as_json(shown), **({"transforms": transforms} if transforms else {})}
        sys.stdout.write(f"{json_module.dumps(found, indent=2)}\n")
    else:
        of_transforms = (line for entry in transforms for line in table_lines("[[transforms]]", entry))
        write_lines([*_lines(shown), *of_transforms])
    return EXIT_DONE


def shown_options(root: type, merged: Merged, address: str, file: str) -> Iterator[ShownOption]:
    """Yield every option. `address` is that of Iggy, without its secrets."""
    shown = shown_mapping(merged.values, sections_of(root))
    for section, cls in ordered_sections(root).items():
        for option in options_of(cls):
            path = (*section.split("."), option.name)
            origins = tuple(origin or file for origin in merged.origins_of(path))
            value = value_at(shown, path)
            if value is None:
                text = "" if option.default is None else default_text(option)
                value = plain(option.default)
                yield ShownOption(section=section, name=option.name, value=value, text=text, origins=("default",))
                continue
            if path == ("iggy", "url") and "${" not in value:
                value = address
            yield ShownOption(
                section=section, name=option.name, value=value, text=toml_value(value), origins=origins or (file,)
            )


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


def _as_json(shown: list[ShownOption]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for option in shown:
        found.setdefault(option.section, {})[option.name] = {"value": option.value, "origins": list(option.origins)}
    return found
