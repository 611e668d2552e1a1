"""Two objects with one hash: each keeps its own progress, in the log and behind it."""

import struct

import attrs
import pytest
import xxhash

from framework.engine.positions_admin import _set
from framework.iggy.offset_log.state import LogState
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.message_ids import entry_hash64, object_hash64
from framework.model.objects import NativeObject, ObjectState, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets import id_hashes
from framework.offsets.id_hashes import Identities
from framework.offsets.manager import OffsetManager
from framework.offsets.packed_table import FinishedTable
from framework.offsets.position_map import position_map
from framework.offsets.set_position import SetPosition
from framework.testing.fakes.memory_iggy import MemoryIggy
from tests.support.entries import splits_of
from tests.support.positions import loaded, session_of

SOURCE, BUCKET = "kit", "bucket"
PARTITION = TopicPartition("records", 0)


def colliding_keys(begin, pairs):
    """Keys of 700 bytes with one hash in every version and generation, whatever stands in `begin` bytes before them.

    XXH3 multiplies two halves of eight bytes, one of which is 0 where it equals the secret, and adds the eight bytes to
    another sum. In two such places of one sum, what one place has more the other may have less.
    """
    keys = []
    for first, second in pairs:
        data = bytearray(b"k" * 700)
        for at, place in ((56, first + b"\xc3\x81:&L"), (7 * 64 + 56, second + b"a\xcd\xb4Y1")):
            data[at - begin : at - begin + 8] = place
        keys.append(data.decode())
    return keys


BEFORE = len(b"iggy-cloud-sources/2\0") + 4 + len(SOURCE) + 4 + len(BUCKET) + 4
ONE, OTHER = colliding_keys(BEFORE, [(b"baa", b"caa"), (b"caa", b"baa")])
PAIRS = [(bytes((60 + a, 60 + b, 97)), bytes((110 - a, 110 - b, 97))) for a in range(50) for b in range(20)]


def start_of(key, version="v1", **more):
    return OffsetManagerEntry(
        bucket=BUCKET, key=key, version=version, modified_ms=1000, topic_partition=PARTITION, **more
    )


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("version", ["v1", "d41d8cd98f00b204e9800998ecf8427e@1700000000000"])
def test_the_keys_of_these_tests_have_one_hash(version, generation):
    assert ONE != OTHER
    assert len({object_hash64(SOURCE, BUCKET, key, version, generation=generation) for key in (ONE, OTHER)}) == 1


def began(table, key):
    entry = start_of(key)
    return table.begin_first(entry.get_manager_key(), entry)


def read(key, entry, first, count):
    """The batch of some records, of which `entry` is the position behind them."""
    return RecordBatch(
        native=NativeObject(bucket=BUCKET, key=key, size=9, version=entry.version, modified_ms=1000),
        topic_partition=PARTITION,
        first_record=first,
        payloads=[b"x"] * count,
        size_bytes=count,
        entry=entry,
    )


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("flushed", [True, False])
def test_the_progress_of_one_object_never_counts_as_that_of_another(restarts, flushed):
    """One is read to its end, the other in part: once by the log alone, once by what a start finds in the partition."""
    server = MemoryIggy()
    session = session_of(server)
    session.open_partitions()
    one, other = (began(session.offsets.table, key) for key in (ONE, OTHER))
    assert entry_hash64(SOURCE, one) != entry_hash64(SOURCE, other)
    producer = session.producer()
    session.offsets.store_begun()
    for key, entry in ((OTHER, other.advanced(3)), (ONE, one.advanced(5, state=ObjectState.DONE))):
        sent = producer.send(PARTITION, [read(key, entry, 1, entry.records_done)]).result(60)
        if flushed:
            session.offsets.commit(sent)
    if flushed:
        session.offsets.flush()
    session.close()
    for _ in range(restarts):
        session = session_of(server)
        session.open_partitions()
        session.close()
    found = {entry.key: (entry.records_done, entry.total) for entry in loaded(server).positions.view()}
    if flushed or restarts:
        assert found == {ONE: (5, 5 if flushed else None), OTHER: (3, None)}


def test_the_splits_of_an_object_start_in_one_generation_that_is_free():
    table = OffsetManager(source=SOURCE).table
    table.begin(start_of(ONE, split_number=1, split_size=64), start_of(ONE, split_number=2, split_size=64))
    begun = table.begin(*(start_of(OTHER, split_number=number, split_size=64) for number in (1, 2, 3)))
    assert {entry.generation for entry in begun} == {2}
    assert [entry for entry in table.unsaved.begun if entry.key == OTHER] == begun
    assert [entry for entry in table.entries() if entry.key == OTHER] == begun


