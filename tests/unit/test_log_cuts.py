"""The log of positions, damaged, cut, shared and written by two: what is whole is loaded, or the sentence says what is wrong."""

import functools
import itertools
import random
import struct

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.engine.session import Session
from framework.errors import PositionError
from framework.iggy import log_codec
from framework.iggy.checkpoints import CheckpointLoader
from framework.iggy.log_codec import Claim, Closing
from framework.iggy.position_log import PositionLog, arrange
from framework.iggy.server.files import FileOps
from framework.iggy.server.partition import Partition
from framework.offsets import OffsetManagerEntry, PositionDelta, merge_entries, merge_into, position_map
from framework.records import Lane, ObjectState
from framework.testing.memory_iggy import MemoryIggy
from framework.testing.options import source_config
from tests.unit.iggy_batches import decode_batches, encode_batch
from tests.unit.test_recovery import LOG, Source

NO_SYNC = FileOps(sync=False)


@pytest.fixture(scope="module")
def written():
    """Payloads of a log with several epochs, deltas, parts of snapshots between them, and objects half read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("framework.engine.snapshots.SNAPSHOT_DELTAS", 2)
        patch.setattr("framework.engine.snapshots.PAUSE_PARTS", 0)
        patch.setattr("framework.iggy.log_codec.PART_BYTES", 300)
        patch.setattr("framework.iggy.log_codec.positions_bytes", lambda _count: 0)
        source = Source({"a": 5, "b": 7, "c": 11, "d": 3}, partitions=2)
        source.live(40)
        source.live(60)
        source.live()
        return [message.payload for message in source.server.messages("kit", LOG)]


def loaded(payloads):
    """Key -> records done, as the log alone says."""
    server = MemoryIggy()
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", LOG, 1)
    for payload in payloads:
        connection.append("kit", LOG, 0, payload)
    log = PositionLog(connection, stream="kit", topic=LOG, source="kit")
    loader = CheckpointLoader(log, arrange(log.outline(), "kit").checkpoints)
    loader.accepted.update(loader.lanes)
    return {entry.key: (entry.records_done, entry.state) for entry in loader.load().entries.view()}


def test_after_a_cut_behind_any_message_what_is_whole_is_loaded_and_nothing_goes_back(written):
    """The oracle: what the last whole snapshot says, and the deltas behind it, read one by one by hand."""
    states = [loaded(written[:length]) for length in range(len(written) + 1)]
    assert states[0] == {}
    assert states[-1] == {key: (count, ObjectState.DONE) for key, count in {"a": 5, "b": 7, "c": 11, "d": 3}.items()}
    for earlier, later in itertools.pairwise(states):
        for key, (records, _) in earlier.items():
            assert later[key][0] >= records
    assert len({tuple(sorted(state.items())) for state in states}) > 5


def test_the_file_of_the_log_cut_at_every_byte_of_its_last_segment_loads_what_is_whole(written, tmp_path):
    """The embedded server's own file. What it serves after the cut is a whole beginning of the log, or it says what is damaged."""
    folder = tmp_path / "whole"
    ticks = itertools.count(10_000, 10)
    partition = Partition(0, folder, 4000, NO_SYNC, created_at=1, clock=lambda: next(ticks))
    partition.open()
    for payload in written:
        append(partition, payload)
    partition.close()
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 1
    last = segments[-1]
    whole = last.read_bytes()
    kept = set()
    for cut in range(len(whole) + 1):
        last.write_bytes(whole[:cut])
        payloads = served(folder)
        assert payloads == written[: len(payloads)]
        kept.add(len(payloads))
    assert kept == set(range(min(kept), len(written) + 1))
    for length in kept:
        loaded(written[:length])


def append(partition, payload):
    from framework.iggy.server import batch

    data = memoryview(encode_batch([payload]))
    header, checksums = batch.verify(data)
    partition.append(data, header, checksums)


def served(folder):
    partition = Partition(0, folder, 4000, NO_SYNC, created_at=1)
    try:
        partition.open()
        parts, _, _ = partition.read(0, 10**9)
        return [payload for _, payload in decode_batches(b"".join(parts))]
    finally:
        partition.close()


# ---- what others write into it


def test_a_message_cut_at_any_byte_is_no_message_of_ours_or_an_error_with_a_way_out(written):
    delta = next(payload for payload in written if b'"kind":"delta"' in payload)
    snapshot = next(payload for payload in reversed(written) if b'"kind":"snapshot"' in payload)
    everything = loaded(written)
    for payload in (delta, snapshot):
        for cut in range(1, 4):
            assert loaded([*written, payload[:cut]]) == everything
        for cut in range(4, len(payload)):
            with pytest.raises(PositionError, match=rf"message {len(written)}: .*offsets reset --all.*offsets accept"):
                read_whole([*written, payload[:cut]])


