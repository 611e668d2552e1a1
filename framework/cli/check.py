"""The command `check`: one line per prerequisite of a run, with advice where it is not met.

It fails where a run would fail, with the same exit code. It sends nothing, and creates nothing that stays.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from framework.cli.config_file import ConfigFile
from framework.cli.first_records import check_records, then
from framework.cli.run import empty_advice, load_source, nothing_at, require_pyspark
from framework.cli.text import printable
from framework.cli.version import outdated_packages
from framework.discovery.listing_feed import iterated
from framework.discovery.new_objects import check_listed
from framework.discovery.object_filters import FilterReason, RoutedSelection, Selector
from framework.discovery.routing import Router
from framework.errors import (
    EXIT_CONFIGURATION,
    EXIT_DONE,
    EXIT_TRY_AGAIN,
    ConfigError,
    IggyAuthError,
    ObjectError,
    PositionError,
    SourceError,
    cannot_listen,
)
from framework.model.text import counted
from framework.storage.preflight import CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from framework.config.http_sections import HttpSection
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.values import TopicInfo
    from framework.model.objects import NativeObject, TopicPartition
    from framework.task import AbstractSourceTask

LOOKED_AT = 1000
"""Number of listed objects to filter, and ten times as many while all are filtered."""

PASSING = frozenset(
    {
        FilterReason.EMPTY,
        FilterReason.FOLDER_MARK,
        FilterReason.TOO_OLD,
        FilterReason.TOO_YOUNG,
        FilterReason.GLACIER,
        FilterReason.DEEP_ARCHIVE,
    }
)
"""Filter reasons that do not indicate a wrong configuration: later objects may be selected."""


def check_source(task_class: type[AbstractSourceTask], file: ConfigFile) -> int:
    """Write one line per check to stdout; return 0 when all pass, else the exit code that a run would have.

    Raises:
        ConfigError: mistakes in the file.
    """
    config = load_source(task_class, file).config
    _write(CheckResult("configuration", ok=True, detail=f"{file.path} is right"))
    if outdated := outdated_packages():
        _write(CheckResult("packages", ok=True, detail=outdated, warning=True))
    code = EXIT_DONE
    for result in itertools.chain(
        _tried("engine", _engine(task_class, config)),
        _ports(config, file),
        _tried("store", _store(task_class, config)),
        _tried("iggy", _iggy(task_class, config)),
    ):
        _write(result)
        # what a person must act on counts more than what goes away by itself
        code = max(code, EXIT_DONE if result.ok else result.exit_code)
    return code


def _tried(step: str, results: Iterator[CheckResult]) -> Iterator[CheckResult]:
    """Yield the results of a step; an error that ends it is the last one."""
    try:
        yield from results
    except SourceError as error:
        yield CheckResult.failed(step, error)


def _write(result: CheckResult) -> None:
    mark = "warn" if result.ok and result.warning else "ok  " if result.ok else "FAIL"
    sys.stdout.write(f"{mark} {result.step:<14} {printable(result.detail)}\n")
    sys.stdout.flush()


def _engine(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> Iterator[CheckResult]:
    """Check Java, Spark's master and its executors; nothing for the local engine."""
    if config.runner.engine != "spark":
        yield CheckResult("engine", ok=True, detail=f"local, {counted(config.runner.tasks_max or 1, 'task')}")
        return
    require_pyspark()
    from framework.engine.spark.check import check_spark  # noqa: PLC0415 - the only way to Spark

    yield from check_spark(task_class, config)


def _ports(config: SourceCommonConfig, file: ConfigFile) -> Iterator[CheckResult]:
    """Check the port of the metrics, and the HTTP API."""
    place = config.metrics.host_and_port()
    if place is not None:
        yield _port("metrics", place, config.metrics.address)
    if config.http.enabled:
        yield from _tried("http", _api(config.http, file))


def _api(http: HttpSection, file: ConfigFile) -> Iterator[CheckResult]:
    """Check what the HTTP API needs: packages, port, certificate and state folder."""
    from framework.cli.worker import require_api, state_folder  # noqa: PLC0415 - each command loads what it needs

    require_api()
    from framework.runtime.certificate import check_tls  # noqa: PLC0415
    from framework.runtime.server import IN_THE_CLEAR, in_the_clear  # noqa: PLC0415

    yield _port("http", http.host_and_port(), http.address)
    if in_the_clear(http):
        yield CheckResult("http", ok=True, detail=IN_THE_CLEAR, warning=True)
    try:
        check_tls(http.tls)
    except ConfigError as error:
        yield CheckResult.failed("http", error)
    folder = state_folder(file, http)
    problem = _no_room(_existing(folder))
    if problem is not None:
        detail = f"[http] state_dir: the folder {folder} cannot be used: {problem.strerror}"
        yield CheckResult("http", ok=False, detail=detail, exit_code=EXIT_CONFIGURATION)


