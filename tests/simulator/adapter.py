"""The framework in the simulated world: the only module here that knows it.

A life of a source is the program's own engine, with its threads and its processes for tasks; commands by hand are what the command
line calls. What is put in their place: the connection to Iggy, the store, and processes with their pipes.
"""

import contextlib
import functools
import logging
import pickle
import re
import signal
from concurrent.futures import Future
from types import SimpleNamespace

import attrs
import numpy as np

from framework.config import transform_registry as by_name
from framework.config.format_registry import make_transformer
from framework.config.sections import SourceCommonConfig
from framework.engine import iggy_target, listing_thread, local, positions_admin, process_group, session, task_process
from framework.engine.dead_letter_replay import DeadLetterReplay
from framework.engine.inspection import inspect
from framework.engine.spark import driver as spark_driver
from framework.engine.spark import engine as spark_engine
from framework.engine.spark import executor as spark_executor
from framework.engine.spark import listing_waves
from framework.errors import (
    AccessDeniedError,
    IggyTopicError,
    IggyUnavailableError,
    KeyListError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    PositionError,
    ReaderFailedError,
    RetriableError,
    SourceRunningError,
    SourceTakenOverError,
    StoreUnavailableError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.iggy.connection import IggyConnection
from framework.iggy.dead_letters.reader import DeadLetterLog
from framework.iggy.offset_log import codec, record_size, snapshots
from framework.iggy.values import ConnectedClient, PartitionInfo, StoredMessage, TopicInfo
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import NativeObject
from framework.offsets import packed_table
from framework.offsets.position_filter import PositionFilter
from framework.offsets.set_position import SetPosition
from framework.storage.retry import RetryPolicy
from framework.store import ListPage, ObjectStore
from framework.task import AbstractSourceTask, SourceContext, iterator_of
from framework.testing.fakes.memory_iggy import decode_send
from framework.testing.options import source_config
from framework.transform import Transform
from framework.transformer import ReadStream
from tests.simulator import runtime
from tests.simulator.bucket import is_filtered, is_refused, key_hash, tell
from tests.simulator.checker import SetByHand
from tests.simulator.history import Settings
from tests.simulator.iggy import NoConnectionError, RefusedError, Request
from tests.simulator.key_lists import BUCKET as LISTS

STREAM = "lake"
HEADER = re.compile(rb'ICSP.{6}{"kind":"(\w+)",.*?"epoch":(\d+)', re.DOTALL)
"""The beginning of a record of the log."""
POLICY = RetryPolicy(attempts=6, base_seconds=0.05, cap_seconds=0.4, budget_seconds=8.0)


def env():
    """Whatever the process that runs now was started with."""
    return runtime.world.current.process.extra


# ---- Iggy


class Sending(Request):
    """A request whose outcome is in a future."""

    __slots__ = ("future", "on_stored")

    def __init__(self, what, op, on_stored):
        super().__init__(what, op)
        self.future, self.on_stored = Future(), on_stored

    def answer(self, result):
        if self.on_stored is not None:
            self.on_stored(result)
        self.future.set_result(result)

    def fail(self, error):
        unknown = not isinstance(error, RefusedError) and error.unknown
        kind = UnknownOutcomeError if unknown else IggyUnavailableError
        self.future.set_exception(kind(f"{self.what}: {error}"))


class Call(Request):
    """A request that a thread waits for."""

    __slots__ = ("done", "error", "result", "waiter")

    def __init__(self, what, op):
        super().__init__(what, op)
        self.done, self.waiter = False, None

    def answer(self, result):
        self._end(result, None)

    def fail(self, error):
        self._end(None, failure(self.what, error))

    def _end(self, result, error):
        self.done, self.result, self.error = True, result, error
        if self.waiter is not None:  # no reader waits yet when it is refused at once
            runtime.world.wake(*self.waiter, True)

    def wait(self):
        if not self.done:
            world = runtime.world
            self.waiter = world.ticket()
            world.park()
        if self.error is None:
            return self.result
        error, self.error = self.error, None
        try:
            raise error
        finally:
            del error  # or the error keeps this frame, and this frame the error


def failure(what, error):
    """The framework's error for one of the server."""
    if isinstance(error, RefusedError):
        return IggyTopicError(str(error))
    return IggyUnavailableError(f"{what}: {error}")


class SimConnection(IggyConnection):
    """A connection to the simulated server."""

    def __init__(self, address, *, connect_timeout_seconds=10, call_timeout_seconds=30):
        super().__init__(
            address, connect_timeout_seconds=connect_timeout_seconds, call_timeout_seconds=call_timeout_seconds
        )
        self._server = None
        self._link = None
        self._begun = []
        self._over = False

    def connect(self):
        world = runtime.world
        self._server = env()["server"]
        world.sleep(self._server.latency(None))
        try:
            self._link = self._server.connect(world.current.process)
        except NoConnectionError as error:
            raise IggyUnavailableError(str(error)) from None
        world.sleep(self._server.latency(None))
        if self._over:
            self._link.close()
            raise IggyUnavailableError("the connection was closed before it was open")
        return self

    def close(self):
        if not self._over:
            self._over = True
            for link in (self._link, self._sending):
                if link is not None:
                    link.close()

    def open_sending(self):
        """Records go over a second connection, in every other history; its end is the end of both."""
        if runtime.world.sends_beside:
            try:
                self._sending = self._server.connect(runtime.world.current.process)
            except NoConnectionError as error:
                raise IggyUnavailableError(str(error)) from None
            self._sending.on_end = self._link.cut
            self._sending.since = self._link.since  # what was checked before is no later than the connection

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _ask(self, request):
        if self._over or self._link is None:
            raise TaskClosedError(f"{request.what}: this connection to Iggy was closed")
        self._link.submit(request)
        return request

    def _submit(self, what, op, on_stored=None):
        """Sends a request that stores something, for whoever asks later."""
        return self._ask(Sending(what, op, on_stored)).future

    def _call(self, what, op):
        """Waits for the answer: a future would only be asked at once, and most requests come this way."""
        return self._ask(Call(what, op)).wait()

    # ---- the server and its clients

    def server_version(self):
        return self._call("version", lambda: "0.9.0")

    def own_client(self):
        link = self._link
        return self._call("own client", lambda: ConnectedClient(link.number, link.address))

    def own_clients(self):
        beside = self._sending
        return (self.own_client(), *(() if beside is None else (ConnectedClient(beside.number, beside.address),)))

    def clients(self):
        server = self._server
        return self._call(
            "clients", lambda: tuple(ConnectedClient(one.number, one.address) for one in server.clients.values())
        )

    def missing_rights(self, stream, topics):
        """All users may do everything; no request of its own."""
        return []

    # ---- topics

    def ensure_stream(self, stream):
        self._call("stream", lambda: self._server.make_stream(stream))

    def get_topic(self, stream, topic):
        return self._call("topic", lambda: self._topic_info(stream, topic))

    def topic_names(self, stream):
        return self._call("topics", lambda: sorted(self._server.streams.get(stream, {})))

    def _topic_info(self, stream, name):
        found = self._server.find(stream, name)
        if found is None:
            return None
        return TopicInfo(
            stream=stream,
            name=name,
            id=found.number,
            created_at=found.created_at,
            partitions=tuple(
                PartitionInfo(
                    id=number,
                    current_offset=max(part.end - 1, 0),
                    messages_count=len(part.messages),
                    segments_count=len(found.segments(part)),
                )
                for number, part in enumerate(found.partitions)
            ),
            expiry_microseconds=None,
            max_bytes=None,
            options=dict(found.options),
        )

    def create_topic(self, stream, topic, partitions, *, segment_bytes=None, **_):
        required = env()["required_to_save"].get(topic, env()["required_of_data"])
        self._call(
            "make topic",
            lambda: self._server.make_topic(
                stream, topic, partitions, required=required, segment_bytes=env_segment(segment_bytes)
            ),
        )

    def delete_segments(self, stream, topic, partition, count):
        self._call("delete segments", lambda: self._server.delete_segments(stream, topic, partition, count))

    # ---- messages

    def wait(self, future):
        return future.result()

    def submit_append(self, stream, topic, partition, payload, *, on_stored=None, begins=()):
        number = runtime.world.rng.getrandbits(128)
        name = runtime.world.current.process.name
        new = [(number, payload, {}, int(runtime._time_of_day() * 1e6))]
        what = f"append {topic} {told(payload)}"
        append = self._submit(what, lambda: self._server.store(stream, topic, partition, new, name)[1], on_stored)
        if begins:
            self._begun.append((append, begins))
        return append

    def ensure_group(self, stream, topic, group):
        self._call(f"group of {topic}", lambda: self._server.make_group(stream, topic, group))

    def has_group(self, stream, topic, group):
        return self._call(f"group of {topic}?", lambda: group in self._server.groups(stream, topic))

    def join_group(self, stream, topic, group):
        self.ensure_group(stream, topic, group)
        for link in filter(None, (self._link, self._sending)):
            self._call("join", functools.partial(link.groups.add, group))

    def poll(self, stream, topic, partition, *, offset, count):
        found = self._call(f"poll {topic}", lambda: self._server.read(stream, topic, partition, offset, count))
        return [_stored(one) for one in found]

    def polled_end(self, stream, topic, partition):
        return self._call(f"end of {topic}", lambda: self._server.polled_end(stream, topic, partition))

    def submit_send(self, stream, topic, partition, body, objects=()):
        name = runtime.world.current.process.name
        new = decode_send(body)

        def op():
            _, base = self._server.store(stream, topic, partition, new, name)
            return base

        what = f"send {topic}/{partition}"
        if self._sending is None or self._over:
            return self._submit(what, op)
        self.wait_for_begun(set(objects))
        if self._link.over is not None:
            raise IggyUnavailableError(f"{what}: not sent: {self._link.over}")
        request = Sending(what, op, None)
        self._sending.submit(request)
        return request.future

    def pull(self, seconds):
        """Nothing to do: the answers come by themselves."""

    def wait_for_begun(self, objects):
        for append, begins in self._begun:
            if not objects.isdisjoint(begins):
                append.exception()

    def send_raw(self, stream, topic, partition, body):
        return self.submit_send(stream, topic, partition, body).result()


def env_segment(segment_bytes):
    return None if segment_bytes is None else 4096


def _stored(one):
    return StoredMessage(one.offset, one.id, one.payload, one.headers, one.timestamp_us, one.origin_us)


def told(payload):
    """What a record of the log is, for who watches a history."""
    found = HEADER.match(payload)
    return f"{found[1].decode()} of epoch {int(found[2])}" if found is not None else ""


# ---- the store


class SimStore(ObjectStore):
    scheme = "sim"
    lists_milliseconds = False

    def __init__(self, bucket, *, documented):
        self._bucket = bucket
        self.bucket = bucket.name
        self.address = bucket.address
        self.order_is_documented = documented

    def _wait(self):
        world = runtime.world
        slow = self._bucket.world.store_slow
        seconds = world.rng.uniform(0.001, 0.01)
        if slow and world.rng.random() < slow:
            seconds = world.rng.uniform(0.05, 1.5)
        world.sleep(seconds)

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000, until=None):
        self._wait()
        border = continuation if continuation is not None else after
        if self._bucket.lie("503", "list"):
            raise StoreUnavailableError("503 Service Unavailable")
        who = runtime.world.current.process
        versions, more, told = self._bucket.page(prefix, border, page_size, who)
        page = ListPage(
            objects=[self._native(one) for one in versions],
            continuation=versions[-1].key if more else None,
            server_time_ms=told,
        )
        self._wait()
        return page

    def _native(self, version):
        return NativeObject(
            scheme=self.scheme,
            bucket=self.bucket,
            key=version.key,
            size=len(version.data),
            version=f"v{version.tag}",
            modified_ms=version.modified_ms,
            storage_class="GLACIER" if self._bucket.is_archived(version.key) else "",
        )

    def listed_version(self, *, etag, modified_ms):
        return etag or None

    def stat(self, key):
        self._wait()
        bucket, version = self._bucket, self._bucket.objects.get(key)
        if bucket.lies_in_lookups and bucket.lie("503", key):
            raise StoreUnavailableError("503 Service Unavailable")
        if version is None or (bucket.lies_in_lookups and bucket.lie("404", key)):
            raise ObjectNotFoundError("there is no such object", location=f"sim://{self.bucket}/{key}")
        return self._native(version)

    def open(self, native, start=0, end=None):
        self._wait()
        bucket, version = self._bucket, self._bucket.objects.get(native.key)
        if version is None or bucket.lie("404", native.key):
            raise ObjectNotFoundError("deleted since it was listed (404)", location=native.location)
        if bucket.is_archived(native.key):
            raise ObjectArchivedError("archived: it must be restored first (403)", location=native.location)
        if bucket.lie("403", native.key):
            raise AccessDeniedError(f"{native.location}: 403 Forbidden")
        if bucket.lie("503", native.key):
            raise StoreUnavailableError("503 Service Unavailable")
        if f"v{version.tag}" != native.version:
            raise ObjectChangedError("overwritten since it was listed (412)", location=native.location)
        data = version.data[start:end]
        self._wait()
        return _Stream(bucket, data)

    def close(self):
        pass


