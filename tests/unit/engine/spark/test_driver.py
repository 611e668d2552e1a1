"""The driver's side of an epoch, over an Iggy in memory. No Spark here: a job runs in the thread that waits for it."""

import itertools
import threading
import time
from types import SimpleNamespace

import attrs
import pytest

from framework.engine.listing_thread import ListingThread
from framework.engine.reporter import Reporter
from framework.engine.session import Session
from framework.engine.spark import capacity, driver, executor, object_assignment
from framework.engine.spark.driver import ReadySpark, SparkGroup
from framework.engine.spark.listing_waves import DRIVER_PAGES, executors_of, wave_lister
from framework.errors import (
    EXIT_TRY_AGAIN,
    CredentialsError,
    FatalError,
    IggyUnavailableError,
    ObjectChangedError,
    SparkUnavailableError,
    TooManySkippedError,
    UnknownOutcomeError,
)
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config
from tests.support.core import iterator_over, put_lines, store_of
from tests.support.listing import even
from tests.unit.storage.listing.test_parallel import SortedStore

SECONDS = 20


class Spark:
    """Runs the work of a job in this process, then calls `after`."""

    appName, master = "test", "local"  # noqa: N815 - the names in pyspark

    def __init__(self):
        self.after = lambda: None
        self.ended = False
        self.slots = 2
        java = SimpleNamespace(
            isStopped=lambda: self.ended,
            maxNumConcurrentTasks=lambda _: self.slots,
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
            getLocalProperties=lambda: SimpleNamespace(clone=dict),
            setLocalProperties=lambda properties: None,
        )
        self._jsc = SimpleNamespace(sc=lambda: java)

    def end(self):
        """End the application, as a Java process that is killed does."""
        self.ended = True
        raise RuntimeError("An error occurred while calling o1.collect")

    def setJobGroup(self, *_, **__):  # noqa: N802
        pass

    def cancelJobGroup(self, _):  # noqa: N802
        pass

    def getConf(self):  # noqa: N802
        return {}

    def statusTracker(self):  # noqa: N802
        return SimpleNamespace(getActiveJobsIds=list)

    def parallelize(self, values, _):
        def collect(work):
            done = [work(value) for value in values]
            self.after()
            return done

        return SimpleNamespace(map=lambda work: SimpleNamespace(collect=lambda: collect(work)))


@pytest.fixture
def world(monkeypatch):
    """(server, run): `run` is an epoch over a store, which returns its reporter, and the error that ended it."""
    server, spark = MemoryIggy(), Spark()
    start = executor.TaskRun.start
    monkeypatch.setattr(
        executor.TaskRun, "start", lambda plan, feed: start(plan, feed, connect=lambda *_: server.connect())
    )
    monkeypatch.setattr(executor, "set_up_process", lambda: None)

    def run(store, *, await_spark=None, page_size=1000, reporter=None, **options):
        config = source_config(engine="spark", **options)
        session = Session.begin(server.connect(), config, several_writers=True)
        reporter = reporter or Reporter(None, skipped_per_hour=1000)
        ready = ReadySpark(context=spark, use_stop_channel=False)
        group = SparkGroup(
            lambda: MemorySourceTask(store, page_size=page_size),
            config,
            session,
            await_spark or (lambda: ready),
            once=True,
        )
        ended = None
        try:
            group.run(threading.Event(), reporter)
        except Exception as error:  # noqa: BLE001 - the tests look at it
            ended = error
        return reporter, ended

    return server, spark, run


def test_everything_is_sent_and_counted(world):
    server, _, run = world
    reporter, ended = run(store_of(a=2, b=3))
    assert ended is None
    assert sum(len(server.messages("kit", "records", number)) for number in range(3)) == 5
    assert (reporter.progress().records, reporter.progress().objects) == (5, 2)


def test_an_object_that_is_given_back_counts_once(world):
    _, _, run = world
    store = store_of(a=2, b=3)
    store.fail("open", ObjectChangedError("overwritten", location="memory://bucket/b"), key="b", times=1)
    reporter, ended = run(store)
    progress = reporter.progress()
    assert ended is None
    assert progress.changed == 1
    assert (progress.records, progress.objects, progress.objects_total) == (5, 2, 2)
    assert (progress.lag_objects, progress.lag_bytes) == (0, 0)


