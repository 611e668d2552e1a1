"""The one recovery routine: at a start, and after every connection that broke.

    fence -> choose a snapshot whose anchors stand -> load it and its deltas -> replay the lanes -> begin an epoch

The data topics are the truth, the log is their checkpoint: state = last checkpoint + what follows it in the topics.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.errors import IggyUnavailableError, PositionError, SourceRunningError
from framework.ids import MessageId, object_hash64, parse_message_id
from framework.iggy import log_codec
from framework.iggy.headers import join_provenance, share_of
from framework.iggy.log_codec import Claim, Snapshot, TopicIdentity
from framework.iggy.position_log import Checkpoint, LogView, PositionLog, arrange
from framework.offsets import (
    OffsetManagerEntry,
    OffsetManagerKey,
    PositionDelta,
    merge_entries,
    merge_ranges,
    position_map,
    settle_shares,
)
from framework.past_listing import PastListing
from framework.position_map import PositionMap
from framework.records import Anchor, Lane, length_only

if TYPE_CHECKING:
    from framework.iggy.client import IggyConnection
    from framework.iggy.values import HeaderScalar

log = logging.getLogger(__name__)

FENCE_SECONDS = 10.0
"""How long a dead predecessor's connections may stay in the server's list (measured: 13 ms) before it counts as alive."""

FENCE_PAUSE_SECONDS = 0.01

MAX_STEP_BACK = 100_000
"""A server that lost more messages of a lane than this did not crash: its topic was purged or cut by hand."""

REPLAY_MESSAGES = 2000


@attrs.frozen(kw_only=True)
class Recovered:
    """The state from which a source goes on.

    Attributes:
        epoch: the epoch that began.
        base: offset of its first snapshot in the log.
        entries: every position.
        anchors: every known lane's end, verified.
        unclaimed: hash -> records done, for records found in the topics whose object only a listing can tell.
        replayed: messages that were read from the data topics.
        topics: the data topics and their identities.
        listings: prefix -> what its last listing left for the next one.
    """

    epoch: int
    base: int
    entries: PositionMap = attrs.field(repr=length_only)
    anchors: Mapping[Lane, Anchor | None]
    unclaimed: Mapping[int, int] = attrs.field(factory=dict, repr=length_only)
    replayed: int = 0
    topics: Mapping[str, TopicIdentity] = attrs.field(factory=dict)
    listings: Mapping[str, PastListing] = attrs.field(factory=dict, repr=length_only)

    @property
    def stored_records(self) -> int:
        """Records that positions and replay together know to be stored."""
        return sum(entry.records_done for entry in self.entries.values()) + sum(self.unclaimed.values())


def fence(
    connection: IggyConnection,
    claims: Iterable[Claim],
    *,
    source: str,
    own_epochs: Collection[int] = (),
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
            if (claim.host, claim.process) == (socket.gethostname(), os.getpid()):
                raise IggyUnavailableError(
                    f'Iggy still holds an earlier connection of this process; source "{source}" waits'
                )
            if not claim.leader and claim.epoch in own_epochs:
                raise IggyUnavailableError(
                    f"Iggy still holds the connection of a worker that was lost, on {claim.host} (process {claim.process}); "
                    f'source "{source}" waits, since that one may still send'
                )
            raise SourceRunningError(
                f'source "{source}" is running already, on {claim.host} (process {claim.process}); stop that one first. '
                f"If it is dead, Iggy has not noticed yet: try again in a minute. For a second, independent copy of the "
                f"records set another [source] name"
            )
        sleep(FENCE_PAUSE_SECONDS)


class Recovery:
    """One run of the routine, over one connection.

    Args:
        position_log: the offsets topic.
        topics: data topics that the configuration names; they exist.
        partitions: how many each has.
        own_epochs: that this process has led before.
    """

    def __init__(
        self,
        position_log: PositionLog,
        *,
        topics: Sequence[str],
        partitions: int,
        own_epochs: Collection[int] = (),
    ) -> None:
        self._log = position_log
        self._own_epochs = own_epochs
        self._connection = position_log.connection
        self._source = position_log.source
        self._stream = position_log.stream
        self._topics = topics
        self._partitions = partitions
        self._stands: dict[tuple[Lane, Anchor], bool] = {}
        self._lost_records = False

    def run(self) -> Recovered:
        """Recovers and begins an epoch.

        Raises:
            SourceRunningError: another instance is alive, or was first.
            PositionError: a topic was purged or made anew; the log cannot be read.
            IggyUnavailableError: the connection broke again: recover again.
        """
        messages = list(self._log.messages())
        view = arrange(messages, self._source)
        epoch = view.last_epoch + 1
        own = self._log.claim(epoch, leader=True)
        # a worker of a predecessor may have begun since the log was read
        messages.extend(self._log.messages(self._log.next_offset))
        view = arrange(messages, self._source)
        since = view.checkpoints[-1].epoch if view.checkpoints else 0
        claims = view.claims_before(own, since)
        fence(self._connection, claims, source=self._source, own_epochs=self._own_epochs)
        # a predecessor may have written until it was fenced
        messages.extend(self._log.messages(self._log.next_offset))
        view = arrange(messages, self._source)
        identities = self._identities(view)
        chosen, entries, anchors, unclaimed = self._load(view)
        settle_shares(entries)  # first: it tells the replay which version of a split object is the latest
        for topic in self._topics:
            for partition in range(self._partitions):
                anchors.setdefault(Lane(topic, partition), None if view.checkpoints else self._end(topic, partition))
        replayed = 0
        facts = self._skip_facts(view.checkpoints[chosen:])
        for lane in sorted(anchors):
            replay = _Replay(self._source, entries, unclaimed, facts)
            anchors[lane] = self._replay_lane(lane, anchors[lane], replay)
            replayed += replay.messages
        listings = self._listings(view.checkpoints[chosen:])
        snapshot = Snapshot(
            entries=list(entries.values()), anchors=anchors, topics=identities, unclaimed=unclaimed, listings=listings
        )
        base = self._log.append_snapshot(epoch, snapshot)
        if replayed:
            log.info("recovered: %d messages after the last saved position were found in the topics", replayed)
        return Recovered(
            epoch=epoch,
            base=base,
            entries=entries,
            anchors=anchors,
            unclaimed=unclaimed,
            replayed=replayed,
            topics=identities,
            listings=listings,
        )

    def _listings(self, checkpoints: Sequence[Checkpoint]) -> dict[str, PastListing]:
        """What was left for the next listings: about the store, so whether anchors stand does not matter.

        Only a mark up to where everything was read falls with the records that the server lost.
        """
        found: dict[str, PastListing] = {}
        for checkpoint in checkpoints:
            found.update(log_codec.decode_snapshot(checkpoint.parts[-1:]).listings)
            for message in checkpoint.deltas:
                found.update(log_codec.decode_delta(message).listings)
        if self._lost_records:
            return {prefix: attrs.evolve(past, tail=None) for prefix, past in found.items()}
        return found

    def _end(self, topic: str, partition: int) -> Anchor | None:
        last = self._connection.poll(self._stream, topic, partition, offset="last", count=1)
        return Anchor(last[-1].offset, last[-1].message_id) if last else None

    def _identities(self, view: LogView) -> dict[str, TopicIdentity]:
        known = dict(view.checkpoints[-1].snapshot().topics) if view.checkpoints else {}
        for message in view.checkpoints[-1].deltas if view.checkpoints else ():
            for name, (topic_id, created_at) in log_codec.decode_delta(message).topics.items():
                known[name] = TopicIdentity(topic_id=topic_id, created_at=created_at)
        found: dict[str, TopicIdentity] = {}
        for name in sorted({*self._topics, *known}):
            info = self._connection.get_topic(self._stream, name)
            identity = TopicIdentity(topic_id=info.id, created_at=info.created_at) if info is not None else None
            if name in known and identity != known[name]:
                raise PositionError(
                    f'topic "{name}" of stream "{self._stream}" was {"deleted" if identity is None else "made anew"} since source '
                    f'"{self._source}" last ran, so what its positions call done is not there. To read everything again, set '
                    f"another [source] name or another [offsets] topic; to go on, bring the topic back"
                )
            if identity is not None:
                found[name] = identity
        return found

    def stands(self, lane: Lane, anchor: Anchor | None) -> bool:
        """Whether the message at the anchor's place is still the same one; older than the first message counts as yes."""
        if anchor is None:
            return True
        known = self._stands.get((lane, anchor))
        if known is None:
            found = self._connection.poll(self._stream, lane.topic, lane.partition, offset=anchor.offset, count=1)
            if not found:
                known = False
            elif found[0].offset > anchor.offset:
                known = True  # retention took it: it was there
            else:
                known = found[0].message_id == anchor.message_id
            self._stands[(lane, anchor)] = known
        return known

    def _load(self, view: LogView) -> tuple[int, PositionMap, dict[Lane, Anchor | None], dict[int, int]]:
        """The newest snapshot whose anchors stand, and what follows it lane by lane up to the newest anchor that stands."""
        if not view.checkpoints:
            return 0, position_map(), {}, {}
        chosen, snapshot = self._choose(view)
        entries = position_map(snapshot.entries)
        anchors = dict(snapshot.anchors)
        steps = self._steps(view.checkpoints[chosen:])
        reached: dict[Lane, int] = {}
        for lane, history in steps.items():
            at = self._newest_standing(lane, history)
            if at is not None:
                reached[lane], anchors[lane] = history[at][0], history[at][1]
            else:
                anchors.setdefault(lane, None)
            self._check_step_back(lane, history, anchors[lane])
            if at != len(history) - 1:
                self._lost_records = True
                log.warning("Iggy lost confirmed messages of %s; what is missing will be sent again", lane)
        self._apply(view.checkpoints[chosen:], reached, entries)
        return chosen, entries, anchors, dict(snapshot.unclaimed)

    @staticmethod
    def _apply(
        checkpoints: Sequence[Checkpoint],
        reached: Mapping[Lane, int],
        entries: PositionMap,
    ) -> None:
        """Adds to the chosen snapshot's entries what its and later steps say, lane by lane up to the step reached."""
        number = 0
        for checkpoint in checkpoints:
            first = checkpoint is checkpoints[0]
            deltas = [log_codec.decode_delta(message) for message in checkpoint.deltas]
            for step in (PositionDelta(entries=() if first else checkpoint.snapshot().entries), *deltas):
                for key in step.removed:
                    entries.pop(key, None)
                for entry in step.entries:
                    if number <= reached.get(entry.lane, -1):
                        key = entry.get_manager_key()
                        known = entries.get(key)
                        entries[key] = merge_entries(known, entry) if known is not None else entry
                number += 1

    def _choose(self, view: LogView) -> tuple[int, Snapshot]:
        newest = len(view.checkpoints) - 1
        for at in range(newest, -1, -1):
            snapshot = view.checkpoints[at].snapshot()
            lost = [lane for lane, anchor in snapshot.anchors.items() if not self.stands(lane, anchor)]
            if not lost:
                return at, snapshot
            for lane in lost:
                self._check_step_back(lane, [(0, snapshot.anchors[lane])], None)
                self._lost_records = True
                log.warning("Iggy lost confirmed messages of %s; going back to an older checkpoint", lane)
        raise PositionError(
            f'no checkpoint of source "{self._source}" agrees with the topics of stream "{self._stream}": they were purged, or '
            f"restored from elsewhere. To read everything again, set another [source] name or another [offsets] topic"
        )

    def _steps(self, checkpoints: Sequence[Checkpoint]) -> dict[Lane, list[tuple[int, Anchor | None]]]:
        """Lane -> (step, anchor), in the order of the log; a step is a snapshot or a delta, numbered from the chosen one."""
        steps: dict[Lane, list[tuple[int, Anchor | None]]] = defaultdict(list)
        number = 0
        for checkpoint in checkpoints:
            for lane, anchor in checkpoint.snapshot().anchors.items():
                steps[lane].append((number, anchor))
            for message in checkpoint.deltas:
                number += 1
                for lane, anchor in log_codec.decode_delta(message).anchors.items():
                    steps[lane].append((number, anchor))
            number += 1
        return steps

    def _newest_standing(self, lane: Lane, history: Sequence[tuple[int, Anchor | None]]) -> int | None:
        """A server forgets tails, never middles: older anchors stand with a newer one, so the border is found by halving."""
        if self.stands(lane, history[-1][1]):
            return len(history) - 1
        low, high = -1, len(history) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.stands(lane, history[middle][1]):
                low = middle
            else:
                high = middle
        return low if low >= 0 else None

    def _check_step_back(self, lane: Lane, history: Sequence[tuple[int, Anchor | None]], to: Anchor | None) -> None:
        last = history[-1][1]
        if last is None or self.stands(lane, last):
            return
        end = self._end(lane.topic, lane.partition)
        lost = last.offset - max(end.offset if end else -1, to.offset if to else -1)
        if lost > MAX_STEP_BACK:
            raise PositionError(
                f'partition {lane.partition} of topic "{lane.topic}" ends {lost} messages before the last one that source '
                f'"{self._source}" had confirmed: it was purged, not crashed. To read everything again, set another [source] '
                f"name or another [offsets] topic"
            )

    def _skip_facts(
        self, checkpoints: Sequence[Checkpoint]
    ) -> dict[tuple[OffsetManagerKey, str], tuple[tuple[int, int], ...]]:
        """Record numbers that were left out, from the chosen checkpoint on: written before what follows them was sent.

        They are facts about the objects, so they count whether or not their delta's anchor stands.
        """
        facts: dict[tuple[OffsetManagerKey, str], tuple[tuple[int, int], ...]] = {}
        for checkpoint in checkpoints:
            changes = [
                checkpoint.snapshot().entries,
                *(log_codec.decode_delta(one).entries for one in checkpoint.deltas),
            ]
            for entry in itertools.chain.from_iterable(changes):
                if entry.skipped:
                    place = (entry.get_manager_key(), entry.version)
                    facts[place] = merge_ranges([*facts.get(place, ()), *entry.skipped])
        return facts

    def _replay_lane(self, lane: Lane, anchor: Anchor | None, replay: _Replay) -> Anchor | None:
        offset = anchor.offset + 1 if anchor is not None else 0
        while True:
            batch = self._connection.poll(
                self._stream, lane.topic, lane.partition, offset=offset, count=REPLAY_MESSAGES
            )
            for message in batch:
                replay.see(lane, message.message_id, message.headers)
            if not batch:
                return anchor
            anchor = Anchor(batch[-1].offset, batch[-1].message_id)
            offset = anchor.offset + 1