def read_whole(payloads):
    """Every message, its body too, whether or not it counts."""
    for at, payload in enumerate(payloads):
        message = log_codec.decode(at, payload)
        if message is not None:
            message.read()


@pytest.mark.parametrize(
    "foreign",
    [
        b"\0",
        b"garbage",
        b"ICS",
        b"ICSQ" + bytes(100),
        bytes(random.Random(1).randrange(256) for _ in range(3000)),
        log_codec.encode_claim("other", Claim(epoch=999, host="h", process=1, leader=True, clients=(), token="t")),
        log_codec.encode_delta(
            "other",
            999,
            0,
            PositionDelta(
                entries=[OffsetManagerEntry(bucket="bucket", key="a", version="v1", records_done=9, lane=Lane("x", 0))]
            ),
        ),
        *log_codec.encode_snapshot("other", 999, position_map().view(), Closing()),
    ],
    ids=lambda payload: payload[:12].hex(),
)
def test_messages_of_others_anywhere_change_nothing(written, foreign):
    everything = loaded(written)
    for at in range(len(written) + 1):
        assert loaded([*written[:at], foreign, *written[at:]]) == everything


def test_a_later_format_is_an_error_and_is_never_passed_over(written):
    at = next(number for number, payload in enumerate(written) if b'"kind":"delta"' in payload)
    later = written[at][:4] + b"\x02" + written[at][5:]
    with pytest.raises(PositionError, match=rf"message {at}: positions in format 2.*reads format 1"):
        loaded([*written[:at], later, *written[at + 1 :]])


@pytest.mark.parametrize(
    "broken",
    [
        log_codec.MAGIC,
        log_codec.MAGIC + b"\1\0",
        log_codec.MAGIC + struct.pack("<BBI", 1, 0, 10**9) + b"{}",
        log_codec.MAGIC + struct.pack("<BBI", 1, 0, 2) + b"[]",
        log_codec.MAGIC + struct.pack("<BBI", 1, 0, 4) + b"null",
        log_codec.MAGIC + struct.pack("<BBI", 1, 1, 2) + b"{}no zstd",
    ],
    ids=lambda payload: payload[4:].hex(),
)
def test_a_broken_message_of_ours_is_an_error_with_its_place_and_both_ways_out(written, broken):
    with pytest.raises(PositionError, match=rf"message {len(written)}: .*offsets reset --all.*offsets accept"):
        loaded([*written, broken])


# ---- two writers


def test_whatever_a_writer_of_an_older_epoch_writes_changes_nothing(written):
    """Its deltas, its snapshot, whole or in parts, at every place behind the beginning of the next epoch."""
    everything = loaded(written)
    heads = [log_codec.decode(at, payload) for at, payload in enumerate(written)]
    newest = max(head.epoch for head in heads)
    begun = next(
        at
        for at, head in enumerate(heads)
        if (head.epoch, head.kind) == (newest, "snapshot") and head.part == head.parts
    )
    lie = OffsetManagerEntry(
        bucket="bucket",
        key="a",
        version="v9",
        generation=7,
        records_done=99,
        state=ObjectState.DONE,
        lane=Lane("records", 0),
    )
    two = position_map([lie, attrs.evolve(lie, key="b")])
    lies = [
        log_codec.encode_delta("kit", newest - 1, 0, PositionDelta(entries=[lie], anchors={Lane("records", 0): None})),
        log_codec.encode_delta("kit", newest - 1, 0, PositionDelta(removed=[lie.get_manager_key()])),
        *log_codec.encode_snapshot("kit", newest - 1, position_map([lie]).view(), Closing()),
        next(log_codec.encode_snapshot("kit", newest - 1, two.view(), Closing(), part_bytes=1)),
    ]
    for at in range(begun + 1, len(written) + 1):
        for payload in lies:
            assert loaded([*written[:at], payload, *written[at:]]) == everything
        assert loaded([*written[:at], *lies, *written[at:]]) == everything


