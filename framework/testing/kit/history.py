"""A state machine that runs histories of a bucket and its readers, and a model of the expected result.

The model is a dict: key -> all contents of the key, each a list of unique records. At the end of a history the
topic must have of each key, in this order: a prefix of each older content (mostly empty), and all of the newest.
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
from framework.pipeline.producer_contract import Producer
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
    """A source process: one task and one epoch, driven step by step."""

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
        """Poll available batches, up to a number of records."""
        self._polled += self._task.poll(records, timeout_seconds=_POLL_SECONDS)

    def send(self) -> None:
        """Send the first batch that is polled and not sent."""
        if self._polled:
            batch = self._polled.pop(0)
            if batch.topic_partition not in self._partitions:
                self._session.partitions.open_one(batch.topic_partition)
                self._partitions.add(batch.topic_partition)
            self._session.offsets.store_begun()
            self._sent.append(self._producer.send(batch.topic_partition, [batch]))

    def commit(self) -> None:
        """Commit everything that is confirmed, and save it."""
        for confirmed in self._sent:
            self._task.commit(confirmed.result())
        self._sent.clear()
        self._session.offsets.flush()

    def stop(self) -> None:
        """Stop in order: send and commit all polled batches."""
        while self._polled:
            self.send()
        self.commit()
        self.die()

    def die(self) -> None:
        """End at once; nothing has an effect afterwards."""
        self._connection.close()
        self._task.stop()


def _live(bench: Bench) -> None:
    bench.live(CrashPoint())


class History(RuleBasedStateMachine):
    """A history over an empty bucket and a new server. `play` makes a subclass with its rig.

    Attributes:
        rig: the source.
        comparing: counts comparisons.
        broken: histories that broke the law: length and message.
        give_up_at: end of the search for a shorter one, monotonic clock; None until one is found.
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
        """Create some of the later keys, so that others come late."""
        for key, count in zip(reversed(_KEYS), counts, strict=False):
            self.put(key, count)

    @property
    def over(self) -> bool:
        """Return whether the search for a shorter history has taken long enough."""
        return self.give_up_at is not None and time.monotonic() > self.give_up_at

    def act(self, text: str, do: Callable[[], None]) -> None:
        """Run a step. An error of the source ends the history."""
        if self.over:
            return
        self.steps.append(text)
        try:
            do()
        except SourceError as error:
            self.found(f"{', '.join(self.steps)}: {type(error).__name__}: {error}")

    def found(self, example: str) -> None:
        """Record that this history breaks the law."""
        message = f"{self.comparing.law} is broken: {example} (seed {self.comparing.seed})"
        self.broken.append((len(self.steps), message))
        if self.give_up_at is None:
            type(self).give_up_at = time.monotonic() + SHORTEN_SECONDS
        raise LawBrokenError(message)

    @rule(key=st.sampled_from(_KEYS), count=st.integers(1, 8))
    def put(self, key: str, count: int) -> None:
        """Write a new object, a late object, or a new version."""

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
        """Delete an existing object."""
        key = data.draw(st.sampled_from(sorted(self.there)))

        def delete() -> None:
            self.there.discard(key)
            self.rig.delete(key)

        self.act(f"delete {key}", delete)

    @precondition(lambda self: self.in_flight < _MAX_IN_FLIGHT)
    @rule(records=st.integers(1, 12))
    def poll(self, records: int) -> None:
        """Poll, in a new process if none runs."""

        def poll() -> None:
            if self.process is None:
                self.process = _Process(self.rig, self.server)
            self.process.poll(records)

        self.act(f"poll {records}", poll)
        self.in_flight += records

    @precondition(lambda self: self.process is not None and self.in_flight)
    @rule(batches=st.integers(1, 3))
    def send(self, batches: int) -> None:
        """Send polled batches in order."""

        def send() -> None:
            for _ in range(batches):
                if self.process is not None:
                    self.process.send()

        self.act(f"send {batches}", send)
        self.in_flight, self.on_its_way = 0, True

    @precondition(lambda self: self.process is not None and self.on_its_way)
    @rule()
    def commit(self) -> None:
        """Commit confirmed batches."""
        process = self.process
        if process is not None:
            self.act("commit", process.commit)
            self.on_its_way = False

    @precondition(lambda self: self.process is not None)
    @rule(orderly=st.booleans())
    def end(self, orderly: bool) -> None:
        """End in order, or at once: then everything uncommitted is lost, whether polled, sent or confirmed."""
        self.act("restart" if orderly else "crash", lambda: self.end_process(orderly=orderly))

    def end_process(self, *, orderly: bool) -> None:
        """End the running process, if any."""
        process, self.process = self.process, None
        self.in_flight, self.on_its_way = 0, False
        if process is not None:
            (process.stop if orderly else process.die)()

    @override
    def teardown(self) -> None:
        """End each history with a run that reads everything, and a run without work."""
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
        """Compare the topic with the model."""
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
    """Play `rig.examples` histories.

    Raises:
        LawBrokenError: with the shortest history found, step by step.
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
