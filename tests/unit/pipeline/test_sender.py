"""The sender: acknowledge, then commit; what becomes of records when anything on the way fails."""

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import attrs
import pytest
from msgspec import structs

from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.errors import (
    AccessDeniedError,
    IggyProtocolError,
    IggyUnavailableError,
    PositionError,
    ReaderFailedError,
    RecordTooLargeError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from framework.model.header_encoding import EncodedHeaders
from framework.model.objects import ObjectState, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.offsets.partition_counts import PartitionState
from framework.offsets.position_map import begin_in
from framework.pipeline.sender import IDLE_POLL_SECONDS, IN_FLIGHT, Sender
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config
from tests.support.core import lines, store_of
from tests.support.memory_producer import MemoryProducer, Outcome
from tests.support.stopwatch import Stopwatch

STORE, LOSE_ACK, LOSE_ALL, REFUSE, STALL = (
    Outcome.STORE,
    Outcome.LOSE_ACK,
    Outcome.LOSE_ALL,
    Outcome.REFUSE,
    Outcome.STALL,
)


class Kept(MemoryOffsetStore):
    """Remembers each save, and refuses one that covers a record which the producer does not hold by then."""

    def __init__(self, producer=None):
        super().__init__()
        self.producer = producer
        self.left_out = set()
        self.saves = []
        self.begun = set()
        self.failures = 0

    def begin(self, delta):
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("away")
        self.begun.update((entry.key, entry.split_number, entry.generation) for entry in delta.begun)
        MemoryOffsetStore.save(self, delta)

    def save(self, delta):
        if self.producer is not None:
            stored = {
                (record.native.key, record.record_number) for one in self.producer.stored.values() for record in one
            }
            for entry in delta.entries:
                for number in set(range(1, entry.records_done + 1)) - self.left_out:
                    assert (entry.key, number) in stored
        self.saves.append(delta)
        super().save(delta)


class Run:
    """A started task and a sender over it."""

    def __init__(
        self,
        store,
        *,
        plan=(),
        kept=None,
        once=True,
        feed=None,
        producer=None,
        hold_back=0,
        dead_letters=None,
        **options,
    ):
        self.producer = producer or MemoryProducer(plan=plan)
        self.kept = kept if kept is not None else Kept(self.producer)
        self.kept.producer = self.producer
        offsets = OffsetManager(self.kept)
        offsets.populate_offset_manager()
        self.opened = []
        self.saved = []
        self.hold_back = hold_back
        self.offsets = offsets
        options.setdefault("linger_time", 0.0)
        config = source_config(**options)
        self.task = MemorySourceTask(store)
        self.task.start(config, offsets=offsets, once=once, feed=feed)
        self.clock = FakeClock(step=0.001)
        self.sender = Sender(
            self.task,
            self.producer,
            config,
            open_partition=self._open,
            on_saved=self.saved.append,
            dead_letters=dead_letters,
            clock=self.clock,
        )

    def _open(self, topic_partition):
        self.opened.append(topic_partition)
        self.offsets.partitions.open(topic_partition, PartitionState(hold_back=self.hold_back))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.task.stop()

    def positions(self):
        return {entry.key: (entry.records_done, entry.state) for entry in self.kept.load() if entry.records_done}


DONE, READING = ObjectState.DONE, ObjectState.READING


def test_everything_is_stored_in_order_and_then_committed():
    with Run(store_of(a=7, b=5, c=3), batch_length=4) as run:
        run.sender.run()
        assert run.producer.payloads() == {"a": lines("a", 7), "b": lines("b", 5), "c": lines("c", 3)}
        assert run.positions() == {"a": (7, DONE), "b": (5, DONE), "c": (3, DONE)}
        assert run.sender.statistics.records == 15
        assert [delta for delta in run.saved if delta] == run.kept.saves


def test_what_is_confirmed_is_unsaved_until_positions_are_saved():
    with Run(store_of(a=7, b=5), commit_interval=0.01, linger_time=0, batch_length=4) as run:
        seen, flush = [], run.sender._flush

        def noted(**options):
            statistics = run.sender.statistics
            before = statistics.unsaved_records, statistics.unsaved_objects, statistics.unsaved_object_bytes
            flush(**options)
            seen.append(before)
            assert statistics.saved() == statistics

        run.sender._flush = noted
        run.sender.run()
        statistics = run.sender.statistics
        assert tuple(map(sum, zip(*seen, strict=True))) == (12, 2, statistics.object_bytes)
        assert (statistics.records, statistics.objects) == (12, 2)
        run.kept.failures = 1
        statistics.unsaved_records = 3
        run.kept.save = run.kept.begin  # it refuses
        with pytest.raises(StoreUnavailableError):
            flush(closing=True)
        assert statistics.unsaved_records == 3


def test_what_is_sent_and_saved_is_counted():
    store = store_of(a=7, b=5)
    store.put("blank", b"\n \n")
    with Run(store, batch_length=4) as run:
        run.sender.run()
        statistics = run.sender.statistics
        assert (statistics.objects, statistics.objects_with_records) == (3, 2)
        assert statistics.object_bytes == sum(native.size for native in store.list_all())
        assert statistics.send_requests == len(run.producer.sends) > 2
        assert statistics.position_commits == len(run.saved)


def test_a_run_that_ends_sends_what_its_linger_time_holds_back():
    with Run(store_of(a=5, b=5), linger_time=5) as run:
        run.sender.run()
        assert run.positions() == {"a": (5, DONE), "b": (5, DONE)}


def test_a_second_run_sends_nothing_and_opens_nothing():
    store = store_of(a=7, b=5)
    with Run(store) as first:
        first.sender.run()
    store.calls.clear()
    with Run(store, kept=first.kept) as second:
        second.sender.run()
        assert (second.producer.sends, store.count("open")) == ([], 0)


def test_objects_without_records_are_done_without_a_message():
    store = MemoryStore()
    store.put("blank", b"\n \n")
    with Run(store) as run:
        run.sender.run()
        (entry,) = run.kept.load()
        assert (entry.key, entry.records_done, entry.final, run.producer.sends) == ("blank", 0, True, [])


def test_an_object_whose_records_an_earlier_run_sent_is_not_one_without_records():
    store = store_of(a=7)
    store.put("blank", b"\n \n")
    with Run(store) as first:
        first.sender.run()
        assert first.sender.statistics.objects_with_records == 1
        kept = Kept()
        sent = next(entry for entry in first.kept.load() if entry.key == "a")
        begin_in(kept.entries, structs.replace(sent, total=None))
    with Run(store, kept=kept, producer=first.producer) as second:
        second.sender.run()
        statistics = second.sender.statistics
        assert (statistics.records, statistics.objects, statistics.objects_with_records) == (0, 2, 1)


def test_batches_of_one_partition_travel_together_up_to_the_limit():
    store = store_of(**{f"k{number:02}": 3 for number in range(20)})
    with Run(store, partitions=1, batch_length=30, linger_time=5, queue_records=1000) as run:
        run.sender.run()
        assert [count for _, count in run.producer.sends] == [30, 30]


def test_no_request_is_longer_than_its_limit():
    store = store_of(a=7, b=6, c=5, d=9)
    with Run(store, partitions=1, batch_length=8, linger_time=5) as run:
        run.sender.run()
        assert max(count for _, count in run.producer.sends) <= 8


def test_headers_of_records_count_for_the_bytes_of_a_request():
    """A record may be one byte, and have 90,000 bytes of headers."""
    headers = [EncodedHeaders({"note": "x" * 90_000})] * 10
    with Run(store_of(a=10, b=10, c=10), partitions=1, batch_bytes=1_000_000, linger_time=5) as run:
        batches = []
        while len(batches) < 3:
            batches += run.task.poll(100, timeout_seconds=1)
        for batch in batches:
            run.sender._add(attrs.evolve(batch, headers=headers))
        assert [count for _, count in run.producer.sends] == [10, 10]


def test_a_partition_is_opened_before_its_first_record_is_sent():
    with Run(store_of(**{f"k{number}": 3 for number in range(9)})) as run:
        seen = []
        run.producer.on_send = lambda topic_partition, batches: seen.append(topic_partition in run.opened)
        run.sender.run()
        assert seen
        assert all(seen)
        assert len(run.opened) == len(set(run.opened))


def test_nothing_is_committed_before_it_is_confirmed():
    store = store_of(a=8)
    with Run(store, plan=[STALL] * 4, batch_length=2, queue_records=2) as run:
        runner = threading.Thread(target=run.sender.run, daemon=True)
        runner.start()
        sent = 0
        for _ in range(6000):
            sent = len(run.producer.sends)
            if sent == IN_FLIGHT:
                break
            runner.join(0.01)
        assert sent == IN_FLIGHT
        assert run.positions() == {}
        while runner.is_alive():
            run.producer.release()
            runner.join(0.01)
        assert run.positions() == {"a": (8, DONE)}


def test_a_stalled_producer_holds_the_reader_back():
    store = store_of(**{f"k{number:02}": 5 for number in range(30)})
    options = {"batch_length": 5, "queue_records": 7, "partitions": 1}
    with Run(store, plan=[STALL] * 100, **options) as run:
        runner = threading.Thread(target=run.sender.run, daemon=True)
        runner.start()
        while len(run.producer.sends) < IN_FLIGHT:
            runner.join(0.01)
        runner.join(0.1)
        # two requests under way, one gathered, the queue, and one batch in the reader's hands
        assert run.task.iterator.statistics.records_read <= 5 * IN_FLIGHT + 5 + 7 + 5
        run.sender.stop()
        while runner.is_alive():
            run.producer.release()
            runner.join(0.01)


# ---- failures of Iggy


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(LOSE_ACK, UnknownOutcomeError), (LOSE_ALL, UnknownOutcomeError), (REFUSE, IggyUnavailableError)],
)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_after_a_broken_connection_nothing_more_is_sent_or_saved(outcome, error, at):
    with Run(store_of(a=20), plan=[*[STORE] * at, outcome], batch_length=4) as run:
        with pytest.raises(error):
            run.sender.run()
        stored = len(run.producer.payloads().get("a", []))
        assert stored == 4 * (at + (outcome is LOSE_ACK))
        saves = len(run.kept.saves)
        assert ("a", 0, 1) in run.kept.begun
        done, _ = run.positions().get("a", (0, None))
        assert done <= 4 * at
        assert saves == len([delta for delta in run.saved if delta])  # what only began is no progress