def test_two_writers_of_one_epoch_are_merged_in_any_order_of_their_deltas():
    """Two workers that own a lane each; a leader's snapshot in the middle."""
    lanes = [Lane("records", 0), Lane("records", 1)]

    def deltas(lane, name):
        return [
            log_codec.encode_delta(
                "kit",
                1,
                0,
                PositionDelta(
                    entries=[OffsetManagerEntry(bucket="b", key=name, version="v", records_done=number, lane=lane)],
                    anchors={lane: None},
                ),
            )
            for number in range(1, 5)
        ]

    begin = list(log_codec.encode_snapshot("kit", 1, position_map().view(), Closing(anchors=dict.fromkeys(lanes))))
    one, other = deltas(lanes[0], "one"), deltas(lanes[1], "other")
    for chosen in itertools.combinations(range(8), 4):
        rest = iter(other)
        ours = iter(one)
        order = [next(ours) if at in chosen else next(rest) for at in range(8)]
        assert loaded([*begin, *order]) == {"one": (4, ObjectState.READING), "other": (4, ObjectState.READING)}


# ---- the law of merging, with everything that an entry has


def entries():
    ranges = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=3)
    return st.builds(
        lambda generation, records, state, cut, skipped, modified, given_up, reopened: OffsetManagerEntry(
            bucket="b",
            key="k",
            version=f"v{generation}",
            generation=generation,
            records_done=records,
            state=state,
            share=1 if cut else 0,
            split_size=cut,
            lane=Lane("t", 0),
            modified_ms=modified,
            skipped=() if state is not ObjectState.READING else tuple((a, a + more) for a, more in skipped),
            given_up=0 if state is not ObjectState.READING else given_up,
            reopened=reopened,
        ),
        generation=st.integers(0, 2),
        records=st.integers(0, 4),
        state=st.sampled_from(ObjectState),
        cut=st.sampled_from([0, 10, 20]),
        skipped=ranges,
        modified=st.integers(0, 2),
        given_up=st.sampled_from([0, 0, 3, 5]),
        reopened=st.sampled_from([0, 0, 0, 1]),
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(entries(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_merging_gives_the_same_in_any_order_and_however_often(found, chance):
    """Generation, shares and skipped numbers included; the oracle sees all of them at once."""

    def fold(some):
        positions = position_map()
        for one in some:
            merge_into(positions, one)
        (kept,) = positions.view()
        return kept

    shuffled = [*found, *chance.choices(found, k=3)]
    chance.shuffle(shuffled)
    kept = fold(shuffled)
    assert kept == fold(found)
    assert all(merge_entries(kept, one) == merge_entries(one, kept) == kept for one in found)

    version = [e for e in found if e.generation == max(e.generation for e in found)]
    largest = max((e.split_size, e.reopened) for e in version)
    same = [e for e in version if (e.split_size, e.reopened) == largest]
    ended = [e for e in same if e.state is not ObjectState.READING]
    assert (kept.generation, kept.split_size, kept.reopened) == (version[0].generation, *largest)
    assert kept.modified_ms == max(e.modified_ms for e in version)
    assert kept.records_done == max(e.records_done for e in ended or same)
    assert kept.finished == bool(ended)
    assert _numbers(kept.skipped) == frozenset().union(*(_numbers(e.skipped) for e in same if not ended))
    assert kept.given_up == max((e.given_up for e in same if not ended), default=0)


def test_the_order_of_merging_does_not_decide_which_skipped_numbers_are_left():
    """Found by chance: a finished position keeps no numbers, and one that was read on won over it by its count."""
    read = OffsetManagerEntry(bucket="b", key="k", version="v", records_done=2, lane=Lane("t", 0), skipped=((2, 2),))
    failed = attrs.evolve(read, records_done=3, state=ObjectState.FAILED, skipped=())
    further = attrs.evolve(read, records_done=4, skipped=())
    reopened = attrs.evolve(failed.reopen(), records_done=4)
    for last, expected in ((further, failed), (reopened, reopened)):
        for order in itertools.permutations([read, failed, last]):
            assert functools.reduce(merge_entries, order) == expected


def _numbers(ranges):
    return frozenset(number for first, last in ranges for number in range(first, last + 1))


def test_a_start_from_any_cut_of_the_log_loses_and_repeats_nothing():
    """The log cut, the data topics whole: the replay finds what the log lost, unless the cut takes the log's beginning."""
    length = len(_finished().server.messages("kit", LOG))
    for lost in range(length):
        source = _finished()
        source.server.lose_tail("kit", LOG, 0, lost)
        source.live()
        source.check()


def _finished():
    source = Source({"a": 5, "b": 7, "c": 3}, partitions=2)
    source.live(30)
    source.live()
    return source


def test_a_session_over_foreign_messages_begins_and_says_nothing_of_them():
    server = MemoryIggy()
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", LOG, 1)
    connection.append("kit", LOG, 0, b"garbage")
    session = Session(server.connect(), source_config())
    assert session.recovered.epoch == 1
