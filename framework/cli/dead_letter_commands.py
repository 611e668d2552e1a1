"""The commands `dead-letter show`, `replay` and `discard`: select, list, send again and close dead letters of a source."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from framework.cli.config_file import ConfigFile
from framework.cli.run import reached, read_config
from framework.cli.text import column_widths, confirmed, in_width, printable, write_json_lines, write_lines
from framework.config.values import InvalidValueError, parse_duration, parse_moment
from framework.engine.inspection import inspect
from framework.errors import EXIT_DONE, EXIT_PERSON, ConfigError
from framework.iggy.dead_letters.reader import DeadLetterLog, is_current, topic_of
from framework.iggy.dead_letters.writer import IggyDeadLetters, StoredDeadLetter
from framework.model.splits import KeyPart, Split
from framework.model.text import counted
from framework.offsets.manager import OffsetManager
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

State = Literal["waiting", "replayed", "discarded"]

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
        IggyTopicError: the topic is missing.
    """
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


def show_dead_letters(
    task_class: type[AbstractSourceTask],
    file: ConfigFile,
    choice: DeadLetterChoice,
    *,
    with_replayed: bool,
    limit: int,
    as_json: bool,
    payload: Path | None,
) -> int:
    """Write dead letters to stdout, as a table or JSON lines.

    Raises:
        ConfigError: mistakes in the file or the options; `--payload` without exactly one dead letter.
        IggyTopicError: the topic is missing.
    """
    config = read_config(task_class, file)
    topic_of(config)
    with reached(config) as connection:
        dead_letters = read_selected(connection, config, choice)
        found = dead_letters.stored if with_replayed or choice.dead_letter is not None else dead_letters.waiting
        found = found[-limit:] if limit else found
        if payload is not None:
            return _write_payload(connection, config, found, payload)
    if as_json:
        write_json_lines(as_line(each, _state_of(each, dead_letters)) for each in found)
    else:
        _write_table(found, dead_letters)
    return 0


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
    return 0


def _write_table(found: Sequence[StoredDeadLetter], dead_letters: DeadLetterLog) -> None:
    """Write a line at a time: a table of a million dead letters takes no memory beside them."""
    names = ("letter", "stored (UTC)", "bytes", "state", "error", "place")
    widths = column_widths(itertools.chain([names], (_row(each, dead_letters) for each in found)))
    sys.stdout.write(f"{in_width(names, widths)}\n")
    for each in found:
        sys.stdout.write(f"{in_width(_row(each, dead_letters), widths)}\n    {printable(each.text)}\n")
    sys.stdout.write(f"{counted(len(found), 'dead letter')}\n")


def _row(dead_letter: StoredDeadLetter, dead_letters: DeadLetterLog) -> tuple[str, ...]:
    stored = datetime.fromtimestamp(dead_letter.timestamp_us / 1e6, tz=timezone.utc)
    return (
        str(dead_letter.offset),
        stored.strftime("%Y-%m-%d %H:%M:%S"),
        "" if dead_letter.length is None else f"{dead_letter.length:,}",
        _state_of(dead_letter, dead_letters),
        printable(dead_letter.error),
        printable(_where(dead_letter)),
    )


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


def replay_dead_letters(
    task_class: type[AbstractSourceTask],
    file: ConfigFile,
    choice: DeadLetterChoice,
    *,
    dry_run: bool,
    may_be_lost: bool = False,
) -> int:
    """Replay the selected dead letters; return 3 when some records are still bad.

    Raises:
        ConfigError: mistakes in the file.
        SourceRunningError: the source, or another replay, is running.
        SourceError: the error of the store or of Iggy.
    """
    from framework.engine.dead_letter_replay import DeadLetterReplay  # noqa: PLC0415
    from framework.engine.session import Session  # noqa: PLC0415

    config = read_config(task_class, file)
    topic_of(config)
    with reached(config) as connection:
        if dry_run:
            state = inspect(connection, config).state
            offsets = OffsetManager(positions=state.positions, watermark=state.watermark)
            dead_letters = read_selected(connection, config, choice)
            _write_table(_waiting(dead_letters, offsets), dead_letters)
            return 0
        session = Session.begin(connection, config)
        dead_letters = read_selected(connection, config, choice)  # after the fence: no process adds to them now
        found = _waiting(dead_letters, session.offsets)
        with iterator_of(task_class, SourceContext(config=config, offsets=session.offsets)) as iterator:
            counts = DeadLetterReplay(session, iterator, may_be_lost=may_be_lost).run(found, dead_letters.notes)
    lines = [f"sent again: {counted(counts.sent + counts.found, 'record')}"]
    if counts.found:
        lines[0] += f", {counts.found:,} of them by an earlier replay that was interrupted"
    if counts.delivered:
        lines.append(
            f"not sent, because the source has sent them as good records since: {counted(counts.delivered, 'record')}"
        )
    if counts.filtered:
        lines.append(f"filtered by the transforms: {counted(counts.filtered, 'record')}")
    superseded = counts.superseded + len(dead_letters.waiting) - len(found)
    if superseded:
        earlier = counted(superseded, "dead letter")
        lines.append(f"not sent, because the object was reset or overwritten and read since: {earlier}")
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


def discard_selected(
    task_class: type[AbstractSourceTask], file: ConfigFile, choice: DeadLetterChoice, *, yes: bool, dry_run: bool
) -> int:
    """Ask for confirmation, and close the selected dead letters without sending them. The source may be running.

    Dead letters of earlier versions are among them, which no replay takes.

    Raises:
        ConfigError: mistakes in the file or the options; no terminal to ask on, and no --yes.
        SourceError: an error of Iggy.
    """
    config = read_config(task_class, file)
    topic_of(config)
    with reached(config) as connection:
        dead_letters = read_selected(connection, config, choice)
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
            return 1
        IggyDeadLetters(connection, config, topic_of(config)).discarded(found)
    write_lines([f"discarded: {counted(len(found), 'dead letter')}"])
    return EXIT_DONE


def _waiting(dead_letters: DeadLetterLog, offsets: OffsetManager) -> list[StoredDeadLetter]:
    """Return the selected dead letters that a replay takes."""
    return [dead_letter for dead_letter in dead_letters.waiting if is_current(dead_letter, offsets)]
