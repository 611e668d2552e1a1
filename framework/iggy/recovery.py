"""The one recovery routine: at a start, and after every connection that broke.

    fence -> load a snapshot whose anchors stand, and its deltas -> replay the lanes -> begin an epoch

The data topics are the truth, the log is their checkpoint: state = last checkpoint + what follows it in the topics.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.errors import IggyUnavailableError, PositionError, SourceRunningError
from framework.ids import MessageId, object_hash64, parse_message_id
from framework.iggy.checkpoints import CheckpointLoader, Loaded, forget
from framework.iggy.headers import REPLAY_HEADER, join_provenance, share_of
from framework.iggy.known_letters import KnownLetters
from framework.iggy.lane_history import WAYS_OUT
from framework.iggy.log_codec import Claim, Closing, TopicIdentity
from framework.iggy.position_log import PositionLog, arrange
from framework.offsets import OffsetManagerEntry, OffsetManagerKey, merge_ranges, settle_shares
from framework.past_listing import PastListing
from framework.position_map import PositionMap
from framework.records import Anchor, Lane, length_only
from framework.reset import Reset
from framework.skip_limits import LeftOut
from framework.watermark import Watermark

if TYPE_CHECKING:
    from framework.iggy.client import IggyConnection
    from framework.iggy.values import HeaderScalar, StoredMessage

log = logging.getLogger(__name__)

FENCE_SECONDS = 10.0
"""How long a dead predecessor's connections may stay in the server's list (measured: 13 ms) before it counts as alive."""

FENCE_PAUSE_SECONDS = 0.01

REPLAY_MESSAGES = 2000

LOOKED_AT_MESSAGES = 16
"""Messages at the end of a lane among which there must be one of ours, to know that there were any."""


@attrs.frozen(kw_only=True)
class Recovered:
    """The state from which a source goes on.

    Attributes:
        epoch: the epoch that began.
        base: offset of its first snapshot in the log.
        entries: every position; whoever goes on from here changes it.
        anchors: every known lane's end, verified.
        unclaimed: hash -> records done, for records found in the topics whose object only a listing can tell.
        replayed: messages that were read from the data topics.
        topics: the data topics and their identities.
        listings: prefix -> what its last listing left for the next one.
        letters: dead letter topic -> the place up to which the positions know its letters.
        watermark: under which objects without a position are done.
        left_out: what earlier runs left out within the hour before.
    """

    epoch: int
    base: int
    entries: PositionMap = attrs.field(repr=length_only)
    anchors: Mapping[Lane, Anchor | None]
    unclaimed: Mapping[int, int] = attrs.field(factory=dict, repr=length_only)
    replayed: int = 0
    topics: Mapping[str, TopicIdentity] = attrs.field(factory=dict)
    listings: Mapping[str, PastListing] = attrs.field(factory=dict, repr=length_only)
    letters: Mapping[str, Anchor] = attrs.field(factory=dict)
    watermark: Watermark = attrs.field(factory=Watermark)
    left_out: Sequence[LeftOut] = ()

    @property
    def stored_records(self) -> int:
        """Records that positions and replay together know to be stored."""
        return self.entries.records_done + self.watermark.records + sum(self.unclaimed.values())


def fence(
    connection: IggyConnection,
    claims: Iterable[Claim],
    *,
    source: str,
    own_epochs: Collection[int] = (),
    take_over: bool = False,
    limit_seconds: float = FENCE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until no connection of these claims is left, so that no request of a dead one can still be stored.

    Args:
        connection: to look over.
        claims: of predecessors.
        source: the source's name.
        own_epochs: that this process has led: whoever worked in them was its own.
        take_over: go on although they stay. They were told to end (`Claim.take_over`), and do so while they can read the log.
        limit_seconds: how long to wait.
        clock: seconds.
        sleep: waits for so many seconds.

    Raises:
        SourceRunningError: they stay: another instance is alive.
        IggyUnavailableError: what stays is an earlier connection of this process or of a worker that it lost: the server has
            not noticed its end yet.
    """
    own = connection.own_client()
    holders = {pair: claim for claim in claims for pair in claim.clients if pair != (own.client_id, own.address)}
    if not holders:
        return
    deadline = clock() + limit_seconds
    while True:
        listed = {(client.client_id, client.address) for client in connection.clients()}
        alive = listed & holders.keys()
        if not alive:
            return
        if clock() >= deadline:
            claim = holders[min(alive)]
            if take_over:
                log.warning(
                    'source "%s" is taken over although Iggy still lists a connection of the instance on %s, which has not '
                    "ended within %.0f seconds: what that one still sends may be there twice",
                    source,
                    claim.who,
                    limit_seconds,
                )
                return
            if (claim.host, claim.process) == (socket.gethostname(), os.getpid()):
                raise IggyUnavailableError(
                    f'Iggy still holds an earlier connection of this process; source "{source}" waits'
                )
            if not claim.leader and claim.epoch in own_epochs:
                raise IggyUnavailableError(
                    f"Iggy still holds the connection of a worker that was lost, on {claim.who}; "
                    f'source "{source}" waits, since that one may still send'
                )
            raise SourceRunningError(
                f'source "{source}" is running already, on {claim.who}; stop that one first. If it is dead, Iggy has not '
                f"noticed yet: try again in a minute. To start in its place all the same, add --take-over: it ends then. For a "
                f"second, independent copy of the records set another [source] name"
            )
        sleep(FENCE_PAUSE_SECONDS)


