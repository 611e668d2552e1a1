"""Manual changes to a source's positions: each in its own epoch, so that no other writer interferes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import attrs
from msgspec.structs import replace

from framework.engine.session import Session
from framework.engine.topic_checks import check_log, check_topics, ensure_offsets_topic
from framework.errors import PositionError
from framework.iggy.dead_letters.reader import dead_letters_of, void_dead_letters
from framework.iggy.offset_log.fencing import begin_epoch
from framework.iggy.offset_log.log import OffsetLog
from framework.iggy.offset_log.lost_partitions import abandon_partitions, data_topics, lost_partitions
from framework.iggy.offset_log.partition_replay import (
    PartitionGoneError,
    PartitionReader,
)
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, is_numbered_by
from framework.model.text import counted
from framework.offsets.id_hashes import Identities
from framework.offsets.position_filter import PositionFilter

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.dead_letters.writer import StoredDeadLetter
    from framework.iggy.offset_log.state import LogState
    from framework.offsets.set_position import SetPosition

log = logging.getLogger(__name__)


@attrs.frozen
class AdminResult:
    """The result of a manual change.

    Attributes:
        epoch: the epoch of the change.
        positions: number of positions that count.
        restarting: number of partly read objects that are read again from the start; they have no position that counts.
    """

    epoch: int
    positions: int
    restarting: int = 0


def reset_positions(connection: IggyConnection, config: SourceCommonConfig, reset: PositionFilter) -> AdminResult:
    """Remove positions, so that their objects are read again from the first record, in a higher generation.

    Atomic: nothing has happened until the snapshot is complete. Dead letters of reset objects are marked after it.

    Args:
        connection: an open connection, which the caller closes.
        config: configuration of the source.
        reset: what to reset.

    Raises:
        SourceRunningError: the source is running.
        PositionError: the log cannot be read; or a partition is gone, unless everything is reset.
    """

    def change(state: LogState) -> None:
        _warn_of_dead_letters(config, (entry for entry in state.positions.view() if reset.takes(entry.key)))
        _reset(state, reset)

    done = _change(
        connection,
        config,
        change,
        check=lambda state: None if reset.everything else check_topics(connection, config, state),
    )
    void_dead_letters(connection, config, reset.takes_object)
    return done


def set_position(connection: IggyConnection, config: SourceCommonConfig, change: SetPosition) -> AdminResult:
    """Give an object another position, in a higher generation.

    Atomic: nothing has happened until the snapshot is complete. Dead letters of records that come again are marked after it.

    Args:
        connection: an open connection, which the caller closes.
        config: configuration of the source.
        change: the object, and its position.

    Raises:
        SourceRunningError: the source is running.
        PositionError: the position cannot be set; the log cannot be read; or a partition is gone.
    """
    of_object = PositionFilter(key=change.key)

    def check(state: LogState) -> None:
        nonlocal of_object
        check_topics(connection, config, state)
        entry = change.find(state.positions.view())
        of_object = PositionFilter(key=change.key, bucket=entry.bucket)
        # read here, where no predecessor runs any more: its last dead letter must not be marked unseen
        _check_dead_letters(dead_letters_of(connection, config, of_object.takes_object), change, entry)
        _warn_of_dead_letters(config, [entry])

    done = _change(connection, config, lambda state: _set(state, change), check=check)
    void_dead_letters(connection, config, of_object.takes_object)
    return done


def _check_dead_letters(stored: Iterable[StoredDeadLetter], change: SetPosition, entry: OffsetManagerEntry) -> None:
    """Refuse to leave behind dead letters that nothing could replay any more.

    Raises:
        PositionError: says how many.
    """
    count = change.count_of(entry)
    left = [
        dead_letter
        for dead_letter in stored
        if dead_letter.version == entry.version
        and dead_letter.generation == entry.generation
        and dead_letter.record <= count
    ]
    if left:
        raise PositionError(
            f"{entry.bucket}/{entry.key}: {counted(len(left), 'dead letter')} of the records up to {count} would be left behind: "
            f"a position of another generation cannot replay them. Run `dead-letter replay` or `dead-letter discard` first"
        )


def accept_changes(connection: IggyConnection, config: SourceCommonConfig, *, numbering_options: str) -> AdminResult:
    """Accept the topics and the selection as they are now. What positions count as saved stays so.

    Where messages were removed, what is left is counted from the first message on, and reading continues after that, or
    after the saved records. Objects that were partly
    read under other options, or in a missing partition, restart; their dead letters are marked after the snapshot.

    Args:
        connection: an open connection, which the caller closes.
        config: configuration of the source.
        numbering_options: its options that number records, canonical.

    Raises:
        SourceRunningError: the source is running.
        PositionError: the log cannot be read, or was lost.
    """
    restarting = uncounted = 0
    restarted: set[tuple[str, str]] = set()

    def change(state: LogState) -> None:
        nonlocal restarting, uncounted
        before = _unfinished(state)
        pending = {key.whole(): entry for key, entry in state.positions.pending()}
        _accept(state, connection, config)
        after = _unfinished(state)
        begun = {key for key, entries in before.items() if _has_begun(entries)}
        abandoned = {key for key, entries in after.items() if any(entry.is_abandoned for entry in entries)}
        gone = {key for key in pending if key in abandoned or state.positions.find(key) is None}
        renumbered = [
            entries
            for entries in after.values()
            if not all(is_numbered_by(entry, numbering_options) for entry in entries)
        ]
        renumbered_begun = [entries for entries in renumbered if _has_begun(entries)]
        restarting = len(begun & gone) + len(renumbered_begun)
        uncounted = len(abandoned) + sum(map(len, renumbered_begun))
        begin_again = [*(pending[key] for key in gone), *(entry for entries in renumbered for entry in entries)]
        restarted.update((entry.bucket, entry.key) for entry in begin_again)
        _warn_of_dead_letters(config, begin_again)

    done = _change(
        connection,
        config,
        change,
        check=partial(check_log, connection, config),  # to accept an empty log would send everything again, unasked
    )
    if restarted:
        void_dead_letters(connection, config, lambda bucket, key: (bucket, key) in restarted)
    return attrs.evolve(done, positions=done.positions - uncounted, restarting=restarting)


def _warn_of_dead_letters(config: SourceCommonConfig, entries: Iterable[OffsetManagerEntry]) -> None:
    """Warn that dead letters of objects that are read again cannot be voided: the configuration names no topic."""
    if config.errors.dead_letter_topic is None and any(entry.skipped or entry.failed for entry in entries):
        log.warning(
            "[errors] dead_letter_topic is not set, and bad data of these objects was skipped. If a topic holds it, a replay "
            "could send it twice: set the topic, and close these dead letters with `dead-letter discard`"
        )


def reopen_objects(session: Session, failed: Callable[[OffsetManagerEntry], bool]) -> int:
    """Reopen failed objects, so that they resume where they failed; return how many: splits and parts are of one.

    Args:
        session: an epoch of this process; nothing else runs in it.
        failed: whether a position is to be reopened.
    """
    offsets = session.offsets
    found = [entry for entry in offsets.table.entries() if entry.failed and failed(entry)]
    with offsets.table.lock:
        for entry in found:
            session.state.positions[entry.get_manager_key()] = entry.reopened()
    if found:
        session.write_snapshot()
    return len({entry.get_manager_key().whole() for entry in found})


def _change(
    connection: IggyConnection,
    config: SourceCommonConfig,
    change: Callable[[LogState], None],
    *,
    check: Callable[[LogState], object],
) -> AdminResult:
    ensure_offsets_topic(connection, config)
    offset_log = OffsetLog.of(connection, config)
    epoch = begin_epoch(offset_log, check=check)
    change(epoch.state)
    epoch.open(offset_log)
    session = Session(connection, config, offset_log, epoch)
    session.write_snapshot()
    return AdminResult(epoch.number, len(session.offsets.table))


def _reset(state: LogState, reset: PositionFilter) -> None:
    if reset.everything and state.knows_nothing:
        # The log was lost, and with it which generations there were: the last messages of a partition that may forget them
        # are counted at each start, and must not be taken for those of the generations to come.
        state.positions.floor = max(state.positions.floor, state.now_us // 1000)
    for key in [entry.get_manager_key() for entry in state.positions.view() if reset.takes(entry.key)]:
        state.positions.remove_object(key.whole())
    state.watermark = reset.removed_from(state.watermark)
    _list_again(state, reset)
    state.skipped = []
    if reset.everything:
        # old messages are of older generations; changes to the topics no longer matter
        abandon_partitions(state, state.partitions)
        state.has_abandoned_partitions = True


def _set(state: LogState, change: SetPosition) -> None:
    entry = change.find(state.positions.view())
    key = entry.get_manager_key()
    made = change.applied(entry, state.positions.next_generation(key))
    state.positions.remove_object(key)
    made = Identities(state.source, lambda: [other for _, other in state.positions.pending()]).take(made)
    state.positions[key] = made
    _list_again(state, PositionFilter(key=change.key))


def _list_again(state: LogState, reset: PositionFilter) -> None:
    """Drop the marks that say how far a listing was read, wherever it may show one of these objects."""
    for prefix, past in list(state.listings.items()):
        if reset.touches(prefix):
            state.listings[prefix] = replace(past, incremental=None)


def _unfinished(state: LogState) -> dict[OffsetManagerKey, list[OffsetManagerEntry]]:
    """Return the unfinished objects, each with its position, or with those of its splits."""
    positions = state.positions
    keys = {key.whole() for key, entry in positions.pending() if not entry.finished}
    return {key: [positions[split] for split in (key, *positions.splits_of(key)) if split in positions] for key in keys}


def _has_begun(entries: Iterable[OffsetManagerEntry]) -> bool:
    return any(entry.records_done for entry in entries)


def _accept(state: LogState, connection: IggyConnection, config: SourceCommonConfig) -> None:
    stream = config.iggy.stream
    topics = data_topics(connection, stream, state)
    abandon_partitions(state, lost_partitions(state, topics, config.iggy.partitions))
    reader = PartitionReader(connection, stream, state)
    for topic_partition in sorted(state.partitions):
        found = topics[topic_partition.topic]
        assert found is not None
        try:
            reader.read(topic_partition, found)
        except PartitionGoneError:
            # what a source sent until it noticed is there, and its progress may not say so
            reader.count_from_first(topic_partition, found)
    state.has_abandoned_partitions = True
    for _, entry in state.positions.pending():
        state.positions[entry.get_manager_key()] = entry.changed(may_begin_again=True)
    if state.selected is not None:
        state.selected = replace(state.selected, changes_accepted=True)
