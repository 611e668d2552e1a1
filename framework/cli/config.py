"""The commands `config init`, `config show`, `config schema` and `convert`."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framework.cli.config_file import Choose, ConfigOption, SetOption
from framework.errors import EXIT_DONE, ConfigError

if TYPE_CHECKING:
    from framework.task import AbstractSourceTask


def config_app(program: str, task_class: type[AbstractSourceTask], chosen: Choose, *, command: str) -> typer.Typer:
    """Return the group of commands.

    Args:
        program: the program's name, `s3_source`.
        task_class: the source.
        chosen: returns the configuration that the command's and the program's options name.
        command: how a user starts the program, `python -m s3_source`.
    """
    app = typer.Typer(help="Begin, show and describe a configuration.", rich_markup_mode=None)

    @app.command()
    def init(
        file: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE")] = Path("source.toml"),
    ) -> int:
        """Write a commented file with every option. Never overwrites a file."""
        from framework.cli.config_init import write_starting_file  # noqa: PLC0415 - each command loads what it needs

        return write_starting_file(program, _root(task_class), file, command=command)

    @app.command()
    def show(
        config: ConfigOption = None,
        settings: SetOption = None,
        no_defaults: Annotated[bool, typer.Option("--no-defaults", help="Only options that are set.")] = False,
        json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    ) -> int:
        """Show every option with its value and origin. Secrets are masked."""
        from framework.cli.config_show import show_config  # noqa: PLC0415 - each command loads what it needs

        file = chosen(config, settings)
        return show_config(task_class, file, with_defaults=not no_defaults, as_json=json)

    @app.command()
    def schema() -> int:
        """Write the JSON schema of a configuration to stdout, for editors."""
        sys.stdout.write(schema_text(program, _root(task_class)))
        return EXIT_DONE

    return app


def add_convert(app: typer.Typer, command: str, task_class: type[AbstractSourceTask]) -> None:
    """Add the command `convert`."""

    @app.command()
    def convert(
        file: Annotated[
            Path, typer.Argument(help="Properties of a connector, or its JSON.", metavar="FILE", readable=False)
        ],
    ) -> int:
        """Convert the properties of a Kafka connector, such as Aiven's. Writes a configuration to stdout."""
        from framework.cli.convert import convert_file  # noqa: PLC0415 - each command loads what it needs

        return convert_file(command, task_class, file)


def schema_text(program: str, root: type) -> str:
    """Return the schema as indented JSON."""
    from framework.config.json_schema import json_schema  # noqa: PLC0415 - for this command only

    return (
        json_module.dumps(json_schema(root, title=f"Configuration of {program}"), indent=1, ensure_ascii=False) + "\n"
    )


def _root(task_class: type[AbstractSourceTask]) -> type:
    if task_class.config_class is None:
        raise ConfigError(f"{task_class.__name__} names no config_class, so it has no configuration")
    return task_class.config_class
