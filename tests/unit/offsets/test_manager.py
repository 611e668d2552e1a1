"""A manager of positions that forgets nothing and never goes back."""

import contextlib
import threading

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import NotAcknowledgedError, StoreUnavailableError
from framework.model.batches import Acknowledgement
from framework.model.positions import OffsetManagerKey
from framework.offsets.listing_hints import ListingHints
from framework.offsets.manager import OffsetManager, StartFacts
from framework.offsets.offset_store import MemoryOffsetStore, PositionDelta
from framework.offsets.partition_counts import PartitionState
from framework.offsets.selection_scope import SelectionScope
from tests.support.entries import (
    KEY,
    PARTITION,
    BrokenStore,
    acknowledge,
    anchor_at,
    batch,
    ended,
    entry,
    splits_of,
)


def test_a_commit_moves_the_position_and_a_flush_writes_it_once():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(2), 2), batch(entry(3)), offset=2))
    assert manager.dirty
    delta = manager.flush()
    assert [(position.records_done, position.records_saved) for position in delta.entries] == [(3, 3)]
    assert delta.anchors == {PARTITION: anchor_at(2)}
    assert not manager.dirty
    assert not manager.flush()
    assert len(store.saved) == 1


def test_a_manager_has_what_the_start_knows():
    known = StartFacts(known_topics=["t"])
    assert OffsetManager(facts=known).facts is known
    assert OffsetManager().facts == StartFacts()


@given(st.permutations([1, 2, 3, 4, 5]))
def test_positions_never_go_back(order):
    manager = OffsetManager()
    for offset, records in enumerate(order):
        manager.commit(acknowledge(batch(entry(records)), offset=offset))
    assert manager.get_entry(KEY).records_done == 5


def test_what_is_confirmed_of_an_earlier_generation_moves_nothing():
    manager = OffsetManager()
    manager.add_entry(entry(0, generation=2, version="v2"))
    manager.commit(acknowledge(batch(entry(9, generation=1), 9), offset=8))
    assert manager.get_entry(KEY) == entry(0, generation=2, version="v2")


def test_what_could_not_be_saved_is_saved_the_next_time():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(1))))
    store.failures = 1
    store.during = lambda: manager.add_entry(entry(0, key="meanwhile"))
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    assert manager.dirty
    manager.flush()
    assert {position.key: position.records_done for position in store.load()} == {"k": 1, "meanwhile": 0}


def test_what_could_not_be_saved_does_not_hide_what_was_committed_meanwhile():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(1)), offset=0))
    store.failures = 1
    store.during = lambda: manager.commit(acknowledge(batch(entry(2)), offset=1))
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    manager.flush()
    assert store.entries[KEY].records_done == 2
    assert store.anchors[PARTITION].offset == 1


def test_a_position_removed_while_a_save_failed_stays_removed():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(1))))
    store.failures = 1
    store.during = lambda: manager.remove_entry(KEY)
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    manager.flush()
    assert store.entries == {}


def test_a_position_removed_and_begun_again_begins_again_in_the_store_too():
    store = MemoryOffsetStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(9), 9), offset=8))
    manager.flush()
    manager.remove_entry(KEY)
    manager.add_entry(entry(1, generation=manager.table.next_generation(KEY)))
    manager.flush()
    assert (store.entries[KEY].records_done, store.entries[KEY].generation) == (1, 2)


def test_removing_takes_a_key_or_a_position_and_minds_nothing_that_is_not_there():
    store = MemoryOffsetStore()
    manager = OffsetManager(store)
    manager.remove_entry(KEY)
    assert not manager.dirty
    manager.add_entry(entry(1))
    manager.add_entry(entry(1, key="other"))
    manager.flush()
    manager.remove_entry(entry(1))
    manager.remove_entry(OffsetManagerKey.of_object("b", "other"))
    manager.flush()
    assert (len(manager.table), store.entries) == (0, {})


def test_removing_an_object_removes_all_its_splits_also_those_that_are_not_stored_yet():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entry(*splits_of(3))
    manager.remove_entry(KEY)
    delta = manager.flush()
    assert (len(manager.table), len(store.entries), delta.removed) == (0, 0, [KEY])
    assert all(not saved.begun for saved in store.saved)