class _Stream(ReadStream):
    def __init__(self, bucket, data):
        self._bucket, self._data, self._at = bucket, data, 0

    def read(self, size, /):
        world, bucket = runtime.world, self._bucket
        largest = bucket.largest_read
        if self._at and largest < 1 << 20:
            world.sleep(world.rng.uniform(0.05, 1.0) * bucket.read_seconds)
        if bucket.break_rate and world.rng.random() < bucket.break_rate:
            raise StoreUnavailableError("the connection broke")
        data = self._data[self._at : self._at + min(size, largest)]
        self._at += len(data)
        return data

    def close(self):
        self._data = b""


class SimTask(AbstractSourceTask):
    config_class = SourceCommonConfig

    def get_iterator(self, context):
        around = env()
        return StoreRecordIterator(
            context.config,
            make_transformer(context.config.input.options()),
            context.offsets,
            store=SimStore(around["bucket"], documented=around["documented"]),
            policy=POLICY,
            prefixes=around["prefixes"],
            page_size=around["page_size"],
            feed=context.feed,
            once=context.once,
            open_bucket=lambda _: SimStore(around["lists"], documented=True),
        )


# ---- processes of tasks


class _SimContext:
    def Pipe(self):  # noqa: N802
        world = runtime.world
        return runtime.make_pipe(world, env()["pipe_latency"])

    def Process(self, *, target, args, name, daemon):  # noqa: N802
        world = runtime.world
        return runtime.ChildProcess(world, target, args, name, lambda: _startup(world.rng))