def _port(section: str, place: tuple[str, int], address: str | None) -> CheckResult:
    host, port = place
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except OSError as exc:
        error = cannot_listen(f"[{section}] address", str(address), exc)
        running = "; does the source run already?" if error.exit_code == EXIT_TRY_AGAIN else ""
        return CheckResult(section, ok=False, detail=f"{error}{running}", exit_code=error.exit_code)
    return CheckResult(section, ok=True, detail=f"{address} is free")


def _store(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> Iterator[CheckResult]:
    task = task_class()
    ok = True
    try:
        for result in task.check(config):
            ok = ok and result.ok
            yield result
        if ok:
            yield from _tried("selection", _selection(task_class, config))
    finally:
        task.close_resources()


def _selection(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> Iterator[CheckResult]:
    """Check that the filters select objects from the beginning of the listing, and the records of the first of them."""
    from framework.task import SourceContext, iterator_of  # noqa: PLC0415

    chosen: list[tuple[NativeObject, TopicPartition]] = []
    unfit: Counter[str] = Counter()
    examples: dict[str, str] = {}
    listed = 0
    context = SourceContext(config=config, once=True)
    with iterator_of(task_class, context) as iterator, contextlib.ExitStack() as stack:
        stack.callback(iterator.leave)
        selector = Selector(config, iterator.store_clock, prefixes=iterator.prefixes)
        selector.remember_logs(list(iterator.get_table_log_keys()))
        selection = RoutedSelection(selector, Router(config))
        for native in iterated(partial(iterator.get_native_item_stream, iterator.start_key)):
            check_listed(native)
            listed += 1
            try:
                topic_partition = selection.partition_for(native)
            except ObjectError as error:
                unfit[error.message] += 1
                examples.setdefault(error.message, native.key)
            else:
                chosen += [(native, topic_partition)] if topic_partition is not None else []
            if listed >= LOOKED_AT and (chosen or listed >= 10 * LOOKED_AT):
                break
        reasons = [f"{reason}: {count:,}" for reason, count in selection.filtered().items()]
        reasons += [f"{text}: {count:,}, the first {examples[text]}" for text, count in unfit.most_common(3)]
        passing = not unfit and all(reason in PASSING for reason, count in selector.counts.items() if count)
        yield _selected(config, listed, len(chosen), reasons, passing=passing, unfit=bool(unfit))
        if chosen:
            yield from _tried("records", check_records(iterator, *chosen[0]))


def _selected(
    config: SourceCommonConfig, listed: int, chosen: int, reasons: Sequence[str], *, passing: bool, unfit: bool
) -> CheckResult:
    """Return the result of a look at the beginning of the listing.

    Args:
        config: the whole configuration.
        listed: number of objects looked at.
        chosen: number of those chosen.
        reasons: why the others are not, with counts.
        passing: whether all others are filtered for a reason that may not hold for later objects.
        unfit: whether some of them fail.
    """
    if not listed:
        detail = f"{nothing_at(config)}; a run waits for some; {empty_advice(config)}"
        return CheckResult("selection", ok=True, detail=detail, warning=True)
    whole = listed < LOOKED_AT
    first = counted(listed, "object") if whole else f"the first {counted(listed, 'object')}"
    why = f" ({', '.join(reasons)})" if reasons else ""
    if config.discovery.modified_after == "now":
        why += ', with this moment for modified_after = "now"; a run takes that of the first start'
    if chosen:
        end = then(config) if unfit else ""
        return CheckResult("selection", ok=True, detail=f"{chosen:,} of {first} chosen{why}{end}", warning=unfit)
    detail = f"none of {first} chosen{why}; check [naming] template and [discovery]"
    return CheckResult("selection", ok=passing or not whole, detail=detail, warning=True)


def _iggy(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> Iterator[CheckResult]:
    from framework.engine.iggy_target import IggyTarget  # noqa: PLC0415

    with IggyTarget(config) as target:
        folder = target.missing_folder
        if folder is not None:
            yield _new_folder(folder)
            return
        with target.connect() as connection:
            yield from _server(connection, task_class, config, list(target.network_warnings()))


def _new_folder(folder: Path) -> CheckResult:
    """Check the embedded server's folder, which a run would create."""
    parent = _existing(folder)
    problem = _no_room(parent)
    if problem is not None:
        detail = f"[iggy] url: {folder} cannot be made, {parent} is not writable: {problem.strerror}"
        return CheckResult("iggy", ok=False, detail=detail)
    return CheckResult("iggy", ok=True, detail=f"the embedded server is made in {folder} by the first run")


def _existing(folder: Path) -> Path:
    """Return a folder, or the one in which it would be made."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if os.path.exists(place))  # noqa: PTH110 - never raises


def _no_room(folder: Path) -> OSError | None:
    """Return why nothing can be made in a folder; None when it can."""
    import tempfile  # noqa: PLC0415

    try:
        # permissions alone do not tell: /proc grants them and has no room
        with tempfile.TemporaryDirectory(dir=folder):
            return None
    except OSError as error:
        return error


def _server(
    connection: IggyConnection,
    task_class: type[AbstractSourceTask],
    config: SourceCommonConfig,
    warnings: Sequence[str],
) -> Iterator[CheckResult]:
    from framework.iggy.rights import Right  # noqa: PLC0415

    iggy = config.iggy
    try:
        connection.clients()  # a start looks whether another instance is connected
        version = connection.server_version()
    except IggyAuthError as error:
        raise IggyAuthError(f"{error}; the user needs the permission read_servers") from error
    detail = "; ".join([f"version {version} at {connection.address}", *warnings])
    yield CheckResult("iggy", ok=True, detail=detail, warning=bool(warnings))
    rights: list[Right] = []
    for topic, partitions in _topics(config):
        if topic is None:
            yield CheckResult("topic", ok=True, detail="named by the objects, made when they come")
            continue
        info = connection.get_topic(iggy.stream, topic)
        yield from _tried("topic", _topic(connection, config, topic, partitions, info))
        if info is None:
            rights += [Right("create", topic)] if iggy.create_topics else []
            rights += [Right("send", topic), Right("read", topic)]
        else:
            rights += [Right("send", topic, info.id), Right("read", topic, info.id)]
            rights += [Right("manage", topic, info.id)] if topic == config.offsets_topic else []
    missing, login = connection.missing_rights(iggy.stream, rights), connection.address.login
    detail = f"{login} may do all that a run does"
    if missing is None:
        detail = "this server does not tell what its users may do"
    elif missing:
        detail = f"{login} may not: {', '.join(missing)}; grant that, or use another user"
    yield CheckResult("permissions", ok=not missing, detail=detail)
    if missing:
        return  # without them the positions cannot be read
    yield from _tried("positions", _positions(connection, task_class, config))


def _positions(
    connection: IggyConnection, task_class: type[AbstractSourceTask], config: SourceCommonConfig
) -> Iterator[CheckResult]:
    """Check that the topics hold what the positions count on, and the positions fit the configuration.

    A running instance checks that itself.
    """
    from framework.cli.offsets_commands import saved_text  # noqa: PLC0415
    from framework.engine.dry_run import check_positions  # noqa: PLC0415
    from framework.engine.inspection import inspect  # noqa: PLC0415

    found = inspect(connection, config, check=True)
    detail, stop = saved_text(found), None
    if found.running:
        detail += f"; the instance on {found.running[0].who} runs"
    elif found.state.saved_us:
        detail += "; the topics hold what they count"
        try:
            stop = check_positions(task_class, config, found)
        except PositionError:
            raise
        except SourceError:  # of the store: its own lines say so
            stop = None
    yield CheckResult("positions", ok=True, detail=stop or detail, warning=stop is not None)


def _topics(config: SourceCommonConfig) -> Iterator[tuple[str | None, int]]:
    """Yield name and partition count of each topic that a run uses; None if keys name the topics."""
    yield Router(config).fixed_topic, config.iggy.partitions
    yield config.offsets_topic, 1
    if config.errors.dead_letter_topic is not None:
        yield config.errors.dead_letter_topic, 1


def _topic(
    connection: IggyConnection, config: SourceCommonConfig, topic: str, partitions: int, info: TopicInfo | None
) -> Iterator[CheckResult]:
    from framework.engine.topic_checks import offsets_topic_refusal  # noqa: PLC0415
    from framework.iggy.dead_letters.writer import keeps_dead_letters  # noqa: PLC0415
    from framework.iggy.topics import ensure_topic  # noqa: PLC0415

    iggy = config.iggy
    place = f'"{topic}" of stream "{iggy.stream}"'
    if info is None:
        detail = f"{place} is missing, " + ("it will be made" if iggy.create_topics else "make it first")
        yield CheckResult("topic", ok=iggy.create_topics, detail=detail)
        return
    own = topic in {config.offsets_topic, config.errors.dead_letter_topic}
    advice = "it needs exactly 1; delete the others, or name another topic" if own else None
    _, warnings = ensure_topic(connection, iggy.stream, topic, partitions, create=False, advice=advice)
    refusal = offsets_topic_refusal(info) if topic == config.offsets_topic else None
    if topic == config.errors.dead_letter_topic and not keeps_dead_letters(info):
        refusal = f"{place} may lose what it confirmed, which a dead letter must not: name another one"
    detail = "; ".join([f"{place} has {counted(partitions, 'partition')}, as configured", *warnings])
    yield CheckResult("topic", ok=refusal is None, detail=refusal or detail, warning=bool(warnings))
