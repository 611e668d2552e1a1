"""The commands `dead-letter show` and `replay`: select, list and send again the dead letters of a source."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.cli.config_file import ConfigFile
from framework.cli.output import json_text, printable
from framework.cli.run import reached, read_config
from framework.errors import EXIT_DONE, EXIT_PERSON, ConfigError
from framework.iggy.dead_letters.log import DeadLetterLog, is_current, topic_of
from framework.iggy.dead_letters.topic import StoredDeadLetter, raw_of
from framework.model.text import counted
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    from framework.cli.dead_letter_choice import DeadLetterChoice
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.client import IggyConnection
    from framework.task import AbstractSourceTask

_SINCE = re.compile(r"([0-9]+)\s*(s|m|h|d)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def chosen(
    letters: Iterable[StoredDeadLetter], choice: DeadLetterChoice, *, now: float | None = None
) -> list[StoredDeadLetter]:
    """Return the dead letters that a command selects.

    Raises:
        ConfigError: `--since` is not a time.
    """
    since_us = _since_us(choice.since, time.time() if now is None else now)
    return [
        letter
        for letter in letters
        if (choice.key is None or letter.key == choice.key)
        and (choice.prefix is None or letter.key.startswith(choice.prefix))
        and (choice.kind is None or letter.error == choice.kind)
        and (choice.letter is None or letter.offset == choice.letter)
        and letter.timestamp_us >= since_us
    ]


def _since_us(text: str | None, now: float) -> float:
    if text is None:
        return 0
    found = _SINCE.fullmatch(text.strip())
    if found is not None:
        return (now - int(found[1]) * _UNIT_SECONDS[found[2]]) * 1e6
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f'--since {text}: give "2h", "7d" or a date like 2026-05-01T12:00') from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp() * 1e6


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
        letters = DeadLetterLog.read(connection, config)
        found = chosen(letters.stored, choice)
        if not with_replayed and choice.letter is None:
            found = [letter for letter in found if letter.offset not in letters.replayed]
        found = found[-limit:] if limit else found
        if payload is not None:
            return _write_payload(connection, config, found, payload)
    if as_json:
        for letter in found:
            line = as_line(letter, replayed=letter.offset in letters.replayed)
            sys.stdout.buffer.write(f"{json_text(line)}\n".encode())
        sys.stdout.buffer.flush()
    else:
        _write_table(found, letters.replayed)
    return 0


def as_line(letter: StoredDeadLetter, *, replayed: bool) -> dict[str, Any]:
    """Return a dead letter as `show --json` writes it."""
    return {
        "letter": letter.offset,
        "stored_us": letter.timestamp_us,
        "about": letter.kind,
        "bucket": letter.bucket,
        "key": letter.key,
        "version": letter.version,
        **({"share": letter.split_number, "split_size": letter.split_size} if letter.split is not None else {}),
        "record": letter.record,
        "byte_offset": letter.byte_offset,
        "error": letter.error,
        "text": letter.text,
        "length": letter.length,
        "payload": letter.payload,
        "format": letter.format,
        "topic": letter.topic_partition.topic,
        "partition": letter.topic_partition.partition,
        "replayed": replayed,
    }


def _write_payload(
    connection: IggyConnection, config: SourceCommonConfig, found: Sequence[StoredDeadLetter], path: Path
) -> int:
    if len(found) != 1:
        raise ConfigError(
            f"--payload writes the bytes of one dead letter, and {len(found):,} were selected: select one with --letter"
        )
    raw = raw_of(connection, config.iggy.stream, topic_of(config), found[0])
    if not raw:
        raise ConfigError(f"dead letter {found[0].offset} holds no bytes: the bounds of its record are unknown")
    path.write_bytes(raw)
    return 0


def _write_table(found: Sequence[StoredDeadLetter], replayed: frozenset[int]) -> None:
    rows = [("letter", "stored (UTC)", "bytes", "replayed", "error", "place")]
    for letter in found:
        stored = datetime.fromtimestamp(letter.timestamp_us / 1e6, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        rows.append(
            (
                str(letter.offset),
                stored,
                "" if letter.length is None else f"{letter.length:,}",
                "yes" if letter.offset in replayed else "",
                printable(letter.error),
                printable(_where(letter)),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, row in enumerate(rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        sys.stdout.write(f"{line}\n")
        if at:
            sys.stdout.write(f"    {printable(found[at - 1].text)}\n")
    sys.stdout.write(f"{counted(len(found), 'dead letter')}\n")


def _where(letter: StoredDeadLetter) -> str:
    split = f", split {letter.split_number}" if letter.split is not None else ""
    byte = f" (byte {letter.byte_offset})" if letter.byte_offset is not None else ""
    rest = "from record" if letter.kind == "object" else "record"
    return f"{letter.bucket}/{letter.key}{split}, {rest} {letter.record}{byte}" + (
        " on" if letter.kind == "object" else ""
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
            letters = DeadLetterLog.read(connection, config)
            found = [letter for letter in chosen(letters.stored, choice) if letter.offset not in letters.replayed]
            _write_table(found, frozenset())
            return 0
        session = Session.begin(connection, config)
        letters = DeadLetterLog.read(connection, config)  # after the fence: no process adds to them now
        found = [
            letter
            for letter in chosen(letters.stored, choice)
            if letter.offset not in letters.replayed and is_current(letter, session.offsets)
        ]
        with iterator_of(task_class, SourceContext(config=config, offsets=session.offsets)) as iterator:
            counts = DeadLetterReplay(session, iterator, may_be_lost=may_be_lost).run(found, letters.notes)
    lines = [f"sent again: {counted(counts.sent + counts.found, 'record')}"]
    if counts.found:
        lines[0] += f", {counts.found:,} of them by an earlier replay that was interrupted"
    if counts.reopened:
        objects = counted(counts.reopened, "object")
        lines.append(f"the next run resumes {objects}, each from its first missing record")
    lines += [f"{count:,} still failing: {sentence}" for sentence, count in counts.bad.items()]
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    return EXIT_PERSON if counts.stayed else EXIT_DONE


__all__ = ["as_line", "chosen", "replay_dead_letters", "show_dead_letters"]