def test_an_object_that_starts_again_is_no_other_object():
    table = OffsetManager(source=SOURCE).table
    assert [entry.generation for _ in range(3) for entry in table.begin(start_of(ONE))] == [1, 1, 1]
    assert table.begin(*splits_of(3, generation=7))[0].generation == 7


def test_positions_of_before_count_and_those_whose_last_count_is_not_saved():
    pending = OffsetManager(source=SOURCE, positions=position_map([start_of(ONE)]))
    assert began(pending.table, OTHER).generation == 2
    manager = OffsetManager(source=SOURCE)
    done = began(manager.table, ONE).advanced(0, state=ObjectState.DONE)
    end = attrs.evolve(read(ONE, done, 1, 0), payloads=())
    manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(end,), anchor=None))
    manager.table._identities._prune_at = 0  # they are looked up anew
    assert began(manager.table, OTHER).generation == 2
    assert began(manager.table, ONE) is None


def test_of_many_objects_with_one_hash_each_finds_its_generation_at_once(monkeypatch):
    asked = []
    monkeypatch.setattr(id_hashes, "entry_hash64", lambda *what: asked.append(what) or entry_hash64(*what))
    table = OffsetManager(source=SOURCE).table
    keys = colliding_keys(BEFORE, PAIRS)
    begun = [began(table, key) for key in keys]
    assert len({object_hash64(SOURCE, BUCKET, key, "v1") for key in keys}) == 1
    assert len({entry_hash64(SOURCE, entry) for entry in begun}) == len(keys) == 1000
    assert len(asked) < 2 * len(keys)


def test_of_many_finished_objects_with_one_hash_each_is_found_at_once(monkeypatch):
    """Whoever chooses keys does not know the secret of this process."""
    head = struct.Struct("<II").size
    keys = colliding_keys(head, PAIRS)
    assert len({xxhash.xxh3_64_intdigest(bytes(head) + key.encode()) for key in keys}) == 1
    monkeypatch.setattr(FinishedTable, "_block_rows", 10)
    positions = position_map(start_of(key, records_done=1, records_saved=1, total=1) for key in keys)
    hashes = [number >> 32 for number in positions._finished._numbers]
    assert len(set(hashes)) > len(keys) - 10
    assert all(positions.find(start_of(key).get_manager_key()) is not None for key in keys)


def test_a_position_that_is_set_by_hand_gets_no_hash_of_another_object():
    positions = position_map([start_of(ONE, generation=2), start_of(OTHER, records_done=4, records_saved=4, total=4)])
    state = LogState(source=SOURCE, positions=positions)
    _set(state, SetPosition(key=OTHER, records=0))
    found = {entry.key: entry for entry in state.positions.view()}
    assert (found[OTHER].records_saved, found[OTHER].generation) == (0, 3)
    assert entry_hash64(SOURCE, found[ONE]) != entry_hash64(SOURCE, found[OTHER])


def test_the_objects_in_progress_are_looked_through_seldom(monkeypatch):
    monkeypatch.setattr(id_hashes, "PRUNE_FROM", 3)
    in_progress, looks = [], []
    known = Identities(SOURCE, lambda: looks.append(len(in_progress)) or in_progress)
    for number in range(100):
        begun = known.take(start_of(f"{number}"))
        in_progress.append(begun)
    assert len(looks) < 10


def test_the_hashes_of_ended_objects_do_not_accumulate(monkeypatch):
    monkeypatch.setattr(id_hashes, "PRUNE_FROM", 3)
    in_progress = []
    known = Identities(SOURCE, lambda: in_progress)
    for number in range(3):
        known.take(start_of(f"{number}"))
        assert len(known._objects) == number + 1
    in_progress.append(start_of("2"))
    known.take(start_of("3"))
    assert {key for _, key in known._objects.values()} == {"2", "3"}
    assert known.take(start_of(ONE)).generation == 1
    in_progress.append(start_of(ONE))
    assert known.take(start_of(OTHER)).generation == 2
    table = OffsetManager(source=SOURCE).table
    for number in range(20):
        entry = began(table, f"{number}")
        table.put(entry.get_manager_key(), entry.changed(total=0))
        table.unsaved.changed.clear()
    assert len(table._identities._objects) <= 3
