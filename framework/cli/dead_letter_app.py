"""Options of the commands `dead-letter show`, `replay` and `discard`; see `framework.cli.dead_letter_commands`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framework.cli.config_file import Choose, ConfigOption, SetOption, path_option, refuse_empty
from framework.cli.offsets_app import DryRunOption, YesOption

if TYPE_CHECKING:
    from framework.task import AbstractSourceTask

KeyOption = Annotated[
    str | None, typer.Option(help="Only dead letters of the object with this key.", show_default=False)
]
PrefixOption = Annotated[
    str | None, typer.Option(help="Only dead letters of objects whose keys have this prefix.", show_default=False)
]
KindOption = Annotated[
    str | None, typer.Option(help="Only dead letters with this error, for example RecordError.", show_default=False)
]
DeadLetterOption = Annotated[
    int | None, typer.Option("--letter", help="Only the dead letter with this number.", min=0, show_default=False)
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        help='Only dead letters stored since: "2h", "7d", or a date with or without a time, UTC.',
        show_default=False,
    ),
]


def dead_letter_app(task_class: type[AbstractSourceTask], chosen: Choose) -> typer.Typer:
    """Return the group of commands.

    Args:
        task_class: the source.
        chosen: returns the configuration that the command's and the program's options name.
    """
    app = typer.Typer(help="Show, replay and discard skipped records and failed objects.", rich_markup_mode=None)

    @app.command()
    def show(
        config: ConfigOption = None,
        settings: SetOption = None,
        key: KeyOption = None,
        prefix: PrefixOption = None,
        kind: KindOption = None,
        letter: DeadLetterOption = None,
        since: SinceOption = None,
        replayed: Annotated[
            bool, typer.Option("--replayed", help="Include replayed and discarded dead letters.")
        ] = False,
        limit: Annotated[int, typer.Option(help="Only the newest, up to this number; 0 = all.", min=0)] = 0,
        json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")] = False,
        payload: Annotated[
            Path | None, path_option(help="Write the record's bytes to this file; for a single dead letter.")
        ] = None,
    ) -> int:
        """List dead letters: place, reason, length, state. Safe while the source is running."""
        from framework.cli.dead_letter_commands import DeadLetterChoice, show_dead_letters  # noqa: PLC0415 - each command loads what it needs

        refuse_empty(key=key, prefix=prefix)
        choice = DeadLetterChoice(key=key, prefix=prefix, kind=kind, dead_letter=letter, since=since)
        path = chosen(config, settings)
        return show_dead_letters(
            task_class, path, choice, with_replayed=replayed, limit=limit, as_json=json, payload=payload
        )

    @app.command()
    def replay(
        config: ConfigOption = None,
        settings: SetOption = None,
        key: KeyOption = None,
        prefix: PrefixOption = None,
        kind: KindOption = None,
        letter: DeadLetterOption = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="List the dead letters that would be replayed, and change nothing.")
        ] = False,
        may_be_lost: Annotated[
            bool,
            typer.Option(
                "--may-be-lost",
                help="Also send to a topic that can lose confirmed messages when the server is killed.",
            ),
        ] = False,
    ) -> int:
        """Send skipped records again, read with the current configuration. The source must not be running."""
        from framework.cli.dead_letter_commands import DeadLetterChoice, replay_dead_letters  # noqa: PLC0415 - each command loads what it needs

        refuse_empty(key=key, prefix=prefix)
        choice = DeadLetterChoice(key=key, prefix=prefix, kind=kind, dead_letter=letter)
        return replay_dead_letters(
            task_class, chosen(config, settings), choice, dry_run=dry_run, may_be_lost=may_be_lost
        )

    @app.command()
    def discard(
        config: ConfigOption = None,
        settings: SetOption = None,
        key: KeyOption = None,
        prefix: PrefixOption = None,
        kind: KindOption = None,
        letter: DeadLetterOption = None,
        since: SinceOption = None,
        yes: YesOption = False,
        dry_run: DryRunOption = False,
    ) -> int:
        """Close dead letters for good. Their records are never sent, and failed objects stay failed."""
        from framework.cli.dead_letter_commands import DeadLetterChoice, discard_selected  # noqa: PLC0415 - each command loads what it needs

        refuse_empty(key=key, prefix=prefix)
        choice = DeadLetterChoice(key=key, prefix=prefix, kind=kind, dead_letter=letter, since=since)
        return discard_selected(task_class, chosen(config, settings), choice, yes=yes, dry_run=dry_run)

    return app
