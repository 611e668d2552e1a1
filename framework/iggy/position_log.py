"""The log of positions: one partition of the offsets topic, read whole at a start, appended to while running."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from framework.errors import SourceRunningError, UnknownOutcomeError
from framework.iggy import log_codec
from framework.iggy.log_codec import Claim, LogMessage, Snapshot
from framework.offsets import OffsetManagerEntry, OffsetManagerKey, OffsetStore, PositionDelta
from framework.past_listing import PastListing

if TYPE_CHECKING:
    from framework.iggy.client import IggyConnection

log = logging.getLogger(__name__)

READ_MESSAGES = 200
"""Messages of the log that one poll asks for; a part of a snapshot can have some megabytes."""


@attrs.define(kw_only=True)
class LogView:
    """The log as read from the server, in its order.

    Attributes:
        claims: all claims, with their offsets.
        checkpoints: complete snapshots, oldest first, each with the deltas between it and the next one.
        foreign: messages that are not ours.
        last_epoch: the largest epoch that anybody wrote; 0 for an empty log.
    """

    claims: list[tuple[int, Claim]] = attrs.field(factory=list)
    checkpoints: list[Checkpoint] = attrs.field(factory=list)
    foreign: int = 0
    last_epoch: int = 0

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
        deltas: in the order of the log.
    """

    offset: int
    epoch: int
    parts: Sequence[LogMessage]
    deltas: list[LogMessage] = attrs.field(factory=list)

    def snapshot(self) -> Snapshot:
        """The snapshot, unpacked."""
        return log_codec.decode_snapshot(self.parts)


def arrange(messages: Iterable[LogMessage | None], source: str) -> LogView:
    """Sorts the messages of a log: snapshots that are whole, the deltas that count, claims.

    A snapshot whose last part is missing does not exist; a delta counts when its epoch is that of the last whole snapshot
    before it, so a writer that outlived its time cannot spoil the state.
    """
    view = LogView()
    pending: list[LogMessage] = []
    for message in messages:
        if message is None or message.source != source:
            view.foreign += 1
            continue
        view.last_epoch = max(view.last_epoch, message.epoch)
        if message.kind == "claim":
            view.claims.append((message.offset, log_codec.decode_claim(message)))
        elif message.kind == "snapshot":
            pending = [*pending, message] if message.part == len(pending) + 1 and _continues(pending, message) else []
            if message.part == 1:
                pending = [message]
            if pending and message.part == message.parts:
                view.checkpoints.append(Checkpoint(offset=message.offset, epoch=message.epoch, parts=pending))
                pending = []
        elif message.kind == "delta" and view.checkpoints and message.epoch == view.checkpoints[-1].epoch:
            view.checkpoints[-1].deltas.append(message)
    return view


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
        while True:
            batch = self.connection.poll(self.stream, self.topic, 0, offset=offset, count=READ_MESSAGES)
            for stored in batch:
                yield log_codec.decode(stored.offset, stored.payload)
            if not batch:
                return
            offset = self.next_offset = batch[-1].offset + 1

    def append(self, payload: bytes) -> int:
        """Adds one message; returns its offset once the server has confirmed it."""
        return self.connection.append(self.stream, self.topic, 0, payload)

    def claim(self, epoch: int, *, leader: bool) -> Claim:
        """Writes who runs and over which connection.

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
        )
        before = self.next_offset
        self.append(log_codec.encode_claim(self.source, claim))
        if leader:
            first = arrange(self.messages(before), self.source).winner(epoch)
            self.next_offset = before  # the caller reads on from where it was
            if first is not None and first.token != claim.token:
                raise SourceRunningError(
                    f'source "{self.source}" was started at the same moment on {first.host} (process {first.process}), '
                    f"which was first; stop that one, or let it run"
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

    def append_snapshot(self, epoch: int, snapshot: Snapshot) -> int:
        """Writes the whole state; returns the offset that deltas name."""
        offset = 0
        for payload in log_codec.encode_snapshot(self.source, epoch, snapshot):
            offset = self.append(payload)
        return offset


class LogOffsetStore(OffsetStore):
    """Positions in the log: loads what recovery found, saves deltas of one epoch."""

    def __init__(
        self,
        position_log: PositionLog,
        *,
        epoch: int,
        base: int,
        entries: Iterable[OffsetManagerEntry] = (),
        listings: Mapping[str, PastListing] | None = None,
    ) -> None:
        self._log = position_log
        self._epoch = epoch
        self._base = base
        self._entries = {entry.get_manager_key(): entry for entry in entries}
        self._listings = listings or {}

    @override
    def load_listings(self) -> Mapping[str, PastListing]:
        return self._listings

    @override
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """The recovered entries; nothing is read from the server."""
        if keys is None:
            return iter(list(self._entries.values()))
        return iter([self._entries[key] for key in keys if key in self._entries])

    @override
    def save(self, delta: PositionDelta) -> None:
        """Appends one delta.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: it may or may not be there; recovery settles it.
        """
        self._log.append(log_codec.encode_delta(self._log.source, self._epoch, self._base, delta))
