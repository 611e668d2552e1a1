"""The iterator: resumable, reading ahead in order and in bounds, coming back to life, and what becomes of bad input."""

import gzip
import itertools
import threading
import time

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.errors import (
    AccessDeniedError,
    CorruptObjectError,
    ListingError,
    ObjectChangedError,
    ObjectNotFoundError,
    RecordError,
    StoreUnavailableError,
    TaskClosedError,
    TooManySkippedError,
    TruncatedObjectError,
)
from framework.model.objects import ObjectState, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, canonical_options
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.offsets.position_map import position_map
from framework.pipeline import read_ahead
from framework.storage.listing.listing import ListingRequest
from framework.store import ListPage
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.transformer import InputOptions
from tests.support.core import commit, drain, iterator_over, lines, next_pass, payloads, put_lines, store_of
from transformers.jsonl import JsonlTransformer

JSONL = canonical_options(JsonlTransformer(InputOptions(format="jsonl")).numbering_options())


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However busy the machine is, all objects of a page are opened ahead."""
    monkeypatch.setattr(read_ahead, "FILL_SECONDS", 60.0)


@pytest.fixture
def over():
    """Iterators that are closed at the end."""
    made = []

    def make(store, offsets=None, **options):
        iterator = iterator_over(store, offsets, **options)
        made.append(iterator)
        return iterator

    yield make
    for iterator in made:
        iterator.close()


# ---- coming back to life


def test_an_empty_store_gives_nothing_then_stops(over):
    iterator = over(MemoryStore(), poll_interval=0.01)
    assert iterator.next_batch() is None
    with pytest.raises(StopIteration):
        next(iterator)
    assert not iterator.finished


def test_exhausted_twice_then_a_third_object_appears_and_is_read(over):
    store = store_of(a=3, b=2)
    iterator = over(store)
    assert [record.payload for record in iterator] == lines("a", 3) + lines("b", 2)
    for _ in range(2):
        next_pass(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
    put_lines(store, "c", 2)
    next_pass(iterator)
    assert [record.payload for record in iterator] == lines("c", 2)
    assert store.count("open") == 3


def test_write_four_read_four_write_two_restart_and_only_two_more(over):
    store, kept = MemoryStore(), MemoryOffsetStore()
    for name in "abcd":
        put_lines(store, name, 3)
    offsets = OffsetManager(kept)
    first = over(store, offsets)
    batches = drain(first)
    assert list(payloads(batches)) == list("abcd")
    commit(offsets, batches)
    first.close()
    put_lines(store, "aa", 3)
    put_lines(store, "e", 3)
    store.calls.clear()
    again = OffsetManager(kept)
    again.populate_offset_manager()
    assert payloads(drain(over(store, again))) == {"aa": lines("aa", 3), "e": lines("e", 3)}
    assert store.count("open") == 2


def test_every_listing_asks_for_every_page_once(over):
    store = store_of(a=1, b=1, c=1)
    iterator = over(store, task=MemorySourceTask(store, page_size=2))
    drain(iterator)
    assert (store.count("list_page"), iterator.statistics.list_requests) == (2, 2)


# ---- positions


def test_record_numbers_and_positions_count_records_done(over):
    iterator = over(store_of(a=7), batch_length=3)
    batches = drain(iterator)
    assert [(batch.first_record, batch.last_record, batch.entry.records_done) for batch in batches] == [
        (1, 3, 3),
        (4, 6, 6),
        (7, 7, 7),
    ]
    assert [batch.entry.state for batch in batches] == [ObjectState.READING, ObjectState.READING, ObjectState.DONE]


def test_the_last_batch_carries_the_end_also_when_it_is_full(over):
    batches = drain(over(store_of(a=6), batch_length=3))
    assert [batch.entry.state for batch in batches] == [ObjectState.READING, ObjectState.DONE]


def test_an_object_without_records_is_done_too(over):
    store = MemoryStore()
    store.put("blank", b"\n\n \n")
    (batch,) = drain(over(store))
    assert (len(batch.payloads), batch.last_record, batch.entry.state) == (0, 0, ObjectState.DONE)


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    length=st.integers(1, 5),
    again=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_reading_goes_on_after_any_batch_where_it_was(counts, length, again, data):
    store = MemoryStore()
    for number, count in enumerate(counts):
        store.put(f"k{number}", b"\n".join([b"", *lines(f"k{number}", count), b""]))
    whole = iterator_over(store, batch_length=length)
    batches = drain(whole)
    whole.close()
    cut = data.draw(st.integers(0, len(batches)))
    offsets = OffsetManager()
    commit(offsets, batches[:cut])
    rest = iterator_over(store, offsets, batch_length=again)
    everything = payloads(batches[:cut] + drain(rest))
    rest.close()
    assert everything == {f"k{number}": lines(f"k{number}", count) for number, count in enumerate(counts)}


def test_records_that_are_in_the_topic_are_not_read_again(over):
    store = store_of(a=5)
    offsets = OffsetManager()
    (native,) = store.list_all()
    begun = OffsetManagerEntry.start(native, TopicPartition("records", 0), JSONL)
    offsets.add_entry(begun.changed(total=5).recovered(3))
    batches = drain(over(store, offsets))
    assert payloads(batches) == {"a": lines("a", 2, first=4)}
    assert batches[-1].entry.finished


def handed(store, entry, times):
    (native,) = store.list_all()
    feed = AssignedFeed([Assignment(native=native, entry=entry)] * times)
    feed.close()
    return feed


@pytest.mark.parametrize("stale", [0, 2])
def test_a_position_that_is_handed_out_twice_sends_nothing_twice(over, stale):
    """A leader that has not read what its worker saved hands out what it knows."""
    store = store_of(a=5)
    (native,) = store.list_all()
    offsets = OffsetManager()
    entry = OffsetManagerEntry.start(native, TopicPartition("records", 0), JSONL)
    iterator = over(store, offsets, feed=handed(store, entry.changed(records_done=stale), 1), batch_length=2)
    first = drain(iterator)
    commit(offsets, first)
    again = drain(over(store, offsets, feed=handed(store, entry.changed(records_done=stale), 2), batch_length=2))
    assert payloads(first)["a"] == lines("a", 5 - stale, first=stale + 1)
    assert payloads(again) == {"a": []}
    assert all(batch.entry.records_done == 5 and batch.entry.finished for batch in again)


def test_a_leader_that_knows_of_more_than_there_is_skips_nothing(over):
    """A killed server forgot a tail; this worker has looked, and its leader has not read of it yet."""
    store = store_of(a=5)
    (native,) = store.list_all()
    entry = OffsetManagerEntry.start(native, TopicPartition("records", 0), JSONL)
    offsets = OffsetManager(positions=position_map([entry.recovered(1)]))
    feed = handed(store, entry.changed(records_done=4), 1)
    assert payloads(drain(over(store, offsets, feed=feed))) == {"a": lines("a", 4, first=2)}


def test_single_records_know_where_they_come_from(over):
    records = list(over(store_of(a=2)))
    assert [(record.native.key, record.record_number, record.payload) for record in records] == [
        ("a", 1, lines("a", 1)[0]),
        ("a", 2, lines("a", 1, first=2)[0]),
    ]


def test_asking_changes_nothing(over):
    iterator = over(store_of(a=3, b=3), batch_length=2)
    seen = []
    for _ in range(10):
        for _ in range(3):
            _ = (iterator.finished, iterator.seconds_until_due, repr(iterator), attrs.asdict(iterator.statistics))
        batch = iterator.next_batch()
        if batch is not None:
            seen.append(batch)
    assert payloads(seen) == {"a": lines("a", 3), "b": lines("b", 3)}


# ---- reading ahead


def test_objects_read_ahead_come_out_in_order_whoever_is_ready_first(over):
    store = store_of(**{f"k{number}": 3 for number in range(10)})
    others = threading.Semaphore(0)

    def hold_the_first(call):
        if call.name == "open":
            if call.key == "k0":
                for _ in range(4):
                    assert others.acquire(timeout=60)
            else:
                others.release()

    store.on_call = hold_the_first
    iterator = over(store, prefetch_objects=5)
    assert list(payloads(drain(iterator))) == [f"k{number}" for number in range(10)]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_no_more_objects_are_open_than_allowed(over, ahead):
    store = store_of(**{f"k{number:02}": 3 for number in range(20)})
    iterator = over(store, prefetch_objects=ahead)
    iterator.next_batch()
    assert store.count("open") <= ahead + 1
    drain(iterator)
    assert (store.count("open"), store.open_streams) == (20, 0)


def test_an_eighth_of_the_objects_ahead_is_opened_at_a_time(over):
    store = store_of(**{f"k{number:02}": 3 for number in range(21)})
    iterator = over(store, prefetch_objects=16)
    opened = []
    while iterator.next_batch() is not None:
        opened.append(iterator.statistics.objects_opened)
    assert opened == [16, 18, 18, 20, 20, *[21] * 16]


def test_what_is_fetched_ahead_is_bounded_in_bytes(over):
    store = MemoryStore()
    size = 700_000
    for number in range(8):
        store.put(f"k{number}", (b'{"n":"' + b"x" * 90 + b'"}\n') * (size // 99))
    iterator = over(store, prefetch_objects=8, prefetch_bytes=2_000_000)
    largest = 0
    while (batch := iterator.next_batch()) is not None:
        largest = max(largest, iterator._ahead._prefetcher._budget.used)
        assert batch.payloads
    assert 0 < largest <= 2_000_000
    assert iterator._ahead._prefetcher._budget.used == 0


def test_a_failure_while_reading_ahead_is_raised_after_what_stands_before_it(over):
    store = store_of(a=3, b=3, c=3)
    store.fail("open", AccessDeniedError("no"), key="b")
    iterator = over(store)
    assert payloads([iterator.next_batch()]) == {"a": lines("a", 3)}
    with pytest.raises(AccessDeniedError):
        iterator.next_batch()


def test_a_failure_of_the_listing_is_raised_after_the_objects_before_it(over):
    store = store_of(**{f"k{number}": 3 for number in range(5)})
    store.fail("list_page", AccessDeniedError("no"), skip=1)
    iterator = over(store, task=MemorySourceTask(store, page_size=2))
    read = [iterator.next_batch() for _ in range(2)]
    assert payloads(read) == {"k0": lines("k0", 3), "k1": lines("k1", 3)}
    with pytest.raises(AccessDeniedError):
        iterator.next_batch()


@pytest.mark.parametrize("batches", [1, 3])
def test_objects_that_were_found_wait_for_no_listing_that_finds_few(over, monkeypatch, batches):
    """A bucket of millions of finished objects and some new ones: the first new one came after the whole listing."""
    monkeypatch.setattr(read_ahead, "FILL_SECONDS", 0.02)
    store = MemoryStore()
    for number in range(batches):
        put_lines(store, f"a{number}", 3)
    for number in range(300):
        store.put(f"b{number:03}.tmp", b"x")
    put_lines(store, "c", 3)

    def slow(call):
        if call.name == "list_page":
            time.sleep(0.01)

    store.on_call = slow
    iterator = over(store, task=MemorySourceTask(store, page_size=2), exclude=["*.tmp"])
    for number in range(batches):
        assert payloads([iterator.next_batch()]) == {f"a{number}": lines(f"a{number}", 3)}
        assert iterator.statistics.list_requests < 150
    assert payloads([iterator.next_batch()]) == {"c": lines("c", 3)}
    assert iterator.next_batch() is None


def test_a_name_without_a_partition_is_raised_after_the_objects_before_it(over):
    store = store_of(**{"0.jsonl": 3, "1.jsonl": 3, "7.jsonl": 3, "9.jsonl": 3})
    options = {"template": "{{partition}}.jsonl", "distribution": "partition", "partitions": 2}
    iterator = over(store, **options)
    read = [iterator.next_batch() for _ in range(2)]
    assert list(payloads(read)) == ["0.jsonl", "1.jsonl"]
    with pytest.raises(Exception, match=r"7\.jsonl.*partition 7"):
        iterator.next_batch()


def test_closing_frees_everything_and_may_be_done_twice(over):
    store = store_of(**{f"k{number}": 3 for number in range(6)})
    iterator = over(store, batch_length=2)
    iterator.next_batch()
    iterator.close()
    iterator.close()
    with pytest.raises(TaskClosedError):
        iterator.next_batch()
    pool = iterator._ahead._prefetcher._pool
    pool.shutdown()
    for thread in pool._threads:
        thread.join()
    iterator._current.close()
    assert store.open_streams == 0


# ---- bad records and objects

GOOD, BAD = b'{"good":%d}', b"not json"


def mixed(store, name, *kinds):
    rows = [BAD if kind == "-" else GOOD % number for number, kind in enumerate(kinds, 1)]
    store.put(name, b"\n".join(rows) + b"\n")


def test_with_no_tolerance_the_bad_record_is_raised_after_the_good_ones_before_it(over):
    store = MemoryStore()
    mixed(store, "a", *"++-+")
    iterator = over(store, tolerance="none")
    batch = iterator.next_batch()
    assert (list(batch.payloads), batch.entry.records_done) == ([GOOD % 1, GOOD % 2], 2)
    with pytest.raises(RecordError, match=r"memory://bucket/a, record 3"):
        iterator.next_batch()


class OpensLate(JsonlTransformer):
    """As formats are that begin at the end: nothing is fetched ahead, each stream is the store's own."""

    reads_forward = False


