"""One writer at a time: a new leader looks, claims, waits until every predecessor's connection is gone, and opens.

A predecessor's request can be stored for as long as the server lists its connection, and no longer. Connections that
claim are members of a consumer group: the server drops a member after 61 seconds of silence. So a host without power
blocks its successor no longer than that.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs
from msgspec.structs import replace

from framework.errors import (
    EXIT_PERSON,
    IggyAuthError,
    IggyProtocolError,
    IggyUnavailableError,
    SourceRunningError,
    SourceTakenOverError,
    UnknownOutcomeError,
)
from framework.iggy.offset_log import codec
from framework.iggy.offset_log.framing import LogMessage
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.log import OffsetLog
from framework.iggy.offset_log.records import Claim, connected
from framework.iggy.offset_log.state import LogState
from framework.model.objects import TopicPartition

if TYPE_CHECKING:
    from framework.iggy.connection import IggyConnection

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Time a predecessor may stay in the server's list before it counts as running; a killed process is gone in 13 ms."""

LEASE_SECONDS = 61.0
"""Silence after which the server drops a member of a consumer group (measured on version 0.9)."""

FENCE_SECONDS = LEASE_SECONDS + 4.0

_OWN_TOKENS: deque[str] = deque(maxlen=1000)
"""Tokens of the last claims of this process, and after a fork of its parent. Host and process number alone do not tell:
two containers may have the same. A Python worker of Spark makes one for each job, for months."""

_MAX_GROUP_CHARACTERS = 60
PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.5


@attrs.frozen(kw_only=True)
class Epoch:
    """An epoch that is claimed and fenced, but not yet open.

    Attributes:
        number: its number.
        claim: the claim of this connection.
        claimed_at: offset of the claim.
        state: the state of the log; no predecessor can change it any more.
    """

    number: int
    claim: Claim
    claimed_at: int
    state: LogState

    def open(self, offset_log: OffsetLog) -> None:
        """Append the opening of the epoch; from now on, records of earlier epochs do not count."""
        offset_log.append(codec.encode_opening(offset_log.source, self.number, fenced=self.claimed_at))
        self.state.open_epoch(self.number, self.claimed_at)


@attrs.frozen(kw_only=True)
class Waiting:
    """The clock and the sleep function, replaceable in tests.

    Attributes:
        clock: returns seconds.
        sleep: sleeps for the given number of seconds.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def begin_epoch(
    offset_log: OffsetLog,
    *,
    own_epochs: Collection[int] = (),
    take_over: bool = False,
    check: Callable[[LogState], object] = lambda _: None,
    waiting: Waiting | None = None,
) -> Epoch:
    """Become the only writer of a source.

    Args:
        offset_log: the log, over a new connection.
        own_epochs: epochs that this process has led before; their workers were its own.
        take_over: claim although another instance is running; that instance ends when it reads the claim.
        check: validates the state before anything is written, and again when it has changed; may raise.
        waiting: how to wait.

    Raises:
        SourceRunningError: another instance is running, or claimed first. This instance changed nothing. A person must act if
            the other one took over while this one, which had led an epoch, had no connection.
        IggyUnavailableError: earlier connections of this process are still listed; or the connection broke.
        PositionError: the log cannot be read, or an epoch that this process has led is missing in it.
    """
    waiting = waiting or Waiting()
    lease(offset_log)
    state = load(offset_log)
    if state.last_epoch < max(own_epochs, default=0):
        raise offset_log.replaced()
    if not take_over:
        still = wait_until_gone(offset_log.connection, state.claims.values(), LOOK_SECONDS, waiting)
        if still is not None:
            raise _at_work(offset_log.source, still, own_epochs)
    check(state)
    claim = make_claim(state.last_epoch + 1, *own_identities(offset_log), leader=True)
    claimed_at = offset_log.append(codec.encode_claim(offset_log.source, claim))
    claim = replace(claim, at_us=offset_log.stored_us(claimed_at))
    changed = _follow(offset_log, state, claim, claimed_at)
    predecessors = [claim for offset, claim in state.claims.items() if offset < claimed_at]
    still = wait_until_gone(offset_log.connection, predecessors, FENCE_SECONDS, waiting)
    if still is not None:
        raise _at_work(offset_log.source, still, own_epochs, claimed=True)
    changed |= _follow(offset_log, state, claim, claimed_at)
    if changed:  # a predecessor wrote between the first look and its end, perhaps a snapshot that a reset began
        state = load(offset_log)
        _check_first(offset_log.source, state, claim, claimed_at)
        check(state)
    state.claims[claimed_at] = claim
    state.now_us = max(state.now_us, claim.at_us)
    return Epoch(number=claim.epoch, claim=claim, claimed_at=claimed_at, state=state)


def lease(offset_log: OffsetLog) -> None:
    """Open the connection that records are sent over, and join the consumer group by which a server drops silent ones.

    The embedded server has no silent hosts.
    """
    offset_log.connection.open_sending()
    try:
        offset_log.connection.join_group(offset_log.stream, offset_log.topic, lease_group(offset_log.source))
    except IggyAuthError as error:
        log.warning("Iggy will not notice by itself when this host falls silent: %s", error)
    except IggyProtocolError as error:
        log.debug("no lease: %s", error)


def lease_group(source: str) -> str:
    """Return the name of the consumer group that all connections of a source join."""
    return f"lease of {source}"[:_MAX_GROUP_CHARACTERS]


def own_identities(offset_log: OffsetLog) -> list[tuple[int, str]]:
    """Return what a claim names: the log's connection, and the one that sends records, if there is one."""
    return [client.identity for client in offset_log.connection.own_clients()]