def _startup(rng):
    return rng.uniform(0.001, 0.2) if rng.random() < 0.8 else rng.uniform(0.2, 3.0)


# ---- Spark: a job is a process on another host; one that the driver takes for lost may live on


class SimSpark:
    """Stands for a `SparkContext`."""

    master = "spark://simulated:7077"

    def __init__(self):
        self._groups = {}
        self._running = {}

    def setJobGroup(self, group, _description, interruptOnCancel=True):  # noqa: N802, N803
        self._groups[runtime.world.current] = group

    def cancelJobGroup(self, group):  # noqa: N802
        world = runtime.world
        for process, of, lost in list(self._running.values()):
            if of == group:
                world.at(world.rng.uniform(0.01, 1.0), process.die)
                lost("cancelled")

    def parallelize(self, jobs, _slices):
        return _Slice(self, jobs[0])

    def run(self, function, job):
        """One job: an attempt, and another one when it is lost."""
        world = runtime.world
        group = self._groups.get(world.current, "")
        for attempt in range(2):
            answer = []
            waiter = world.ticket()

            def told(what, value, waiter=waiter, answer=answer):
                if not answer:
                    answer.append((what, value))
                    world.wake(*waiter, True)

            driver = world.current.process
            executor = runtime.Process(world, world.spark_host, f"{driver.name}/job{len(self._running)}.{attempt}")
            executor.extra.update(driver.extra)
            executor.extra.update(attempt=attempt, children=[])
            driver.extra.setdefault("children", []).append(executor)
            self._running[executor] = executor, group, lambda text, told=told: told("cancelled", text)
            copy = pickle.dumps(job)

            def main(executor=executor, told=told, copy=copy):
                world.sleep(_startup(world.rng))
                result = pickle.dumps(function(pickle.loads(copy)))
                world.at(world.rng.uniform(0.001, 0.01), lambda: told("result", result))
                world.at(0.0, executor.die)

            executor.at_exit.append(
                lambda told=told: world.at(world.rng.uniform(0.05, 0.5), lambda: told("lost", None))
            )
            world.spawn(executor, main)
            if not attempt and world.rng.random() < env()["spark_loses"]:
                # no heartbeat comes through: the driver goes on without it, and it does not know
                world.at(world.rng.expovariate(1.0), lambda told=told: told("lost", None))
            if not answer:
                world.park()
            what, value = answer[0]
            if what == "result":
                return pickle.loads(value)
            if what == "cancelled":
                break
        raise RuntimeError(f"Job aborted: {what}")

    # what tells that it is there
    class _jsc:  # noqa: N801
        @staticmethod
        def sc():
            class Java:
                isStopped = staticmethod(lambda: False)  # noqa: N815
                getLocalProperties = staticmethod(lambda: SimpleNamespace(clone=dict))  # noqa: N815
                setLocalProperties = staticmethod(lambda _: None)  # noqa: N815

            return Java