def test_loading_in_bulk_keeps_of_each_position_the_one_that_is_further():
    store = MemoryOffsetStore()
    store.save(PositionDelta(entries=[entry(5), entry(2, key="other"), entry(9, key="third")]))
    manager = OffsetManager(store)
    manager.add_entry(entry(3))
    manager.add_entry(entry(4, key="other"))
    manager.add_entry(entry(1, key="third", generation=2, version="v2"))
    manager.populate_offset_manager([KEY])
    assert {one.key: one.records_done for one in manager.table.entries()} == {"k": 5, "other": 4, "third": 1}
    manager.populate_offset_manager()
    assert {one.key: one.records_done for one in manager.table.entries()} == {"k": 5, "other": 4, "third": 1}


def test_of_some_keys_only_their_positions_are_loaded():
    store = MemoryOffsetStore()
    store.save(PositionDelta(entries=[entry(5), entry(2, key="other")]))
    manager = OffsetManager(store)
    manager.populate_offset_manager([KEY, entry(0, key="unknown").get_manager_key()])
    assert list(manager.table.entries()) == [entry(5)]
    manager.populate_offset_manager()
    assert len(list(manager.table.entries())) == 2


def test_positions_are_loaded_in_batches_between_which_other_threads_get_the_lock(monkeypatch):
    monkeypatch.setattr("framework.offsets.manager.LOAD_BATCH", 2)
    taken = []

    class Watched(MemoryOffsetStore):
        def load(self, keys=None):
            for one in super().load(keys):
                taken.append(len(manager.table))
                yield one

    store = Watched()
    store.save(PositionDelta(entries=[entry(1, key=f"k{number}") for number in range(5)]))
    manager = OffsetManager(store)
    manager.populate_offset_manager()
    assert taken == [0, 0, 2, 2, 4]


def test_records_without_a_confirmed_message_are_not_committed():
    manager = OffsetManager()
    with pytest.raises(NotAcknowledgedError):
        manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(batch(entry(1)),), anchor=None))
    assert manager.get_entry(KEY) is None


@pytest.mark.parametrize("hold_back", [0, 5])
def test_an_end_without_records_is_committed_without_a_message(hold_back):
    manager = OffsetManager()
    manager.partitions.open(PARTITION, PartitionState(hold_back=hold_back))
    end = attrs.evolve(batch(ended(0), 0), payloads=())
    manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(end,), anchor=None))
    assert manager.get_entry(KEY).final  # nothing of it can be lost


# ---- begun first


def test_what_begins_is_stored_by_one_append_and_only_once():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.store_begun()
    assert store.saved == []
    manager.add_entry(entry())
    manager.add_entry(*splits_of(3, key="split"))
    assert manager.dirty
    manager.store_begun()
    manager.store_begun()
    assert [[(one.key, one.split_number) for one in saved.begun] for saved in store.saved] == [
        [("k", 0), ("split", 1), ("split", 2), ("split", 3)]
    ]
    assert not manager.dirty


def test_a_beginning_that_could_not_be_stored_is_stored_before_the_next_send():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entry(entry())
    store.failures = 1
    store.during = lambda: manager.add_entry(entry(key="meanwhile"))
    with pytest.raises(StoreUnavailableError):
        manager.store_begun()
    store.during = lambda: None
    assert manager.dirty
    manager.store_begun()
    assert [one.key for one in store.saved[0].begun] == ["k", "meanwhile"]


def test_progress_is_never_written_before_the_beginning_that_it_is_about():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entry(entry())
    manager.commit(acknowledge(batch(entry(1))))
    manager.flush()
    assert [(len(saved.begun), len(saved.entries)) for saved in store.saved] == [(1, 0), (0, 1)]


class SlowBeginnings(MemoryOffsetStore):
    """Takes its time over the first beginning; notes which calls overlap."""

    def __init__(self):
        super().__init__()
        self.begins = threading.Event()
        self.go_on = threading.Event()
        self.events = []

    def begin(self, delta):
        self.events.append(("begin", [one.key for one in delta.begun]))
        self.begins.set()
        assert self.go_on.wait(10)
        super().begin(delta)
        self.events.append(("begun", [one.key for one in delta.begun]))

    def save(self, delta):
        if not delta.begun:
            self.events.append(("save", [one.key for one in delta.entries]))
        super().save(delta)


