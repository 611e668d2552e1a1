"""Which checkpoint of the log holds, and the state that it and what follows it give.

    heads of the log -> the newest snapshot whose anchors stand -> lane by lane as far as what follows it stands -> positions

What is held is heads, the last anchors, and the positions: bodies are read again, one after the other, as they are needed.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs

from framework.iggy import log_codec
from framework.iggy.lane_history import WAYS_OUT, LaneGoneError, LaneHistory, emptied
from framework.iggy.log_codec import Closing, TopicIdentity
from framework.iggy.position_log import Checkpoint, PositionLog
from framework.offsets import (
    OffsetManagerEntry,
    OffsetManagerKey,
    PositionDelta,
    merge_into,
    merge_ranges,
    position_map,
)
from framework.past_listing import PastListing
from framework.position_map import PositionMap
from framework.records import Anchor, Lane
from framework.reset import Reset
from framework.watermark import Watermark

log = logging.getLogger(__name__)

SkipFacts = dict[tuple[OffsetManagerKey, str], tuple[tuple[int, int], ...]]
"""(object, version) -> record numbers that were left out."""


@attrs.define(kw_only=True)
class Loaded:
    """The state of a log, without what the data topics hold beyond it.

    Attributes:
        entries: every position.
        anchors: every known lane, and the newest place up to which the positions account for it.
        unclaimed: of the snapshot; see `Closing`.
        listings: prefix -> what its last listing left.
        watermark: of the snapshot: what was folded since is there again.
        facts: record numbers that were left out, of objects that were not finished. They are facts about the objects, so they
            count whether or not their delta's anchor stands.
        letters: dead letter topic -> the place up to which the positions know its letters.
        lost_records: whether the server forgot some of what it had confirmed.
        resets: what was forgotten by hand after the snapshot that was loaded, and the lanes' ends of that moment.
    """

    entries: PositionMap = attrs.field(factory=position_map)
    anchors: dict[Lane, Anchor | None] = attrs.field(factory=dict)
    unclaimed: dict[int, int] = attrs.field(factory=dict)
    listings: dict[str, PastListing] = attrs.field(factory=dict)
    watermark: Watermark = attrs.field(factory=Watermark)
    facts: SkipFacts = attrs.field(factory=dict)
    letters: Mapping[str, Anchor] = attrs.field(factory=dict)
    lost_records: bool = False
    resets: list[tuple[Reset, Mapping[Lane, Anchor | None]]] = attrs.field(factory=list)


@attrs.define
class _Summary:
    """What some checkpoints say beside positions.

    Attributes:
        last: lane -> the last step that is about it, and the furthest anchor up to there.
        named_at_us: lane -> when that anchor got into the log.
        topics: of the last checkpoint.
        listings: the last of each prefix.
        reset: of the last checkpoint: with which reset it begins.
        border: the first later snapshot with records whose object nobody knew. In which lanes they lie, it does not say: they
            are found again by a replay that begins before it.
    """

    last: dict[Lane, tuple[int, Anchor | None]] = attrs.field(factory=dict)
    named_at_us: dict[Lane, int] = attrs.field(factory=dict)
    topics: dict[str, TopicIdentity] = attrs.field(factory=dict)
    listings: dict[str, PastListing] = attrs.field(factory=dict)
    reset: Reset | None = None
    border: float = math.inf


class CheckpointLoader:
    """Loads the state of one log. One use, one thread.

    Args:
        position_log: the log.
        checkpoints: its whole snapshots and what builds on each; heads are enough.
        accept: take for done what positions call done, where the messages are gone and it was no crash.

    Attributes:
        accepted: lanes of which that holds.
    """

    def __init__(self, position_log: PositionLog, checkpoints: Sequence[Checkpoint], *, accept: bool = False) -> None:
        self.accepted: set[Lane] = set()
        self._accept = accept
        self._log = position_log
        self._connection = position_log.connection
        self._stream = position_log.stream
        self._source = position_log.source
        self._checkpoints = checkpoints
        self._stands: dict[tuple[Lane, Anchor], bool] = {}
        self._seen: set[tuple[Lane, Anchor]] = set()
        self._newest = self._summarise(checkpoints[-1:])
        self._history = LaneHistory(self._connection, self._stream, self._source)

    @property
    def topics(self) -> Mapping[str, TopicIdentity]:
        """The data topics as they were when the log was last written."""
        return self._newest.topics

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes as the log last knew them."""
        return self._newest.last.keys()

    @property
    def last_reset(self) -> Reset | None:
        """The reset with which the last checkpoint begins: no other epoch has begun since."""
        return self._newest.reset

    @property
    def listings(self) -> Mapping[str, PastListing]:
        """What listings left, as the log last knew it."""
        return self._newest.listings

    def accept_topic(self, topic: str) -> None:
        """Takes for done what positions call done in any lane of a topic that is gone, or is another one by now."""
        self.accepted |= {lane for lane in self._newest.last if lane.topic == topic}

    def load(self) -> Loaded:
        """The newest snapshot whose anchors stand, and what follows it lane by lane up to the newest anchor that stands.

        Raises:
            PositionError: a topic was purged; the log cannot be read.
        """
        while True:
            try:
                return self._load()
            except LaneGoneError as error:
                if not self._accept:
                    raise
                self.accepted.add(error.lane)

    def _load(self) -> Loaded:
        loaded = Loaded()
        if not self._checkpoints:
            return loaded
        chosen, closing = self._choose(loaded)
        checkpoints = self._checkpoints[chosen:]
        summary = self._newest if len(checkpoints) == 1 else self._summarise(checkpoints)
        loaded.anchors, loaded.unclaimed = dict(closing.anchors), dict(closing.unclaimed)
        loaded.listings, loaded.watermark = summary.listings, closing.watermark
        loaded.letters = closing.letters  # of the oldest step that counts: what it does not know must be read again
        self._apply(checkpoints, self._reach(checkpoints, summary, loaded), loaded)
        # Deltas may tell again of what the snapshot has folded, and counted: a range rises only when all in it is known to be
        # done. Before the shares of such objects are made to agree.
        loaded.entries.fold(loaded.watermark)
        if loaded.lost_records:  # the mark up to where everything was read falls with what was read
            loaded.listings = {prefix: attrs.evolve(past, tail=None) for prefix, past in loaded.listings.items()}
        return loaded

    # ---- anchors

    def end(self, topic: str, partition: int) -> Anchor | None:
        """The last message of a lane."""
        last = self._connection.poll(self._stream, topic, partition, offset="last", count=1)
        return Anchor(last[-1].offset, last[-1].message_id) if last else None

    def _standing(self, lane: Lane, anchor: Anchor | None) -> bool:
        """Whether the message at the anchor's place is still the same one; what fell to retention counts as yes."""
        if anchor is None or lane in self.accepted:
            return True
        known = self._stands.get((lane, anchor))
        if known is None:
            found = self._connection.poll(self._stream, lane.topic, lane.partition, offset=anchor.offset, count=1)
            if not found:
                partition = self._history.partition(lane)
                known = partition is not None and emptied(partition, anchor.offset)
            elif found[0].offset > anchor.offset:
                known = True  # retention took it: it was there
            else:
                known = found[0].message_id == anchor.message_id
                if known:
                    self._seen.add((lane, anchor))
            self._stands[(lane, anchor)] = known
        return known

    def _check_crash(self, lane: Lane, last: Anchor | None, named_at_us: int, to: Anchor | None) -> None:
        """A lane whose furthest anchor does not stand: a crash, or somebody's hand? `to` is an earlier one that stands."""
        if last is not None and not self._standing(lane, last):
            same_history = to is not None and (lane, to) in self._seen
            self._history.check_crash(lane, last, named_at_us=named_at_us, same_history=same_history)

    # ---- how far

    def _choose(self, loaded: Loaded) -> tuple[int, Closing]:
        gone: dict[Lane, tuple[Anchor | None, int]] = {}
        for at in range(len(self._checkpoints) - 1, -1, -1):
            closing = self._closing(self._checkpoints[at])
            lost = [lane for lane, anchor in closing.anchors.items() if not self._standing(lane, anchor)]
            if not lost:
                return at, closing
            for lane in lost:
                gone.setdefault(lane, (closing.anchors[lane], self._checkpoints[at].parts[-1].timestamp_us))
                loaded.lost_records = True
                log.warning("Iggy lost confirmed messages of %s; going back to an older checkpoint", lane)
        for lane, (anchor, named_at_us) in gone.items():
            self._check_crash(lane, anchor, named_at_us, None)
        raise LaneGoneError(
            f'no checkpoint of source "{self._source}" agrees with the topics of stream "{self._stream}": they were cut, or '
            f"restored from elsewhere. {WAYS_OUT}",
            next(iter(gone)),
        )

    def _closing(self, checkpoint: Checkpoint) -> Closing:
        return log_codec.decode_closing(next(self._log.read(checkpoint.parts[-1:])))

    def _steps(self, checkpoints: Sequence[Checkpoint]) -> Iterator[tuple[int, int, Closing | PositionDelta]]:
        """What each step says beside positions: a step is a snapshot or a delta, numbered from the first one; and its time."""
        numbers = itertools.count()
        for checkpoint in checkpoints:
            yield next(numbers), checkpoint.parts[-1].timestamp_us, self._closing(checkpoint)
            for message in self._log.read(checkpoint.deltas):
                yield next(numbers), message.timestamp_us, log_codec.decode_delta(message, entries=False)

    def _summarise(self, checkpoints: Sequence[Checkpoint]) -> _Summary:
        summary = _Summary()
        for number, at_us, step in self._steps(checkpoints):
            for lane, anchor in step.anchors.items():
                _, before = summary.last.get(lane, (0, None))
                further = _further(before, anchor)
                if further != before:
                    summary.named_at_us[lane] = at_us
                summary.last[lane] = number, further
            if isinstance(step, Closing):
                summary.topics = dict(step.topics)
                summary.reset = step.reset
                if number and step.unclaimed:
                    summary.border = min(summary.border, number)
            else:
                for name, (topic_id, created_at) in step.topics.items():
                    summary.topics[name] = TopicIdentity(topic_id=topic_id, created_at=created_at)
            summary.listings.update(step.listings)
        return summary

    def _reach(self, checkpoints: Sequence[Checkpoint], summary: _Summary, loaded: Loaded) -> dict[Lane, int]:
        """Lane -> the last step of which everything that it says about this lane stands."""
        reached: dict[Lane, int] = {}
        lost = {lane for lane, (_, anchor) in summary.last.items() if not self._standing(lane, anchor)}
        behind = {lane for lane, (step, _) in summary.last.items() if step >= summary.border}
        for lane, (step, anchor) in summary.last.items():
            if lane not in lost | behind:
                reached[lane], loaded.anchors[lane] = step, anchor
        for lane, history in self._histories(checkpoints, lost | behind).items():
            at = self._newest_standing(lane, [(step, anchor) for step, anchor in history if step < summary.border])
            if at is not None:
                reached[lane], loaded.anchors[lane] = history[at]
            else:
                loaded.anchors.setdefault(lane, None)
            if lane in lost:
                self._check_crash(lane, history[-1][1], summary.named_at_us[lane], loaded.anchors[lane])
                loaded.lost_records = True
                log.warning("Iggy lost confirmed messages of %s; what is missing will be sent again", lane)
        return reached

    def _histories(
        self, checkpoints: Sequence[Checkpoint], lanes: set[Lane]
    ) -> Mapping[Lane, Sequence[tuple[int, Anchor | None]]]:
        """Lane -> (step, furthest anchor up to there), in the order of the log.

        The furthest one, because a later step may name an earlier place: a snapshot knows more than the deltas that it came into
        the middle of, and after a loss an epoch begins further back than the one before it ended. Positions up to a step hold
        only if the places of all of them do.
        """
        histories: dict[Lane, list[tuple[int, Anchor | None]]] = defaultdict(list)
        for number, _, step in self._steps(checkpoints) if lanes else ():
            for lane in lanes & step.anchors.keys():
                before = histories[lane][-1][1] if histories[lane] else None
                histories[lane].append((number, _further(before, step.anchors[lane])))
        return histories

    def _newest_standing(self, lane: Lane, history: Sequence[tuple[int, Anchor | None]]) -> int | None:
        """A server forgets tails, never middles: older anchors stand with a newer one, so the border is found by halving."""
        low, high = -1, len(history)
        while high - low > 1:
            middle = (low + high) // 2
            if self._standing(lane, history[middle][1]):
                low = middle
            else:
                high = middle
        return low if low >= 0 else None

    # ---- positions

    def _apply(self, checkpoints: Sequence[Checkpoint], reached: Mapping[Lane, int], loaded: Loaded) -> None:
        """Takes the first snapshot as it is, then what later steps say, lane by lane up to the step reached."""
        numbers = itertools.count()
        for checkpoint in checkpoints:
            number = next(numbers)
            if number:
                self._forget(checkpoint, loaded)
            for part in self._log.read(checkpoint.parts):
                for entry in log_codec.decode_entries(part):
                    counts = number == 0 or number <= reached.get(entry.lane, -1)
                    _take(entry, loaded, counts=counts)
            for message in self._log.read(checkpoint.deltas):
                number = next(numbers)
                delta = log_codec.decode_delta(message)
                for key in delta.removed:
                    loaded.entries.pop(key, None)
                for entry in delta.entries:
                    _take(entry, loaded, counts=number <= reached.get(entry.lane, -1))

    def _forget(self, checkpoint: Checkpoint, loaded: Loaded) -> None:
        """A later snapshot that a reset began: what was forgotten stays forgotten, however far the lanes go back."""
        closing = self._closing(checkpoint)
        if closing.reset is not None:
            forget(closing.reset, loaded)
            loaded.resets.append((closing.reset, closing.anchors))