class _Slice:
    def __init__(self, context, job, function=None):
        self._context, self._job, self._function = context, job, function

    def map(self, function):
        return _Slice(self._context, self._job, function)

    def collect(self):
        return [self._context.run(self._function, self._job)]


class _SimTaskContext:
    @staticmethod
    def get():
        return _SimTaskContext

    @staticmethod
    def attemptNumber():  # noqa: N802
        return env()["attempt"]


class SimCapacity:
    """Stands for `Capacity`: as many tasks at once as a cluster of two cores runs, and no job waits for an executor."""

    def __init__(self, _context, *, tasks_max=None):
        self.wanted = tasks_max or 2

    def look(self, _running):
        pass


class SimSparkEngine(spark_engine.SparkEngine):
    def _spark(self):
        return contextlib.nullcontext()

    def _await_spark(self):
        return spark_driver.ReadySpark(context=SimSpark(), use_stop_channel=False)


# ---- configuration


class FilterSome(Transform):
    """Filters what the bucket says, and handles every other record."""

    name = "simulated_filter"

    def apply(self, batch, context):
        return batch.keep(
            [place for place, one in enumerate(batch.payloads) if not any(is_filtered(*t) for t in tell(one))]
        )


class RefuseSome(FilterSome):
    """Cannot handle some of the others."""

    name = "simulated_refusal"

    def apply(self, batch, context):
        if any(is_refused(*one) for payload in batch.payloads for one in tell(payload)):
            raise ValueError("refused")
        return super().apply(batch, context)