def test_what_was_lost_is_sent_by_the_next_run():
    store, kept = store_of(a=20, b=5), Kept()
    with Run(store, plan=[STORE, LOSE_ALL], batch_length=4, kept=kept) as run, pytest.raises(UnknownOutcomeError):
        run.sender.run()
    already = run.producer.payloads()
    with Run(store, batch_length=3, kept=kept) as again:
        again.sender.run()
        done = {key: set(already.get(key, [])) | set(values) for key, values in again.producer.payloads().items()}
        assert done == {"a": set(lines("a", 20)), "b": set(lines("b", 5))}


def test_a_confirmation_that_never_comes_ends_the_run(monkeypatch):
    monkeypatch.setattr("framework.pipeline.sender.WAIT_SLICE_SECONDS", 0.01)
    with Run(store_of(a=3), plan=[STALL], request_timeout=0.1) as run:
        run.sender._request_timeout = -0.9
        with pytest.raises(UnknownOutcomeError, match="did not answer"):
            run.sender.run()
        assert run.positions() == {}


def test_a_confirmation_may_take_up_to_the_request_timeout():
    class Slow(Future):
        asked = 0

        def result(self, timeout=None):
            self.asked += 1
            if self.asked <= 7:
                raise FutureTimeoutError
            self.set_result(self.acknowledgement)
            return super().result(timeout)

    class Slowly(MemoryProducer):
        def send(self, topic_partition, batches):
            future = Slow()
            future.acknowledgement = super().send(topic_partition, batches).result()
            return future

    with Run(store_of(a=3), producer=Slowly(), request_timeout=1) as run:
        run.sender.run()
        assert run.positions() == {"a": (3, DONE)}


