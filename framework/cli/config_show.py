"""The command `config show`: every option with its value and where the value comes from."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

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
    from framework.config.loading import Loaded
    from framework.config.sections import SourceCommonConfig

_MAX_WIDTH = 60
_Shown = tuple[str, Any, list[str]]


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
    shown = _shown(loaded, str(file.path), defaults=not no_defaults)
    transforms = shown_mapping({"transforms": loaded.merged.values.get("transforms", [])}, {})["transforms"]
    if json:
        found: dict[str, Any] = {
            section: {name: {"value": value, "origins": origins} for name, (_, value, origins) in options.items()}
            for section, options in shown.items()
        }
        sys.stdout.write(f"{json_module.dumps(found | ({'transforms': transforms} if transforms else {}), indent=2)}\n")
    else:
        of_transforms = (line for entry in transforms for line in table_lines("[[transforms]]", entry))
        write_lines([*_lines(shown), *of_transforms])
    return EXIT_DONE


def _shown(loaded: Loaded[SourceCommonConfig], file: str, *, defaults: bool) -> dict[str, dict[str, _Shown]]:
    """Return the options of each section: the value as TOML, empty without one; the value; where it comes from.

    Secrets are masked.
    """
    root, merged = type(loaded.config), loaded.merged
    mapping = shown_mapping(merged.values, sections_of(root))
    sections: dict[str, dict[str, _Shown]] = {}
    for section, cls in ordered_sections(root).items():
        for option in options_of(cls):
            path = (*section.split("."), option.name)
            value, origins = value_at(mapping, path), [origin or file for origin in merged.origins_of(path)]
            if path == ("iggy", "url") and "${" not in value:
                value = str(loaded.config.iggy.server())
            if value is not None:
                sections.setdefault(section, {})[option.name] = toml_value(value), value, origins or [file]
            elif defaults:
                text = "" if option.default is None else default_text(option)
                sections.setdefault(section, {})[option.name] = text, plain(option.default), ["default"]
    return sections


def _lines(shown: dict[str, dict[str, _Shown]]) -> Iterator[str]:
    texts = [f"{name} = {text}" for options in shown.values() for name, (text, _, _) in options.items()]
    width = min(_MAX_WIDTH, max(map(len, texts), default=0))
    for number, (section, options) in enumerate(shown.items()):
        yield from ["", f"[{section}]"] if number else [f"[{section}]"]
        for name, (text, _, origins) in options.items():
            line = f"{name} = {text}" if text else f"# {name} ="
            yield f"{line:<{width}}  # {', '.join(origins)}"
