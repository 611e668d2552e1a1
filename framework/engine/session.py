"""One epoch: a connection to Iggy, recovered positions, and lanes that are ready to be written.

Everything here ends with the connection. After a break a new session recovers and begins a new epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from typing_extensions import Self

from framework.engine.snapshots import SnapshotWriter
from framework.errors import ConfigError, IggyUnavailableError, UnknownOutcomeError
from framework.ids import object_hash64
from framework.iggy.address import IggyAddress
from framework.iggy.client import IggyConnection
from framework.iggy.dead_letters import IggyDeadLetters, ensure_dead_letter_topic
from framework.iggy.lane_history import emptied
from framework.iggy.log_codec import Closing, TopicIdentity
from framework.iggy.log_trim import trim, trim_in_steps
from framework.iggy.position_log import EpochWatch, LogOffsetStore, PositionLog
from framework.iggy.recovery import Recovered, Recovery
from framework.iggy.sender import IggyProducer
from framework.iggy.stored_letters import void_letters
from framework.iggy.topics import ensure_topic
from framework.naming import Router
from framework.offsets import OffsetManager, PositionDelta
from framework.records import Anchor, Lane, NativeObject
from framework.skip_limits import HOUR_SECONDS, LeftOut

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.dead_letters import DeadLetterBox
    from framework.iggy.embedded import EmbeddedServer
    from framework.position_map import PositionView

log = logging.getLogger(__name__)

OFFSETS_SEGMENT_BYTES = 1 << 20
"""The least that a server takes: only whole segments can be deleted."""

SETTLE_SECONDS = 0.25
SETTLE_SHARE = 20
"""What is in hand is looked through no more often, and for no more than this part of the time."""

WORTH_A_PART = 8
"""At the end of a run, a snapshot is written when more than one in so many positions would go."""

VERIFY_SECONDS = 30.0
"""How often an idle source looks whether the server still has what it confirmed."""


class IggyTarget:
    """The configured server: its address, and with `embedded:` the server itself."""

    def __init__(self, config: SourceCommonConfig) -> None:
        self._config = config
        try:
            self._address = IggyAddress.parse(config.iggy.url)
        except ConfigError as exc:
            raise ConfigError([f"[iggy] url: {mistake}" for mistake in exc.mistakes]) from exc
        self._server: EmbeddedServer | None = None

    @property
    def embedded(self) -> bool:
        """Whether the server is one that this program starts itself."""
        return self._address.embedded_path is not None

    def connect(self) -> IggyConnection:
        """A new connection; starts or joins the embedded server first when that is what is configured.

        Raises:
            IggyUnavailableError, IggyAuthError, IggyProtocolError: as their names say.
        """
        return open_connection(self.address(), self._config)

    def address(self) -> IggyAddress:
        """Where a real or embedded server answers now."""
        if self._address.embedded_path is None:
            return self._address
        from framework.iggy.embedded import EmbeddedServer, EmbeddedServerError  # noqa: PLC0415 - often a real one

        try:
            server = EmbeddedServer.start(self._address.embedded_path)
        except EmbeddedServerError as exc:
            raise IggyUnavailableError(f"{exc}. [iggy] url needs a folder that can be made and written") from exc
        if self._server is not None:
            self._server.stop()
        self._server = server
        return IggyAddress.parse(server.url)

    def close(self) -> None:
        """Ends the embedded server, if it is ours. May be called twice."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_connection(address: IggyAddress, config: SourceCommonConfig) -> IggyConnection:
    """A connection with the configured time limits."""
    connection = IggyConnection(
        address,
        connect_timeout_seconds=config.iggy.connect_timeout,
        call_timeout_seconds=config.iggy.request_timeout,
    )
    return connection.connect()