def test_a_bad_record_that_ends_it_leaves_no_stream_open_while_its_error_is_kept(over):
    store = MemoryStore()
    store.put("a", b"1\nbad\n" + b"2\n" * 100)
    iterator = over(store, batch_length=1)
    iterator.transformer = OpensLate(InputOptions(format="jsonl"))
    with pytest.raises(RecordError) as kept:
        drain(iterator)
    assert kept.value.__traceback__ is not None
    assert store.open_streams == 0


def test_a_skipped_record_keeps_its_number_and_travels_with_what_follows(over):
    store = MemoryStore()
    mixed(store, "a", *"+--+-")
    batches = drain(over(store, tolerance="skip_record"))
    assert [number for batch in batches for number in range(batch.first_record, batch.last_record + 1)] == [1, 4]
    skipped = [skip.record_number for batch in batches for skip in batch.skipped]
    assert skipped == [2, 3, 5]
    assert batches[-1].entry.records_done == 5
    assert batches[-1].entry.state is ObjectState.DONE


def test_how_many_records_were_skipped_stands_in_the_position(over):
    store = MemoryStore()
    mixed(store, "a", *"+--+++-")
    batches = drain(over(store, tolerance="skip_record", batch_length=2))
    assert [batch.entry.skipped for batch in batches] == [0, 2, 2, 3]


