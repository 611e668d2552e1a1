"""The commands `dead-letter show` and `replay`: select, list and send again the dead letters of a source."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from framework.cli.config_file import ConfigFile
from framework.cli.run import reached, read_config
from framework.cli.text import in_columns, printable, write_json_lines, write_lines
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
    from framework.iggy.client import IggyConnection
    from framework.task import AbstractSourceTask


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


def chosen(
    dead_letters: Iterable[StoredDeadLetter], choice: DeadLetterChoice, *, now: float | None = None
) -> list[StoredDeadLetter]:
    """Return the dead letters that a command selects.

    Raises:
        ConfigError: `--since` is not a time, or no dead letter has the number.
    """
    dead_letters, number = list(dead_letters), choice.dead_letter
    if number is not None and all(dead_letter.offset != number for dead_letter in dead_letters):
        raise ConfigError(
            f"--letter {number}: the source has no dead letter with that number, or a purge or retention of its topic dropped "
            f"it; `dead-letter show --replayed` lists all that are left"
        )
    since_us = _since_us(choice.since, time.time() if now is None else now)
    return [
        dead_letter
        for dead_letter in dead_letters
        if (choice.key is None or dead_letter.key == choice.key)
        and (choice.prefix is None or dead_letter.key.startswith(choice.prefix))
        and (choice.kind is None or dead_letter.error == choice.kind)
        and (choice.dead_letter is None or dead_letter.offset == choice.dead_letter)
        and dead_letter.timestamp_us >= since_us
    ]


def _since_us(text: str | None, now: float) -> float:
    if text is None:
        return 0
    with contextlib.suppress(InvalidValueError):
        return (now - parse_duration(text)) * 1e6
    try:
        return datetime.fromisoformat(parse_moment(text)).timestamp() * 1e6
    except ValueError:
        raise ConfigError(f'--since {text}: give "2h", "7d" or a date like 2026-05-01T12:00') from None


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
        dead_letters = DeadLetterLog.read(connection, config)
        found = chosen(dead_letters.stored, choice)
        if not with_replayed and choice.dead_letter is None:
            found = [dead_letter for dead_letter in found if dead_letter.offset not in dead_letters.replayed]
        found = found[-limit:] if limit else found
        if payload is not None:
            return _write_payload(connection, config, found, payload)
    if as_json:
        write_json_lines(as_line(each, replayed=each.offset in dead_letters.replayed) for each in found)
    else:
        _write_table(found, dead_letters.replayed)
    return 0


def as_line(dead_letter: StoredDeadLetter, *, replayed: bool) -> dict[str, Any]:
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
        "replayed": replayed,
    }


def _write_payload(
    connection: IggyConnection, config: SourceCommonConfig, found: Sequence[StoredDeadLetter], path: Path
) -> int:
    if len(found) != 1:
        chosen = f"{len(found):,} were selected: select one with --letter" if found else "none was selected"
        raise ConfigError(f"--payload writes the bytes of one dead letter, and {chosen}")
    raw = IggyDeadLetters(connection, config, topic_of(config)).raw(found[0])
    if not raw:
        raise ConfigError(f"dead letter {found[0].offset} holds no bytes: the bounds of its record are unknown")
    try:
        path.write_bytes(raw)
    except OSError as exc:
        raise ConfigError(f"--payload {path}: cannot be written: {exc.strerror}") from None
    write_lines([f"wrote {counted(len(raw), 'byte')} to {path}"])
    return 0


def _write_table(found: Sequence[StoredDeadLetter], replayed: frozenset[int]) -> None:
    rows = [("letter", "stored (UTC)", "bytes", "replayed", "error", "place")]
    for dead_letter in found:
        stored = datetime.fromtimestamp(dead_letter.timestamp_us / 1e6, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        rows.append(
            (
                str(dead_letter.offset),
                stored,
                "" if dead_letter.length is None else f"{dead_letter.length:,}",
                "yes" if dead_letter.offset in replayed else "",
                printable(dead_letter.error),
                printable(_where(dead_letter)),
            )
        )
    lines = in_columns(rows)
    for at, dead_letter in enumerate(found, 1):
        lines[at] += f"\n    {printable(dead_letter.text)}"
    sys.stdout.write("".join(f"{line}\n" for line in (*lines, counted(len(found), "dead letter"))))


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
            _write_table(_waiting(DeadLetterLog.read(connection, config), choice, offsets), frozenset())
            return 0
        session = Session.begin(connection, config)
        dead_letters = DeadLetterLog.read(connection, config)  # after the fence: no process adds to them now
        found = _waiting(dead_letters, choice, session.offsets)
        with iterator_of(task_class, SourceContext(config=config, offsets=session.offsets)) as iterator:
            counts = DeadLetterReplay(session, iterator, may_be_lost=may_be_lost).run(found, dead_letters.notes)
    lines = [f"sent again: {counted(counts.sent + counts.found, 'record')}"]
    if counts.found:
        lines[0] += f", {counts.found:,} of them by an earlier replay that was interrupted"
    if counts.filtered:
        lines.append(f"filtered by the transforms: {counted(counts.filtered, 'record')}")
    if counts.superseded:
        earlier = counted(counts.superseded, "dead letter")
        lines.append(f"not sent, because the object was overwritten and read since: {earlier}")
    if counts.reopened:
        objects = counted(counts.reopened, "object")
        lines.append(f"the next run resumes {objects}, each from its first missing record")
    lines += [f"{count:,} still failing: {sentence}" for sentence, count in counts.bad.items()]
    if not found:
        lines.append(
            "no dead letter was selected: replayed ones do not count, nor those of objects that were reset or overwritten "
            "and read since"
        )
    write_lines(lines)
    return EXIT_PERSON if counts.stayed else EXIT_DONE


def _waiting(dead_letters: DeadLetterLog, choice: DeadLetterChoice, offsets: OffsetManager) -> list[StoredDeadLetter]:
    """Return the selected dead letters that a replay takes."""
    return [
        dead_letter
        for dead_letter in chosen(dead_letters.stored, choice)
        if dead_letter.offset not in dead_letters.replayed and is_current(dead_letter, offsets)
    ]
