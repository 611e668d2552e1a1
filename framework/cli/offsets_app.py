"""Options of the commands in the group `offsets`; see `framework.cli.offsets_commands`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from framework.cli.config_file import Choose, ConfigOption, SetOption, refuse_empty
from framework.errors import ConfigError
from framework.offsets.position_filter import PositionFilter
from framework.offsets.set_position import SetPosition

if TYPE_CHECKING:
    from collections.abc import Callable

    from framework.task import AbstractSourceTask

KeyOption = Annotated[str | None, typer.Option(help="Only the object of this key.", show_default=False)]
PrefixOption = Annotated[str | None, typer.Option(help="Only objects whose keys begin so.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]


def offsets_app(task_class: type[AbstractSourceTask], chosen: Choose, warn: Callable[[str], None]) -> typer.Typer:
    """Return the group of commands.

    Args:
        task_class: the source.
        chosen: returns the configuration that the command's and the program's options name.
        warn: writes a warning.
    """
    app = typer.Typer(help="Show and change the positions of the source.", rich_markup_mode=None)

    @app.command()
    def show(
        config: ConfigOption = None,
        settings: SetOption = None,
        key: KeyOption = None,
        prefix: PrefixOption = None,
        json: JsonOption = False,
    ) -> int:
        """Count positions by state and partition. With --key or --prefix, shows each."""
        from framework.cli.offsets_commands import show_offsets  # noqa: PLC0415 - each command loads what it needs

        return show_offsets(task_class, chosen(config, settings), _choice(key, prefix), as_json=json)

    @app.command()
    def export(
        config: ConfigOption = None,
        settings: SetOption = None,
        key: KeyOption = None,
        prefix: PrefixOption = None,
    ) -> int:
        """Write every position to stdout, one JSON line each."""
        from framework.cli.offsets_commands import export_offsets  # noqa: PLC0415 - each command loads what it needs

        return export_offsets(task_class, chosen(config, settings), _choice(key, prefix))

    _add_changes(app, task_class, chosen, warn)
    return app


def _add_changes(
    app: typer.Typer, task_class: type[AbstractSourceTask], chosen: Choose, warn: Callable[[str], None]
) -> None:
    """Add the commands that change positions."""

    @app.command()
    def reset(
        config: ConfigOption = None,
        settings: SetOption = None,
        key: KeyOption = None,
        prefix: PrefixOption = None,
        everything: Annotated[bool, typer.Option("--all", help="All objects.")] = False,
        yes: YesOption = False,
        dry_run: DryRunOption = False,
    ) -> int:
        """Delete positions, to read objects again. The next run sends them from their first record."""
        refuse_empty(key=key, prefix=prefix, more="; --all selects every object")
        if sum((key is not None, prefix is not None, everything)) != 1:
            raise ConfigError("choose what to reset: one of --key KEY, --prefix PREFIX, --all")
        choice = PositionFilter(key=key, prefix=prefix)
        from framework.cli.offsets_commands import reset_offsets  # noqa: PLC0415 - each command loads what it needs

        return reset_offsets(task_class, chosen(config, settings), choice, yes=yes, dry_run=dry_run)

    @app.command("set")
    def set_(
        config: ConfigOption = None,
        settings: SetOption = None,
        key: Annotated[str | None, typer.Option(help="The object of this key.", show_default=False)] = None,
        records: Annotated[
            int | None, typer.Option(min=0, help="So many records count as sent.", show_default=False)
        ] = None,
        done: Annotated[bool, typer.Option("--done", help="Nothing more of it is read.")] = False,
        version: Annotated[
            str | None, typer.Option(help="Refuse unless the position is of this version.", show_default=False)
        ] = None,
        yes: YesOption = False,
        dry_run: DryRunOption = False,
    ) -> int:
        """Set the position of an object. The next run goes on behind that record, or leaves the object out."""
        refuse_empty(key=key, prefix=None)
        if key is None:
            raise ConfigError("choose which object: --key KEY")
        if (records is None) is not done:
            raise ConfigError("choose its position: one of --records NUMBER, --done")
        change = SetPosition(key=key, records=records, version=version)
        from framework.cli.offsets_commands import set_offset  # noqa: PLC0415 - each command loads what it needs

        return set_offset(task_class, chosen(config, settings), change, yes=yes, dry_run=dry_run)

    @app.command()
    def accept_data_loss(config: ConfigOption = None, settings: SetOption = None, yes: YesOption = False) -> int:
        """Continue after topics were purged or recreated. Finished objects stay done and are not sent again."""
        from framework.cli.offsets_commands import accept_topics  # noqa: PLC0415 - each command loads what it needs

        return accept_topics(task_class, chosen(config, settings), yes=yes)

    @app.command(hidden=True)
    def accept(config: ConfigOption = None, settings: SetOption = None, yes: YesOption = False) -> int:
        """Former name of `accept-data-loss`."""
        warn("offsets accept: now called offsets accept-data-loss")
        return accept_data_loss(config, settings, yes)


def _choice(key: str | None, prefix: str | None) -> PositionFilter | None:
    refuse_empty(key=key, prefix=prefix)
    if key is not None and prefix is not None:
        raise ConfigError("--key and --prefix together choose nothing: give one of them")
    return PositionFilter(key=key, prefix=prefix) if key is not None or prefix is not None else None