class Recovery:
    """One run of the routine, over one connection.

    Args:
        position_log: the offsets topic.
        topics: data topics that the configuration names; they exist.
        partitions: how many each has.
        own_epochs: that this process has led before.
        dead_letters: the dead letter topic that the configuration names; it exists.
        take_over: begin although another instance is at work; it is told to end.
        reset: forget these positions, after what a start does and before the epoch begins.
        accept: take for done what positions call done, where the messages are gone and it was no crash.
        on_reset: called with a reset whose snapshot is in the log, to do what else belongs to it. It may be killed in that, so
            the next epoch calls it again before it begins.
    """

    def __init__(
        self,
        position_log: PositionLog,
        *,
        topics: Sequence[str],
        partitions: int,
        dead_letters: str | None = None,
        own_epochs: Collection[int] = (),
        take_over: bool = False,
        reset: Reset | None = None,
        accept: bool = False,
        on_reset: Callable[[Reset], object] = lambda _: None,
    ) -> None:
        self._log = position_log
        self._on_reset = on_reset
        self._take_over = take_over
        self._reset = reset
        self._accept = accept
        self._own_epochs = own_epochs
        self._connection = position_log.connection
        self._source = position_log.source
        self._stream = position_log.stream
        self._topics = topics
        self._partitions = partitions
        self._dead_letters = dead_letters

    def run(self) -> Recovered:
        """Recovers and begins an epoch.

        Raises:
            SourceRunningError: another instance is alive, or was first.
            PositionError: a topic was purged or made anew; the log cannot be read.
            IggyUnavailableError: the connection broke again: recover again.
        """
        heads = list(self._log.outline())
        view = arrange(heads, self._source)
        epoch = view.last_epoch + 1
        own = self._log.claim(epoch, leader=True, take_over=self._take_over)
        # a worker of a predecessor may have begun since the log was read
        heads.extend(self._log.outline(self._log.next_offset))
        view = arrange(heads, self._source)
        since = view.checkpoints[-1].epoch if view.checkpoints else 0
        claims = view.claims_before(own, since)
        fence(self._connection, claims, source=self._source, own_epochs=self._own_epochs, take_over=self._take_over)
        # a predecessor may have written until it was fenced
        heads.extend(self._log.outline(self._log.next_offset))
        view = arrange(heads, self._source)
        loader = CheckpointLoader(self._log, view.checkpoints, accept=self._accept)
        if loader.last_reset is not None:
            self._on_reset(loader.last_reset)
        loaded, replayed, identities = self._state(loader, new=not view.checkpoints)
        everything = self._reset is not None and self._reset.everything
        letters = self._recover_letters(loaded, known=bool(view.checkpoints) and not everything)
        if self._reset is not None:
            self._forget(self._reset, loaded)
        closing = Closing(
            anchors=loaded.anchors,
            topics=identities,
            unclaimed=loaded.unclaimed,
            listings=loaded.listings,
            letters=letters,
            reset=self._reset,
            watermark=loaded.watermark,
        )
        base = self._log.append_snapshot(epoch, loaded.entries.view(), closing)
        if self._reset is not None:
            self._on_reset(self._reset)
        if replayed:
            log.info("recovered: %d messages after the last saved position were found in the topics", replayed)
        return Recovered(
            epoch=epoch,
            base=base,
            entries=loaded.entries,
            anchors=loaded.anchors,
            unclaimed=loaded.unclaimed,
            replayed=replayed,
            topics=identities,
            listings=loaded.listings,
            letters=letters,
            watermark=loaded.watermark,
            left_out=view.left_out_lately(),
        )

    def _recover_letters(self, loaded: Loaded, *, known: bool) -> Mapping[str, Anchor]:
        """Tells the positions which letters are stored; returns the places up to which they know. `known`: there is a log."""
        if self._dead_letters is None:
            return loaded.letters
        box = KnownLetters(self._connection, stream=self._stream, topic=self._dead_letters, source=self._source)
        end = box.read(loaded.letters.get(self._dead_letters)) if known else box.end()
        box.apply(loaded.entries, loaded.facts)
        others = {topic: at for topic, at in loaded.letters.items() if topic != self._dead_letters}
        return {**others, self._dead_letters: end} if end is not None else others

    def _state(self, loader: CheckpointLoader, *, new: bool) -> tuple[Loaded, int, dict[str, TopicIdentity]]:
        """Positions and lanes as of now, how many messages were replayed for it, and the topics."""
        identities = self._identities(loader)
        lanes = {Lane(topic, partition) for topic in self._topics for partition in range(self._partitions)}
        if self._reset is not None and self._reset.everything:  # whatever happened to the topics does not matter then
            lanes |= {lane for lane in loader.lanes if lane.topic in identities}
            anchors = {lane: loader.end(*attrs.astuple(lane)) for lane in lanes}
            return Loaded(anchors=anchors, listings=dict(loader.listings)), 0, identities
        loaded = loader.load()
        anchors = loaded.anchors
        settle_shares(loaded.entries)  # first: it tells the replay which version of a split object is the latest
        from_the_first = self._accept or (new and self._log_was_lost(lanes))
        for lane in lanes:
            anchors.setdefault(lane, None if not new or from_the_first else loader.end(*attrs.astuple(lane)))
        replayed = 0
        for lane in sorted(anchors):
            if lane.topic not in identities:  # deleted, and that was accepted
                del anchors[lane]
            elif lane in loader.accepted:
                anchors[lane] = loader.end(*attrs.astuple(lane))
            else:
                replay = _Replay(self._source, loaded)
                anchors[lane] = self._replay_lane(lane, anchors[lane], replay)
                replayed += replay.messages
        return loaded, replayed, identities

    def _log_was_lost(self, lanes: Iterable[Lane]) -> bool:
        """Whether a log without positions may have been forgotten by a killed server, while the topics hold records of ours.

        Raises:
            PositionError: they do, and a crash does not do that to the log.
        """
        lane, holds = next(
            ((lane, ours) for lane in sorted(lanes) if (ours := self._ours_at_the_end_of(lane))), (None, "")
        )
        if lane is None:
            return False
        info = self._connection.get_topic(self._stream, self._log.topic)
        if info is not None and info.messages_required_to_save != 1:
            log.warning(
                'offsets topic "%s" has lost its positions, which it does not save one by one: reading topic "%s" from its '
                "first message",
                self._log.topic,
                lane.topic,
            )
            return True
        raise PositionError(
            f'topic "{lane.topic}" of stream "{self._stream}" holds {holds}, and the offsets topic '
            f'"{self._log.topic}" holds no positions: it was purged, deleted or renamed. To read everything again: `offsets '
            f"reset --all`. To go on behind what the topic holds: `offsets accept`, which reads the topic once"
        )

    def _ours_at_the_end_of(self, lane: Lane) -> str:
        """What of ours the last messages of a lane are, in words; empty when nothing of ours is among them.

        Without headers nothing tells whose an id is: only that a source made it, this one or another.
        """
        before: MessageId | None = None
        for message in self._connection.poll(
            self._stream, lane.topic, lane.partition, offset="last", count=LOOKED_AT_MESSAGES
        ):
            parts, found = parse_message_id(message.message_id), provenance_of(message.headers)
            if found is not None:
                if object_hash64(self._source, *found) == parts.object_hash:
                    return f'records of source "{self._source}"'
            elif not message.headers and _made_by_a_source(parts, before):
                return f'records without headers that source "{self._source}" may have sent (or another one: either way is safe)'
            before = parts
        return ""

    def _forget(self, reset: Reset, loaded: Loaded) -> None:
        if loaded.unclaimed and not reset.everything:
            raise PositionError(
                f"{sum(loaded.unclaimed.values()):,} records of objects whose names only a listing can tell are in the topics "
                f"(headers are off): run the source once, then reset; or reset --all"
            )
        forget(reset, loaded)

    def _identities(self, loader: CheckpointLoader) -> dict[str, TopicIdentity]:
        found: dict[str, TopicIdentity] = {}
        known = loader.topics
        for name in sorted({*self._topics, *known}):
            info = self._connection.get_topic(self._stream, name)
            identity = TopicIdentity(topic_id=info.id, created_at=info.created_at) if info is not None else None
            if name in known and identity != known[name]:
                if not self._accept and not (self._reset is not None and self._reset.everything):
                    raise PositionError(
                        f'topic "{name}" of stream "{self._stream}" was {"deleted" if identity is None else "made anew"} since '
                        f'source "{self._source}" last ran, so what its positions call done is not there. {WAYS_OUT}; or bring '
                        f"the topic back"
                    )
                loader.accept_topic(name)
            if identity is not None:
                found[name] = identity
        return found

    def _replay_lane(self, lane: Lane, anchor: Anchor | None, replay: _Replay) -> Anchor | None:
        offset = anchor.offset + 1 if anchor is not None else 0
        while True:
            batch = self._connection.poll(
                self._stream, lane.topic, lane.partition, offset=offset, count=REPLAY_MESSAGES
            )
            if batch and batch[0].offset > offset:
                log.warning(
                    "%s: %d messages fell to retention before a position accounted for them; what is ours of them comes again",
                    lane,
                    batch[0].offset - offset,
                )
            for message in batch:
                replay.see(lane, message)
            if not batch:
                return anchor
            anchor = Anchor(batch[-1].offset, batch[-1].message_id)
            offset = anchor.offset + 1