def test_a_time_limit_of_the_producer_itself_is_raised_as_it_is():
    class TimesOut(MemoryProducer):
        def send(self, topic_partition, batches):
            future = Future()
            future.set_exception(TimeoutError("of the producer"))
            return future

    with Run(store_of(a=3), producer=TimesOut()) as run:
        ended = []

        def go():
            try:
                run.sender.run()
            except TimeoutError as error:
                ended.append(error)

        runner = threading.Thread(target=go, daemon=True)
        runner.start()
        runner.join(30)
        assert [str(error) for error in ended] == ["of the producer"]


def test_records_that_were_confirmed_and_are_not_delivered_are_not_saved():
    class Torn(MemoryProducer):
        def check_delivered(self):
            raise PositionError("it confirms and does not deliver")

    with Run(store_of(a=3), producer=Torn()) as run:
        with pytest.raises(PositionError, match="does not deliver"):
            run.sender.run()
        assert run.positions() == {}


# ---- failures of the reader


def test_when_the_reader_dies_everything_it_had_read_is_sent_and_saved():
    store = store_of(a=5, b=5, c=5)
    store.fail("open", AccessDeniedError("not yours"), key="c")
    with Run(store, batch_length=3, linger_time=5) as run:
        with pytest.raises(ReaderFailedError) as caught:
            run.sender.run()
        assert isinstance(caught.value.__cause__, AccessDeniedError)
        assert run.producer.payloads() == {"a": lines("a", 5), "b": lines("b", 5)}
        assert run.positions() == {"a": (5, DONE), "b": (5, DONE)}


