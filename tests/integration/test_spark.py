"""The pipeline on Spark: the same records and positions as without it, and none lost when its workers die."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import attrs
import pytest

from framework.engine.local import LocalEngine
from framework.errors import ConfigError, FatalError, SourceError
from framework.testing.faults import Fault, FaultProxy
from s3_source.task import S3SourceTask
from tests.integration.program_rig import (
    CUT_SHORT,
    ROOT,
    HookProxy,
    Program,
    Tarpit,
    check_exactly,
    check_saved,
    encoded,
    fill,
    rows,
    stopping,
    wait_for_count,
)
from tests.support.iggy_proxy import IggyProxy, WireFault
from tests.support.stopwatch import run_within

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="no Java: Spark needs one")
pytest.importorskip("pyspark")


LINES = 700
OBJECTS = 13


@pytest.fixture(scope="module")
def session():
    """A session that is there before us, as in a notebook."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        made = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield made
    made.stop()


@pytest.fixture
def spark(session):
    return session.sparkContext


@pytest.fixture
def program(moto_bucket, tmp_path, iggy_url, stream_name):
    """The source as a process of its own, which brings its Spark."""
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name, input={"format": "auto"})
    made.configure(runner={"engine": "spark", "tasks_max": 2}, spark={"master": "local[2]"})
    yield made
    made.close()


@pytest.fixture
def bucket(moto_bucket):
    for number in range(OBJECTS):
        lines = b"".join(b'{"object":%d,"line":%d}\n' % (number, line) for line in range(1, LINES + number))
        moto_bucket.put(f"in/{number:02d}.jsonl", lines)
    return moto_bucket


def s3_section(bucket):
    store = bucket.config()
    names = ("bucket", "endpoint", "access_key_id", "secret_access_key")
    return {**{name: getattr(store, name) for name in names}, "prefix": "in/"}


def configured(bucket, iggy_url, stream_name, *, name, engine, **more):
    props = {
        "source": {"name": name},
        "s3": s3_section(bucket),
        "input": {"format": "jsonl"},
        "iggy": {"url": iggy_url, "stream": stream_name, "topic": name, "partitions": 3, "batch_length": 97},
        "runner": {"engine": engine, "tasks_max": 2},
        **more,
    }
    return S3SourceTask().configure(props)


def stored(iggy_url, stream_name, topic):
    """(key, record number, payload) of every message, by an own reader."""
    from framework.config.iggy_address import IggyAddress
    from framework.iggy.connection import IggyConnection

    found = []
    with IggyConnection(IggyAddress.parse(iggy_url)) as connection:
        for partition in range(3):
            offset = 0
            while messages := connection.poll(stream_name, topic, partition, offset=offset, count=500):
                found += [(m.headers["key"], m.message_id & (1 << 40) - 1, m.payload) for m in messages]
                offset = messages[-1].offset + 1
    return found


def splits(iggy_url, stream_name, topic):
    """(key, share, record number, partition, payload) of every message."""
    from framework.config.iggy_address import IggyAddress
    from framework.iggy.connection import IggyConnection
    from framework.iggy.reader import read_topic
    from framework.model.message_ids import parse_message_id

    with IggyConnection(IggyAddress.parse(iggy_url)) as connection:
        partitions = [partition.id for partition in connection.get_topic(stream_name, topic).partitions]
        return sorted(
            (message.headers["key"], parts.split_number, parts.record, partition, message.payload)
            for partition, message in read_topic(connection, stream_name, topic, partitions)
            for parts in [parse_message_id(message.message_id)]
        )


def positions(iggy_url, config):
    """key -> (records done, state) as the log has them."""
    from framework.config.iggy_address import IggyAddress
    from framework.engine.inspection import inspect
    from framework.iggy.connection import IggyConnection

    with IggyConnection(IggyAddress.parse(iggy_url)) as connection:
        found = inspect(connection, config)
    return {entry.key: (entry.records_done, entry.state.value) for entry in found.state.positions.values()}


def spark_engine(config, **more):
    from framework.engine.spark.engine import SparkEngine

    return SparkEngine(S3SourceTask, config, once=True, **more)