def test_the_limit_of_skipped_records_counts_those_of_earlier_lives(over):
    store, offsets = MemoryStore(), OffsetManager()
    mixed(store, "a", *"+--+-+")
    options = {"tolerance": "skip_record", "batch_length": 1, "max_bad_records": 2}
    first = over(store, offsets, **options)
    commit(offsets, [first.next_batch(), first.next_batch()])
    with pytest.raises(TooManySkippedError):
        drain(over(store, offsets, **options))


@given(kinds=st.lists(st.sampled_from("+-"), min_size=1, max_size=12), length=st.integers(1, 4), data=st.data())
@settings(max_examples=40, deadline=None)
def test_reading_goes_on_around_skipped_records_after_any_batch(kinds, length, data):
    store = MemoryStore()
    mixed(store, "a", *kinds)
    expected = [GOOD % number for number, kind in enumerate(kinds, 1) if kind == "+"]
    whole = iterator_over(store, tolerance="skip_record", batch_length=length)
    batches = drain(whole)
    whole.close()
    assert payloads(batches).get("a", []) == expected
    assert sum(len(batch.skipped) for batch in batches) == kinds.count("-")
    for before, after in itertools.pairwise(batches):
        assert after.first_record - len(after.skipped) - 1 == before.entry.records_done
    cut = data.draw(st.integers(0, len(batches)))
    offsets = OffsetManager()
    commit(offsets, batches[:cut])
    rest = iterator_over(store, offsets, tolerance="skip_record", batch_length=3)
    assert payloads(batches[:cut] + drain(rest)).get("a", []) == expected
    rest.close()