def make_claim(
    epoch: int,
    client: tuple[int, str],
    sending: tuple[int, str] | None = None,
    *,
    leader: bool,
    partitions: Iterable[TopicPartition] = (),
) -> Claim:
    """Return a claim for this process's connection."""
    token = secrets.token_hex(8)
    _OWN_TOKENS.append(token)
    return Claim(
        epoch=epoch,
        host=socket.gethostname(),
        process=os.getpid(),
        leader=leader,
        client=client,
        token=token,
        sending=sending,
        partitions=tuple(partitions),
    )


def claim_partitions(
    offset_log: OffsetLog,
    state: LogState,
    epoch: int,
    partitions: Collection[TopicPartition],
    *,
    waiting: Waiting | None = None,
) -> Claim:
    """Become the only writer of some partitions, within an epoch that another process leads.

    The next leader claims, then looks for claims before its own; a worker claims, then looks for the next leader. So
    one of the two sees the other, however late a worker begins.

    Args:
        offset_log: the log, over a new connection; reading continues where the leader stopped.
        state: the partitions' state as the leader knew it there; brought up to date here.
        epoch: the leader's epoch.
        partitions: partitions that no other worker wants, except a worker that has ended.
        waiting: how to wait.

    Raises:
        UnknownOutcomeError: another epoch has begun, or a worker that should have ended has not.
    """
    lease(offset_log)
    claim = make_claim(epoch, *own_identities(offset_log), leader=False, partitions=partitions)
    claimed_at = offset_log.append(codec.encode_claim(offset_log.source, claim))
    wanted = set(partitions)

    def follow() -> list[Claim]:
        for message in offset_log.follow():
            if message.epoch > epoch:
                raise UnknownOutcomeError(f'another epoch of source "{offset_log.source}" began before this worker did')
            state.apply(message)
        return [
            claim
            for offset, claim in state.claims.items()
            if offset < claimed_at
            and not claim.leader
            and claim.epoch == epoch
            and wanted.intersection(claim.partitions)
        ]

    still = wait_until_gone(offset_log.connection, follow(), FENCE_SECONDS, waiting or Waiting())
    if still is not None:
        raise UnknownOutcomeError(f"Iggy still lists the connection of a worker that was lost, on {still.who}")
    follow()
    return claim


