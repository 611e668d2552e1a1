"""The task: a reader thread whose end is told, commits that are proven, and a stop within its limit from every state."""

import gc
import inspect
import itertools
import threading

import attrs
import pytest

from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.engine.local import LocalEngine
from framework.errors import (
    AccessDeniedError,
    ConfigError,
    IggyUnavailableError,
    NotAcknowledgedError,
    ReaderFailedError,
    RecordError,
    StoreContractError,
    StoreUnavailableError,
    TaskClosedError,
)
from framework.iterator import AbstractSourceRecordIterator
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.batches import Acknowledgement
from framework.model.objects import Anchor, NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.storage.retry import RetryPolicy
from framework.task import SourceContext, iterator_of
from framework.task.abstract_task import CLOSE_SECONDS
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import DEFAULTS, source_config, source_props
from framework.transformer import guarded
from tests.support.core import lines, payloads, poll_all, put_lines, started, store_of
from tests.support.stopwatch import Stopwatch
from transformers import BytesInput


def acknowledge(*batches, offset=0):
    return Acknowledgement(topic_partition=batches[0].topic_partition, batches=batches, anchor=Anchor(offset, 1))


def test_everything_comes_in_order_and_then_it_is_finished():
    with started(store_of(a=5, b=3), once=True, batch_length=2) as task:
        assert payloads(poll_all(task)) == {"a": lines("a", 5), "b": lines("b", 3)}
        assert task.finished
        assert task.poll() == []


def test_an_empty_store_is_finished_without_a_batch():
    with started(MemoryStore(), once=True) as task:
        assert poll_all(task) == []


def test_it_takes_sections_and_options_as_a_file_holds_them():
    task = MemorySourceTask(store_of(a=2))
    task.start(source_props({**DEFAULTS, "batch_length": 1}, task.config_class), once=True)
    assert len(poll_all(task)) == 2
    task.stop()


def test_mistakes_in_the_configuration_are_raised_before_anything_is_read():
    store = store_of(a=2)
    task = MemorySourceTask(store)
    with pytest.raises(ConfigError, match="stream"):
        task.start({"source": {"name": "x"}, "input": {"format": "jsonl"}, "iggy": {"url": "embedded:x", "topic": "t"}})
    task.stop()
    assert (store.calls, task.closes) == ([], 1)


@pytest.mark.parametrize("given", ["orders.toml", None, [], MemorySourceTask])
@pytest.mark.parametrize(
    "begin", [lambda given: MemorySourceTask().start(given), lambda given: LocalEngine(MemorySourceTask, given)]
)
def test_what_is_no_configuration_says_how_a_file_is_loaded(begin, given):
    message = r"mapping of sections, not \w+; of a file it is framework.config.loading.load_config\(path, \w+\)$"
    with pytest.raises(ConfigError, match=message):
        begin(given)


def test_an_engine_takes_sections_and_options_as_a_task_does():
    props = source_props(DEFAULTS, MemorySourceTask.config_class)
    assert LocalEngine(MemorySourceTask, props)._config == MemorySourceTask().configure(props)


def test_more_records_than_one_poll_may_give_come_with_the_next_ones():
    with started(store_of(a=9), once=True, batch_length=4) as task:
        sizes = []
        while not task.finished:
            sizes.append(sum(len(batch.payloads) for batch in task.poll(max_records=5, timeout_seconds=60)))
        assert max(sizes) <= 5
        assert sum(sizes) == 9


def test_objects_that_appear_later_are_found():
    store = store_of(a=2)
    with started(store, poll_interval=0.01) as task:
        assert payloads(task.poll(timeout_seconds=60)) == {"a": lines("a", 2)}
        put_lines(store, "b", 2)
        batches = []
        for _ in range(100):
            batches += task.poll(timeout_seconds=60)
            if batches:
                break
        assert payloads(batches) == {"b": lines("b", 2)}
        assert not task.finished


# ---- failures


def poll_on(task, got, max_records=50_000):
    """Polls until that raises."""
    while True:
        got += task.poll(max_records=max_records, timeout_seconds=60)


def test_what_was_read_is_delivered_first_and_then_the_failure_with_its_cause():
    store = store_of(a=5, b=3)
    store.fail("open", AccessDeniedError("not yours"), key="b")
    with started(store, batch_length=2) as task:
        got = []
        with pytest.raises(ReaderFailedError, match="not yours") as caught:
            poll_on(task, got)
        assert payloads(got) == {"a": lines("a", 5)}
        assert isinstance(caught.value.__cause__, AccessDeniedError)
        assert not task.finished
        with pytest.raises(ReaderFailedError):
            task.poll()