@pytest.mark.parametrize("event", ["send", "ack", "append"])
@pytest.mark.parametrize("commit_interval", [0.01, 60.0])
@pytest.mark.parametrize(("broken", "tasks_max"), [("job", 2), ("all", 1)])
def test_breaks_change_nothing_about_the_figures(world, event, commit_interval, broken, tasks_max):
    """Of a job's connection, or of the driver's, too: it then learns of no position that the job has saved."""
    server, _, run = world
    store, numbers = store_of(**{f"k{number:02}": 5 for number in range(40)}), itertools.count(1)

    def at(name):
        in_job = threading.current_thread() is not driver
        if in_job and name == event and next(numbers) == 6:
            if broken == "all":
                server.break_connections()
            raise UnknownOutcomeError("broke")

    driver = threading.current_thread()
    server.on_event = at
    options = {"commit_interval": commit_interval, "linger_time": 0.0, "batch_length": 7, "tasks_max": tasks_max}
    reporter, ended = run(store, **options)
    broke = reporter.progress()
    assert ended is not None or event == "append"
    if ended is not None:
        assert isinstance(ended, IggyUnavailableError)
        reporter.recovered()
        server.break_connections()
        assert run(store, reporter=reporter, **options)[1] is None
    last = reporter.progress()
    stored = sum(len(server.messages("kit", "records", number)) for number in range(3))
    assert stored == 200
    assert (last.records, last.objects, last.objects_total, last.lag_bytes) == (stored, 40, 40, 0)
    assert (broke.records <= last.records, broke.objects <= last.objects) == (True, True)


def test_executors_that_join_late_are_used(world, monkeypatch):
    """On a cluster the first one begins the work."""
    _, spark, run = world
    monkeypatch.setattr(capacity, "SLOTS_SECONDS", 0.0)
    monkeypatch.setattr(object_assignment, "MAX_OBJECTS", 1)
    began, both = [], threading.Event()

    def work():
        began.append(spark.slots)
        if len(began) == 2:
            both.set()
        spark.slots = 2
        assert both.wait(SECONDS), "one task at a time, with two cores"

    spark.slots, spark.after = 1, work
    _, ended = run(store_of(**dict.fromkeys("abcdefgh", 2)))
    assert ended is None
    assert began[:2] == [1, 2]


def test_it_lists_while_spark_starts(world):
    server, spark, run = world
    store, seen = store_of(a=2, b=3), []

    def ready():
        deadline = time.monotonic() + SECONDS
        while not store.calls and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append(len(store.calls))
        return ReadySpark(context=spark, use_stop_channel=False)

    _, ended = run(store, await_spark=ready)
    assert ended is None
    assert seen[0]
    assert sum(len(server.messages("kit", "records", number)) for number in range(3)) == 5


def test_what_was_listed_while_spark_started_is_not_gathered_again(world, monkeypatch):
    server, spark, run = world
    clock, listings, started = itertools.count(1), [], []
    start_job = SparkGroup._start_job

    class Listing(ListingThread):
        idle = False

        def start(self):
            listings.append(self)
            super().start()

    def starts(group, given):
        started.append(next(clock))
        start_job(group, given)

    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: next(clock) / 100))
    monkeypatch.setattr(driver, "ListingThread", Listing)
    monkeypatch.setattr(SparkGroup, "_start_job", starts)

    def ready():
        deadline = time.monotonic() + SECONDS
        while len(listings[0]._taken) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        for _ in range(int(100 * driver.GATHER_SECONDS)):
            next(clock)
        return ReadySpark(context=spark, use_stop_channel=False)

    _, ended = run(store_of(a=2, b=3), await_spark=ready)
    assert ended is None
    assert started[0] < 100 * driver.GATHER_SECONDS + 5
    assert sum(len(server.messages("kit", "records", number)) for number in range(3)) == 5


def test_a_stop_while_spark_starts_sends_nothing(world):
    server, _, run = world
    reporter, ended = run(store_of(a=2), await_spark=lambda: None)
    assert (reporter.progress().records, ended) == (0, None)
    assert server.connect().get_topic("kit", "records") is None


def test_a_spark_that_does_not_start_ends_a_listing_that_waits_for_it(world):
    """The first pages are the driver's; the next ones wait for executors."""
    store = SortedStore(even(3000))

    def fails():
        deadline = time.monotonic() + SECONDS
        while len(store.calls) < DRIVER_PAGES and time.monotonic() < deadline:
            time.sleep(0.001)
        raise FatalError("no Java")

    before = set(threading.enumerate())
    _, ended = world[2](store, await_spark=fails, page_size=7)
    assert isinstance(ended, FatalError)
    # A thread that is about to start cannot be joined: wait until none is left.
    deadline = time.monotonic() + SECONDS
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize("good", [0, 2])
def test_records_that_are_skipped_were_not_sent(world, good):
    store = MemoryStore()
    store.put("bad", b"no\njson\nat all\n")
    put_lines(store, "good", good)
    reporter, ended = world[2](store, tolerance="skip_record")
    assert ended is None
    assert (reporter.progress().records, reporter.progress().skipped) == (good, 3)


