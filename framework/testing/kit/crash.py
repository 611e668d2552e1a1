"""A source over an Iggy in memory whose process dies at a chosen event: the bench of the delivery laws.

After the chosen event nothing of the process has any effect any more: whatever it calls raises `CrashError`. What the
server holds by then is what the next process finds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from typing_extensions import override

from framework.config.sections import SourceCommonConfig
from framework.engine.session import Session
from framework.errors import IggyUnavailableError, SourceError
from framework.iggy.client import IggyConnection
from framework.iggy.headers import join_provenance
from framework.iggy.values import StoredMessage
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import RecordBatch
from framework.model.objects import NativeObject
from framework.model.positions import OffsetManagerEntry
from framework.pipeline.sender import Pipeline
from framework.task import AbstractSourceTask
from framework.task.context import SourceContext
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.rig import SourceRig
from framework.transformer import ObjectInput, ReadStream

EVENTS = ("page", "open", "record", "enqueue", "send", "ack", "append", "appended")
"""What a run consists of: an object of a listing, the opening of a stream, a batch read, a batch in the queue, records on
their way and stored, a message of the log of positions (a commit above all) on its way and stored."""


class IggyServer(Protocol):
    """What a bench needs of a server: `MemoryIggy`, or another one behind the same names."""

    on_event: Callable[[str], None] | None

    def connect(self) -> IggyConnection:
        """A new connection."""

    def messages(self, stream: str, topic: str, partition: int = 0) -> list[StoredMessage]:
        """Everything that a partition holds."""

    def break_connections(self) -> None:
        """Every connection breaks, and the server has noticed."""


class CrashError(BaseException):
    """The process is dead. Nothing may catch this and go on."""


class CrashPoint:
    """Counts events; at the chosen one the process dies. Threads share it.

    Args:
        at: the number of the event, from 1; None = never.

    Attributes:
        events: their names, in order.
        crashed: whether it died.
        lost: whether its connections broke because it asked for that.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.events: list[str] = []
        self.crashed = False
        self.lost = False
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        """An event is about to happen."""
        with self._lock:
            if not self.crashed:
                self.events.append(name)
                self.crashed = len(self.events) == self.at
            if self.crashed:
                raise CrashError(name)


class LostAck(CrashPoint):
    """At the chosen event nothing dies: what was asked is done, and every connection breaks before the answer.

    For the events `ack` and `appended`.
    """

    def __init__(self, server: IggyServer, at: int) -> None:
        super().__init__(at)
        self._server = server

    @override
    def __call__(self, name: str) -> None:
        with self._lock:
            if self.crashed:
                raise CrashError(name)
            self.events.append(name)
            now = len(self.events) == self.at
            self.lost = self.lost or now
        if now:
            self._server.break_connections()


class Bench:
    """One Iggy in memory, and processes of one source that run over it one after the other.

    Args:
        rig: the source.
        server: where it writes; a new one by default.
        options: of its configuration.

    Attributes:
        config: of the last process.
        recovered: what the last process found when it started; None when it died before it had found anything.
        known: what the last process that began its work knew to be done when it ended or died.
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
        """One process: starts, recovers, reads everything there is, ends or dies. Returns the positions it ended with.

        Raises:
            SourceError: it failed without having been killed.
        """
        self.server.on_event = crash
        connection = self.server.connect()
        task, config = self._rig.make_task(dict(self._options))
        self.config = config
        entries: list[OffsetManagerEntry] = []
        try:
            entries = self._run(connection, task, config, crash)
        except CrashError:
            pass
        except IggyUnavailableError:
            if not (crash.crashed or crash.lost):
                raise
        except SourceError:
            if not crash.crashed:
                raise
        finally:
            if self._session is not None:
                self.known = list(self._session.offsets.entries())
            crash.crashed = True  # threads that are left behind must not do anything any more
            task.stop()
            self.server.on_event = None
            connection.close()
        return entries

    def _run(
        self, connection: IggyConnection, task: AbstractSourceTask, config: SourceCommonConfig, crash: CrashPoint
    ) -> list[OffsetManagerEntry]:
        self._session, self.recovered = None, None
        session = self._session = Session.begin(connection, config)
        session.open_partitions()
        self.recovered = list(session.offsets.entries())
        _watch(task, crash)
        task.start(config, offsets=session.offsets, once=True)
        Pipeline(
            task,
            session.producer(),
            config,
            open_partition=session.partitions.open_one,
            on_turn=session.look_when_due,
            dead_letters=session.dead_letters(),
            clock=FakeClock(step=config.offsets.commit_interval / 3),
        ).run()
        return list(session.offsets.entries())

    def stored(self) -> dict[str, list[tuple[int, bytes]]]:
        """Key -> (partition, payload) of every message, partition by partition in its order.

        A key longer than a header holds is put together from its pieces.
        """
        found: dict[str, list[tuple[int, bytes]]] = {}
        config = self.config
        if config is None or config.iggy.topic is None:
            return found
        for partition in range(config.iggy.partitions):
            for message in self.server.messages(config.iggy.stream, config.iggy.topic, partition):
                found.setdefault(join_provenance(message.headers)["key"], []).append((partition, message.payload))
        return found


def _watch(task: AbstractSourceTask, crash: CrashPoint) -> None:
    """Makes the iterator that the task will get tell of its events."""
    get_iterator = task.get_iterator

    def watched(context: SourceContext) -> AbstractSourceRecordIterator:
        iterator = get_iterator(context)
        list_objects, read, get_input = (
            iterator.get_native_item_stream,
            iterator.next_batch,
            iterator.get_input_stream,
        )
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

        def get_input_stream(native: NativeObject) -> ObjectInput:
            return _WatchedInput(get_input(native), crash)

        for method in (get_native_item_stream, next_batch, get_input_stream):
            setattr(iterator, method.__name__, method)
        return iterator

    setattr(task, "get_iterator", watched)  # noqa: B010 - a checker would refuse the plain assignment


class _WatchedInput:
    def __init__(self, inner: ObjectInput, crash: CrashPoint) -> None:
        self._inner = inner
        self._crash = crash
        self.location, self.key, self.size = inner.location, inner.key, inner.size

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        self._crash("open")
        return self._inner.open(start, end)
