"""The commands `dead-letter show`, `replay` and `discard`: select, list, send again and close dead letters of a source."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import typer

from framework.cli.config_file import ConfigOption, DryRunOption, SetOption, YesOption, objects_option, path_option
from framework.cli.run import reached
from framework.cli.text import confirmed, write_json_lines, write_lines
from framework.config.values import InvalidValueError, parse_duration, parse_moment
from framework.errors import EXIT_DONE, EXIT_PERSON, EXIT_TRY_AGAIN, ConfigError
from framework.model.splits import KeyPart, Split
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.dead_letters.reader import DeadLetterLog
    from framework.iggy.dead_letters.writer import StoredDeadLetter
    from framework.offsets.manager import OffsetManager

log = logging.getLogger(__name__)

KeyOption = Annotated[str | None, objects_option("Only dead letters of the object with this key.")]
PrefixOption = Annotated[str | None, objects_option("Only dead letters of objects whose keys have this prefix.")]
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

dead_letter_app = typer.Typer(
    help="Show, replay and discard skipped records and failed objects.", rich_markup_mode=None
)

State = Literal["waiting", "replayed", "discarded"]

_ROW = "{:<9} {:<20} {:>11}  {:<10} {:<22} {}"

NONE_SELECTED = "no dead letter was selected: those that are replayed or discarded do not count"


@attrs.frozen(kw_only=True)
class DeadLetterChoice:
    """Selection of dead letters; None does not restrict.

    Attributes:
        key: the object's key.
        prefix: prefix of the object's key.
        kind: class of the error.
        dead_letter: number of the dead letter: its offset in the topic.
        since: a time, or a duration before now.
    """

    key: str | None = None
    prefix: str | None = None
    kind: str | None = None
    dead_letter: int | None = None
    since: str | None = None

    def selects(self, *, now: float | None = None) -> Callable[[StoredDeadLetter], bool]:
        """Return the function that says whether a dead letter is selected.

        Raises:
            ConfigError: `--since` is not a time.
        """
        since_us = _since_us(self.since, time.time() if now is None else now)
        return lambda dead_letter: (
            (self.key is None or dead_letter.key == self.key)
            and (self.prefix is None or dead_letter.key.startswith(self.prefix))
            and (self.kind is None or dead_letter.error == self.kind)
            and (self.dead_letter is None or dead_letter.offset == self.dead_letter)
            and dead_letter.timestamp_us >= since_us
        )


def _since_us(text: str | None, now: float) -> float:
    if text is None:
        return 0
    with contextlib.suppress(InvalidValueError):
        return (now - parse_duration(text)) * 1e6
    try:
        return datetime.fromisoformat(parse_moment(text)).timestamp() * 1e6
    except ValueError:
        raise ConfigError(f'--since {text}: give "2h", "7d" or a date like 2026-05-01T12:00') from None


def read_selected(connection: IggyConnection, config: SourceCommonConfig, choice: DeadLetterChoice) -> DeadLetterLog:
    """Read the selected dead letters; warn when the topic has dropped messages.

    Raises:
        ConfigError: `--since` is not a time, or no dead letter has the number.
        IggyTopicError: the topic has no partition.
    """
    from framework.iggy.dead_letters.reader import DeadLetterLog, topic_of  # noqa: PLC0415 - loads what a run does

    dead_letters = DeadLetterLog.read(connection, config, choice.selects())
    number, first = choice.dead_letter, dead_letters.first_offset
    if number is None and first:
        log.warning(
            'topic "%s": its first %s gone (retention or deleted segments); dead letters among them cannot be shown or '
            "replayed",
            topic_of(config),
            "message is" if first == 1 else f"{first:,} messages are",
        )
    if number is not None and not dead_letters.stored:
        reason = (
            f"it is gone: retention or deleted segments left the topic from message {first} on"
            if number < first
            else "the source has no such dead letter"
        )
        raise ConfigError(f"--letter {number}: {reason}; `dead-letter show --replayed` lists all that are left")
    return dead_letters


@dead_letter_app.command()
def show(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    key: KeyOption = None,
    prefix: PrefixOption = None,
    kind: KindOption = None,
    letter: DeadLetterOption = None,
    since: SinceOption = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Include replayed and discarded dead letters.")] = False,
    limit: Annotated[int, typer.Option(help="Only the newest, up to this number; 0 = all.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")] = False,
    payload: Annotated[
        Path | None, path_option(help="Write the record's bytes to this file; for a single dead letter.")
    ] = None,
) -> int:
    """List dead letters: place, reason, length, state. Safe while the source is running."""
    choice = DeadLetterChoice(key=key, prefix=prefix, kind=kind, dead_letter=letter, since=since)
    options = _read_config(context, config, settings)
    with reached(options) as connection:
        dead_letters = read_selected(connection, options, choice)
        found = dead_letters.stored if replayed or letter is not None else dead_letters.waiting
        found = found[-limit:] if limit else found
        if payload is not None:
            return _write_payload(connection, options, found, payload)
    if json:
        write_json_lines(as_line(each, _state_of(each, dead_letters)) for each in found)
    else:
        _write_table(found, dead_letters)
    return EXIT_DONE


def _read_config(context: typer.Context, config: Path | None, settings: list[str] | None) -> SourceCommonConfig:
    """Return the configuration of a source with dead letters.

    Raises:
        ConfigError: mistakes in it, or it names no topic for them.
    """
    from framework.iggy.dead_letters.reader import topic_of  # noqa: PLC0415 - loads what a run does

    options: SourceCommonConfig = context.obj.read(config, settings)
    topic_of(options)
    return options


def _state_of(dead_letter: StoredDeadLetter, dead_letters: DeadLetterLog) -> State:
    if dead_letter.offset in dead_letters.discarded:
        return "discarded"
    return "replayed" if dead_letter.offset in dead_letters.replayed else "waiting"


def as_line(dead_letter: StoredDeadLetter, state: State) -> dict[str, Any]:
    """Return a dead letter as `show --json` writes it."""
    return {
        "letter": dead_letter.offset,
        "stored_us": dead_letter.timestamp_us,
        "about": dead_letter.kind,
        "bucket": dead_letter.bucket,
        "key": dead_letter.key,
        "version": dead_letter.version,
        **_division_fields(dead_letter.division),
        "record": dead_letter.record,
        "byte_offset": dead_letter.byte_offset,
        "error": dead_letter.error,
        "text": dead_letter.text,
        "length": dead_letter.length,
        "payload": dead_letter.payload,
        "format": dead_letter.format,
        "topic": dead_letter.topic_partition.topic,
        "partition": dead_letter.topic_partition.partition,
        "replayed": state == "replayed",
        "discarded": state == "discarded",
    }


def _write_payload(
    connection: IggyConnection, config: SourceCommonConfig, found: Sequence[StoredDeadLetter], path: Path
) -> int:
    if len(found) != 1:
        chosen = f"{len(found):,} were selected: select one with --letter" if found else "none was selected"
        raise ConfigError(f"--payload writes the bytes of one dead letter, and {chosen}")
    from framework.iggy.dead_letters.reader import topic_of  # noqa: PLC0415 - loads what a run does
    from framework.iggy.dead_letters.writer import IggyDeadLetters  # noqa: PLC0415

    raw = IggyDeadLetters(connection, config, topic_of(config)).raw(found[0])
    if not raw:
        reason = "holds no bytes: the bounds of its record are unknown"
        if found[0].payload != "none":
            reason = "is gone: retention or a purge of its topic has just dropped it"
        raise ConfigError(f"dead letter {found[0].offset} {reason}")
    try:
        path.write_bytes(raw)
    except OSError as exc:
        raise ConfigError(f"--payload {path}: cannot be written: {exc.strerror}") from None
    write_lines([f"wrote {counted(len(raw), 'byte')} to {path}"])
    return EXIT_DONE


def _write_table(found: Sequence[StoredDeadLetter], dead_letters: DeadLetterLog) -> None:
    """Write a line at a time: a table of a million dead letters takes no memory beside them."""
    write_lines([_ROW.format("letter", "stored (UTC)", "bytes", "state", "error", "place")])
    for each in found:
        stored = datetime.fromtimestamp(each.timestamp_us / 1e6, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        length = "" if each.length is None else f"{each.length:,}"
        row = _ROW.format(each.offset, stored, length, _state_of(each, dead_letters), each.error, _where(each))
        write_lines([row, f"    {each.text}"])
    write_lines([counted(len(found), "dead letter")])
    if not dead_letters.stored and dead_letters.errors:
        kinds = ", ".join(f"{count:,} {error}" for error, count in sorted(dead_letters.errors.items()))
        write_lines([f"none that the topic has was selected ({kinds}); keys begin behind the bucket's name"])


def _division_fields(division: Split | KeyPart | None) -> dict[str, int]:
    if isinstance(division, KeyPart):
        return {"part": division.number, "parts": division.parts}
    return {"share": division.number, "split_size": division.split_size} if division is not None else {}


def _where(dead_letter: StoredDeadLetter) -> str:
    division = dead_letter.division
    split = f", split {division.number}" if isinstance(division, Split) else ""
    if isinstance(division, KeyPart) and dead_letter.kind == "object":
        split = f", part {division.number} of {division.parts} by key"
    byte = f" (byte {dead_letter.byte_offset})" if dead_letter.byte_offset is not None else ""
    rest = "from record" if dead_letter.kind == "object" else "record"
    return f"{dead_letter.bucket}/{dead_letter.key}{split}, {rest} {dead_letter.record}{byte}" + (
        " on" if dead_letter.kind == "object" else ""
    )


@dead_letter_app.command()
def replay(
    context: typer.Context,
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
            "--may-be-lost", help="Also send to a topic that can lose confirmed messages when the server is killed."
        ),
    ] = False,
) -> int:
    """Send skipped records again, read with the current configuration. The source must not be running."""
    from framework.engine.dead_letter_replay import DeadLetterReplay  # noqa: PLC0415 - loads what a run does
    from framework.engine.inspection import inspect  # noqa: PLC0415
    from framework.engine.session import Session  # noqa: PLC0415
    from framework.iggy.offset_log.log_offset_store import manager_of  # noqa: PLC0415
    from framework.task import SourceContext, iterator_of  # noqa: PLC0415

    choice = DeadLetterChoice(key=key, prefix=prefix, kind=kind, dead_letter=letter)
    options = _read_config(context, config, settings)
    with reached(options) as connection:
        if dry_run:
            offsets = manager_of(inspect(connection, options).state)
            dead_letters = read_selected(connection, options, choice)
            _write_table(_waiting(dead_letters, offsets), dead_letters)
            return EXIT_DONE
        session = Session.begin(connection, options)
        dead_letters = read_selected(connection, options, choice)  # after the fence: no process adds to them now
        found = _waiting(dead_letters, session.offsets)
        task_class = context.obj.task_class
        with iterator_of(task_class, SourceContext(config=options, offsets=session.offsets)) as iterator:
            counts = DeadLetterReplay(session, iterator, may_be_lost=may_be_lost).run(found, dead_letters.notes)
    lines = [f"sent again: {counted(counts.sent + counts.found, 'record')}"]
    if counts.found:
        lines[0] += f", {counts.found:,} of them by an earlier replay that was interrupted"
    superseded = counts.superseded + len(dead_letters.waiting) - len(found)
    for number, unit, reason in (
        (counts.delivered, "record", "not sent, because the source has sent them as good records since"),
        (counts.filtered, "record", "filtered by the transforms"),
        (superseded, "dead letter", "not sent, because the object was reset or overwritten and read since"),
    ):
        lines += [f"{reason}: {counted(number, unit)}"] if number else []
    if counts.reopened:
        objects = counted(counts.reopened, "object")
        lines.append(f"the next run resumes {objects}, each from its first missing record")
    lines += [f"{count:,} still failing: {sentence}" for sentence, count in counts.bad.items()]
    if superseded or counts.stayed:
        lines.append("`dead-letter discard` closes dead letters that are not to be sent")
    if not dead_letters.waiting:
        lines.append(NONE_SELECTED)
    write_lines(lines)
    return EXIT_PERSON if counts.stayed else EXIT_DONE


@dead_letter_app.command()
def discard(
    context: typer.Context,
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
    from framework.iggy.dead_letters.reader import topic_of  # noqa: PLC0415 - loads what a run does
    from framework.iggy.dead_letters.writer import IggyDeadLetters  # noqa: PLC0415

    choice = DeadLetterChoice(key=key, prefix=prefix, kind=kind, dead_letter=letter, since=since)
    options = _read_config(context, config, settings)
    with reached(options) as connection:
        dead_letters = read_selected(connection, options, choice)
        found = dead_letters.waiting
        if dry_run:
            _write_table(found, dead_letters)
            return EXIT_DONE
        if not found:
            write_lines([NONE_SELECTED])
            return EXIT_DONE
        if not confirmed(
            f"Discard {counted(len(found), 'dead letter')}? No replay sends these records any more.",
            yes=yes,
            dry_run=True,
        ):
            return EXIT_TRY_AGAIN
        IggyDeadLetters(connection, options, topic_of(options)).discarded(found)
    write_lines([f"discarded: {counted(len(found), 'dead letter')}"])
    return EXIT_DONE


def _waiting(dead_letters: DeadLetterLog, offsets: OffsetManager) -> list[StoredDeadLetter]:
    """Return the selected dead letters that a replay takes."""
    from framework.iggy.dead_letters.reader import is_current  # noqa: PLC0415 - loads what a run does

    return [dead_letter for dead_letter in dead_letters.waiting if is_current(dead_letter, offsets)]
