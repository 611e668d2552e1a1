"""The log of positions: one partition of the offsets topic, read whole at a start, appended to while running.

A start keeps the heads of its messages, and reads again what it needs of them, one after the other: a log may hold more than
memory does.
"""

from __future__ import annotations

import bisect
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from framework.errors import PositionError, SourceRunningError, SourceTakenOverError, UnknownOutcomeError
from framework.iggy import log_codec
from framework.iggy.log_codec import Claim, Closing, LogMessage
from framework.offsets import OffsetManagerEntry, OffsetManagerKey, OffsetStore, PositionDelta
from framework.past_listing import PastListing
from framework.position_map import PositionView
from framework.skip_limits import HOUR_SECONDS, LeftOut

if TYPE_CHECKING:
    from framework.iggy.client import IggyConnection
    from framework.iggy.values import StoredMessage

log = logging.getLogger(__name__)

READ_MESSAGES = 16
MOST_READ_MESSAGES = 200
WATCHED_MESSAGES = 64
READ_BYTES = 4 << 20
"""Messages of the log that one poll asks for: a part of a snapshot can have some megabytes, a delta has some hundred bytes."""


@attrs.define(kw_only=True)
class LogView:
    """The log as read from the server, in its order.

    Attributes:
        claims: all claims, with their offsets.
        checkpoints: complete snapshots, oldest first, each with the deltas that build on it and not on the next one.
        foreign: messages that are not ours.
        last_epoch: the largest epoch that anybody wrote; 0 for an empty log.
        left_out: what was left out since the last reset: time of the server in microseconds, how much. Of every delta, whether or
            not its positions count.
        now_us: when the last message was stored.
    """

    claims: list[tuple[int, Claim]] = attrs.field(factory=list)
    checkpoints: list[Checkpoint] = attrs.field(factory=list)
    foreign: int = 0
    last_epoch: int = 0
    left_out: list[tuple[int, int]] = attrs.field(factory=list)
    now_us: int = 0

    def see(self, message: LogMessage) -> None:
        """Takes in what the head of any message of the source says."""
        self.last_epoch = max(self.last_epoch, message.epoch)
        self.now_us = max(self.now_us, message.timestamp_us)
        if message.left_out:
            self.left_out.append((message.timestamp_us, message.left_out))
        if message.by_reset and message.part == message.parts:
            self.left_out.clear()

    def left_out_lately(self) -> list[LeftOut]:
        """What was left out within the hour before the last message."""
        ages = ((self.now_us - at) / 1e6 for at, _ in self.left_out)
        return [LeftOut(age, count) for age, (_, count) in zip(ages, self.left_out, strict=True) if age < HOUR_SECONDS]

    def winner(self, epoch: int) -> Claim | None:
        """The claim that holds an epoch: the first one in the log."""
        return next((claim for _, claim in self.claims if claim.epoch == epoch and claim.leader), None)

    def claims_before(self, own: Claim, since: int) -> list[Claim]:
        """The claims of epoch `since` and later ones that stand before one's own; who came after it sees it, and yields."""
        at = next(offset for offset, claim in self.claims if claim.token == own.token)
        return [claim for offset, claim in self.claims if claim.epoch >= since and offset < at]


@attrs.define(kw_only=True)
class Checkpoint:
    """A complete snapshot and what builds on it.

    Attributes:
        offset: of its last part; deltas name it.
        epoch: of its writer; deltas of another epoch do not count.
        parts: its messages.
        deltas: in the order of the log; the first ones may stand before its last part (`LogMessage.since`).
    """

    offset: int
    epoch: int
    parts: Sequence[LogMessage]
    deltas: list[LogMessage] = attrs.field(factory=list)


def arrange(messages: Iterable[LogMessage | None], source: str) -> LogView:
    """Sorts the messages of a log: snapshots that are whole, the deltas that count, claims.

    A snapshot whose last part is missing does not exist; a delta counts when its epoch is that of the last whole snapshot
    before it, or of the one that it came into the middle of; and no snapshot counts after one of a later epoch. So a writer
    that outlived its time cannot spoil the state.
    """
    view = LogView()
    pending: list[LogMessage] = []
    loose: list[LogMessage] = []  # deltas of which the snapshot was deleted with the front of the log
    for message in messages:
        if message is None or message.source != source:
            view.foreign += 1
            continue
        view.see(message)
        last = view.checkpoints[-1] if view.checkpoints else None
        if message.kind == "claim":
            view.claims.append((message.offset, log_codec.decode_claim(message)))
        elif message.kind == "snapshot" and (last is None or message.epoch >= last.epoch):
            pending = [*pending, message] if message.part == len(pending) + 1 and _continues(pending, message) else []
            if message.part == 1:
                pending = [message]
            if pending and message.part == message.parts:
                view.checkpoints.append(_checkpoint(pending, last, loose))
                pending, loose = [], []
        elif message.kind == "delta" and last is None:
            loose.append(message)
        elif message.kind == "delta" and last is not None and message.epoch == last.epoch:
            last.deltas.append(message)
    return view