class ChoosePartition(Transform):
    """Chooses the partition of each record by its key; a record that tells nothing is bad."""

    name = "simulated_key"
    chooses_partition = True

    def apply(self, batch, context):
        hashes = [key_hash(tag, number) for payload in batch.payloads for _, tag, number in tell(payload)]
        if len(hashes) != len(batch):
            raise ValueError("no key")
        return attrs.evolve(batch, key_hashes=np.asarray(hashes, dtype=np.uint32))


FILTERING, REFUSING, CHOOSING = FilterSome.name, RefuseSome.name, ChoosePartition.name
by_name.SHIPPED = {
    **by_name.SHIPPED,
    **{one.name: f"{one.__module__}:{one.__name__}" for one in (FilterSome, RefuseSome, ChoosePartition)},
}


NUMBERS = {
    "iggy": {"partitions": "partitions", "batch_length": "batch_length", "linger_time": "linger_time"},
    "input": {"queue_records": "queue_records", "prefetch_objects": "prefetch_objects"},
    "offsets": {"commit_interval": "commit_interval"},
    "discovery": {
        "poll_interval": "poll_interval",
        "allowed_lateness": "window",
        "list_concurrency": "list_concurrency",
        "min_age": "min_age",
        "lookback_keys": "lookback_keys",
        "full_listing_interval": "full_listing_interval",
    },
    "runner": {"tasks_max": "tasks"},
}
"""Section -> option -> the setting that it has its value from, of those that are in the configuration as they are set."""

USUAL = {name: getattr(Settings(), name) for options in NUMBERS.values() for name in options.values()}


@functools.lru_cache(maxsize=4096)
def make_config(settings):
    """A configuration of the simulation's settings (`history.Settings`).

    Loading it takes as long as many requests, and no two histories have the same numbers: they are put into a configuration that
    was loaded with others.
    """
    config = load_config(attrs.evolve(settings, **USUAL))
    sections = {
        section: attrs.evolve(
            getattr(config, section), **{option: getattr(settings, name) for option, name in options.items()}
        )
        for section, options in NUMBERS.items()
    }
    return attrs.evolve(config, **sections)