def test_spark_and_local_leave_the_same_records_and_positions(spark, bucket, iggy_url, stream_name):
    on_spark = configured(bucket, iggy_url, stream_name, name="one", engine="spark")
    alone = configured(bucket, iggy_url, stream_name, name="two", engine="local", runner={"tasks_max": 1})
    last = spark_engine(on_spark).run()
    LocalEngine(S3SourceTask, alone, once=True).run()
    records = stored(iggy_url, stream_name, "one")
    assert len(records) == sum(LINES - 1 + number for number in range(OBJECTS)) == last.records
    assert last.objects == last.objects_total == OBJECTS
    assert last.object_bytes == last.bytes_total
    assert sorted(records) == sorted(stored(iggy_url, stream_name, "two"))
    assert positions(iggy_url, on_spark) == positions(iggy_url, alone)
    assert spark_engine(on_spark).run().records == 0
    assert len(stored(iggy_url, stream_name, "one")) == len(records)


def test_spark_and_local_cut_a_large_object_alike(spark, bucket, iggy_url, stream_name):
    split = {"input": {"format": "jsonl", "split_size": 4001}}
    on_spark = configured(bucket, iggy_url, stream_name, name="one", engine="spark", **split)
    alone = configured(bucket, iggy_url, stream_name, name="two", engine="local", **split, runner={"tasks_max": 1})
    last = spark_engine(on_spark).run()
    LocalEngine(S3SourceTask, alone, once=True).run()
    records = splits(iggy_url, stream_name, "one")
    assert len(records) == sum(LINES - 1 + number for number in range(OBJECTS)) == last.records
    assert {split_number for _, split_number, *_ in records} == set(
        range(1, max(split_number for _, split_number, *_ in records) + 1)
    )
    assert {partition for key, _, _, partition, _ in records if key == "in/00.jsonl"} == {0, 1, 2}
    assert records == splits(iggy_url, stream_name, "two")
    assert last.objects == last.objects_total > OBJECTS
    assert last.object_bytes == last.bytes_total
    assert spark_engine(on_spark).run().records == 0
    assert splits(iggy_url, stream_name, "one") == records