@pytest.mark.parametrize("outcome", [LOSE_ACK, LOSE_ALL, REFUSE])
def test_a_connection_that_breaks_behind_a_dead_reader_is_made_again(outcome):
    store = store_of(a=5, b=5)
    store.fail("open", AccessDeniedError("not yours"), key="b")
    with Run(store, plan=[outcome], linger_time=5) as run:
        with pytest.raises(IggyUnavailableError):
            run.sender.run()
        assert run.positions() == {}


def test_a_record_that_iggy_cannot_store_ends_the_run_with_the_rest_saved():
    class Refuses(MemoryProducer):
        def send(self, topic_partition, batches):
            if any(batch.native.key == "b" for batch in batches):
                raise RecordTooLargeError("too long", location="memory://bucket/b", record_number=1)
            return super().send(topic_partition, batches)

    with Run(store_of(a=3, b=3), producer=Refuses(), partitions=1, batch_length=3) as run:
        with pytest.raises(RecordTooLargeError):
            run.sender.run()
        assert run.positions() == {"a": (3, DONE)}


def test_positions_that_cannot_be_saved_are_no_success():
    kept = Kept()
    kept.failures = 100
    with Run(store_of(a=3), kept=kept) as run, pytest.raises(StoreUnavailableError):
        run.sender.run()


# ---- skipped records


class DeadLetterLog:
    """A dead letter topic that knows what had been sent when a letter was stored."""

    def __init__(self):
        self.events = []
        self.failure = None

    def send(self, dead_letters):
        if self.failure is not None:
            raise self.failure
        self.events += [
            ("letter", dead_letter.record_number, dead_letter.entry.generation) for dead_letter in dead_letters
        ]


def good_and_bad(store, key, kinds):
    store.put(key, b"\n".join(b'{"n":%d}' % number if kind == "+" else b"bad" for number, kind in enumerate(kinds, 1)))


