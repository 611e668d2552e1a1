"""A machine that plays histories of a bucket and of the processes that read it, and the model that knows the outcome.

The model is a dict: key -> the contents it ever had, each a list of records that no other content has. At the end of a history
the topic must hold, of each key, in this order: of each older content a beginning (mostly nothing), and the newest one wholly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from typing_extensions import override

from framework.engine.session import Session
from framework.errors import SourceError
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import TopicPartition
from framework.pipeline.producer import Producer
from framework.task import AbstractSourceTask
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import Bench, CrashPoint
from framework.testing.kit.law import Comparing, LawBrokenError
from framework.testing.rig import SourceRig

_KEYS = ("a", "b/1", "b/2", "m", "z")
"""Few, so that they meet; and each may come late: before those that were read."""

_STEPS = 18
_MAX_IN_FLIGHT = 20
SHORTEN_SECONDS = 4.0
"""How long a shorter history is looked for once one is found that breaks the law."""

_POLL_SECONDS = 0.03
_OPTIONS: dict[str, Any] = {"batch_length": 3, "queue_records": 7, "linger_time": 0.0, "prefetch_objects": 2}


class _Process:
    """A source at work: one task, one epoch, driven step by step."""

    def __init__(self, rig: SourceRig, server: MemoryIggy) -> None:
        self._connection = server.connect()
        self._task: AbstractSourceTask
        self._task, config = rig.make_task(dict(_OPTIONS))
        self._session = Session.begin(self._connection, config)
        self._session.open_partitions()
        self._producer: Producer = self._session.producer()
        self._partitions: set[TopicPartition] = set()
        self._polled: list[RecordBatch] = []
        self._sent: list[Future[Acknowledgement]] = []
        self._task.start(config, offsets=self._session.offsets)

    def poll(self, records: int) -> None:
        """Takes what is there, at most so many records."""
        self._polled += self._task.poll(records, timeout_seconds=_POLL_SECONDS)

    def send(self) -> None:
        """Sends the first batch that was polled and not sent."""
        if self._polled:
            batch = self._polled.pop(0)
            if batch.topic_partition not in self._partitions:
                self._session.partitions.open_one(batch.topic_partition)
                self._partitions.add(batch.topic_partition)
            self._session.offsets.store_begun()
            self._sent.append(self._producer.send(batch.topic_partition, [batch]))

    def commit(self) -> None:
        """Commits everything that is confirmed, and saves it."""
        for confirmed in self._sent:
            self._task.commit(confirmed.result())
        self._sent.clear()
        self._session.offsets.flush()

    def stop(self) -> None:
        """An orderly end: all that was polled is sent and committed."""
        while self._polled:
            self.send()
        self.commit()
        self.die()

    def die(self) -> None:
        """At once; nothing more has any effect."""
        self._connection.close()
        self._task.stop()


def _live(bench: Bench) -> None:
    bench.live(CrashPoint())


class History(RuleBasedStateMachine):
    """One history over an empty bucket and a new server. `play` makes a subclass that knows its rig.

    Attributes:
        rig: the source.
        comparing: counts.
        broken: the histories that broke the law: how long each is, and the message.
        give_up_at: when looking for a shorter one ends, by the monotonic clock; None until one is found.
    """

    rig: ClassVar[SourceRig]
    comparing: ClassVar[Comparing]
    broken: ClassVar[list[tuple[int, str]]]
    give_up_at: ClassVar[float | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryIggy()
        self.contents: dict[str, list[list[bytes]]] = {}
        self.there: set[str] = set()
        self.steps: list[str] = []
        self.process: _Process | None = None
        self.in_flight = 0  # records polled or sent at most; what really came depends on threads, and must not decide
        self.on_its_way = False

    @initialize(counts=st.lists(st.integers(1, 8), min_size=2, max_size=3))
    def begin(self, counts: list[int]) -> None:
        """Some of the later keys are there, so that others come late."""
        for key, count in zip(reversed(_KEYS), counts, strict=False):
            self.put(key, count)

    @property
    def over(self) -> bool:
        """Whether a history was found and looking for a shorter one took long enough: the rest is passed over."""
        return self.give_up_at is not None and time.monotonic() > self.give_up_at

    def act(self, text: str, do: Callable[[], None]) -> None:
        """One step. An error of the source ends the history."""
        if self.over:
            return
        self.steps.append(text)
        try:
            do()
        except SourceError as error:
            self.found(f"{', '.join(self.steps)}: {type(error).__name__}: {error}")

    def found(self, example: str) -> None:
        """This history breaks the law."""
        message = f"{self.comparing.law} is broken: {example} (seed {self.comparing.seed})"
        self.broken.append((len(self.steps), message))
        if self.give_up_at is None:
            type(self).give_up_at = time.monotonic() + SHORTEN_SECONDS
        raise LawBrokenError(message)

    @rule(key=st.sampled_from(_KEYS), count=st.integers(1, 8))
    def put(self, key: str, count: int) -> None:
        """A new object, a late one, or a new version of one that is there."""

        def put() -> None:
            versions = self.contents.setdefault(key, [])
            records = self.rig.make_records(f"{key}-{len(versions)}", count)
            versions.append(records)
            self.there.add(key)
            self.rig.put(key, self.rig.encode(records))

        self.act(f"put {key} with {count} records", put)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """One of those that are there."""
        key = data.draw(st.sampled_from(sorted(self.there)))

        def delete() -> None:
            self.there.discard(key)
            self.rig.delete(key)

        self.act(f"delete {key}", delete)

    @precondition(lambda self: self.in_flight < _MAX_IN_FLIGHT)
    @rule(records=st.integers(1, 12))
    def poll(self, records: int) -> None:
        """By a new process when none is at work."""

        def poll() -> None:
            if self.process is None:
                self.process = _Process(self.rig, self.server)
            self.process.poll(records)

        self.act(f"poll {records}", poll)
        self.in_flight += records

    @precondition(lambda self: self.process is not None and self.in_flight)
    @rule(batches=st.integers(1, 3))
    def send(self, batches: int) -> None:
        """What was polled, in its order."""

        def send() -> None:
            for _ in range(batches):
                if self.process is not None:
                    self.process.send()

        self.act(f"send {batches}", send)
        self.in_flight, self.on_its_way = 0, True

    @precondition(lambda self: self.process is not None and self.on_its_way)
    @rule()
    def commit(self) -> None:
        """What is confirmed."""
        process = self.process
        if process is not None:
            self.act("commit", process.commit)
            self.on_its_way = False

    @precondition(lambda self: self.process is not None)
    @rule(orderly=st.booleans())
    def end(self, orderly: bool) -> None:
        """In order; or at once, so that whatever was not committed is forgotten: polled, sent, or confirmed."""
        self.act("restart" if orderly else "crash", lambda: self.end_process(orderly=orderly))

    def end_process(self, *, orderly: bool) -> None:
        """Ends the process at work, if there is one."""
        process, self.process = self.process, None
        self.in_flight, self.on_its_way = 0, False
        if process is not None:
            (process.stop if orderly else process.die)()

    @override
    def teardown(self) -> None:
        """The end of every history: a run that reads all there is, and one that has nothing to do."""
        try:
            self.end_process(orderly=False)
            bench = Bench(self.rig, server=self.server, **_OPTIONS)
            for run in ("a run to the end", "one more run"):
                self.act(run, partial(_live, bench))
                if not self.over:
                    self.compare(bench)
        finally:
            for key in self.there:
                self.rig.delete(key)

    def compare(self, bench: Bench) -> None:
        """The topic against the model."""
        try:
            self._compare(bench)
        except LawBrokenError as error:
            what = (
                str(error)
                .removeprefix(f"{self.comparing.law} is broken: ")
                .removesuffix(f" (seed {self.comparing.seed})")
            )
            self.found(f"{', '.join(self.steps)}: {what}")

    def _compare(self, bench: Bench) -> None:
        stored = bench.stored()
        self.comparing.same(sorted(set(stored) - set(self.contents)), [], "keys that never were")
        for key, versions in self.contents.items():
            left = [payload for _, payload in stored.get(key, [])]
            for number, records in enumerate(versions, 1):
                newest = number == len(versions) and key in self.there
                came = sum(left[:n] == records[:n] for n in range(1, min(len(left), len(records)) + 1))
                wanted = records if newest else records[:came]
                self.comparing.same(left[: len(wanted)], wanted, f"content {number} of {key!r}")
                left = left[len(wanted) :]
            self.comparing.same(left, [], f"what the topic has of {key!r} beyond its contents")


def play(rig: SourceRig, comparing: Comparing) -> None:
    """Plays `rig.examples` histories.

    Raises:
        LawBrokenError: with the shortest history that was found, step by step.
    """
    history: type[History] = type("TheHistory", (History,), {"rig": rig, "comparing": comparing, "broken": []})
    hypothesis.seed(comparing.seed)(history)
    settings = hypothesis.settings(
        max_examples=rig.examples,
        stateful_step_count=_STEPS,
        database=None,
        deadline=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(history, settings=settings)
    except (Flaky, LawBrokenError) as error:
        if not history.broken:
            raise
        _, shortest = min(history.broken)
        raise LawBrokenError(shortest) from (error if isinstance(error, Flaky) else None)
