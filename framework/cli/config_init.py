"""The command `config init`: a commented file to begin with, written from the option declarations."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from framework.config.option import Option, options_of
from framework.config.sections import ordered_sections
from framework.config.toml_text import default_text, toml_value
from framework.errors import ConfigError

_WIDTH = 88


def write_starting_file(program: str, root: type, path: Path, *, command: str) -> None:
    """Write the file; it must not exist.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    text = starting_file(program, root, path, command=command)
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except (OSError, UnicodeEncodeError):
                path.unlink()  # a part of a file would be in the way of the next try
                raise
    except FileExistsError:
        raise ConfigError("exists already, and config init overwrites nothing", origin=str(path)) from None
    except UnicodeEncodeError:
        raise ConfigError(
            "its name is not valid UTF-8, and the file itself shows it: choose another", origin=ascii(str(path))
        ) from None
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror or type(exc).__name__}", origin=str(path)) from None
    sys.stdout.write(
        f"wrote {path}: change its first values, set IGGY_PASSWORD, then: {command} check --config {path}\n"
    )


def starting_file(program: str, root: type, path: Path, *, command: str) -> str:
    """Return a commented TOML file with every option: required and usual ones set, the others commented out."""
    head = (
        f"# Configuration of {program}. A line that begins with # shows a default; remove the # to change it.\n#\n"
        f"#   {command} check --config {path}     is everything ready? Sends nothing\n"
        f"#   {command} --config {path} --once    delivers everything there is now, then ends\n"
        f"#   {command} --config {path}           runs until stopped\n#\n"
        f'# A value may be ${{env:NAME}} or ${{file:PATH}}. Options of other files: include = ["common.toml"]\n'
        "# To change or filter records, add at the end a line [[transforms]], a type and its options."
    )
    return "\n\n\n".join([head, *(_section_text(name, cls) for name, cls in ordered_sections(root).items())]) + "\n"


def _section_text(name: str, cls: type) -> str:
    lines = [*_comment((cls.__doc__ or "").partition("\n\n")[0]), f"[{name}]"]
    options = options_of(cls)
    for option in sorted(options, key=lambda option: _value(option) is None):
        value = _value(option)
        shown = f"{option.name} = {toml_value(value)}" if value is not None else f"# {option.name} = {_shown(option)}"
        lines += [*_comment(option.metadata.doc), shown, ""]
    return "\n".join(lines).rstrip()


def _value(option: Option) -> object:
    """Return the value that the file gives an option; None leaves it commented out."""
    if option.metadata.example is not None:
        return option.metadata.example
    return "CHANGE-ME" if option.required else None


def _shown(option: Option) -> str:
    return f"({option.type_text}, absent)" if option.default is None else default_text(option)


def _comment(doc: str) -> list[str]:
    return textwrap.wrap(
        " ".join(doc.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False
    )