@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_one_large_object_in_blocks_is_read_by_several_tasks(spark, moto_bucket, iggy_url, stream_name, form):
    written = rows("one", 6000)
    data = encoded(form, written)
    moto_bucket.put(f"in/large.{form}", data)
    options = {"input": {"format": "auto", "split_size": max(1024, len(data) // 7)}}
    on_spark = configured(moto_bucket, iggy_url, stream_name, name="one", engine="spark", **options)
    alone = configured(
        moto_bucket, iggy_url, stream_name, name="two", engine="local", **options, runner={"tasks_max": 1}
    )
    last = spark_engine(on_spark).run()
    LocalEngine(S3SourceTask, alone, once=True).run()
    records = splits(iggy_url, stream_name, "one")
    assert [json.loads(payload) for *_, payload in records] == written
    assert len({split_number for _, split_number, *_ in records}) >= 5
    assert {partition for *_, partition, _ in records} == {
        0,
        1,
        2,
    }  # a task sends to a partition, and another to others
    assert records == splits(iggy_url, stream_name, "two")
    assert last.object_bytes == last.bytes_total == len(data)
    assert spark_engine(on_spark).run().records == 0


def held_until(released, bucket, pattern, request):
    """A proxy that holds the first read of an object, so that its job has a middle."""
    proxy = HookProxy(bucket.endpoint, pattern, lambda _: released.wait(200)).start()
    request.addfinalizer(proxy.close)
    request.addfinalizer(released.set)  # before that
    return proxy


def test_a_killed_python_worker_loses_and_repeats_nothing(spark, bucket, iggy_url, stream_name, request):
    # local[2] makes one attempt only: the job is lost, and the driver recovers
    killed = threading.Event()
    proxy = held_until(killed, bucket, f"/in/{OBJECTS - 1:02d}", request)
    config = configured(
        bucket,
        iggy_url,
        stream_name,
        name="killed",
        engine="spark",
        offsets={"commit_interval": 0.05},
        input={"format": "jsonl", "prefetch_objects": 1},
        s3={**s3_section(bucket), "endpoint": proxy.endpoint},
    )

    def kill(progress):
        if progress.records > 0 and not killed.is_set():
            for pid in workers_of_spark():
                os.kill(pid, signal.SIGKILL)
            killed.set()

    engine = spark_engine(config, report=kill)
    last = engine.run()
    assert killed.is_set()
    assert last.recoveries >= 1
    records = stored(iggy_url, stream_name, "killed")
    assert len(records) == sum(LINES - 1 + number for number in range(OBJECTS))
    assert len({(key, number) for key, number, _ in records}) == len(records)


def test_an_outage_that_only_executors_see_shows_while_it_lasts(spark, bucket, iggy_url, stream_name, request):
    proxy = FaultProxy(bucket.endpoint).start()
    request.addfinalizer(proxy.close)
    proxy.add(Fault(method="GET", path=r"/in/0[3-9]", times=None, status=503))
    config = configured(
        bucket,
        iggy_url,
        stream_name,
        name="away",
        engine="spark",
        input={"format": "jsonl", "prefetch_objects": 1},
        s3={**s3_section(bucket), "endpoint": proxy.endpoint, "retry_cap": "1s"},
    )
    seen = []

    def watch(progress):
        seen.append((progress.store_up, progress.recoveries))
        if not progress.store_up:
            proxy.clear()

    last = spark_engine(config, report=watch).run()
    assert (False, 0) in seen, "the job had not failed, and it was said already"
    assert last.store_up
    assert len(stored(iggy_url, stream_name, "away")) == sum(LINES - 1 + number for number in range(OBJECTS))


def test_dead_letters_of_a_killed_python_worker_are_all_there(spark, moto_bucket, iggy_url, stream_name, request):
    from framework.config.iggy_address import IggyAddress
    from framework.iggy.connection import IggyConnection
    from framework.iggy.reader import read_partition

    good, bad = set(), set()
    for number in range(6):
        key = f"in/{number}.jsonl"
        made = [b"- bad" if n % 9 == number else b'{"n":%d}' % n for n in range(1, 200)]
        moto_bucket.put(key, b"".join(line + b"\n" for line in made))
        good |= {(key, n) for n, line in enumerate(made, 1) if line != b"- bad"}
        bad |= {(key, n) for n, line in enumerate(made, 1) if line == b"- bad"}
    killed = threading.Event()
    proxy = held_until(killed, moto_bucket, "/in/5", request)
    config = configured(
        moto_bucket,
        iggy_url,
        stream_name,
        name="letters",
        engine="spark",
        offsets={"commit_interval": 0.05},
        input={"format": "jsonl", "prefetch_objects": 1},
        errors={"tolerance": "skip_record", "dead_letter_topic": "dead"},
        s3={**s3_section(moto_bucket), "endpoint": proxy.endpoint},
    )

    def dead_letters():
        with IggyConnection(IggyAddress.parse(iggy_url)) as connection:
            return [
                ((message.headers["key"], int(message.headers["record"])), message.message_id)
                for message in read_partition(connection, stream_name, "dead", 0)
                if message.headers["letter"] == "record"
            ]

    def kill():
        deadline = time.monotonic() + 180  # the last object is held as long
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # not there yet
                if len(dead_letters()) > 10:
                    for pid in workers_of_spark():
                        os.kill(pid, signal.SIGKILL)
                    killed.set()
                    return
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    last = spark_engine(config).run()
    killer.join()
    assert killed.is_set()
    assert last.recoveries >= 1
    records = [(key, number) for key, number, _ in stored(iggy_url, stream_name, "letters")]
    assert (len(records), set(records)) == (len(good), good)
    # at least once: a letter that was stored right before the kill comes again, under the same id
    assert {record for record, _ in dead_letters()} == bad
    assert len({message_id for _, message_id in dead_letters()}) == len(bad)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def workers_of_spark():
    """Process ids of this test's Python workers: children of the daemon that our own JVM started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            daemon = parent_of(entry.name)
            command = Path(f"/proc/{daemon}/cmdline").read_bytes()
            ours = b"pyspark.daemon" in command and parent_of(parent_of(daemon)) == os.getpid()
        except OSError:  # one of them has ended meanwhile
            continue
        if ours:
            found.append(int(entry.name))
    return found


def test_a_bad_record_ends_the_run_with_its_place(spark, moto_bucket, iggy_url, stream_name):
    moto_bucket.put("in/bad.jsonl", b'{"n":1}\n{"n":2}\nno json\n{"n":4}\n')
    config = configured(moto_bucket, iggy_url, stream_name, name="bad", engine="spark")
    with pytest.raises(SourceError, match=r"in/bad\.jsonl, record 3"):
        spark_engine(config).run()
    assert [payload for _, _, payload in stored(iggy_url, stream_name, "bad")] == [b'{"n":1}', b'{"n":2}']


def test_what_executors_warn_about_is_said_by_the_driver(spark, moto_bucket, iggy_url, stream_name, caplog):
    from framework.engine.spark.executor import MAX_LOGGED

    bad = b"".join(b"no json %d\n" % number for number in range(MAX_LOGGED + 3))
    moto_bucket.put("in/bad.jsonl", b'{"n":1}\n' + bad + b'{"n":2}\n')
    config = configured(
        moto_bucket, iggy_url, stream_name, name="warned", engine="spark", errors={"tolerance": "skip_record"}
    )
    last = spark_engine(config).run()
    assert (last.records, last.skipped) == (2, MAX_LOGGED + 3)
    assert caplog.text.count("skipped a record") == MAX_LOGGED
    assert "s3://" in caplog.text
    assert "and 3 more warnings of the same job" in caplog.text


def test_a_bucket_of_many_pages_is_listed_by_executors(spark, moto_bucket, iggy_url, stream_name):
    for number in range(400):
        moto_bucket.put(f"in/{number:03d}.jsonl", b'{"n":%d}\n' % number)
    config = configured(moto_bucket, iggy_url, stream_name, name="pages", engine="spark")
    config = attrs.evolve(config, s3=attrs.evolve(config.s3, page_size=7))
    last = spark_engine(config).run()
    assert last.records == last.objects_total == 400
    assert last.listed == 400
    assert 58 <= last.list_requests <= 58 * 1.3
    records = stored(iggy_url, stream_name, "pages")
    assert sorted(key for key, _, _ in records) == [f"in/{number:03d}.jsonl" for number in range(400)]


def test_objects_and_records_as_frames(session, bucket, iggy_url, stream_name):
    from framework.engine.spark import list_objects, read_records

    config = configured(bucket, iggy_url, stream_name, name="frames", engine="spark")
    objects = {row.key: row.size for row in list_objects(session, S3SourceTask, config).collect()}
    assert len(objects) == OBJECTS
    assert min(objects) == "in/00.jsonl"
    config = attrs.evolve(config, s3=attrs.evolve(config.s3, page_size=1))
    paged = list_objects(session, S3SourceTask, config).collect()
    assert sorted(row.key for row in paged) == sorted(objects)
    records = read_records(session, S3SourceTask, config)
    assert records.count() == sum(LINES - 1 + number for number in range(OBJECTS))
    first = records.filter("key = 'in/03.jsonl' and record = 2").collect()
    assert [bytes(row.payload) for row in first] == [b'{"object":3,"line":2}']


def test_a_wave_of_a_frame_is_a_job_of_its_callers_group_and_a_cancelled_one_ends_the_listing(
    session, bucket, iggy_url, stream_name, request, caplog
):
    """So a notebook cancels the cell that it interrupts."""
    from framework.engine.spark import list_objects

    for number in range(OBJECTS, 40):
        bucket.put(f"in/{number:02d}.jsonl", b"{}\n")
    spark, cancelled = session.sparkContext, []
    tracker = spark.statusTracker()

    class Cancelling(FaultProxy):
        def note(self, request):
            active = set(tracker.getActiveJobsIds()).intersection(tracker.getJobIdsForGroup("cell"))
            if active and not cancelled:
                cancelled.extend(active)
                spark.cancelJobGroup("cell")
            return super().note(request)

    proxy = Cancelling(bucket.endpoint).start()
    request.addfinalizer(proxy.close)
    config = configured(bucket, iggy_url, stream_name, name="frames", engine="spark")
    config = attrs.evolve(config, s3=attrs.evolve(config.s3, page_size=1, endpoint=proxy.endpoint))
    spark.setJobGroup("cell", "a cell", interruptOnCancel=True)
    request.addfinalizer(lambda: spark.setLocalProperty("spark.jobGroup.id", None))
    with pytest.raises(FatalError, match=r"^the listing was cancelled: .*SPARK_JOB_CANCELLED"):
        list_objects(session, S3SourceTask, config)
    assert len(cancelled) == 1
    assert "listed again" not in caplog.text


def test_a_frame_of_objects_whose_pages_are_lost_fails_rather_than_lists_again(
    session, bucket, iggy_url, stream_name, monkeypatch
):
    """A second listing has other pages: keys between those of the first waves would be missing, or there twice."""
    from py4j.protocol import Py4JJavaError

    from framework.engine.spark import frames, list_objects

    monkeypatch.setattr(frames, "DRIVER_BYTES", 1)
    config = configured(bucket, iggy_url, stream_name, name="frames", engine="spark")
    config = attrs.evolve(config, s3=attrs.evolve(config.s3, page_size=1))
    kept = set(session.sparkContext._jsc.getPersistentRDDs())
    frame = list_objects(session, S3SourceTask, config)
    assert frame.count() == OBJECTS
    held = session.sparkContext._jsc.getPersistentRDDs()
    lost = set(held) - kept
    assert lost
    for number in lost:
        held[number].unpersist(True)
    with pytest.raises(Py4JJavaError, match="Checkpoint block"):
        frame.count()


def test_without_java_one_sentence_says_what_to_do(monkeypatch, tmp_path):
    from framework.engine.spark.jvm import require_java

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FatalError, match=r"install it .* or set \[runner\] engine"):
        require_java()


class DyingTask(S3SourceTask):
    """Its workers die as soon as they begin: what a run meets when an object is larger than the memory."""

    def get_iterator(self, context):
        if context.feed is not None:  # with one that was handed over, it is a worker
            os._exit(9)
        return super().get_iterator(context)


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_workers_that_die_for_ever_end_the_run(bucket, iggy_url, stream_name, engine, request, monkeypatch):
    monkeypatch.setattr("framework.engine.reconnect_policy.RECONNECT_PAUSES", (0.01,))
    monkeypatch.setattr("framework.engine.reconnect_policy.FRUITLESS_RECOVERIES", 2)
    config = configured(bucket, iggy_url, stream_name, name="dying", engine=engine)
    if engine == "spark":
        from framework.engine.spark.engine import SparkEngine

        request.getfixturevalue("spark")
        running, said = SparkEngine(DyingTask, config, once=True), "Spark lost a task: .*exited unexpectedly"
    else:
        running, said = LocalEngine(DyingTask, config, once=True), "ended and said nothing"
    with pytest.raises(FatalError, match=rf"gave up after 2 recoveries in a row .*{said}"):
        running.run()
    assert running.progress().recoveries == 2


def test_a_start_whose_recovery_is_cut_goes_on(spark, bucket, iggy_url, stream_name):
    from framework.engine.spark.engine import SparkEngine

    place, _, port = iggy_url.rpartition(":")
    with IggyProxy(int(port)) as proxy:
        config = configured(bucket, f"{place}:{proxy.port}", stream_name, name="cut", engine="spark")
        proxy.arm(WireFault(kind="stored", skip=11, sends_only=False))
        SparkEngine(S3SourceTask, config, once=True).run()
        assert proxy.disarm()
    records = stored(iggy_url, stream_name, "cut")
    assert len(records) == len(set(records)) == sum(LINES + number - 1 for number in range(OBJECTS))


def test_a_supplied_list_on_spark(session, bucket, iggy_url, stream_name, tmp_path):
    """The driver reads the list; executors read the objects. A row is older than its object, one stands twice, one is missing."""
    from framework.engine.spark import list_objects, read_records

    named = [f"in/{number:02d}.jsonl" for number in (3, 5, 8, 11)]
    listed = {one["Key"]: one for one in bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]}
    rows = [
        f'{key},{listed[key]["Size"]},"{listed[key]["ETag"]}",{listed[key]["LastModified"].isoformat()}'
        for key in named
    ]
    rows[2] = rows[2].replace("+00:00", ".001+00:00")  # a part of a second: a row that is believed without a look
    text = "\n".join(["key,size,etag,last_modified", *rows, rows[0], "in/missing.jsonl,,,", ""]).replace('""', '"""')
    (tmp_path / "keys.csv").write_text(text)
    bucket.put("in/08.jsonl", b'{"new":1}\n{"new":2}\n')
    config = configured(
        bucket,
        iggy_url,
        stream_name,
        name="named",
        engine="spark",
        discovery={"mode": "keys", "keys": str(tmp_path / "keys.csv")},
    )
    expected = sum(LINES - 1 + number for number in (3, 5, 11)) + 2
    last = spark_engine(config).run()
    records = stored(iggy_url, stream_name, "named")
    assert len(records) == last.records == expected
    assert {key for key, _, _ in records} == set(named)
    assert last.filtered == {"missing": 1}
    assert {payload for key, _, payload in records if key == "in/08.jsonl"} == {b'{"new":1}', b'{"new":2}'}
    assert spark_engine(config).run().records == 0

    assert sorted(row.key for row in list_objects(session, S3SourceTask, config).collect()) == named
    assert read_records(session, S3SourceTask, config).count() == expected


# ---- whose Spark it is


def test_the_active_session_is_used_and_stays(session, bucket, iggy_url, stream_name):
    """Also from a thread in which it is not the active one, and whatever `[spark]` says."""
    config = configured(
        bucket, iggy_url, stream_name, name="theirs", engine="spark", spark={"master": "spark://nowhere.invalid:1"}
    )
    ended = []
    thread = threading.Thread(target=lambda: ended.append(spark_engine(config).run()))
    thread.start()
    thread.join()
    assert ended[0].records == sum(LINES - 1 + number for number in range(OBJECTS))
    assert spark_engine(config).run().records == 0
    assert session.range(7).count() == 7


def test_an_active_session_that_speculates_is_refused(spark, bucket, iggy_url, stream_name, monkeypatch):
    monkeypatch.setattr(spark, "getConf", lambda: {"spark.speculation": "true"})
    config = configured(bucket, iggy_url, stream_name, name="speculating", engine="spark")
    with pytest.raises(ConfigError, match=r"spark\.speculation is on: .*set it to false"):
        spark_engine(config).run()


def submit(program, *options, **environment):
    """The example, by `spark-submit`."""
    import pyspark

    command = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--conf", "spark.ui.enabled=false", *options]
    return run_within(
        60,
        [*map(str, command), str(ROOT / "examples" / "spark_submit.py"), *program.command(["--once"])],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        cwd=program.folder,
    )


def test_spark_submit_says_where_it_runs(program, moto_bucket):
    expected = fill(moto_bucket, 6)
    program.configure(spark={"master": "spark://nowhere.invalid:1"})
    done = submit(program, "--master", "local[2]")
    assert done.returncode == 0, done.stdout + done.stderr
    check_exactly(program.messages(), expected, same=json.loads)


def test_speculation_is_refused_in_one_sentence(program, moto_bucket):
    fill(moto_bucket, 1)
    done = submit(program, "--master", "local[1]", "--conf", "spark.speculation=true")
    assert done.returncode == 2
    said = done.stdout + done.stderr  # spark-submit writes both to stdout
    (told,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "spark.speculation is on" in told
    assert "set it to false" in told
    assert "Traceback" not in said
    assert program.count() == 0


# ---- a process with its own Spark


def test_a_run_is_quiet_and_a_signal_ends_it_with_positions_saved(program, moto_bucket):
    """SIGINT: pyspark has a handler of its own for it, which must not come first."""
    expected = fill(moto_bucket, 12, least=700)
    with HookProxy(moto_bucket.endpoint, "/in/011", lambda _: stopping(running)) as proxy:
        proxy.add(Fault(method="GET", path=r"/in/", times=None, delay_seconds=0.5))
        program.configure(
            s3={"endpoint": proxy.endpoint}, input={"prefetch_objects": 1}, offsets={"commit_interval": 60}
        )
        running = program.start()
        wait_for_count(program, 1001, seconds=100)
        ended = running.stop(signal.SIGINT).no_secrets()
    assert ended.code == 0, ended.err
    allowed = CUT_SHORT if ended.cut_short else "Z INFO "
    assert [line for line in ended.err.splitlines() if "Z INFO " not in line and allowed not in line] == []
    assert program.count() < sum(map(len, expected.values())), "it was not in the middle"
    again = program.configure(runner={"engine": "local", "tasks_max": 1}, s3={"endpoint": moto_bucket.endpoint}).once()
    check_saved(ended, again)
    check_exactly(program.messages(), expected, same=json.loads)


def test_a_signal_to_all_of_its_processes_ends_it_in_order(program, moto_bucket):
    """As systemd sends it: Spark's Java process ends at once, before anybody can ask it anything."""
    expected = fill(moto_bucket, 12, least=700)
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(method="GET", path=r"/in/", times=None, delay_seconds=0.5))
        program.configure(s3={"endpoint": proxy.endpoint}, input={"prefetch_objects": 1})
        running = program.start()
        wait_for_count(program, 1001, seconds=100)
        for child in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        ended = running.stop(signal.SIGTERM).no_secrets()
    assert ended.code == 0, ended.err
    program.configure(runner={"engine": "local", "tasks_max": 1}, s3={"endpoint": moto_bucket.endpoint}).once()
    check_exactly(program.messages(), expected, same=json.loads)


def test_a_signal_ends_a_run_whose_java_process_is_frozen(program, moto_bucket):
    """Calls to it have no limit of their own: the end of a job, and of Spark, would be waited for without end."""
    expected = fill(moto_bucket, 12, least=700)
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(method="GET", path=r"/in/", times=None, delay_seconds=0.5))
        program.configure(s3={"endpoint": proxy.endpoint}, input={"prefetch_objects": 1})
        running = program.start(constants={"framework.engine.spark.engine.JAVA_SECONDS": 5.0})
        wait_for_count(program, 1001, seconds=100)
        (java,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(java), signal.SIGSTOP)
        ended = running.stop(signal.SIGTERM, within=10.0).no_secrets()
    assert ended.code == 0, ended.err
    assert "Spark's Java process did not answer within 5 seconds of the stop: killed it" in ended.err
    program.configure(runner={"engine": "local", "tasks_max": 1}, s3={"endpoint": moto_bucket.endpoint}).once()
    check_exactly(program.messages(), expected, same=json.loads)


def test_a_signal_ends_the_waiting_for_a_master_that_does_not_answer(program):
    with Tarpit() as pit:
        program.configure(spark={"master": f"spark://127.0.0.1:{pit.port}"})
        running = program.start()
        assert pit.touched.wait(60)
        ended = running.stop(signal.SIGTERM).no_secrets()
    assert ended.code == 0, ended.err


def test_an_interpreter_that_executors_do_not_have_is_named(spark, bucket, iggy_url, stream_name, monkeypatch):
    monkeypatch.setattr(spark, "pythonExec", "/nowhere/python")
    config = configured(bucket, iggy_url, stream_name, name="nowhere", engine="spark")
    advice = rf"PYSPARK_PYTHON \(/nowhere/python\) must name a Python {sys.version_info[0]}.{sys.version_info[1]} there"
    with pytest.raises(FatalError, match=f'Cannot run program "/nowhere/python".*{advice}'):
        spark_engine(config).run()