class _Replay:
    """What the messages of one lane say about positions."""

    def __init__(self, source: str, loaded: Loaded) -> None:
        self.messages = 0
        self._source = source
        self._entries = loaded.entries
        self._unclaimed = loaded.unclaimed
        self._facts = loaded.facts
        self._resets = loaded.resets
        self._watermark = loaded.watermark
        # (hash, share) -> position
        self._keys: dict[tuple[int, int], OffsetManagerKey | None] = {}
        self._by_hash: dict[tuple[int, int], OffsetManagerKey] | None = None

    def see(self, lane: Lane, message: StoredMessage) -> None:
        """One message, in the order of the lane."""
        self.messages += 1
        headers = message.headers
        if self._resets and self._forgotten(lane, message):
            return
        if REPLAY_HEADER in headers:
            return  # sent from a dead letter: its record is left out of the object's count
        parts = parse_message_id(message.message_id)
        name = parts.object_hash, parts.share
        if name in self._keys:
            key = self._keys[name]
        else:
            key = self._keys[name] = self._find(lane, parts, headers)
        if key is None:
            # a share that was begun is in the log: one that is not there is none of ours
            if not parts.share and (parts.object_hash in self._unclaimed or parts.record == 1):
                done = self._unclaimed.get(parts.object_hash, 0)
                self._unclaimed[parts.object_hash] = parts.record if parts.record == done + 1 else done
            return
        entry = self._entries[key]
        done = entry.records_done
        if parts.record <= done:
            return
        # one that was skipped and is there all the same was good under later options
        if parts.record in range(done + 1, self._after_skipped(entry, done) + 1):
            self._entries[key] = attrs.evolve(entry, records_done=parts.record)
        else:
            log.warning(
                "%s: record %d of %s follows record %d; what is missing will be sent",
                lane,
                parts.record,
                _place(key),
                done,
            )

    def _forgotten(self, lane: Lane, message: StoredMessage) -> bool:
        """Whether the message is of an object that was reset when the message was there already."""
        for reset, ends in self._resets:
            end = ends.get(lane)
            if end is not None and message.offset <= end.offset:
                found = provenance_of(message.headers)
                if reset.everything or (found is not None and reset.takes(found[1])):
                    return True
        return False

    def _after_skipped(self, entry: OffsetManagerEntry, done: int) -> int:
        expected = done + 1
        facts = self._facts.get((entry.get_manager_key(), entry.version), ())
        for first, last in merge_ranges([*entry.skipped, *facts]):
            if first <= expected <= last:
                expected = last + 1
        return expected

    def _find(self, lane: Lane, parts: MessageId, headers: Mapping[str, HeaderScalar]) -> OffsetManagerKey | None:
        """Whose message it is: by its provenance, else by the hash of an object that was being read."""
        found = provenance_of(headers)
        if found is not None:
            bucket, key_name, version, split_size = found
            if object_hash64(self._source, bucket, key_name, version, split_size) != parts.object_hash:
                return None
            key = OffsetManagerKey.of_object(bucket, key_name).of_share(parts.share)
            known = self._entries.get(key)
            if known is not None and (known.version, known.split_size) == (version, split_size):
                return key
            if split_size or (known is not None and known.split_size):
                # Lanes do not tell whether a whole version in one is newer than a split one in others; the next listing does.
                return None
            # a later version in the lane is the newer one: its time is learnt from the next listing
            generation = known.generation + 1 if known is not None else 0
            # it was new, so it is no older than the watermark: by that it wins, after a step back, over a version that was folded
            modified_ms = self._watermark.time_of(bucket, key_name) if known is None else 0
            self._entries[key] = OffsetManagerEntry(
                bucket=bucket,
                key=key_name,
                version=version,
                generation=generation,
                modified_ms=modified_ms,
                lane=lane,
            )
            return key
        if self._by_hash is None:
            self._by_hash = {
                (object_hash64(self._source, one.bucket, one.key, one.version, one.split_size), one.share): key
                for key, one in self._entries.unfinished()
            }
        return self._by_hash.get((parts.object_hash, parts.share))


def _made_by_a_source(parts: MessageId, before: MessageId | None) -> bool:
    """Whether an id has our form: of a whole object, or the next one after another. Random ones differ in 24 bits or more."""
    if parts.object_hash >> 32 == 0 or not parts.record:
        return False  # somebody's small numbers
    return not parts.share or (
        before is not None
        and (before.object_hash, before.share, before.record + 1) == (parts.object_hash, parts.share, parts.record)
    )


def provenance_of(headers: Mapping[str, HeaderScalar]) -> tuple[str, str, str, int] | None:
    """Bucket, key, version and split size (0: whole) that the headers of a message name; None when they name none."""
    names = join_provenance(headers)
    bucket, key, version = names.get("bucket"), names.get("key"), names.get("version")
    if isinstance(bucket, str) and isinstance(key, str) and isinstance(version, str):
        cut = share_of(names)
        return bucket, key, version, cut.split_size if cut is not None else 0
    return None


def _place(key: OffsetManagerKey) -> str:
    names = dict(key.properties)
    share = f", share {key.share}" if key.share else ""
    return f"{names.get('bucket', '')}/{names.get('key', '')}{share}"
