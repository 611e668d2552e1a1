"""A source over an Iggy in memory whose process dies at a chosen event: the test bench of the delivery laws.

After the chosen event the process has no effect: each of its calls raises `CrashError`. The next process
finds the server as it was then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, cast

import attrs
from typing_extensions import override

from framework.config.sections import SourceCommonConfig
from framework.engine.process_group import ProcessGroup
from framework.engine.reporter import Reporter
from framework.engine.session import Session
from framework.errors import FatalError, IggyTopicError, IggyUnavailableError, SourceError
from framework.iggy.connection import IggyConnection
from framework.iggy.header_decoding import join_provenance
from framework.iggy.values import StoredMessage
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import RecordBatch
from framework.model.objects import NativeObject
from framework.model.positions import OffsetManagerEntry
from framework.pipeline.sender import Sender
from framework.task import AbstractSourceTask
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_iggy import MemoryConnection, MemoryIggy
from framework.testing.kit.processes import CrashError, ThreadContext
from framework.testing.kit.watch import change_iterators, replace, watch_streams
from framework.testing.rig import SourceRig

EVENTS = ("page", "open", "record", "enqueue", "send", "ack", "append", "appended")
"""What a run consists of: an object of a listing, the opening of a stream, a batch read, a batch in the queue, records on
their way and stored, a message of the log of positions (a commit above all) on its way and stored."""


_FOLLOW_SECONDS = 0.002
"""How often a leader looks for the progress of its workers: a life lasts milliseconds."""

HANGS_SECONDS = 20.0
"""Several tasks that take longer wait for something that never comes."""

_LOOK_SECONDS, _QUIET_LOOKS, _MAX_LOOKS = 0.001, 15, 200
"""After so many looks without an event, processes have nothing more to do. On a busy machine looks take longer, too."""

LEADER = "leader"
"""The process that leads; the only one without `tasks_max`."""


class IggyServer(Protocol):
    """The server of a bench: `MemoryIggy`, or another with these methods."""

    on_event: Callable[[str], None] | None

    def connect(self) -> IggyConnection:
        """Return a new connection."""

    def messages(self, stream: str, topic: str, partition: int = 0) -> list[StoredMessage]:
        """Return the messages of a partition."""

    def break_connections(self) -> None:
        """Break every connection; the server notices it."""


class CrashPoint:
    """Counts the events of a run over all processes; at the chosen event the host or a process dies. Thread-safe.

    Args:
        at: number of the event, from 1; None: never.
        alone: only the process of that event dies. It first stalls until the others are idle, so that they
            have done everything that is possible without its event.

    Attributes:
        events: names of the events, in order.
        processes: their processes.
        struck: whether the chosen event was reached.
        crashed: whether every process is dead.
        lost: whether it broke the connections.
        on_death: called with each process that dies; None: all of them.
    """

    def __init__(self, at: int | None = None, *, alone: bool = False) -> None:
        self.at = at
        self.alone = alone
        self.events: list[str] = []
        self.processes: list[str] = []
        self.struck = False
        self.crashed = False
        self.lost = False
        self.on_death: Callable[[str | None], None] = lambda _: None
        self._dead: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, name: str, process: str = LEADER) -> None:
        """Count an event of a process that is about to happen."""
        with self._lock:
            now = False
            if not self._is_dead(process):
                self._count(name, process)
                now = len(self.events) == self.at
                self.struck |= now
            dead = now or self._is_dead(process)
        if now and self.alone:
            self._let_others_work(process)
        if now:
            self.kill(process if self.alone else None)
        if dead:
            raise CrashError(name)

    def _let_others_work(self, process: str) -> None:
        with self._lock:
            self._dead.add(process)
        seen = quiet = 0
        for _ in range(_MAX_LOOKS):
            time.sleep(_LOOK_SECONDS)
            quiet = quiet + 1 if seen == len(self.events) else 0
            seen = len(self.events)
            if quiet == _QUIET_LOOKS or self.crashed:
                return

    def kill(self, process: str | None = None) -> None:
        """End a process, or all of them: from now on it has no effect."""
        with self._lock:
            if process is None:
                self.crashed = True
            else:
                self._dead.add(process)
        self.on_death(process)

    def _is_dead(self, process: str) -> bool:
        return self.crashed or process in self._dead

    def _count(self, name: str, process: str) -> None:
        self.events.append(name)
        self.processes.append(process)

    @property
    def place(self) -> str:
        """Return the chosen event in words; empty until it is reached."""
        if self.at is None or self.at > len(self.events):
            return ""
        whose = f" of {self.processes[self.at - 1]}" if len(set(self.processes)) > 1 or self.alone else ""
        return f"{self.events[self.at - 1]}{whose}{', alone' if self.alone else ''}"


class LostAck(CrashPoint):
    """At the chosen event the server does the work, and every connection breaks before the answer.

    For the events `ack` and `appended`.
    """

    def __init__(self, server: IggyServer, at: int) -> None:
        super().__init__(at)
        self._server = server

    @override
    def __call__(self, name: str, process: str = LEADER) -> None:
        with self._lock:
            if self._is_dead(process):
                raise CrashError(name)
            self._count(name, process)
            now = len(self.events) == self.at
            self.lost = self.lost or now
        if now:
            self._server.break_connections()


class Bench:
    """An Iggy in memory, and processes of a source that run over it in sequence.

    Args:
        rig: the source.
        server: the server; a new one by default.
        options: options of its configuration. `split_size` may be smaller than users can set. With `tasks_max` above 1 the
            workers are threads, and the server is a `MemoryIggy`.

    Attributes:
        config: configuration of the last process.
        recovered: the state that the last process recovered; None when it died earlier.
        known: the positions of the last process that began to read, at its end.
    """

    def __init__(self, rig: SourceRig, *, server: IggyServer | None = None, **options: Any) -> None:
        self.server: IggyServer = server if server is not None else MemoryIggy()
        self._rig = rig
        self._options = options
        self.config: SourceCommonConfig | None = None
        self.recovered: list[OffsetManagerEntry] | None = None
        self.known: list[OffsetManagerEntry] = []
        self._session: Session | None = None

    def live(self, crash: CrashPoint) -> list[OffsetManagerEntry]:
        """Run a process: it recovers, reads everything, and ends or dies. Return its last positions.

        Raises:
            SourceError: it failed without a crash.
        """
        self.server.on_event = crash
        connection = self.server.connect()
        task, config = self._make_task()
        self.config = config
        entries: list[OffsetManagerEntry] = []
        several = (config.runner.tasks_max or 1) > 1
        try:
            entries = (
                self._run_several(connection, config, crash) if several else self._run(connection, task, config, crash)
            )
        except CrashError:
            pass
        except IggyUnavailableError:
            if not (crash.struck or crash.lost):
                raise
        except SourceError:
            if not crash.struck:
                raise
        finally:
            if self._session is not None:
                self.known = list(self._session.offsets.table.entries())
            crash.kill()  # threads that are left behind must not do anything any more
            task.stop()
            self.server.on_event = None
            connection.close()
        return entries

    def _make_task(self) -> tuple[AbstractSourceTask, SourceCommonConfig]:
        options = dict(self._options)
        split_size = options.pop("split_size", None)
        task, config = self._rig.make_task(options)
        if split_size is not None:
            config = attrs.evolve(config, input=attrs.evolve(config.input, split_size=split_size))
        return task, config

    def _run(
        self, connection: IggyConnection, task: AbstractSourceTask, config: SourceCommonConfig, crash: CrashPoint
    ) -> list[OffsetManagerEntry]:
        self._session, self.recovered = None, None
        session = self._session = Session.begin(connection, config)
        session.open_partitions()
        self.recovered = list(session.offsets.table.entries())
        change_iterators(task, partial(_watch, crash=crash))
        task.start(config, offsets=session.offsets, once=True)
        Sender(
            task,
            session.producer(),
            config,
            open_partition=session.partitions.open_one,
            on_turn=session.look_when_due,
            dead_letters=session.dead_letters(),
            clock=FakeClock(step=config.offsets.commit_interval / 3),
        ).run()
        return list(session.offsets.table.entries())

    def _run_several(
        self, connection: IggyConnection, config: SourceCommonConfig, crash: CrashPoint
    ) -> list[OffsetManagerEntry]:
        self._session, self.recovered = None, None
        session = self._session = Session.begin(connection, config, several_writers=True)
        session.open_forgetful_partitions()
        self.recovered = list(session.offsets.table.entries())

        def connect(process: str) -> IggyConnection:
            made = self.server.connect()
            if not isinstance(made, MemoryConnection):
                raise TypeError("several tasks need a MemoryIggy")
            made.on_event = partial(crash, process=process)
            return made

        def make_task(process: str = LEADER) -> AbstractSourceTask:
            task, _ = self._make_task()
            change_iterators(task, partial(_watch, crash=partial(crash, process=process)))
            return task

        context = ThreadContext(connect=connect, make_task=lambda process: partial(make_task, process), kill=crash.kill)

        def died(process: str | None) -> None:
            context.died(process)
            if process in {None, LEADER}:
                connection.close()

        crash.on_death = died
        group = ProcessGroup(
            cast("type[AbstractSourceTask]", make_task),  # a class is only called
            config,
            session,
            once=True,
            context=context,
            follow_seconds=_FOLLOW_SECONDS,
        )
        ends = _Deadline(HANGS_SECONDS)
        group.run(ends, Reporter(None, skipped_per_hour=config.errors.max_bad_records_per_hour))
        if ends.is_set():
            raise FatalError(f"the tasks did not end within {HANGS_SECONDS:.0f} seconds")
        session.finish()
        return list(session.offsets.table.entries())

    def messages(self) -> Iterator[tuple[int, StoredMessage]]:
        """Return partition and message of every stored record, in order by partition."""
        config = self.config
        if config is None or config.iggy.topic is None:
            return
        for partition in range(config.iggy.partitions):
            try:
                messages = self.server.messages(config.iggy.stream, config.iggy.topic, partition)
            except IggyTopicError:  # the process died before it made the topic
                return
            for message in messages:
                yield partition, message

    def dead_letters(self) -> list[StoredMessage]:
        """Return the messages of the dead letter topic."""
        config = self.config
        if config is None or config.errors.dead_letter_topic is None:
            return []
        return self.server.messages(config.iggy.stream, config.errors.dead_letter_topic)

    def stored(self) -> dict[str, list[tuple[int, bytes]]]:
        """Return key -> (partition, payload) of every message, in order by partition.

        Keys longer than a header are joined from their parts.
        """
        found: dict[str, list[tuple[int, bytes]]] = {}
        for partition, message in self.messages():
            found.setdefault(join_provenance(message.headers)["key"], []).append((partition, message.payload))
        return found


class _Deadline(threading.Event):
    """An event that is set at a deadline."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._at = time.monotonic() + seconds

    @override
    def is_set(self) -> bool:
        return time.monotonic() > self._at


def _watch(iterator: AbstractSourceRecordIterator, crash: Callable[[str], None]) -> None:
    """Make an iterator report its events."""
    list_objects, read = iterator.get_native_item_stream, iterator.next_batch
    waiting: list[RecordBatch] = []

    def get_native_item_stream(offset: str | None) -> Iterator[NativeObject]:
        for native in list_objects(offset):
            crash("page")
            yield native

    def next_batch() -> RecordBatch | None:
        if waiting:
            waiting.clear()
            crash("enqueue")  # the one before is in the queue by now
        batch = read()
        if batch is not None:
            waiting.append(batch)
            crash("record")
        return batch

    replace(iterator, get_native_item_stream=get_native_item_stream, next_batch=next_batch)
    watch_streams(iterator, before=partial(crash, "open"))
