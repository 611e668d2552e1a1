"""The commands `config init`, `config show` and `config schema`."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framework.cli.config_init import write_starting_file
from framework.cli.config_show import show
from framework.config.json_schema import json_schema
from framework.errors import EXIT_DONE

if TYPE_CHECKING:
    from framework.cli.program import Program

config_app = typer.Typer(help="Begin, show and describe a configuration.", rich_markup_mode=None)


@config_app.command()
def init(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE")] = Path("source.toml"),
) -> int:
    """Write a commented file with every option. Never overwrites a file."""
    program: Program = context.obj
    write_starting_file(program.name, program.config_class, file, command=program.command)
    return EXIT_DONE


config_app.command()(show)


@config_app.command()
def schema(context: typer.Context) -> int:
    """Write the JSON schema of a configuration to stdout, for editors."""
    sys.stdout.write(schema_text(context.obj.name, context.obj.config_class))
    return EXIT_DONE


def schema_text(program: str, root: type) -> str:
    """Return the schema as indented JSON."""
    return (
        json_module.dumps(json_schema(root, title=f"Configuration of {program}"), indent=1, ensure_ascii=False) + "\n"
    )