def test_a_failure_while_the_queue_is_full_waits_for_its_turn():
    store = store_of(a=3, b=3, c=3)
    store.fail("open", AccessDeniedError("not yours"), key="c")
    with started(store, batch_length=2, queue_records=2) as task:
        got = []
        with pytest.raises(ReaderFailedError):
            poll_on(task, got, max_records=1)
        assert payloads(got) == {"a": lines("a", 3), "b": lines("b", 3)}


def test_an_error_that_is_none_of_ours_is_raised_too():
    class Odd(MemoryStore):
        def list_page(self, **arguments):
            raise ZeroDivisionError("odd")

    with started(Odd()) as task, pytest.raises(ReaderFailedError) as caught:
        poll_on(task, [])
    assert isinstance(caught.value.__cause__.__cause__, ZeroDivisionError)


# ---- pauses


class Waits(AssignedFeed):
    """A feed that never has anything and tells how long it was asked to wait."""

    def __init__(self, due, enough):
        super().__init__()
        self.due, self.enough, self.waits = due, enough, []
        self.ready = threading.Event()

    @property
    def seconds_until_due(self):
        return self.due

    def wait(self, seconds, stop):
        self.waits.append(seconds)
        if len(self.waits) >= self.enough:
            self.ready.set()
            stop.wait(60)


@pytest.mark.parametrize("due", [0.0, 0.5, 4.9, 3600.0])
def test_the_reader_never_waits_longer_than_five_seconds_at_a_time(due):
    feed = Waits(due, 40)
    with started(MemoryStore(), feed=feed):
        assert feed.ready.wait(60)
    assert max(feed.waits) <= 5.0
    if 0.0 < due < 5.0:
        assert feed.waits[0] == due
    if not due:
        assert feed.waits[0] < 0.002
        assert feed.waits[:12] == sorted(feed.waits[:12])


def test_pauses_begin_again_after_a_success():
    store = store_of(a=2)
    native = store.stat("a")

    class Late(Waits):
        def wait(self, seconds, stop):
            if len(self.waits) == 6:
                self.give([Assignment(native=native, entry=OffsetManagerEntry.start(native, TopicPartition("t", 0)))])
            super().wait(seconds, stop)

    feed = Late(0.0, 12)
    with started(store, feed=feed):
        assert feed.ready.wait(60)
    assert feed.waits[6] > 0.03
    assert feed.waits[7] < 0.002


# ---- stopping


def stop_in(task):
    began = Stopwatch()
    task.stop()
    return began.seconds


def reader_of(task):
    return task._reader


def test_stop_before_start_closes_what_there_is():
    task = MemorySourceTask(MemoryStore())
    task.stop()
    assert task.closes == 1
    with pytest.raises(TaskClosedError):
        task.start(source_config())


def test_stop_while_the_reader_pauses_is_at_once():
    with started(MemoryStore(), poll_interval=3600) as task:
        task.poll(timeout_seconds=0.05)
        assert stop_in(task) < 2
        assert not reader_of(task).is_alive()


def test_stop_while_the_queue_is_full_is_at_once():
    store = store_of(a=50)
    with started(store, batch_length=1, queue_records=2) as task:
        while task.queue.records < 2:
            assert reader_of(task).is_alive()
        assert stop_in(task) < 2
        assert not reader_of(task).is_alive()


def test_a_stop_in_the_middle_of_an_object_leaves_no_stream_to_the_collector():
    """It would close it at any time, in any thread: also in one that holds the lock that closing needs."""
    store = store_of(a=500)
    gc.disable()
    try:
        with started(store, batch_length=1, queue_records=4, once=True) as task:
            assert task.poll(timeout_seconds=10.0)
            task.stop()
            reader_of(task).join(10)
            assert store.open_streams == 0
            assert inspect.getgeneratorstate(task.iterator._current) == inspect.GEN_CLOSED
    finally:
        gc.enable()