@pytest.mark.parametrize("second", ["store_begun", "flush"])
def test_while_one_thread_stores_what_began_nobody_else_sends_or_saves(second):
    """The listing's thread stores what began, and the sending thread must not overtake it: it would find nothing to store."""
    store = SlowBeginnings()
    manager = OffsetManager(store)
    manager.add_entry(entry())
    manager.commit(acknowledge(batch(entry(1, key="old"))))
    lister = threading.Thread(target=manager.store_begun)
    lister.start()
    assert store.begins.wait(10)
    done = threading.Event()

    def send():
        getattr(manager, second)()
        done.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert not done.wait(0.05)
    assert store.events == [("begin", ["k"])]
    store.go_on.set()
    assert done.wait(10)
    lister.join()
    sender.join()
    assert store.events[:2] == [("begin", ["k"]), ("begun", ["k"])]
    assert KEY in store.entries


class CheckedStore(MemoryOffsetStore):
    """Notices two threads in it."""

    def __init__(self):
        super().__init__()
        self.inside = threading.Lock()
        self.together = 0

    def save(self, delta):
        if not self.inside.acquire(blocking=False):
            self.together += 1
            return
        try:
            threading.Event().wait(0.0005)
            super().save(delta)
        finally:
            self.inside.release()


def test_a_store_is_asked_by_one_thread_at_a_time():
    store = CheckedStore()
    manager = OffsetManager(store)

    def list_objects():
        for number in range(100):
            manager.add_entry(entry(key=f"new-{number}"))
            manager.store_begun()

    lister = threading.Thread(target=list_objects)
    lister.start()
    for number in range(1, 101):
        manager.commit(acknowledge(batch(entry(number)), offset=number))
        manager.flush()
    lister.join()
    manager.flush()
    assert store.together == 0
    assert len(store.entries) == 101


def test_progress_of_an_object_that_is_removed_is_not_saved_any_more():
    store = MemoryOffsetStore()
    manager = OffsetManager(store)
    splits = splits_of(2)
    manager.add_entry(*splits)
    manager.flush()
    for at, one in enumerate(splits):
        manager.commit(acknowledge(batch(one.changed(records_done=1)), offset=at))
    manager.remove_entry(KEY)
    delta = manager.flush()
    assert (list(delta.entries), list(delta.removed)) == ([], [KEY])
    assert list(store.load()) == []


# ---- saves that fail


class RestlessStore(MemoryOffsetStore):
    """Fails when told; while it saves, the rest of the world acts."""

    def __init__(self):
        super().__init__()
        self.fails = False
        self.meanwhile = lambda: None
        self.begun = set()
        self.skipped, self.selected = 0, None

    def save(self, delta):
        self.meanwhile()
        if self.fails:
            raise StoreUnavailableError("away")
        self.begun |= {one.generation for one in delta.begun}
        self.skipped += delta.skipped
        self.selected = delta.selected or self.selected
        super().save(delta)