def wait_until_gone(
    connection: IggyConnection, claims: Iterable[Claim], limit_seconds: float, waiting: Waiting
) -> Claim | None:
    """Wait until the server lists no connection of these claims; return a claim still listed at the limit, else None.

    A wait of more than half a second is logged: a stopped or killed process is gone earlier.
    """
    own = connection.own_client().identity
    holders = [claim for claim in claims if claim.client != own]
    deadline = waiting.clock() + limit_seconds
    pause = PAUSE_SECONDS
    while holders and (holders := connected(holders, connection.clients())):
        first = min(holders, key=_client)
        if waiting.clock() >= deadline:
            return first
        waiting.sleep(pause)
        if pause < MAX_PAUSE_SECONDS <= 2 * pause:
            log.warning("waiting up to %.0f seconds for the end of the instance on %s", limit_seconds, first.who)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
    return None


_client = attrgetter("client")


def check_alone(source: str, epoch: int, message: LogMessage) -> None:
    """Check each record of other writers, as a leader.

    Raises:
        SourceTakenOverError: a later epoch is claimed, or open.
    """
    if message.epoch <= epoch or message.kind not in {"claim", "opening"}:
        return
    claim = codec.decode_claim(message) if message.kind == "claim" else None
    if claim is not None and not claim.leader:
        return
    who = f"on {claim.who}" if claim is not None else "somewhere else"
    raise SourceTakenOverError(
        f'source "{source}" was taken over by an instance {who}, so this one ends. What it had sent and not saved is found by the '
        f"other one; `status` says who runs it"
    )


def _follow(offset_log: OffsetLog, state: LogState, claim: Claim, claimed_at: int) -> bool:
    """Follow the log; return whether it held anything but claims."""
    changed = False
    for message in offset_log.follow():
        changed |= message.kind != "claim"
        state.apply(message)
    _check_first(offset_log.source, state, claim, claimed_at)
    return changed


def _check_first(source: str, state: LogState, claim: Claim, claimed_at: int) -> None:
    for offset, other in state.claims.items():
        if not other.leader:
            continue
        if offset < claimed_at and other.epoch >= claim.epoch:
            raise SourceRunningError(
                f'source "{source}" was started at the same moment on {other.who}, which was first; stop that one, or let it run'
            )
        if other.epoch > claim.epoch:
            raise SourceTakenOverError(
                f'source "{source}" was taken over by an instance on {other.who}, so this one ends'
            )


def _at_work(
    source: str, claim: Claim, own_epochs: Collection[int], *, claimed: bool = False
) -> IggyUnavailableError | SourceRunningError:
    if claim.token in _OWN_TOKENS and (claim.host, claim.process) == (socket.gethostname(), os.getpid()):
        return IggyUnavailableError(f'Iggy still holds an earlier connection of this process; source "{source}" waits')
    if not claim.leader and claim.epoch in own_epochs:
        return IggyUnavailableError(
            f"Iggy still holds the connection of a worker that was lost, on {claim.who}; "
            f'source "{source}" waits, since that one may still send'
        )
    if own_epochs and claim.epoch > max(own_epochs):
        replaced = SourceRunningError(
            f'source "{source}" was taken over by an instance on {claim.who}, while this one had no connection to Iggy, so this '
            "one ends"
        )
        # With 1 a supervisor would start it again and again, and it would take over once the other one ends.
        replaced.exit_code = EXIT_PERSON
        return replaced
    if claimed:  # it has had the time to read the claim and end, or to be dropped
        return SourceRunningError(
            f'source "{source}" was claimed, but Iggy lists the connection of the instance on {claim.who} still, '
            f"{FENCE_SECONDS:.0f} seconds later; end that process. If its host is dead, Iggy does not drop silent clients: "
            f'the consumer group "{lease_group(source)}" was deleted, or the server looks for no heartbeats; restart Iggy'
        )
    return SourceRunningError(
        f'source "{source}" is running already, on {claim.who}; stop that one first. If its host is dead, Iggy notices within '
        f"{LEASE_SECONDS:.0f} seconds: start again then. To wait for its end, run the source with --standby; to replace it, with "
        f"--take-over. For a second, "
        f"independent copy of the records set another [source] name"
    )