def forget(reset: Reset, loaded: Loaded) -> None:
    """Takes everything out of a state that it says about these objects."""
    loaded.watermark = reset.opened(loaded.watermark)
    if reset.everything:
        loaded.entries = position_map()
    for key in [entry.get_manager_key() for entry in loaded.entries.view() if reset.takes_entry(entry)]:
        del loaded.entries[key]
    for key, version in [place for place in loaded.facts if reset.takes(dict(place[0].properties)["key"])]:
        del loaded.facts[(key, version)]
    if reset.everything:
        loaded.unclaimed.clear()
    for prefix, past in list(loaded.listings.items()):
        if reset.touches(prefix):  # what was read is marked by how far it goes
            loaded.listings[prefix] = attrs.evolve(past, tail=None)


def _further(left: Anchor | None, right: Anchor | None) -> Anchor | None:
    """The anchor behind the other one. Of two messages at one place the first: the second took it after a loss."""
    return right if left is None or (right is not None and right.offset > left.offset) else left


def _take(entry: OffsetManagerEntry, loaded: Loaded, *, counts: bool) -> None:
    # that a version was begun says nothing about its lane, and stands whatever the lane has lost
    counts = counts or not (entry.records_done or entry.finished)
    if entry.skipped:
        place = entry.get_manager_key(), entry.version
        loaded.facts[place] = merge_ranges([*loaded.facts.get(place, ()), *entry.skipped])
    if counts:
        merged = merge_into(loaded.entries, entry)
        if loaded.facts and merged.finished:  # nothing of it is replayed: without this they would pile up
            loaded.facts.pop((merged.get_manager_key(), merged.version), None)