def _checkpoint(parts: Sequence[LogMessage], last: Checkpoint | None, loose: Sequence[LogMessage] = ()) -> Checkpoint:
    """A whole snapshot, with the deltas that were written since its moment: they leave the one before it."""
    closing = parts[-1]
    checkpoint = Checkpoint(offset=closing.offset, epoch=closing.epoch, parts=parts)
    if last is not None and last.epoch == closing.epoch and closing.since is not None:
        at = bisect.bisect_left([delta.offset for delta in last.deltas], closing.since)
        last.deltas, checkpoint.deltas = last.deltas[:at], last.deltas[at:]
    elif last is None and closing.since is not None:
        checkpoint.deltas = [one for one in loose if one.epoch == closing.epoch and one.offset >= closing.since]
    return checkpoint


def _continues(pending: Sequence[LogMessage], message: LogMessage) -> bool:
    return not pending or (pending[-1].epoch == message.epoch and pending[-1].parts == message.parts)


class PositionLog:
    """One source's view of the offsets topic, over one connection. One thread at a time."""

    def __init__(self, connection: IggyConnection, *, stream: str, topic: str, source: str) -> None:
        self.connection = connection
        self.stream = stream
        self.topic = topic
        self.source = source
        self.next_offset = 0

    def messages(self, offset: int = 0) -> Iterator[LogMessage | None]:
        """Every message from an offset on; None for those that are not ours. Leaves `next_offset` behind the last one.

        Raises:
            PositionError: a message of ours that cannot be read.
        """
        count = READ_MESSAGES
        while True:
            batch = self.connection.poll(self.stream, self.topic, 0, offset=offset, count=count)
            for stored in batch:
                yield log_codec.decode(stored.offset, stored.payload, stored.timestamp_us)
            if not batch:
                return
            offset = self.next_offset = batch[-1].offset + 1
            large = sum(len(stored.payload) for stored in batch) > READ_BYTES
            count = READ_MESSAGES if large else min(2 * count, MOST_READ_MESSAGES)

    def outline(self, offset: int = 0) -> Iterator[LogMessage | None]:
        """The same without the bodies of deltas and snapshots; `read` gives them when they are needed."""
        for message in self.messages(offset):
            yield message if message is None or message.kind == "claim" else attrs.evolve(message, body=b"")

    def read(self, heads: Iterable[LogMessage], *, ahead: int = READ_MESSAGES) -> Iterator[LogMessage]:
        """These messages with their bodies, some at a time.

        Args:
            heads: in the order of the log.
            ahead: messages that one poll asks for.

        Raises:
            PositionError: one is not there any more.
        """
        batch: dict[int, StoredMessage] = {}
        for head in heads:
            if head.offset not in batch:
                polled = self.connection.poll(self.stream, self.topic, 0, offset=head.offset, count=ahead)
                batch = {stored.offset: stored for stored in polled}
            stored = batch.pop(head.offset, None)
            message = log_codec.decode(head.offset, stored.payload, stored.timestamp_us) if stored is not None else None
            if message is None or attrs.evolve(message, body=b"") != attrs.evolve(head, body=b""):
                raise PositionError(
                    f"offsets topic, message {head.offset}: a {head.kind} that was there a moment ago is gone. "
                    f"{log_codec.WAY_OUT}"
                )
            yield message

    def end(self) -> int:
        """The offset that the next message of anybody will get."""
        last = self.connection.poll(self.stream, self.topic, 0, offset="last", count=1)
        return last[-1].offset + 1 if last else 0

    def append(self, payload: bytes) -> int:
        """Adds one message; returns its offset once the server has confirmed it."""
        return self.connection.append(self.stream, self.topic, 0, payload)

    def claim(self, epoch: int, *, leader: bool, take_over: bool = False) -> Claim:
        """Writes who runs and over which connection.

        Args:
            epoch: the one to work in.
            leader: whether this begins the epoch.
            take_over: tells whoever works in an earlier epoch to end.

        Raises:
            SourceRunningError: the epoch was claimed by somebody else at the same moment.
        """
        own = self.connection.own_client()
        claim = Claim(
            epoch=epoch,
            host=socket.gethostname(),
            process=os.getpid(),
            leader=leader,
            clients=((own.client_id, own.address),),
            token=secrets.token_hex(8),
            take_over=take_over,
        )
        before = self.next_offset
        self.append(log_codec.encode_claim(self.source, claim))
        if leader:
            first = arrange(self.messages(before), self.source).winner(epoch)
            self.next_offset = before  # the caller reads on from where it was
            if first is not None and first.token != claim.token:
                raise SourceRunningError(
                    f'source "{self.source}" was started at the same moment on {first.who}, which was first; stop that one, or '
                    f"let it run"
                )
        return claim

    def check_epoch(self, epoch: int, since: int) -> None:
        """Looks, after a worker's claim, whether its epoch still is the newest.

        The next leader claims, then looks for claims before its own; a worker claims, then looks for the next leader. So one
        of both sees the other, however late a worker begins.

        Args:
            epoch: the worker's.
            since: an offset up to which its leader has read the log.

        Raises:
            UnknownOutcomeError: another epoch has begun: nothing may be sent in this one.
        """
        for message in self.messages(since):
            if message is not None and message.source == self.source and message.epoch > epoch:
                raise UnknownOutcomeError(f'another epoch of source "{self.source}" began before this worker did')

    def append_snapshot(self, epoch: int, positions: PositionView, closing: Closing) -> int:
        """Writes the whole state in one go; returns the offset that deltas name."""
        offset = 0
        for payload in log_codec.encode_snapshot(self.source, epoch, positions, closing):
            offset = self.append(payload)
        return offset

    def check_alone(self, epoch: int, since: int) -> int:
        """Looks whether a later epoch of this source has begun, or is being begun by force: then this one is over.

        A claim alone says nothing: whoever wrote it looks for us, and yields.

        Args:
            epoch: one's own.
            since: where to begin to look.

        Returns:
            The offset behind the last message, to go on from. `next_offset` is not touched.

        Raises:
            SourceTakenOverError: it has.
        """
        while True:
            batch = self.connection.poll(self.stream, self.topic, 0, offset=since, count=WATCHED_MESSAGES)
            for stored in batch:
                message = log_codec.decode(stored.offset, stored.payload, stored.timestamp_us)
                if message is None or message.source != self.source or message.epoch <= epoch:
                    continue
                claim = log_codec.decode_claim(message) if message.kind == "claim" else None
                if claim is None or claim.take_over:
                    who = f"on {claim.who}" if claim is not None else "somewhere else"
                    raise SourceTakenOverError(
                        f'source "{self.source}" was taken over by an instance {who}, so this one ends. What it had sent and not '
                        f"saved is found by the other one; `status` says who runs it"
                    )
            if batch:
                since = batch[-1].offset + 1
            if len(batch) < WATCHED_MESSAGES:
                return since