@functools.cache
def load_config(settings):
    """The same, loaded and checked in every option."""
    options = {
        "name": settings.name,
        "stream": STREAM,
        "topic": settings.topic,
        "partitions": settings.partitions,
        "headers": settings.headers,
        "format": settings.format,
        "batch_length": settings.batch_length,
        "queue_records": settings.queue_records,
        "prefetch_objects": settings.prefetch_objects,
        "linger_time": settings.linger_time,
        "commit_interval": settings.commit_interval,
        "poll_interval": settings.poll_interval,
        "allowed_lateness": settings.window,
        "list_concurrency": settings.list_concurrency,
        "ignore_hidden": False,
        "min_age": settings.min_age,
        "mode": settings.mode,
        "lookback_keys": settings.lookback_keys,
        "full_listing_interval": settings.full_listing_interval,
        "archived": settings.archived,
        "order": settings.order,
        "engine": "local",
        "tasks_max": settings.tasks,
        "request_timeout": 3.0,
        "tolerance": "skip_record" if settings.letters or settings.bad else "none",
    }
    if settings.mode == "keys":
        options |= {"keys": f"{SimStore.scheme}://{LISTS}/{settings.keys}", "keys_recheck": settings.recheck}
    if settings.transforms:
        options["transforms"] = [{"type": REFUSING if settings.bad and settings.refusing else FILTERING}]
    if settings.keyed:
        options["transforms"] = [*options.get("transforms", ()), {"type": CHOOSING}]
    if settings.template is not None:
        options["template"] = settings.template
        options["distribution"] = settings.distribution
    if settings.format == "bytes":
        options["chunk_size"] = settings.chunk_size
    if settings.letters:
        options["dead_letter_topic"] = "letters"
    config = source_config(**options)
    if settings.offsets != f"{settings.name}-offsets":
        config = attrs.evolve(config, offsets=attrs.evolve(config.offsets, topic=settings.offsets))
    if settings.batch_bytes < 1 << 21:  # less than an option may say: so few bytes are also read at once
        config = attrs.evolve(config, iggy=attrs.evolve(config.iggy, batch_bytes=settings.batch_bytes))
    if settings.split_size and settings.format in {"jsonl", "text"}:
        config = attrs.evolve(config, input=attrs.evolve(config.input, split_size=settings.split_size))
    return config


# ---- lives


@attrs.define
class Outcome:
    """How a life ended.

    Attributes:
        kind: done, running, taken, refused, away, denied, topic, list (of keys), broken (what should not happen at all).
        text: the error.
    """

    kind: str
    text: str = ""


KINDS = (
    (SourceRunningError, "running"),
    (SourceTakenOverError, "taken"),
    (PositionError, "refused"),
    (AccessDeniedError, "denied"),
    (IggyTopicError, "topic"),
    (KeyListError, "list"),
    (RetriableError, "away"),
)
TEXTS = (("403 Forbidden", "denied"), ("gave up", "away"))
"""Of the error of a task in another process, which comes without its cause."""


def outcome_of(error):
    """How a life ended that raised this."""
    if error is None:
        return Outcome("done")
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__ if isinstance(error, ReaderFailedError) else error
    found = [kind for cls, kind in KINDS if isinstance(cause, cls)] + [kind for part, kind in TEXTS if part in text]
    return Outcome(found[0] if found else "broken", text)


def run_source(settings, *, once, take_over, standby=False):
    """A life of the source, in the process that calls this."""
    process = runtime.world.current.process
    make = SimSparkEngine if settings.engine == "spark" else local.LocalEngine
    engine = make(SimTask, make_config(settings), once=once, take_over=take_over, standby=standby)
    process.extra["stop"] = engine.stop
    engine.run()


def run_reset(settings, *, key=None, prefix=None):
    """`offsets reset`."""
    config = make_config(settings)
    with iggy_target.IggyTarget(config) as target, target.connect() as connection:
        positions_admin.reset_positions(connection, config, PositionFilter(key=key, prefix=prefix))


@attrs.frozen(kw_only=True)
class ToldPosition(SetPosition):
    """A position that is set. It tells which one it was, at the moment when it is changed.

    Another instance may go on with the object after the command's first look.
    """

    tell: object = attrs.field(eq=False)
    refusals: list = attrs.field(factory=list, eq=False)

    def find(self, entries):
        try:
            return super().find(entries)
        except PositionError as error:
            self.refusals.append(error)
            raise

    def applied(self, entry, generation):
        if generation != entry.generation:  # else it is only checked
            self.tell(entry, self.count_of(entry))
        return super().applied(entry, generation)


