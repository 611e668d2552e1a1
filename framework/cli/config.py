"""The commands `config init`, `config show` and `config schema`."""

from __future__ import annotations

import json as json_module
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framework.cli.config_file import ConfigOption, JsonOption, SetOption
from framework.cli.run import config_class_of, load_source
from framework.cli.text import write_lines
from framework.config.json_schema import json_schema
from framework.config.layers import value_at
from framework.config.masked_view import plain, shown_mapping
from framework.config.option import Option, options_of, sections_of
from framework.config.sections import ordered_sections
from framework.config.toml_text import default_text, table_lines, toml_value
from framework.errors import EXIT_DONE, ConfigError

if TYPE_CHECKING:
    from framework.cli.program import Program
    from framework.config.loading import Loaded
    from framework.config.sections import SourceCommonConfig

config_app = typer.Typer(help="Begin, show and describe a configuration.", rich_markup_mode=None)

_WIDTH = 88
_MAX_WIDTH = 60
_Shown = tuple[str, Any, list[str]]


@config_app.command()
def init(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE")] = Path("source.toml"),
) -> int:
    """Write a commented file with every option. Never overwrites a file."""
    program: Program = context.obj
    text = _starting_file(program, file)
    try:
        with file.open("x", encoding="utf-8") as output:
            try:
                output.write(text)
                output.flush()
            except (OSError, UnicodeEncodeError):
                file.unlink()  # a part of a file would be in the way of the next try
                raise
    except FileExistsError:
        raise ConfigError("exists already, and config init overwrites nothing", origin=str(file)) from None
    except UnicodeEncodeError:
        raise ConfigError(
            "its name is not valid UTF-8, and the file itself shows it: choose another", origin=ascii(str(file))
        ) from None
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror or type(exc).__name__}", origin=str(file)) from None
    sys.stdout.write(
        f"wrote {file}: change its first values, set IGGY_PASSWORD, then: {program.command} check "
        f"--config {shlex.quote(str(file))}\n"
    )
    return EXIT_DONE


@config_app.command()
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
    loaded = load_source(program.task_class, file)
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


@config_app.command()
def schema(context: typer.Context) -> int:
    """Write the JSON schema of a configuration to stdout, for editors."""
    sys.stdout.write(schema_text(context.obj.name, config_class_of(context.obj.task_class)))
    return EXIT_DONE


def schema_text(program: str, root: type) -> str:
    """Return the schema as indented JSON."""
    return (
        json_module.dumps(json_schema(root, title=f"Configuration of {program}"), indent=1, ensure_ascii=False) + "\n"
    )


def _starting_file(program: Program, file: Path) -> str:
    """Return a commented TOML file with every option: required and usual ones set, the others commented out."""
    head = (
        f"# Configuration of {program.name}. A line that begins with # shows a default; remove the # to change it.\n#\n"
        f"#   {program.command} check --config {file}     is everything ready? Sends nothing\n"
        f"#   {program.command} --config {file} --once    delivers everything there is now, then ends\n"
        f"#   {program.command} --config {file}           runs until stopped\n#\n"
        f'# A value may be ${{env:NAME}} or ${{file:PATH}}. Options of other files: include = ["common.toml"]\n'
        "# To change or filter records, add at the end a line [[transforms]], a type and its options."
    )
    sections = ordered_sections(config_class_of(program.task_class))
    return "\n\n\n".join([head, *(_section_text(name, cls) for name, cls in sections.items())]) + "\n"


def _section_text(name: str, cls: type) -> str:
    lines = [*_comment((cls.__doc__ or "").partition("\n\n")[0]), f"[{name}]"]
    options = options_of(cls)
    for option in sorted(options, key=lambda option: _value(option) is None):
        value = _value(option)
        shown = (
            f"{option.name} = {toml_value(value)}" if value is not None else f"# {option.name} = {_commented(option)}"
        )
        lines += [*_comment(option.doc), shown, ""]
    return "\n".join(lines).rstrip()


def _value(option: Option) -> object:
    """Return the value that the file gives an option; None leaves it commented out."""
    if option.example is not None:
        return option.example
    return "CHANGE-ME" if option.required else None


def _commented(option: Option) -> str:
    return f"({option.type_text}, absent)" if option.default is None else default_text(option)


def _comment(doc: str) -> list[str]:
    return textwrap.wrap(
        " ".join(doc.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False
    )


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
            if path == ("iggy", "url") and value is not None and "${" not in value:
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