class EpochWatch:
    """Notices that somebody else began a later epoch, whoever it is that writes. One thread.

    Args:
        position_log: the log.
        epoch: one's own.
        since: an offset up to which the log is known.
        interval_seconds: how often to look while nothing is saved.
        clock: seconds.
    """

    def __init__(
        self,
        position_log: PositionLog,
        *,
        epoch: int,
        since: int,
        interval_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = position_log
        self._epoch = epoch
        self._since = since
        self._interval = interval_seconds
        self._clock = clock
        self._due = clock() + interval_seconds

    def appended(self, offset: int) -> None:
        """A message of one's own has got that offset: when it is not the expected one, somebody else wrote.

        Raises:
            SourceTakenOverError: in a later epoch.
        """
        self._due = self._clock() + self._interval
        if offset != self._since:
            offset = max(offset, self._log.check_alone(self._epoch, self._since) - 1)
        self._since = offset + 1

    def look_when_due(self) -> None:
        """The same while nothing is appended, at most once per interval.

        Raises:
            SourceTakenOverError: a later epoch has begun.
        """
        if self._clock() >= self._due:
            self._due = self._clock() + self._interval
            self._since = self._log.check_alone(self._epoch, self._since)


class LogOffsetStore(OffsetStore):
    """Saves deltas of one epoch in the log, which is read as a whole by a recovery; the manager is given what that found."""

    def __init__(
        self,
        position_log: PositionLog,
        *,
        epoch: int,
        base: int,
        listings: Mapping[str, PastListing] | None = None,
        watch: EpochWatch | None = None,
    ) -> None:
        self._log = position_log
        self._watch = watch
        self._epoch = epoch
        self._base = base
        self._listings = listings or {}

    @override
    def load_listings(self) -> Mapping[str, PastListing]:
        return self._listings

    @override
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """Nothing: see the class."""
        return iter(())

    @override
    def save(self, delta: PositionDelta) -> None:
        """Appends one delta.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: it may or may not be there; recovery settles it.
            SourceTakenOverError: it is there and counts for nothing: a later epoch has begun.
        """
        offset = self._log.append(log_codec.encode_delta(self._log.source, self._epoch, self._base, delta))
        if self._watch is not None:
            self._watch.appended(offset)
