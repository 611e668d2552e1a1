"""Archived objects: left out with their class named, or waited for without holding anything up."""

import pytest

from framework.errors import ObjectArchivedError
from framework.model.objects import ObjectState
from framework.offsets.manager import OffsetManager
from framework.testing.fakes.memory_store import MemoryStore
from tests.support.core import drain, iterator_over, lines, next_pass, payloads, put_lines


def archived_store(storage_class="GLACIER"):
    store = MemoryStore()
    put_lines(store, "a", 3)
    store.put("cold", b'{"n":1}\n', storage_class=storage_class)
    put_lines(store, "z", 2)
    return store


def refuse(store, times=None):
    return store.fail(
        "open",
        ObjectArchivedError("it must be restored first", location="memory://bucket/cold"),
        key="cold",
        times=times,
    )


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_a_listed_archive_class_costs_no_request_and_is_counted_by_name(storage_class):
    store = archived_store(storage_class)
    iterator = iterator_over(store, once=True)
    assert payloads(drain(iterator)) == {"a": lines("a", 3), "z": lines("z", 2)}
    assert iterator.feed.counts.filtered == {f"archived ({storage_class})": 1}
    assert store.count("open", "cold") == 0
    assert iterator.finished


@pytest.mark.parametrize("tolerance", ["none", "skip_record", "skip_object"])
def test_a_class_that_only_a_read_tells_is_left_out_by_name_whatever_the_tolerance(tolerance, caplog):
    store = archived_store("INTELLIGENT_TIERING")
    refuse(store)
    iterator = iterator_over(store, once=True, tolerance=tolerance, max_bad_records_per_hour=0)
    batches = drain(iterator)
    assert {key: some for key, some in payloads(batches).items() if some} == {"a": lines("a", 3), "z": lines("z", 2)}
    (left,) = [batch for batch in batches if batch.native.key == "cold"]
    assert left.entry.state is ObjectState.FAILED
    assert "storage class INTELLIGENT_TIERING" in str(left.failure.error)
    assert iterator.statistics.kinds == {"ObjectArchivedError": 1}
    assert "INTELLIGENT_TIERING" in caplog.text


@pytest.mark.parametrize("storage_class", ["GLACIER", "INTELLIGENT_TIERING"])
def test_waited_for_it_is_tried_each_listing_said_once_and_read_once_restored(storage_class, caplog):
    store = archived_store(storage_class)
    refuse(store, times=3)
    offsets = OffsetManager()
    iterator = iterator_over(store, offsets, archived="wait", poll_interval=3600)
    found = drain(iterator)
    while store.count("open", "cold") < 3:
        next_pass(iterator)
        found += drain(iterator)
    assert payloads(found) == {"a": lines("a", 3), "z": lines("z", 2)}
    for batch in found:
        offsets.add_entry(batch.entry)
    assert iterator.statistics.archived == 3
    assert caplog.text.count("is archived") == 1
    assert storage_class in caplog.text
    next_pass(iterator)
    assert payloads(drain(iterator)) == {"cold": [b'{"n":1}']}


def test_one_complete_listing_does_not_wait_for_it():
    store = archived_store()
    refuse(store)
    iterator = iterator_over(store, once=True, archived="wait")
    assert payloads(drain(iterator)) == {"a": lines("a", 3), "z": lines("z", 2)}
    assert iterator.finished
    assert store.count("open", "cold") == 1


def test_one_that_is_archived_again_in_the_middle_goes_on_from_its_position():
    store = MemoryStore()
    put_lines(store, "cold", 4000)
    store.largest_read = 1000
    store.fail(
        "read", ObjectArchivedError("it must be restored first", location="memory://bucket/cold"), key="cold", at=40_000
    )
    offsets = OffsetManager()
    iterator = iterator_over(store, offsets, archived="wait", poll_interval=3600, batch_length=100, prefetch_objects=1)
    found = drain(iterator)
    assert 0 < sum(len(batch.payloads) for batch in found) < 4000
    for batch in found:
        offsets.add_entry(batch.entry)
    next_pass(iterator)
    more = drain(iterator)
    assert payloads([*found, *more]) == {"cold": lines("cold", 4000)}


def test_in_mode_keys_it_is_waited_for_too(tmp_path):
    store = archived_store()
    refuse(store, times=2)
    keys = tmp_path / "keys.txt"
    keys.write_text("a\ncold\nz\n")
    offsets = OffsetManager()
    iterator = iterator_over(store, offsets, mode="keys", keys=str(keys), archived="wait", poll_interval=3600)
    found = []
    while not any(batch.native.key == "cold" for batch in found):
        next_pass(iterator)
        found += drain(iterator)
        for batch in found:
            offsets.add_entry(batch.entry)
    assert payloads(found)["cold"] == [b'{"n":1}']
    assert store.count("open", "cold") == 3