class LaneKeeper:
    """Opens lanes before their first record, and looks whether they still hold what they confirmed."""

    def __init__(
        self,
        connection: IggyConnection,
        config: SourceCommonConfig,
        offsets: OffsetManager | None = None,
        *,
        on_saved: Callable[[PositionDelta], None] | None = None,
    ) -> None:
        self._connection = connection
        self._config = config
        self._on_saved = on_saved
        self.offsets = offsets if offsets is not None else OffsetManager()
        self._topics: dict[str, TopicIdentity] = {}
        self._verify_at = time.monotonic() + VERIFY_SECONDS

    @property
    def topics(self) -> dict[str, TopicIdentity]:
        """The data topics that were made or checked."""
        return self._topics

    def ensure_topic(self, topic: str) -> None:
        """Makes or checks a data topic, once.

        Raises:
            IggyTopicError: it cannot be used as configured.
        """
        if topic in self._topics:
            return
        iggy = self._config.iggy
        info, warnings = ensure_topic(self._connection, iggy.stream, topic, iggy.partitions, create=iggy.create_topics)
        for warning in warnings:
            log.warning("%s", warning)
        self._topics[topic] = TopicIdentity(topic_id=info.id, created_at=info.created_at)
        self.offsets.note_topic(topic, (info.id, info.created_at))

    def open_lane(self, lane: Lane) -> None:
        """Leaves the lane's end in the log, before anything of ours stands behind it.

        Without that a crash after the first send and before the first delta would leave records that no replay looks for.
        """
        if lane in self.offsets.snapshot_anchors():
            return
        self.ensure_topic(lane.topic)
        last = self._connection.poll(self._config.iggy.stream, lane.topic, lane.partition, offset="last", count=1)
        self.offsets.set_anchor(lane, Anchor(last[-1].offset, last[-1].message_id) if last else None, save=True)
        delta = self.offsets.flush()
        if self._on_saved is not None:
            self._on_saved(delta)  # a leader must know the lane before it writes a snapshot

    def verify_when_due(self) -> None:
        """Looks, now and then, whether every lane still holds its last confirmed message.

        A server that was killed between two passes may have lost it without any connection breaking while we looked.

        Raises:
            UnknownOutcomeError: it does not.
        """
        if time.monotonic() < self._verify_at:
            return
        self._verify_at = time.monotonic() + VERIFY_SECONDS
        for lane, anchor in self.offsets.snapshot_anchors().items():
            if anchor is None:
                continue
            found = self._connection.poll(
                self._config.iggy.stream, lane.topic, lane.partition, offset=anchor.offset, count=1
            )
            if not found and self._emptied(lane, anchor):
                continue
            if not found or (found[0].offset == anchor.offset and found[0].message_id != anchor.message_id):
                raise UnknownOutcomeError(f"{lane}: the server no longer has the last message that it confirmed")

    def _emptied(self, lane: Lane, anchor: Anchor) -> bool:
        info = self._connection.get_topic(self._config.iggy.stream, lane.topic)
        return info is not None and any(
            emptied(one, anchor.offset) for one in info.partitions if one.id == lane.partition
        )