def test_skip_object_leaves_the_rest_of_a_bad_object_and_goes_on(over):
    store = MemoryStore()
    mixed(store, "a", *"++-+")
    mixed(store, "b", *"++")
    iterator = over(store, tolerance="skip_object")
    batches = drain(iterator)
    assert payloads(batches) == {"a": [GOOD % 1, GOOD % 2], "b": [GOOD % 1, GOOD % 2]}
    (end,) = [batch.entry for batch in batches if batch.entry.state is ObjectState.FAILED]
    assert (end.key, end.records_done) == ("a", 2)
    assert iterator.statistics.failed == 1


@pytest.mark.parametrize("tolerance", ["skip_record", "skip_object"])
def test_an_object_that_is_cut_short_fails_after_its_good_records(over, tolerance):
    store = store_of(a=3, b=3)
    store.cut("a", at=len(b"\n".join(lines("a", 2))) + 1)
    batches = drain(over(store, tolerance=tolerance))
    assert payloads(batches) == {"a": lines("a", 2), "b": lines("b", 3)}
    assert [batch.entry.state for batch in batches if batch.native.key == "a"][-1] is ObjectState.FAILED


def test_an_error_of_an_object_names_the_object_and_the_record(over):
    store = store_of(a=3)
    store.cut("a", at=len(b"\n".join(lines("a", 2))) + 1)
    iterator = over(store)
    assert payloads([iterator.next_batch()]) == {"a": lines("a", 2)}
    with pytest.raises(TruncatedObjectError) as caught:
        iterator.next_batch()
    assert (caught.value.location, caught.value.record_number) == ("memory://bucket/a", 3)
    assert "memory://bucket/a, record 3" in str(caught.value)