def test_a_dead_letter_is_confirmed_before_anything_that_stands_behind_its_record_is_sent():
    store, dead_letters = MemoryStore(), DeadLetterLog()
    good_and_bad(store, "a", "+--+-++-")
    with Run(store, tolerance="skip_record", batch_length=1, dead_letters=dead_letters) as run:
        run.kept.left_out = {2, 3, 5, 8}

        def sending(topic_partition, batches):
            dead_letters.events += [
                ("record", number, batch.entry.generation)
                for batch in batches
                for number in range(batch.first_record, batch.last_record + 1)
            ]

        run.producer.on_send = sending
        run.sender.run()
        # record by record in the order of the object, letters among them
        assert dead_letters.events == [
            ("record" if kind == "+" else "letter", number, 1) for number, kind in enumerate("+--+-++-", 1)
        ]
        assert run.positions() == {"a": (8, DONE)}
        assert [entry.skipped for entry in run.kept.load()] == [4]
        assert sum(save.skipped for save in run.kept.saves) == 4
        assert run.sender.statistics.dead_letters == 4


def test_when_a_dead_letter_may_not_be_stored_nothing_behind_its_record_is_sent_or_saved():
    store, dead_letters = MemoryStore(), DeadLetterLog()
    good_and_bad(store, "a", "++-++")
    with Run(store, tolerance="skip_record", batch_length=2, linger_time=5, dead_letters=dead_letters) as run:
        run.kept.left_out = {3}
        dead_letters.failure = UnknownOutcomeError("the connection broke")
        with pytest.raises(UnknownOutcomeError):
            run.sender.run()
        assert run.producer.payloads().get("a", []) in ([], [b'{"n":1}', b'{"n":2}'])
        assert run.positions().get("a", (0, READING)) in [(0, READING), (2, READING)]


def test_a_dead_letter_of_a_trailing_bad_record_repeats_after_a_crash_with_the_same_generation():
    """Behind it nothing was sent, so no position is beyond it: it is read again, and its letter has the same id."""
    store, kept, told = MemoryStore(), Kept(), []
    good_and_bad(store, "a", "++-")
    for _ in range(2):
        dead_letters = DeadLetterLog()
        with Run(store, tolerance="skip_record", kept=kept, dead_letters=dead_letters, commit_interval=60) as run:
            kept.left_out = {3}
            flush = run.sender._flush
            run.sender._flush = lambda *, closing=False, flush=flush, told=told: (
                None if not told else flush(closing=closing)
            )
            run.sender.run()
        told.append(dead_letters.events)
    assert told == [[("letter", 3, 1)], [("letter", 3, 1)]]


# ---- begun first


class TopicPartitions(MemoryProducer):
    """Refuses a record of which no position is stored by then."""

    kept = None

    def send(self, topic_partition, batches):
        for batch in batches:
            assert (batch.native.key, batch.entry.split_number, batch.entry.generation) in self.kept.begun
        return super().send(topic_partition, batches)


@pytest.mark.parametrize("split", [{}, {"split_size": 1024}])
@pytest.mark.parametrize("batch_length", [1, 4, 100])
def test_no_record_is_sent_before_its_position_is_stored(batch_length, split):
    store = store_of(**{f"k{number:02}": 3 for number in range(20)}, large=300)
    producer, kept = TopicPartitions(), Kept()
    producer.kept = kept
    kept.save = lambda delta: MemoryOffsetStore.save(kept, delta)  # shares count for themselves
    with Run(store, producer=producer, kept=kept, batch_length=batch_length, **split) as run:
        run.sender.run()
        assert {key: len(records) for key, records in producer.payloads().items()} == {
            **{f"k{number:02}": 3 for number in range(20)},
            "large": 300,
        }


def test_when_what_began_cannot_be_stored_nothing_is_sent():
    kept = Kept()
    kept.failures = 100
    with Run(store_of(a=3), kept=kept) as run, pytest.raises(StoreUnavailableError):
        run.sender.run()
    assert run.producer.sends == []