def run_set(settings, *, key, share):
    """`offsets set`, to a share of the records that are known to be there; without one, done."""
    process, config = runtime.world.current.process, make_config(settings)
    world = process.extra["world"]
    numbering = config.numbering_options(make_transformer(config.input.options()).numbering_options())

    def tell(entry, count):
        made = SetByHand(
            life=process.name,
            begun=world.now_us(),
            key=key,
            tag=int(entry.version[1:]),
            sent=entry.records_done,
            count=count,
            done=share is None,
        )
        world.sets.append(made)

    with iggy_target.IggyTarget(config) as target, target.connect() as connection:
        entries = inspect(connection, config).state.positions.view()
        known = max([entry.total or entry.records_done for entry in entries if entry.key == key], default=0)
        records = None if share is None else round(share * known)
        change = ToldPosition(
            key=key, records=records, numbering_options=numbering, partitions=settings.partitions, tell=tell
        )
        try:
            change.find(entries)
            positions_admin.set_position(connection, config, change)
        except PositionError as error:
            if not change.refusals and "dead letter" not in str(error):
                raise  # all else is as documented


def run_accept(settings):
    """`offsets accept-data-loss`."""
    config = make_config(settings)
    with iggy_target.IggyTarget(config) as target, target.connect() as connection:
        numbering = config.numbering_options(make_transformer(config.input.options()).numbering_options())
        positions_admin.accept_changes(connection, config, numbering_options=numbering)


def run_replay(settings):
    """`dead-letter replay`."""
    config = make_config(settings)
    with iggy_target.IggyTarget(config) as target, target.connect() as connection:
        ours = session.Session.begin(connection, config)
        letters = DeadLetterLog.read(connection, config)
        with iterator_of(SimTask, SourceContext(config=config, offsets=ours.offsets)) as iterator:
            DeadLetterReplay(ours, iterator).run(letters.waiting, letters.notes)


LIVES = {"source": run_source, "reset": run_reset, "set": run_set, "accept": run_accept, "replay": run_replay}


def replace(module, **values):
    """Replace values of the framework. A name that is gone is an error: the real thing would block the simulated world."""
    for name, value in values.items():
        getattr(module, name)
        setattr(module, name, value)


def begin_history(tuning):
    """What is kept in modules and does not belong to one history; and limits that are lower than a user's."""
    in_parts = tuning.get("many_parts", False)
    replace(codec, PART_CHUNKS=1 if in_parts else 4)
    replace(record_size, MAX_ROWS=2 if in_parts else 5000, MAX_BYTES=500 if in_parts else 16 << 20)
    replace(
        packed_table.FinishedTable,
        _block_rows=2 if in_parts else packed_table.BLOCK_ROWS,
    )
    replace(
        snapshots,
        SNAPSHOT_RECORDS=tuning.get("snapshot_records", 1000),
        COMPACT_FROM=tuning.get("compact_from", 10_000),
        SLACK_BYTES=0 if tuning.get("trim_soon") else 1 << 16,
    )
    replace(session, COMPACT_SHARE=tuning.get("compact_share", 8))


def prepare():
    """Once in a process, after `runtime.install` and before the first history."""
    silent = logging.NullHandler()  # the same one each time: the root logger keeps what it was given
    replace(iggy_target, IggyConnection=SimConnection)
    replace(process_group, SpawnContext=_SimContext, WAIT_SECONDS=0.1)
    replace(
        task_process,
        leave=lambda _: None,
        set_up_process=lambda: None,
        LogForwarder=lambda tell: silent,
        log_python_messages=lambda: None,  # it changes the process that all instances share
        signal=signal_stub,
        FIGURES_SECONDS=2.0,
    )
    replace(
        spark_driver,
        WAIT_SECONDS=0.1,
        wave_lister=lambda *_, **__: None,
        Capacity=SimCapacity,
    )
    replace(listing_waves, Capacity=SimCapacity)
    replace(
        spark_executor,
        TaskContext=_SimTaskContext,
        set_up_process=lambda: None,
        LogForwarder=lambda _: silent,
        log_python_messages=contextlib.nullcontext,
    )
    replace(listing_thread, WAIT_SECONDS=0.1)
    replace(session, FOLLOW_SECONDS=0.5)
    logging.disable(logging.CRITICAL)


class signal_stub:  # noqa: N801
    SIGINT, SIGTERM, SIG_IGN, SIG_UNBLOCK = signal.SIGINT, signal.SIGTERM, signal.SIG_IGN, signal.SIG_UNBLOCK

    @staticmethod
    def signal(*_):
        return None

    @staticmethod
    def pthread_sigmask(*_):
        return None