def test_a_failed_object_is_not_read_again(over):
    store, offsets = MemoryStore(), OffsetManager()
    store.put("a.gz", gzip.compress(lines("a", 1)[0])[:-3])
    iterator = over(store, offsets, tolerance="skip_object")
    commit(offsets, drain(iterator))
    assert offsets.get_entry(OffsetManagerKey.of_object("bucket", "a.gz")).state is ObjectState.FAILED
    next_pass(iterator)
    assert drain(iterator) == []
    assert store.count("open") == 1
    with pytest.raises(CorruptObjectError):
        over(store).next_batch()


def test_an_object_that_is_gone_is_left_out_and_counted(over):
    store = store_of(a=3, b=3)
    store.fail("open", ObjectNotFoundError("gone", location="memory://bucket/a"), key="a")
    iterator = over(store, tolerance="none", once=True)
    assert payloads(drain(iterator)) == {"b": lines("b", 3)}
    assert (iterator.statistics.vanished, iterator.finished) == (1, True)


def test_an_object_overwritten_between_list_and_read_is_read_in_its_new_version_only(over):
    store = store_of(a=3, b=3)
    changed = []

    def overwrite(call):
        if call.name == "open" and not changed:
            changed.append(store.put("b", b"".join(line + b"\n" for line in lines("new", 2))))

    store.on_call = overwrite
    iterator = over(store, once=True, prefetch_objects=1)
    batches = drain(iterator)
    assert payloads(batches) == {"a": lines("a", 3), "b": lines("new", 2)}
    assert {batch.native.version for batch in batches if batch.native.key == "b"} == {changed[0].version}
    assert (iterator.statistics.changed, iterator.finished) == (1, True)


@pytest.mark.parametrize("mistaken", [ObjectChangedError, ObjectNotFoundError])
@pytest.mark.parametrize("committed", [0, 1])
def test_what_was_handed_out_does_not_come_again_when_a_store_was_mistaken_about_a_version(over, mistaken, committed):
    """It says that the object is gone or another one, and then lists the same version. A part of it is on its way."""
    store = store_of(b=40)
    store.largest_read = 100
    store.fail("read", mistaken("no", location="memory://bucket/b"), key="b", skip=4, times=1)
    offsets = OffsetManager()
    iterator = over(store, offsets, batch_length=2, poll_interval=3600)
    found = [iterator.next_batch()]
    if committed:
        commit(offsets, found)
    found += drain(iterator)
    before = sum(len(batch.payloads) for batch in found)
    assert 2 * committed < before < 40
    next_pass(iterator)
    found += drain(iterator)
    assert payloads(found) == {"b": lines("b", 40)}
    assert [batch.first_record for batch in found] == [
        1 + sum(len(b.payloads) for b in found[:at]) for at in range(len(found))
    ]
    assert not iterator._ahead._released