# ---- what a killed server may forget


def test_an_end_that_could_be_forgotten_is_not_saved_and_nothing_of_it_is_sent_again():
    store, kept = store_of(a=30, b=2), Kept()
    with Run(store, kept=kept, partitions=1, batch_length=7, hold_back=10) as run:
        run.sender.run()
        saved = {entry.key: (entry.records_done, entry.records_saved, entry.total) for entry in kept.load()}
        assert saved["b"] == (2, 0, 2)
        assert saved["a"][::2] == (30, 30)
        assert 14 <= saved["a"][1] <= 22
        assert kept.anchors[TopicPartition("records", 0)].offset == saved["a"][1] - 1
        assert [save.closed for save in kept.saves] == [
            *[{}] * (len(kept.saves) - 1),
            {TopicPartition("records", 0): 31},
        ]
    store.calls.clear()
    with Run(store, kept=kept, partitions=1, hold_back=10) as again:
        again.sender.run()
        assert (again.producer.sends, store.count("open")) == ([], 0)


def test_an_orderly_end_says_where_the_partitions_ended():
    with Run(store_of(a=3, b=3, c=3)) as run:
        run.sender.run()
        ends = {topic_partition: len(records) - 1 for topic_partition, records in run.producer.stored.items()}
        assert run.kept.saves[-1].closed == ends
        assert set(ends) == set(run.opened)


def test_a_run_that_breaks_says_no_such_thing():
    with Run(store_of(a=20), plan=[STORE, LOSE_ACK], batch_length=4, commit_interval=0.01) as run:
        with pytest.raises(UnknownOutcomeError):
            run.sender.run()
        assert not any(save.closed for save in run.kept.saves)


def test_nor_does_a_run_whose_send_was_refused_since_a_part_of_it_may_be_stored():
    """What expires behind an orderly end was counted, so nothing more would be looked for."""

    class RefusesTheRest(MemoryProducer):
        def send(self, topic_partition, batches):
            answer = super().send(topic_partition, batches)
            if any(batch.native.key == "b" for batch in batches):
                answer = Future()
                answer.set_exception(IggyProtocolError("the disk is full"))
            return answer

    with Run(store_of(a=3, b=3), producer=RefusesTheRest(), partitions=1, batch_length=3) as run:
        with pytest.raises(IggyProtocolError):
            run.sender.run()
        assert run.positions() == {"a": (3, DONE)}
        assert not any(save.closed for save in run.kept.saves)


def test_a_refused_send_ends_the_run_with_its_own_error_whatever_waits_for_other_partitions():
    """A producer sends nothing behind a send that failed. A broken connection would be made again, and refused again."""

    class RefusesAll(MemoryProducer):
        refused = False

        def send(self, topic_partition, batches):
            if self.refused:
                raise IggyUnavailableError("not sent, because an earlier send failed: the disk is full")
            self.refused, answer = True, Future()
            answer.set_exception(IggyProtocolError("the disk is full"))
            return answer

    with Run(store_of(**dict.fromkeys("abcdefgh", 3)), producer=RefusesAll(), partitions=4) as run:
        with pytest.raises(IggyProtocolError, match=r"^the disk is full"):
            run.sender.run()
        assert run.positions() == {}


def test_a_run_whose_reader_fails_says_where_it_ended():
    store = store_of(a=3, b=3)
    store.fail("open", AccessDeniedError("not yours"), key="b")
    with Run(store, partitions=1) as run:
        with pytest.raises(ReaderFailedError):
            run.sender.run()
        assert run.kept.saves[-1].closed == {run.opened[0]: 2}


# ---- time


def test_positions_are_saved_once_an_interval_and_not_for_each_batch():
    with Run(store_of(a=40), batch_length=2, commit_interval=60) as run:
        run.sender.run()
        assert len(run.producer.sends) == 20
        assert len(run.kept.saves) == 1