class _Replay:
    """What the messages of one lane say about positions."""

    def __init__(
        self,
        source: str,
        entries: PositionMap,
        unclaimed: dict[int, int],
        facts: Mapping[tuple[OffsetManagerKey, str], tuple[tuple[int, int], ...]],
    ) -> None:
        self.messages = 0
        self._source = source
        self._entries = entries
        self._unclaimed = unclaimed
        self._facts = facts
        # (hash, share) -> position
        self._keys: dict[tuple[int, int], OffsetManagerKey | None] = {}
        self._by_hash: dict[tuple[int, int], OffsetManagerKey] | None = None

    def see(self, lane: Lane, message_id: int, headers: Mapping[str, HeaderScalar]) -> None:
        """One message, in the order of the lane."""
        self.messages += 1
        parts = parse_message_id(message_id)
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
        expected = self._after_skipped(entry, done)
        if parts.record == expected:
            self._entries[key] = attrs.evolve(entry, records_done=parts.record)
        else:
            log.warning(
                "%s: record %d of %s follows record %d; what is missing will be sent",
                lane,
                parts.record,
                _place(key),
                done,
            )

    def _after_skipped(self, entry: OffsetManagerEntry, done: int) -> int:
        expected = done + 1
        facts = self._facts.get((entry.get_manager_key(), entry.version), ())
        for first, last in merge_ranges([*entry.skipped, *facts]):
            if first <= expected <= last:
                expected = last + 1
        return expected

    def _find(self, lane: Lane, parts: MessageId, headers: Mapping[str, HeaderScalar]) -> OffsetManagerKey | None:
        """Whose message it is: by its provenance, else by the hash of an object that was being read."""
        names = join_provenance(headers)
        bucket, key_name, version = names.get("bucket"), names.get("key"), names.get("version")
        if isinstance(bucket, str) and isinstance(key_name, str) and isinstance(version, str):
            cut = share_of(names)
            split_size = cut.split_size if cut is not None else 0
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
            self._entries[key] = OffsetManagerEntry(
                bucket=bucket, key=key_name, version=version, generation=generation, lane=lane
            )
            return key
        if self._by_hash is None:
            self._by_hash = {
                (object_hash64(self._source, one.bucket, one.key, one.version, one.split_size), one.share): key
                for key, one in self._entries.unfinished()
            }
        return self._by_hash.get((parts.object_hash, parts.share))


def _place(key: OffsetManagerKey) -> str:
    names = dict(key.properties)
    share = f", share {key.share}" if key.share else ""
    return f"{names.get('bucket', '')}/{names.get('key', '')}{share}"