class Session:
    """The leader's view of one epoch."""

    def __init__(
        self,
        connection: IggyConnection,
        config: SourceCommonConfig,
        *,
        own_epochs: Collection[int] = (),
        take_over: bool = False,
    ) -> None:
        """Recovers over a new connection. Raises what `Recovery.run` and `ensure_topic` raise."""
        self.connection = connection
        self.config = config
        iggy = config.iggy
        _, warnings = ensure_topic(
            connection,
            iggy.stream,
            config.offsets_topic,
            1,
            create=iggy.create_topics,
            segment_bytes=OFFSETS_SEGMENT_BYTES,
            advice="positions need a topic with exactly that; name another one with [offsets] topic",
        )
        for warning in warnings:
            log.warning("%s", warning)
        self._worker_topics: dict[str, TopicIdentity] = {}
        self.log = PositionLog(connection, stream=iggy.stream, topic=config.offsets_topic, source=config.source.name)
        self.offsets = OffsetManager()
        self.lanes = LaneKeeper(connection, config)
        fixed = Router(config).fixed_topic
        topics = [fixed] if fixed is not None else []
        for topic in topics:
            self.lanes.ensure_topic(topic)
        letters = config.errors.dead_letter_topic
        if letters is not None:
            for warning in ensure_dead_letter_topic(connection, iggy.stream, letters, create=iggy.create_topics):
                log.warning("%s", warning)
        self.recovered: Recovered = Recovery(
            self.log,
            topics=topics,
            partitions=iggy.partitions,
            own_epochs=own_epochs,
            dead_letters=letters,
            take_over=take_over,
            on_reset=lambda reset: void_letters(connection, config, reset),
        ).run()
        self.watch = EpochWatch(self.log, epoch=self.recovered.epoch, since=self.recovered.base + 1)
        store = LogOffsetStore(
            self.log,
            epoch=self.recovered.epoch,
            base=self.recovered.base,
            listings=self.recovered.listings,
            watch=self.watch,
        )
        self.offsets = OffsetManager(
            store,
            positions=self.recovered.entries,
            records_found=self._records_found,
            watermark=self.recovered.watermark,
            left_out_lately=self.recovered.left_out,
        )
        self._began = time.monotonic()
        self.offsets.populate_offset_manager()
        for lane, anchor in self.recovered.anchors.items():
            self.offsets.set_anchor(lane, anchor)
        self.lanes.offsets = self.offsets
        self._snapshots = SnapshotWriter(
            self.log,
            epoch=self.recovered.epoch,
            state=self._state,
            count=self.offsets.__len__,
            on_appended=self.watch.appended,
            on_complete=self._begin_trim,
            foldable=self._foldable,
        )
        self._settle_at = 0.0
        self._trimming: Generator[None, None, int] | None = None
        trim(self.log, epoch=self.recovered.epoch)

    def _records_found(self, native: NativeObject) -> int:
        unclaimed = self.recovered.unclaimed
        if not unclaimed:
            return 0
        source = self.config.source.name
        return unclaimed.get(object_hash64(source, native.bucket, native.key, native.version), 0)

    def left_out_lately(self) -> list[LeftOut]:
        """What earlier runs left out within the last hour, as of now: for a task that begins now."""
        passed = time.monotonic() - self._began
        return [
            LeftOut(one.seconds_ago + passed, one.count)
            for one in self.recovered.left_out
            if one.seconds_ago + passed < HOUR_SECONDS
        ]

    def producer(self) -> IggyProducer:
        """The door to the data topics, over this session's connection."""
        return make_producer(self.connection, self.config, self.recovered.anchors)

    def dead_letters(self) -> DeadLetterBox | None:
        """The door to the dead letter topic, over this session's connection; None when none is configured."""
        return IggyDeadLetters.of(self.connection, self.config)

    def expect_other_writers(self) -> None:
        """Says that other processes append deltas; their leader tells `saved` of each, a little later."""
        self._snapshots.others_write = True

    def saved(self, delta: PositionDelta) -> None:
        """Called with every delta of the epoch: goes on with a snapshot that is due, so that the next start reads little."""
        for name, (topic_id, created_at) in delta.topics.items():
            self._worker_topics[name] = TopicIdentity(topic_id=topic_id, created_at=created_at)
        self._snapshots.saved(delta)
        self._advance()

    def keep_books(self) -> None:
        """Saves what this process learnt by listing while others send, and goes on with a snapshot that is due.

        Raises:
            SourceTakenOverError: another instance began a later epoch.
        """
        self.watch.look_when_due()
        if self.offsets.dirty:
            self.saved(self.offsets.flush())
        self._advance()

    def finish(self) -> None:
        """Everything was done: folds what can be folded, if that is worth a snapshot, so that the next start reads little."""
        self.offsets.coverage.settle()
        if WORTH_A_PART * self.offsets.coverage.foldable > len(self.offsets):
            positions, closing = self._state()
            self.log.append_snapshot(self.recovered.epoch, positions, closing)

    def _advance(self) -> None:
        """A part of a snapshot, and a few messages on in the log: the sender waits for this."""
        self._snapshots.advance()
        if self._trimming is not None and next(self._trimming, True):
            self._trimming = None

    def _begin_trim(self) -> None:
        if self._trimming is None:
            # a view of its own: others read on in the log between its steps
            view = PositionLog(self.connection, stream=self.log.stream, topic=self.log.topic, source=self.log.source)
            self._trimming = trim_in_steps(view, epoch=self.recovered.epoch)

    def _foldable(self) -> int:
        """How many positions a snapshot would be without, now."""
        now = time.monotonic()
        if now >= self._settle_at:
            self.offsets.coverage.settle()
            self._settle_at = now + max(SETTLE_SECONDS, SETTLE_SHARE * (time.monotonic() - now))
        return self.offsets.coverage.foldable

    def _state(self) -> tuple[PositionView, Closing]:
        """The whole state as of now, without the positions that the watermark stands for."""
        self.offsets.coverage.settle()
        self.offsets.fold()
        listings = self.offsets.snapshot_listings()
        positions, anchors = self.offsets.snapshot()
        return positions, Closing(
            anchors=anchors,
            topics=self._topics(),
            unclaimed=self.recovered.unclaimed,
            listings=listings,
            letters=self.recovered.letters,
            watermark=self.offsets.watermark,
        )

    def _topics(self) -> dict[str, TopicIdentity]:
        return {**self.recovered.topics, **self._worker_topics, **self.lanes.topics}

    def close(self) -> None:
        """Gives the connection back. May be called twice."""
        self.connection.close()


def make_producer(
    connection: IggyConnection, config: SourceCommonConfig, anchors: Mapping[Lane, Anchor | None] | None = None
) -> IggyProducer:
    """A producer that knows where the lanes end."""
    producer = IggyProducer(
        connection,
        stream=config.iggy.stream,
        source=config.source.name,
        headers="provenance" if config.iggy.headers == "provenance" else "none",
    )
    for lane, anchor in (anchors or {}).items():
        if anchor is not None:
            producer.expect_above(lane, anchor.offset)
    return producer