class World:
    """What a manager is told, and by a plain model what a store must have in the end."""

    def __init__(self, hold_back):
        self.hold_back = hold_back
        self.store = RestlessStore()
        self.manager = OffsetManager(self.store)
        self.manager.partitions.open(PARTITION, PartitionState(hold_back=hold_back))
        self.positions, self.hints = {}, {}
        self.skipped, self.scope, self.offset, self.generation = 0, None, 0, 0

    def act(self, kind, name, number):
        key = OffsetManagerKey.of_object("b", name)
        if kind == "begin":
            self.generation += 1
            begun = (
                splits_of(number, key=name, generation=self.generation)
                if number > 1
                else [entry(key=name, generation=self.generation)]
            )
            self.forget(name)
            self.positions |= {(name, one.split_number): one for one in begun}
            self.manager.add_entry(*begun)
        elif kind == "commit":
            position = self.positions.get((name, number)) or self.positions.get((name, 0))
            if position is not None and position.generation in self.store.begun:  # nothing is sent before
                position = position.changed(records_done=position.records_done + number)
                self.positions[name, position.split_number] = position
                self.offset += number
                self.manager.commit(acknowledge(batch(position, number), offset=self.offset))
        elif kind == "remove":
            self.forget(name)
            self.manager.remove_entry(key)
        elif kind == "hint":
            self.hints[name] = ListingHints(of=str(number))
            self.manager.hints.set(name, self.hints[name])
        elif kind == "skip":
            self.skipped += number
            self.manager.table.count_skipped(number)
        elif kind == "select":
            self.scope = SelectionScope(bucket="b", prefixes=(name * number,), options={})
            self.manager.selection.bind(self.scope)

    def forget(self, name):
        self.positions = {place: one for place, one in self.positions.items() if place[0] != name}

    def save(self, how, *, fails, meanwhile=()):
        """Save what began, or everything; while the store works on it, these things happen."""
        waiting = list(meanwhile)

        def act_once():
            while waiting:
                self.act(*waiting.pop(0))

        self.store.fails, self.store.meanwhile = fails, act_once
        with contextlib.suppress(StoreUnavailableError):
            getattr(self.manager, how)()
        act_once()

    def check(self):
        self.save("flush", fails=False)
        assert not self.manager.dirty
        stored = {(one.key, one.split_number): one for one in self.store.load()}
        assert {place: one.changed(records_saved=0) for place, one in stored.items()} == self.positions
        assert stored == {(one.key, one.split_number): one for one in self.manager.table.entries()}
        assert (self.store.listings, self.store.skipped, self.store.selected) == (self.hints, self.skipped, self.scope)
        last = {PARTITION: anchor_at(self.offset)} if self.offset else {}
        assert self.manager.partitions.ends() == last
        assert self.hold_back or self.store.anchors == last


acts = st.tuples(
    st.sampled_from(["begin", "commit", "commit", "remove", "hint", "skip", "select"]),
    st.sampled_from("xy"),
    st.integers(1, 3),
)
rounds = st.tuples(
    st.lists(acts, max_size=4), st.sampled_from(["store_begun", "flush"]), st.booleans(), st.lists(acts, max_size=3)
)


@settings(deadline=None)
@given(st.sampled_from([0, 2]), st.lists(rounds, max_size=6))
def test_whichever_saves_fail_and_whatever_happens_meanwhile_the_store_has_all_in_the_end(hold_back, some):
    world = World(hold_back)
    for before, how, fails, meanwhile in some:
        for act in before:
            world.act(*act)
        world.save(how, fails=fails, meanwhile=meanwhile)
    world.check()


def test_a_version_that_begins_during_a_flush_takes_no_count_from_its_anchor():
    """Otherwise a crash would leave the anchor behind messages that no saved count covers."""

    class Meanwhile(MemoryOffsetStore):
        def __init__(self):
            super().__init__()
            self.saved = []

        def begin(self, delta):
            super().begin(delta)
            manager.add_entry(entry(version="v2", generation=2))  # the reader's thread

        def save(self, delta):
            self.saved.append(delta)
            super().save(delta)

    store = Meanwhile()
    manager = OffsetManager(store)
    manager.add_entry(entry())
    manager.commit(acknowledge(batch(entry(3)), offset=7))
    manager.flush()
    delta = store.saved[-1]
    assert [(one.version, one.records_done) for one in delta.entries] == [("v1", 3)]
    assert delta.anchors == {PARTITION: anchor_at(7)}


def test_when_positions_cannot_begin_the_rest_of_a_flush_stays_unsaved():
    class NoBegin(MemoryOffsetStore):
        def begin(self, delta):
            raise StoreUnavailableError("away")

    manager = OffsetManager(NoBegin())
    manager.add_entry(entry())
    manager.commit(acknowledge(batch(entry(3)), offset=7))
    manager.table.count_skipped(2)
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    assert manager.dirty
    assert [one.version for one in manager.table.unsaved.begun] == ["v1"]
    manager._store = MemoryOffsetStore()
    delta = manager.flush()
    assert [(one.version, one.records_done) for one in delta.entries] == [("v1", 3)]
    assert (delta.anchors, delta.skipped) == ({PARTITION: anchor_at(7)}, 2)