def test_the_number_of_sent_records_never_falls(world, monkeypatch):
    """A counter that falls has begun again at zero, to Prometheus: its rate would show all records a second time."""
    seen, collect = [], SparkGroup._collect

    def watched(group, listing):
        collect(group, listing)
        seen.append(group._counts.records)

    monkeypatch.setattr(SparkGroup, "_collect", watched)
    store = MemoryStore()
    store.put("some", b"".join(b"no json\n" if number % 2 else b"1\n" for number in range(10)))
    reporter, ended = world[2](store, tolerance="skip_record")
    assert ended is None
    seen.append(reporter.progress().records)
    assert seen == sorted(seen)
    assert seen[-1] == 5


def test_what_positions_have_shown_is_not_taken_back_by_a_job_that_counted_less(world, monkeypatch):
    """A recovery at the job's start finds it sent, and saves its positions."""
    counted = executor.TaskRun.statistics
    monkeypatch.setattr(
        executor.TaskRun, "statistics", lambda run: attrs.evolve(counted(run), records=0, objects=0, object_bytes=0)
    )
    store = store_of(a=2, b=3)
    reporter, ended = world[2](store)
    assert ended is None
    progress = reporter.progress()
    assert (progress.records, progress.objects) == (5, 2)
    assert progress.object_bytes == sum(native.size for native in store.list_all())


def test_a_broken_connection_of_the_driver_takes_no_figures_with_it(world):
    """The counters of a run must not fall, and what was sent is progress: the run may recover as often as it breaks."""
    server, spark, run = world
    spark.after = server.break_connections
    reporter, ended = run(store_of(a=2))
    assert isinstance(ended, IggyUnavailableError)
    assert reporter.work_done().count >= 2
    assert reporter.progress().records == 2


def test_why_it_ended_is_not_hidden_by_a_connection_that_breaks_then(world, monkeypatch):
    server, spark, run = world
    ran, end = threading.Event(), SparkGroup._end
    spark.after = ran.set

    def check(_):
        if ran.is_set():
            raise TooManySkippedError("a wrong format")

    def broken_end(group):
        end(group)
        server.break_connections()

    monkeypatch.setattr(Reporter, "check_skipped", check)
    monkeypatch.setattr(driver.ListingThread, "finished", False)
    monkeypatch.setattr(SparkGroup, "_end", broken_end)
    monkeypatch.setattr(driver, "DuePolls", lambda _: SimpleNamespace(take=lambda: True))
    _, ended = run(store_of(a=2))
    assert isinstance(ended, TooManySkippedError)


def test_an_application_that_ended_can_be_started_again(world):
    _, spark, run = world
    spark.after = spark.end
    _, ended = run(store_of(a=2))
    assert isinstance(ended, SparkUnavailableError)
    assert ended.exit_code == EXIT_TRY_AGAIN


@pytest.mark.parametrize(("master", "named"), [("spark://head:7077", True), ("local[2]", False)])
def test_an_error_names_the_executor_that_met_it(world, monkeypatch, master, named):
    """Its machine may have other credentials than the driver's."""
    _, spark, run = world
    spark.master = master
    monkeypatch.setattr(executor.socket, "gethostname", lambda: "worker-7")

    def denied(*_):
        raise CredentialsError("no credentials were found")

    monkeypatch.setattr(executor.TaskRun, "start", denied)
    _, ended = run(store_of(a=2))
    assert isinstance(ended, CredentialsError)
    assert str(ended) == "no credentials were found" + (" (on executor worker-7)" if named else "")


def test_one_that_ended_while_there_was_nothing_to_do_ends_the_run(world, monkeypatch):
    _, spark, run = world
    monkeypatch.setattr(capacity, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(driver.ListingThread, "finished", False)

    def end():
        spark.ended = True

    spark.after = end
    _, ended = run(store_of(a=2))
    assert isinstance(ended, SparkUnavailableError)


def test_nor_is_it_a_listing_that_is_lost_for_ever():
    store = SortedStore(even(3000))
    iterator = iterator_over(store, task=MemorySourceTask(store, page_size=7))
    spark = Spark()
    spark.parallelize = lambda *_: spark.end()
    executors = executors_of(spark, iterator.config, group="g")
    iterator.lister = wave_lister(iterator, MemorySourceTask, lambda: executors)
    with pytest.raises(SparkUnavailableError, match="Spark has ended the application"):
        list(iterator.get_native_item_stream(None))