def test_nor_for_each_batch_when_the_first_interval_is_over():
    with Run(store_of(a=100), batch_length=1, commit_interval=0.1) as run:
        run.sender._task = _Sip(run.task)
        began = run.clock()
        run.sender.run()
        assert 2 <= len(run.kept.saves) <= 2 + (run.clock() - began) / 0.1


def test_a_poll_waits_for_what_is_due_next():
    with Run(store_of(a=3), commit_interval=60, linger_time=0.03, batch_length=100) as run:
        sender = run.sender
        assert sender._patience() == IDLE_POLL_SECONDS
        (batch,) = run.task.poll(timeout_seconds=30)
        sender._add(batch)
        assert sender._patience() == 0.03
        sender._send_waiting(all_of_them=True)
        assert sender._patience() == 0.03
        sender._confirm_first()
        assert sender._patience() == IDLE_POLL_SECONDS
        run.clock.advance(59.9)
        assert 0 < sender._patience() < 0.1
        run.clock.advance(60)
        assert sender._patience() == 0.001


def test_a_partition_with_few_records_does_not_wait_for_a_busy_one_for_ever():
    store = store_of(quiet=1, **{f"busy{number:03}": 4 for number in range(200)})
    quiet, busy = TopicPartition("records", 0), TopicPartition("records", 1)
    feed = AssignedFeed()
    feed.give(
        Assignment(native=native, entry=OffsetManagerEntry.start(native, quiet if native.key == "quiet" else busy))
        for native in sorted(store.list_all(), key=lambda native: native.key != "quiet")
    )
    feed.close()
    options = {"batch_length": 4, "queue_records": 4000, "linger_time": 0.01}
    with Run(store, feed=feed, once=False, **options) as run:
        run.task._reader.join(30)  # everything is in the queue: no poll is empty before the end
        run.sender._task = _Sip(run.task)
        run.sender.run()
        order = [topic_partition for topic_partition, _ in run.producer.sends]
        assert order.index(quiet) < len(order) - 50


class _Sip:
    """A task that gives one batch a poll."""

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        return getattr(self._task, name)

    def poll(self, _max_records, *, timeout_seconds):
        return self._task.poll(1, timeout_seconds=timeout_seconds)


def test_an_idle_source_is_told_so_and_saves_what_is_due():
    store = store_of(a=3)
    with Run(store, once=False, poll_interval=0.01, commit_interval=0.01) as run:
        runner = threading.Thread(target=run.sender.run, daemon=True)
        runner.start()
        while run.positions() != {"a": (3, DONE)}:
            assert runner.is_alive()
            runner.join(0.01)
        run.sender.stop()
        runner.join(30)
        assert not runner.is_alive()


def test_a_stop_confirms_and_saves_what_is_under_way():
    store = store_of(**{f"k{number:02}": 3 for number in range(30)})
    with Run(store, plan=[STORE, STALL], batch_length=3, queue_records=6, once=False) as run:
        runner = threading.Thread(target=run.sender.run, daemon=True)
        runner.start()
        while len(run.producer.sends) < 2:
            runner.join(0.01)
        began = Stopwatch()
        run.sender.stop()
        run.producer.release()
        while runner.is_alive():
            run.producer.release()
            runner.join(0.01)
        assert began.seconds < 4
        stored = {key: len(values) for key, values in run.producer.payloads().items()}
        assert {key: done for key, (done, _) in run.positions().items()} == stored


@pytest.mark.parametrize("count", [1, 2, 3, 4, 20])
def test_an_object_that_fails_behind_records_that_are_confirmed_by_then(count):
    """Its last batch has no records: whether it goes along with some, or alone, it is committed."""
    store = MemoryStore()
    store.put("a", b"".join(line + b"\n" for line in (*lines("a", count), b"no JSON")))
    with Run(store, tolerance="skip_object", validate=True, batch_length=2) as run:
        run.sender.run()
        assert [(entry.records_done, entry.failed) for entry in run.offsets.table.entries()] == [(count, True)]