class Listed(AbstractSourceRecordIterator):
    """Objects without end, by a generator that tells when and where it is ended."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.ended_in = None
        self.at_end = lambda: None

    def get_native_item_stream(self, offset):
        try:
            for number in itertools.count():
                yield NativeObject(bucket="b", key=f"{number:09}", size=2, version="1")
        finally:
            self.ended_in = threading.current_thread()
            self.at_end()

    def get_input_stream(self, native):
        return BytesInput(b"1\n", native.key)


class ListedTask(MemorySourceTask):
    def get_iterator(self, context):
        return Listed(
            context.config, self.make_transformer(context.config), context.offsets, feed=context.feed, once=context.once
        )


def test_a_stop_in_the_middle_of_a_listing_ends_it_in_the_thread_that_listed():
    """The collector would do it in any thread, also in one that holds a lock which ending a listing needs."""
    gc.disable()
    try:
        with started(None, task=ListedTask(), queue_records=4) as task:
            assert task.poll(timeout_seconds=60.0)
            task.stop()
            reader_of(task).join(60)
            assert task.iterator.ended_in is reader_of(task)
    finally:
        gc.enable()


def test_a_listing_that_cannot_be_given_back_does_not_hide_why_the_reader_died(caplog):
    def no_end():
        raise OSError("it cannot be given back")

    with started(None, task=ListedTask(), queue_records=4) as task:
        task.iterator.at_end = no_end
        assert task.poll(timeout_seconds=60.0)
        task.iterator.transformer = None  # the next object fails
        with pytest.raises(ReaderFailedError):
            poll_on(task, [])
        assert isinstance(task.iterator.ended_in, threading.Thread)
    assert "the close of generator failed" in caplog.text


@pytest.mark.parametrize("page", [1, 2])
def test_stop_while_a_call_is_tried_again_is_at_once(page):
    store = store_of(a=1, b=1)
    store.fail("list_page", StoreUnavailableError("away"), skip=page - 1, times=None)
    waiting = threading.Event()

    def wait(seconds, stop):
        waiting.set()
        stop.wait(60)

    task = MemorySourceTask(store, policy=RetryPolicy(wait=wait), page_size=1)
    task.start(source_config())
    assert waiting.wait(60)
    assert stop_in(task) < 2
    reader_of(task).join(30)
    assert not reader_of(task).is_alive()


def test_stop_while_the_store_does_not_answer_keeps_its_limit(monkeypatch):
    monkeypatch.setattr("framework.task.abstract_task.CLOSE_SECONDS", 0.3)
    silent, store = threading.Event(), MemoryStore()
    store.on_call = lambda call: silent.wait(60)
    task = MemorySourceTask(store)
    task.start(source_config())
    assert stop_in(task) < 2
    silent.set()
    reader_of(task).join(30)
    assert CLOSE_SECONDS == 5.0


def test_stop_while_close_resources_hangs_keeps_its_limit(monkeypatch):
    monkeypatch.setattr("framework.task.abstract_task.CLOSE_SECONDS", 0.3)
    hang = threading.Event()

    class Hanging(MemorySourceTask):
        def close_resources(self):
            hang.wait(60)

    with started(store_of(a=1), task_class=Hanging) as task:
        assert stop_in(task) < 2
        hang.set()


class Forgetful(MemorySourceTask):
    """It forgets to return its iterator."""

    def get_iterator(self, context):
        super().get_iterator(context)


class Inputless(MemorySourceTask):
    """Its iterator forgets to return the input."""

    def get_iterator(self, context):
        iterator = super().get_iterator(context)
        iterator.get_input_stream = lambda native: None
        return iterator


def test_a_task_without_an_iterator_is_an_error_and_no_wait_without_end():
    message = r"^Forgetful.get_iterator returned NoneType, not an AbstractSourceRecordIterator$"
    with pytest.raises(StoreContractError, match=message):
        Forgetful(store_of(a=1)).start(source_config())
    with (
        pytest.raises(StoreContractError, match=message),
        iterator_of(Forgetful, SourceContext(config=source_config())),
    ):
        pass


def test_an_iterator_without_an_input_is_named():
    with (
        started(store_of(a=1), task_class=Inputless, once=True) as task,
        pytest.raises(
            ReaderFailedError, match=r"^memory://.*/a: .*Iterator.get_input_stream returned NoneType, not an Obj"
        ),
    ):
        poll_all(task)


def stopping_midway(_):
    yield NativeObject(bucket="b", key="a", size=1, version="v")
    raise KeyError("NextToken")


def fail(_):
    raise KeyError("NextToken")


@pytest.mark.parametrize(
    ("method", "replacement", "place"),
    [
        ("get_native_item_stream", fail, "get_native_item_stream"),
        ("get_native_item_stream", stopping_midway, "get_native_item_stream"),
        ("get_input_stream", fail, "memory://.*/a: get_input_stream"),
    ],
)
def test_an_error_of_an_authors_iterator_names_the_place(monkeypatch, method, replacement, place):
    monkeypatch.setattr(StoreRecordIterator, method, lambda _, asked: replacement(asked))
    message = rf"^{place} failed with KeyError: 'NextToken' \({__name__}, line \d+, in .*\); mend that line, or"
    with started(store_of(a=1), once=True) as task, pytest.raises(ReaderFailedError, match=message) as caught:
        poll_all(task)
    assert isinstance(caught.value.__cause__, StoreContractError)


def fail_to_close():
    raise RuntimeError("cannot close")


class FailingToClose(MemorySourceTask):
    """Neither its iterator nor its resources can be closed."""

    def get_iterator(self, context):
        iterator = super().get_iterator(context)
        iterator.close = fail_to_close
        return iterator

    def close_resources(self):
        fail_to_close()


def test_a_close_that_fails_does_not_hide_anything(caplog):
    with started(store_of(a=1), task_class=FailingToClose, once=True) as task:
        assert payloads(poll_all(task)) == {"a": lines("a", 1)}
    assert "close of the iterator failed" in caplog.text
    assert "close_resources failed" in caplog.text


def test_nor_does_it_where_a_task_only_lists(caplog):
    """For several tasks and for Spark: a broken connection is recovered, and a run that has done everything is done."""

    context = SourceContext(config=source_config())
    with pytest.raises(IggyUnavailableError), iterator_of(FailingToClose, context):
        raise IggyUnavailableError("away")
    with iterator_of(FailingToClose, context):
        pass
    assert caplog.text.count("close of the iterator failed") == 2
    assert caplog.text.count("close_resources failed") == 2


def test_an_iterator_of_a_format_whose_close_fails_hides_no_bad_record():
    class Rows:
        close = staticmethod(fail_to_close)

        def __iter__(self):
            return self

        def __next__(self):
            raise RecordError("bad", location="memory://bucket/a", record_number=1)

    with pytest.raises(RecordError, match="record 1"):
        next(guarded(Rows, "memory://bucket/a", 0, of=None))


def test_nor_does_one_that_hangs(monkeypatch):
    monkeypatch.setattr("framework.task.abstract_task.CLOSE_SECONDS", 0.3)
    hang, closed = threading.Event(), threading.Event()

    class Hanging(MemorySourceTask):
        def close_resources(self):
            hang.wait(60)
            closed.set()

    with iterator_of(Hanging, SourceContext(config=source_config())):
        pass
    assert not closed.is_set()
    hang.set()


@pytest.mark.parametrize("state", ["reading", "finished", "failed"])
def test_stop_twice_and_from_another_thread(state):
    store = store_of(a=3)
    if state == "failed":
        store.fail("list_page", AccessDeniedError("no"), times=None)
    task = MemorySourceTask(store)
    task.start(source_config(), once=state == "finished")
    if state != "reading":
        reader_of(task).join(30)
    other = threading.Thread(target=task.stop)
    other.start()
    task.stop()
    other.join(30)
    assert not other.is_alive()
    assert not reader_of(task).is_alive()
    assert task.closes >= 2


def test_nothing_can_be_polled_before_the_start_or_after_the_stop():
    task = MemorySourceTask(store_of(a=3))
    with pytest.raises(TaskClosedError):
        task.poll()
    task.start(source_config(), once=True)
    task.stop()
    with pytest.raises(TaskClosedError):
        task.poll(timeout_seconds=60)
    with pytest.raises(TaskClosedError):
        task.start(source_config())


# ---- commits


def polled(task):
    batches = []
    while not task.finished:
        batches += task.poll(timeout_seconds=60)
    return batches


def test_what_was_confirmed_in_order_is_committed():
    kept = MemoryOffsetStore()
    with started(store_of(a=5), once=True, batch_length=2, offsets=OffsetManager(kept)) as task:
        first, second, third = polled(task)
        task.commit(acknowledge(first))
        task.commit(acknowledge(second, third, offset=1))
        task.offsets.flush()
    (entry,) = kept.load()
    assert (entry.records_done, entry.finished) == (5, True)


@pytest.mark.parametrize("order", [(1,), (0, 2), (0, 0), (0, 1, 1), (0, 1, 0)])
def test_a_commit_out_of_order_is_refused_and_moves_nothing(order):
    with started(store_of(a=6), once=True, batch_length=2) as task:
        batches = polled(task)
        *good, bad = order
        for number in good:
            task.commit(acknowledge(batches[number]))
        with pytest.raises(NotAcknowledgedError, match="memory://bucket/a"):
            task.commit(acknowledge(batches[bad]))
        done = [entry.records_done for entry in task.offsets.table.entries()]
        assert done == [batches[good[-1]].entry.records_done if good else 0]


def test_a_commit_in_one_confirmation_out_of_order_is_refused_whole():
    with started(store_of(a=6), once=True, batch_length=2) as task:
        first, second, _ = polled(task)
        with pytest.raises(NotAcknowledgedError):
            task.commit(acknowledge(second, first))
        assert [entry.records_done for entry in task.offsets.table.entries()] == [0]
        task.commit(acknowledge(first, second))
        assert [entry.records_done for entry in task.offsets.table.entries()] == [second.entry.records_done]


def test_what_was_not_handed_out_cannot_be_committed():
    with started(store_of(a=4), once=True, batch_length=2) as task:
        (first, *_) = polled(task)
        beyond = attrs.evolve(first, entry=first.entry.advanced(99))
        with pytest.raises(NotAcknowledgedError, match="did not hand out"):
            task.commit(acknowledge(beyond))
    with started(store_of(a=4), once=True, batch_length=2) as other, pytest.raises(NotAcknowledgedError):
        other.commit(acknowledge(first))


def test_records_without_a_confirmed_message_cannot_be_committed():
    with started(store_of(a=2), once=True) as task:
        (batch,) = polled(task)
        with pytest.raises(NotAcknowledgedError):
            task.commit(Acknowledgement(topic_partition=batch.topic_partition, batches=(batch,), anchor=None))
        task.commit(acknowledge(batch))


def test_a_task_that_resumes_may_commit_from_where_it_began():
    kept = MemoryOffsetStore()
    store = store_of(a=6)
    with started(store, once=True, batch_length=2, offsets=OffsetManager(kept)) as task:
        task.commit(acknowledge(polled(task)[0]))
        task.offsets.flush()
    offsets = OffsetManager(kept)
    offsets.populate_offset_manager()
    with started(store, once=True, batch_length=3, offsets=offsets) as task:
        batches = polled(task)
        assert payloads(batches) == {"a": lines("a", 4, first=3)}
        task.commit(acknowledge(*batches))
    assert [entry.records_done for entry in offsets.table.entries()] == [6]


def test_memory_for_commits_does_not_grow_with_finished_objects():
    with started(store_of(**{f"k{number}": 2 for number in range(20)}), once=True) as task:
        for batch in polled(task):
            task.commit(acknowledge(batch))
        assert task._order._progress == {}


def test_memory_for_commits_does_not_grow_with_objects_that_never_end():
    """They are deleted, or overwritten, while they are read: months of them leave nothing behind."""
    with started(store_of(a=6), once=True, batch_length=2) as task:
        for _ in range(2):
            (batch,) = task.poll(2, timeout_seconds=60)
            task.commit(acknowledge(batch))
            assert task._order._progress == {}
        (last,) = task.poll(2, timeout_seconds=60)
        with pytest.raises(NotAcknowledgedError, match="each once"):
            task.commit(acknowledge(batch))
        task.commit(acknowledge(last))
        assert [entry.finished for entry in task.offsets.table.entries()] == [True]


def test_an_end_without_records_can_be_committed_after_the_records_before_it():
    """An object that fails in the middle: its last batch has no records, and its records are confirmed before it."""
    store = MemoryStore()
    store.put("a", b"".join(line + b"\n" for line in (*lines("a", 4), b"no JSON")))
    with started(store, once=True, batch_length=2, tolerance="skip_object", validate=True) as task:
        *batches, end = polled(task)
        assert (end.entry.failed, len(end.payloads)) == (True, 0)
        for offset, batch in enumerate(batches):
            task.commit(acknowledge(batch, offset=offset))
        task.commit(Acknowledgement(topic_partition=end.topic_partition, batches=(end,), anchor=None))
        assert task._order._progress == {}
        assert [(entry.records_done, entry.failed) for entry in task.offsets.table.entries()] == [(4, True)]


@pytest.mark.parametrize("wrong", ["text", [b"record"], 5])
def test_an_iterator_that_returns_no_batch_is_named_with_what_it_returned(wrong):
    class Wrong(MemorySourceTask):
        def get_iterator(self, context):
            iterator = super().get_iterator(context)
            iterator.next_batch = lambda: wrong
            return iterator

    task = Wrong(store_of(a=1))
    task.start(source_config())
    try:
        with pytest.raises(ReaderFailedError) as caught:
            task.poll(timeout_seconds=60)
    finally:
        task.stop()
    assert isinstance(caught.value.__cause__, StoreContractError)
    assert str(caught.value.__cause__).endswith(
        f".next_batch returned {type(wrong).__name__}, not a RecordBatch or None"
    )