def test_objects_that_vanish_while_they_are_read_leave_nothing_behind_once_they_are_committed(over):
    store, offsets = store_of(**{f"{number:02}": 40 for number in range(20)}), OffsetManager()
    store.largest_read = 100
    for number in range(20):
        store.fail(
            "read", ObjectNotFoundError("no", location=f"memory://bucket/{number:02}"), key=f"{number:02}", skip=4
        )
    iterator = over(store, offsets, batch_length=2)
    kept = []
    while (batch := iterator.next_batch()) is not None:
        commit(offsets, [batch])
        kept.append(len(iterator._ahead._released))
    assert iterator.statistics.vanished == 20
    assert max(kept) == 1


def test_an_object_overwritten_while_it_is_read_starts_again_in_its_new_version(over):
    store = store_of(b=40)
    store.largest_read = 100
    old = len(lines("b", 40)[0])

    def overwrite(call):
        if call.name == "read" and store.count("read") == 3:
            store.on_call = None
            store.put("b", b"".join(line + b"\n" for line in lines("new", 2)))
            store.fail("read", StoreUnavailableError("reset"), key="b")

    store.on_call = overwrite
    iterator = over(store, once=True, batch_length=1, batch_bytes=1024)
    batches = drain(iterator)
    versions = {}
    for batch in batches:
        versions.setdefault(batch.native.version, []).extend(batch.payloads)
    before, after = versions.values()
    assert before == lines("b", len(before))
    assert 0 < len(before) < 40
    assert after == lines("new", 2)
    assert old
    assert iterator.finished


def test_a_page_that_repeats_itself_is_an_error_and_no_endless_listing(over):
    class Stuck(MemoryStore):
        def list_page(self, **arguments):
            page = super().list_page(**arguments)
            return ListPage(objects=page.objects, continuation="the same")

    store = Stuck()
    put_lines(store, "a", 2)
    iterator = over(store)
    with pytest.raises(ListingError, match="repeats"):
        drain(iterator)


def test_calls_that_fail_for_a_while_are_tried_again_and_counted(over):
    store = store_of(a=3)
    for call in ("list_page", "open", "read"):
        store.fail(call, StoreUnavailableError("away"), times=2)
    iterator = over(store)
    assert payloads(drain(iterator)) == {"a": lines("a", 3)}
    assert iterator.statistics.retries == 6


def test_a_handed_feed_decides_what_is_read(over):
    store = store_of(a=3, b=3)
    lister = over(store)
    assignments = []
    while (assignment := lister.feed.take()) is not None:
        assignments.append(assignment)
    feed = AssignedFeed(assignments[1:], closed=True)
    iterator = over(store, feed=feed)
    assert payloads(drain(iterator)) == {"b": lines("b", 3)}
    assert iterator.finished


def test_another_lister_may_take_over(over):
    store = store_of(a=2, b=3)
    iterator = over(store, task=MemorySourceTask(store, page_size=1), once=True)  # a busy machine lists again
    asked = []

    def lister(request):
        asked.append(request)
        iterator.page_size = 1000
        return iterator.list_by_threads(request)

    iterator.lister = lister
    assert payloads(drain(iterator)) == {"a": lines("a", 2), "b": lines("b", 3)}
    assert asked == [ListingRequest(prefix="", after="", histogram=(), unordered=False)]
    assert (
        iterator.statistics.list_requests == store.count("list_page") == 2
    )  # the first told that there is more than a page


def test_a_bucket_of_one_page_is_not_worth_asking_somebody_else_at_the_start(over):
    store = store_of(a=2, b=3)
    iterator = over(store, once=True)  # a busy machine lists again
    iterator.lister = pytest.fail
    assert payloads(drain(iterator)) == {"a": lines("a", 2), "b": lines("b", 3)}
    assert iterator.statistics.list_requests == store.count("list_page") == 1


def test_a_listing_by_somebody_else_that_was_cut_short_is_no_whole_listing(over):
    store = store_of(a=2, b=3)
    iterator = over(store, once=True, task=MemorySourceTask(store, page_size=1))

    def lister(request):
        listing = iterator.list_by_threads(request)
        listing.close()
        return listing

    iterator.lister = lister
    with pytest.raises(TaskClosedError, match="while listing"):
        drain(iterator)
    assert iterator.feed_counts.listings == 0
