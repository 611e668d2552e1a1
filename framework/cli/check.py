"""The command `check`: is everything ready? One line for each thing, and what to do where it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from framework.checks import CheckResult
from framework.cli.app import EXIT_FAILED
from framework.cli.run import read_config
from framework.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask


def check_source(task_class: type[AbstractSourceTask], path: Path) -> int:
    """Writes one line for each check to stdout; 0 when all are well, 1 otherwise. Sends and creates nothing.

    Raises:
        ConfigError: mistakes in the file.
    """
    config = read_config(task_class, path)
    _write(CheckResult("configuration", ok=True, detail=f"{path} is right"))
    ok = True
    for result in (*_store(task_class, config), *_iggy(config)):
        _write(result)
        ok = ok and result.ok
    return 0 if ok else EXIT_FAILED


def _write(result: CheckResult) -> None:
    from framework.cli.output import printable  # noqa: PLC0415

    sys.stdout.write(f"{'ok  ' if result.ok else 'FAIL'} {result.step:<14} {printable(result.detail)}\n")
    sys.stdout.flush()


def _store(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> Iterator[CheckResult]:
    task = task_class()
    task.config = config
    try:
        yield from task.check()
    except SourceError as error:
        yield CheckResult("store", ok=False, detail=str(error))
    finally:
        task.close_resources()


def _iggy(config: SourceCommonConfig) -> Iterator[CheckResult]:
    from framework.engine.session import IggyTarget  # noqa: PLC0415
    from framework.iggy.dead_letters import keeps_letters  # noqa: PLC0415
    from framework.iggy.topics import topic_warnings  # noqa: PLC0415
    from framework.naming import Router  # noqa: PLC0415

    iggy = config.iggy
    try:
        with IggyTarget(config) as target, target.connect() as connection:
            yield CheckResult("iggy", ok=True, detail=f"version {connection.server_version()} at {connection.address}")
            letters = config.errors.dead_letter_topic
            topics = [(Router(config).fixed_topic, iggy.partitions), (config.offsets_topic, 1)]
            for topic, partitions in [*topics, *([(letters, 1)] if letters is not None else [])]:
                if topic is None:
                    yield CheckResult("topic", ok=True, detail="named by the objects, made when they come")
                    continue
                info = connection.get_topic(iggy.stream, topic)
                place = f'"{topic}" of stream "{iggy.stream}"'
                if info is None:
                    detail = f"{place} is missing, " + ("it will be made" if iggy.create_topics else "make it first")
                    yield CheckResult("topic", ok=iggy.create_topics, detail=detail)
                elif len(info.partitions) != partitions:
                    detail = f"{place} has {len(info.partitions)} partitions, the configuration needs {partitions}"
                    yield CheckResult("topic", ok=False, detail=detail)
                elif topic == letters and not keeps_letters(info):
                    detail = f"{place} may lose what it confirmed, which a dead letter must not: name another one"
                    yield CheckResult("topic", ok=False, detail=detail)
                else:
                    warnings = topic_warnings(info)
                    detail = f"{place} has {partitions} partitions, as configured"
                    yield CheckResult("topic", ok=True, detail="; ".join([detail, *warnings]))
    except SourceError as error:
        yield CheckResult("iggy", ok=False, detail=str(error))
