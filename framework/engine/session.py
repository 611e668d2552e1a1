"""One epoch: a connection to Iggy, recovered positions, and partitions that are ready to be written.

    claim, fence, load -> check -> open the epoch -> open partitions -> send, save, write snapshots

A session ends with its connection. After a break a new session begins a new epoch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import attrs
from typing_extensions import Self

from framework.discovery.routing import Router
from framework.engine.partition_opener import PartitionOpener
from framework.engine.topic_checks import check_topics, ensure_offsets_topic
from framework.errors import IggyUnavailableError, SourceError, UnknownOutcomeError
from framework.iggy.connection import IggyConnection
from framework.iggy.dead_letters.writer import IggyDeadLetters, ensure_dead_letter_topic
from framework.iggy.offset_log.fencing import Epoch, begin_epoch, check_alone
from framework.iggy.offset_log.log import DuePolls, OffsetLog
from framework.iggy.offset_log.log_offset_store import LogOffsetStore, manager_of
from framework.iggy.offset_log.records import connected
from framework.iggy.offset_log.snapshots import SnapshotWriter
from framework.iggy.producer import IggyProducer
from framework.iggy.topic_validation import topic_refusal
from framework.model.objects import TopicPartition
from framework.model.positions import is_numbered_by
from framework.model.text import counted
from framework.offsets.manager import OffsetManager, StartFacts
from framework.offsets.skip_history import HOUR_SECONDS, SkippedCount

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.object_feed import Assignment
    from framework.iggy.offset_log.records import SnapshotFooter
    from framework.iggy.offset_log.state import LogState
    from framework.model.positions import OffsetManagerEntry
    from framework.offsets.position_view import PositionView
    from framework.pipeline.dead_letters import DeadLetterBox

log = logging.getLogger(__name__)


COMPACT_SHARE = 8
"""At the end of a run, a snapshot is written when more than 1/COMPACT_SHARE of the positions can be compacted."""

FOLLOW_SECONDS = 1.0
"""Interval at which an otherwise idle process polls the log."""


@attrs.define(eq=False, repr=False, slots=False)
class Session:
    """The leader's view of one epoch. Create it with `begin`.

    Attributes:
        connection: the leader's connection.
        config: configuration of the source.
        log: the offsets log, over that connection.
        epoch: the epoch.
        state: state of the log.
        offsets: manager of the state's positions.
        partitions: takes partitions over.
    """

    connection: IggyConnection
    config: SourceCommonConfig
    log: OffsetLog
    epoch: Epoch
    _several_writers: bool = attrs.field(default=False, kw_only=True)
    _producer: IggyProducer | None = attrs.field(default=None, init=False)
    _changed: list[tuple[OffsetManagerEntry, OffsetManagerEntry]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        connection, config, offset_log, epoch = self.connection, self.config, self.log, self.epoch
        self.state = state = epoch.state
        writer, pipelined = epoch.claim.token, not self._several_writers
        store = LogOffsetStore(offset_log, state, epoch=epoch.number, writer=writer, pipelined=pipelined)
        facts = StartFacts(
            skipped_lately=state.skipped_lately(),
            known_topics={topic_partition.topic for topic_partition in state.partitions},
            topic_refusal=lambda topic: topic_refusal(connection, config, topic),
        )
        self.offsets = manager_of(state, store, facts)
        self.partitions = PartitionOpener(
            offset_log, config, state, self.offsets, store, epoch=epoch.number, writer=writer, leads=True
        )
        self._snapshots = SnapshotWriter(
            offset_log,
            epoch=epoch.number,
            state=self._state,
            catch_up=self.follow,
            count=self.offsets.table.__len__,
            since=state.snapshot_end,
            since_bytes=state.snapshot_bytes,
            compactable=lambda: self.offsets.tracker.compactable,
        )
        self._due = DuePolls(FOLLOW_SECONDS)
        self._began = time.monotonic()

    @classmethod
    def begin(
        cls,
        connection: IggyConnection,
        config: SourceCommonConfig,
        *,
        own_epochs: Collection[int] = (),
        take_over: bool = False,
        several_writers: bool = False,
    ) -> Self:
        """Begin an epoch over a new connection.

        Args:
            connection: an open connection; it stays open.
            config: configuration of the source.
            own_epochs: epochs that this process has led before.
            take_over: begin although another instance is running; that instance then ends.
            several_writers: other processes send, and this process only leads.

        Raises:
            SourceRunningError: another instance is running.
            PositionError: the log and the topics do not match; the message names the ways out.
            IggyTopicError: a topic cannot be used as configured.
            IggyUnavailableError: the connection broke.
        """
        offset_log = OffsetLog.of(connection, config)
        if own_epochs and connection.get_topic(config.iggy.stream, config.offsets_topic) is None:
            raise offset_log.replaced()  # a new one would be in the way of a person who brings it back
        ensure_offsets_topic(connection, config)
        dead_letters = config.errors.dead_letter_topic
        if dead_letters is not None:
            for warning in ensure_dead_letter_topic(
                connection, config.iggy.stream, dead_letters, create=config.iggy.create_topics
            ):
                log.warning("%s", warning)
        dropped = False

        def check(state: LogState) -> None:
            nonlocal dropped
            dropped = check_topics(connection, config, state)

        epoch = begin_epoch(offset_log, own_epochs=own_epochs, take_over=take_over, check=check)
        epoch.open(offset_log)
        made = cls(connection, config, offset_log, epoch, several_writers=several_writers)
        if dropped:
            made.write_snapshot()
        made._report_former_topics()
        return made

    def _report_former_topics(self) -> None:
        """Log what was begun under another `[iggy] topic`: all records of an object are in one topic."""
        topic = Router(self.config).fixed_topic
        if topic is None:
            return
        begun: dict[str, set[str]] = {}
        for entry in self.offsets.table.unfinished():
            if not entry.is_abandoned:
                begun.setdefault(entry.topic_partition.topic, set()).add(entry.key)
        for former, keys in sorted(begun.items()):
            if former != topic:
                log.warning(
                    'the rest of %s goes to topic "%s", where it began; what begins from now on goes to [iggy] topic "%s"',
                    counted(len(keys), "object"),
                    former,
                    topic,
                )

    def known_partitions(self) -> set[TopicPartition]:
        """Return every partition that was ever written, and those of the configured topic."""
        topic = Router(self.config).fixed_topic
        fixed = (
            {TopicPartition(topic, number) for number in range(self.config.iggy.partitions)}
            if topic is not None
            else set()
        )
        return fixed | self.state.partitions

    def open_partitions(self) -> None:
        """Take over every partition. For a process that is the only sender.

        Raises:
            PositionError: messages that positions count as saved are gone.
        """
        self._open_partitions(self.known_partitions())

    def open_forgetful_partitions(self) -> None:
        """Take over, until a worker does, partitions where a server crash may have lost sent but unsaved records.

        Messages that the log counts as sent there may be gone, and a leader that trusted the log would not send those
        objects again. The other partitions are only checked: no worker opens a finished partition, so a purge would go
        unnoticed.

        Raises:
            PositionError: messages that positions count as saved are gone.
        """
        self._open_partitions(self._partitions_of(lambda entry: entry.records_done > entry.records_saved))
        self.partitions.check(self.state.partitions)

    def open_renumbered_partitions(self, numbering_options: str) -> None:
        """Take over, until a worker does, partitions of unfinished objects whose records other options number.

        When nothing of such an object was sent, a listing begins it again under the new options. Only the partition
        knows that: the log may miss what was sent just before a kill.

        Args:
            numbering_options: the options of this run, canonical.

        Raises:
            PositionError: messages that positions count as saved are gone.
        """
        topic_partitions = self._partitions_of(
            lambda entry: not (entry.finished or entry.is_abandoned or is_numbered_by(entry, numbering_options))
        )
        if topic_partitions:
            self._open_partitions(topic_partitions)

    def _partitions_of(self, chosen: Callable[[OffsetManagerEntry], bool]) -> set[TopicPartition]:
        with self.offsets.table.lock:
            return {entry.topic_partition for _, entry in self.state.positions.pending() if chosen(entry)}

    def _open_partitions(self, topic_partitions: Collection[TopicPartition]) -> None:
        self.partitions.open(topic_partitions)
        if self.partitions.replayed:
            log.info(
                "recovered: found %s behind the last saved positions in the topics",
                counted(self.partitions.replayed, "message"),
            )
        if self.offsets.dirty:
            self.offsets.flush()

    @property
    def stored_records(self) -> int:
        """Number of records that are stored according to positions and watermark."""
        with self.offsets.table.lock:
            return self.state.positions.view().records_done + self.offsets.table.watermark.records

    def skipped_lately(self) -> list[SkippedCount]:
        """Return what was skipped within the last hour, with ages as of now, for a task that begins now."""
        passed = time.monotonic() - self._began
        counts = (SkippedCount(skips.seconds_ago + passed, skips.count) for skips in self.offsets.facts.skipped_lately)
        return [skips for skips in counts if skips.seconds_ago < HOUR_SECONDS]

    def producer(self) -> IggyProducer:
        """Return the producer for the data topics, over this session's connection."""
        self._producer = make_producer(self.connection, self.config, self.offsets)
        return self._producer

    def dead_letters(self) -> DeadLetterBox | None:
        """Return the writer to the dead letter topic, over this session's connection; None when none is configured."""
        return IggyDeadLetters.of(self.connection, self.config)

    # ---- while it runs

    def follow(self) -> None:
        """Apply what other writers have appended. `take_changed` then returns the progress of workers.

        Raises:
            SourceTakenOverError: another instance claims the source.
        """
        for message in self.log.follow():
            check_alone(self.log.source, self.epoch.number, message)
            with self.offsets.table.lock:
                self._changed += self.state.apply(message)

    def check_alone_after(self, failure: SourceError) -> None:
        """Look once more, after a worker failed: it may have read the claim of another instance before this process did.

        Args:
            failure: of the worker.

        Raises:
            SourceTakenOverError: another instance claims the source.
        """
        if isinstance(failure, UnknownOutcomeError):
            with contextlib.suppress(IggyUnavailableError):
                self.follow()

    def take_changed(self) -> list[tuple[OffsetManagerEntry, OffsetManagerEntry]]:
        """Return the positions that workers changed since the last call, before and after."""
        changed, self._changed = self._changed, []
        return changed

    def look_when_due(self) -> None:
        """Poll the log at intervals for claims of other instances, and write the next part of a snapshot that is due.

        Raises:
            SourceTakenOverError: another instance claims the source.
        """
        if self._due.take():
            self.follow()
        self._snapshots.advance()

    def store_begun(self, assignments: Iterable[Assignment]) -> None:
        """Make the topics of these objects, and store that they begin: a worker may send them afterwards."""
        for topic in {assignment.entry.topic_partition.topic for assignment in assignments}:
            self.partitions.ensure_topic(topic)
        self.offsets.store_begun()

    def save(self) -> None:
        """Save what this process learned by listing, while other processes send."""
        if self.offsets.dirty:
            self.offsets.flush()
        self._snapshots.advance()

    def write_snapshot(self) -> None:
        """Write a snapshot at once."""
        self._snapshots.write()

    def finish(self) -> None:
        """Write a compacting snapshot after everything was done, if worthwhile, so that the next start reads little."""
        if COMPACT_SHARE * self.offsets.tracker.compactable > len(self.offsets.table):
            self.write_snapshot()

    def _state(self) -> tuple[PositionView, SnapshotFooter]:
        """Return the current state, without the positions that the watermark replaces.

        Raises:
            PositionError: the server confirms records that it does not deliver; a flush would not save them, either.
        """
        if self._producer is not None:
            self._producer.check_delivered()
        self.offsets.tracker.compact()
        with self.offsets.table.lock:
            self._drop_old_claims()
            # positions are as this process knows them, beyond what it has saved
            counted = self.state.of_owner(self.offsets.partitions.counted(), self.epoch.claim.token)
            footer = attrs.evolve(
                self.state.footer(),
                counted=self.state.counted | counted,
                watermark=self.offsets.table.watermark,
                selected=self.offsets.selection.scope,
            )
            return self.offsets.table.entries(), footer

    def _drop_old_claims(self) -> None:
        """Drop claims of workers whose connections are gone: every Spark job leaves a claim."""
        claims = self.state.claims
        living = set(connected(claims.values(), self.connection.clients()))
        self.state.claims = {offset: claim for offset, claim in claims.items() if claim in living}

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.connection.close()


def make_producer(connection: IggyConnection, config: SourceCommonConfig, offsets: OffsetManager) -> IggyProducer:
    """Return a producer that knows the ends of the open partitions."""
    producer = IggyProducer(
        connection,
        stream=config.iggy.stream,
        source=config.source.name,
        headers="provenance" if config.iggy.headers == "provenance" else "none",
        hold_back=offsets.partitions.hold_back,
    )
    for topic_partition, last in offsets.partitions.ends().items():
        producer.expect_above(topic_partition, last.offset)
    return producer
