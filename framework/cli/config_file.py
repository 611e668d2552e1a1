"""The options that several commands have, such as `--config` and `--set`, and the flags of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from framework.errors import ConfigError

if TYPE_CHECKING:
    from framework.config.layers import Layer


def path_option(*names: str, help: str) -> Any:  # noqa: A002 - as typer calls it
    """Return an option that takes a path; an empty one, of an unset variable of a script, would be the current folder."""
    return typer.Option(*names, help=help, show_default=False, parser=_path_of, metavar="PATH")


def _path_of(text: str) -> Path:
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


ConfigOption = Annotated[Path | None, path_option("--config", "-c", help="The TOML file that describes the source.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.OPTION=VALUE",
        help="Override an option of the file; may be repeated, the last one wins.",
        show_default=False,
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]


@attrs.frozen(kw_only=True)
class ConfigFile:
    """A configuration file and the overrides of the command line.

    Attributes:
        path: the file.
        settings: the values of `--set`, in their order.
        layers: the content of the file, if it has been read already.
    """

    path: Path
    settings: tuple[str, ...] = attrs.field(default=(), repr=False)  # may hold passwords
    layers: tuple[Layer, ...] | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class Flags:
    """What the command line says about a run.

    Attributes:
        once: read everything that exists now, then end.
        take_over: begin although another instance of the source is running.
        standby: wait for the end of another instance.
    """

    once: bool = False
    take_over: bool = False
    standby: bool = False

    @property
    def given(self) -> tuple[str, ...]:
        """The flags as they are given: `--take-over`."""
        return tuple(f"--{name.replace('_', '-')}" for name, given in attrs.asdict(self).items() if given)


def objects_option(help: str) -> Any:  # noqa: A002 - as typer calls it
    """Return an option that selects objects. An empty one, of an unset variable of a script, would select all."""
    return typer.Option(help=help, show_default=False, callback=_not_empty)


def _not_empty(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    if value == "":
        more = "; --all selects every object" if context.command.name == "reset" else ""
        raise ConfigError(f"{parameter.opts[0]} is empty: name the objects, or leave the option out{more}")
    return value
