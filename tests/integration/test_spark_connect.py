"""DataFrames over Spark Connect: a real server, whose executors have neither this project nor pandas.

The driver of the application is the server's. This process has a client, and no Java.
"""

from __future__ import annotations

import threading
from collections import Counter

import attrs
import pytest

from framework.engine.spark import frames, list_objects, read_records
from framework.errors import AccessDeniedError, ConfigError, FatalError
from framework.testing.faults import Fault, FaultProxy
from s3_source.task import S3SourceTask

pytestmark = pytest.mark.timeout(240)
pytest.importorskip("grpc")

OBJECTS = 40
LINES = 30


@pytest.fixture(scope="module")
def session(connect_server):
    """A client's session; not made by `SparkSession.builder.remote`, which forbids others to this process."""
    from pyspark.sql.connect.session import SparkSession

    made = SparkSession.builder.remote(connect_server.url).create()
    yield made
    made.stop()


@pytest.fixture
def bucket(moto_bucket):
    for number in range(OBJECTS):
        lines = b"".join(b'{"object":%d,"line":%d}\n' % (number, line) for line in range(1, LINES + number))
        moto_bucket.put(f"in/{number:02d}.jsonl", lines)
    return moto_bucket


def expected():
    """(key, record, payload) of all."""
    return [
        (f"in/{number:02d}.jsonl", line, b'{"object":%d,"line":%d}' % (number, line))
        for number in range(OBJECTS)
        for line in range(1, LINES + number)
    ]


def configured(bucket, *, page_size=1000, endpoint=None, **more):
    store = bucket.config()
    names = ("bucket", "endpoint", "access_key_id", "secret_access_key")
    props = {
        "source": {"name": "frames"},
        "s3": {**{name: getattr(store, name) for name in names}, "prefix": "in/"},
        "input": {"format": "jsonl", "prefetch_objects": 1},
        "iggy": {"url": "iggy://u:p@127.0.0.1:1", "stream": "s", "topic": "t", "partitions": 3},
        **more,
    }
    config = S3SourceTask().configure(props)
    s3 = attrs.evolve(config.s3, page_size=page_size, endpoint=endpoint or config.s3.endpoint)
    return attrs.evolve(config, s3=s3)


def rows_of(records):
    return sorted((row.key, row.record, bytes(row.payload)) for row in records.collect())


@pytest.mark.parametrize("page_size", [1000, 1])
def test_objects_and_records(session, bucket, page_size):
    """A page for each object has executors list, too."""
    config = configured(bucket, page_size=page_size)
    objects = {row.key: row for row in list_objects(session, S3SourceTask, config).collect()}
    listed = {one["Key"]: one for one in bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]}
    assert len(objects) == OBJECTS
    assert {key: row.size for key, row in objects.items()} == {key: one["Size"] for key, one in listed.items()}
    assert {row.storage_class for row in objects.values()} == {"STANDARD"}
    records = read_records(session, S3SourceTask, config)
    assert rows_of(records) == expected()
    assert records.filter("partition not in (0, 1, 2) or topic <> 't'").count() == 0
    assert len(records.limit(3).collect()) == 3


def test_a_supplied_list_that_names_an_object_twice(session, bucket, tmp_path):
    (tmp_path / "keys.csv").write_text("key\nin/03.jsonl\nin/05.jsonl\nin/03.jsonl\nin/missing.jsonl\n")
    config = configured(bucket, discovery={"mode": "keys", "keys": str(tmp_path / "keys.csv")})
    assert sorted(row.key for row in list_objects(session, S3SourceTask, config).collect()) == [
        "in/03.jsonl",
        "in/05.jsonl",
    ]
    named = [row for row in expected() if row[0] in {"in/03.jsonl", "in/05.jsonl"}]
    assert rows_of(read_records(session, S3SourceTask, config)) == named


def test_a_bad_record_is_named_with_its_place(session, moto_bucket):
    from pyspark.errors import PySparkException

    moto_bucket.put("in/bad.jsonl", b'{"n":1}\n{"n":2}\nno json\n{"n":4}\n')
    records = read_records(session, S3SourceTask, configured(moto_bucket))
    with pytest.raises(PySparkException, match=r"RecordError: .*in/bad\.jsonl, record 3"):
        records.collect()
    assert [row.record for row in records.limit(2).collect()] == [1, 2]


def test_an_error_of_the_store_on_an_executor_is_raised_as_what_it_is(session, bucket):
    """Only executors are refused: the driver has listed its pages."""
    with FaultProxy(bucket.endpoint) as proxy:
        denied = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        proxy.add(Fault(status=403, body=denied, times=None, skip=20))
        with pytest.raises(AccessDeniedError, match=bucket.name):
            list_objects(session, S3SourceTask, configured(bucket, page_size=1, endpoint=proxy.endpoint))


class Watched(FaultProxy):
    """Calls a function once, in a thread, when so many objects are requested."""

    def __init__(self, target, after, act):
        super().__init__(target)
        self._after = after
        self._act = threading.Thread(target=act)
        self.asked = Counter()

    def note(self, request):
        rule = super().note(request)
        if request.method == "GET" and "/in/" in request.path:
            self.asked[request.path] += 1
            if sum(self.asked.values()) == self._after:
                self._act.start()
                self._act.join()
        return rule


def kill_executors(cluster, server):
    """All of them: which one keeps a page, or reads just then, is chance."""

    def kill():
        assert cluster.kill(cluster.executors(server.application))

    return kill


def test_executors_killed_while_records_are_read(session, bucket, connect_server, spark_cluster, monkeypatch):
    """What it had read, and had not, is read by others: nothing twice, nothing missing."""
    monkeypatch.setattr(frames, "OBJECTS_PER_TASK", 5)
    with Watched(bucket.endpoint, OBJECTS // 2, kill_executors(spark_cluster, connect_server)) as proxy:
        records = read_records(session, S3SourceTask, configured(bucket, endpoint=proxy.endpoint))
        assert rows_of(records) == expected()
        assert sum(proxy.asked.values()) > OBJECTS, "no object was read again: nothing was lost"


def test_pages_that_executors_lost_are_an_error_and_no_second_listing(
    session, bucket, connect_server, spark_cluster, monkeypatch
):
    from pyspark.errors import PySparkException

    monkeypatch.setattr(frames, "OBJECTS_PER_TASK", 5)
    monkeypatch.setattr(frames, "DRIVER_BYTES", 1)
    with Watched(bucket.endpoint, OBJECTS // 2, kill_executors(spark_cluster, connect_server)) as proxy:
        config = configured(bucket, endpoint=proxy.endpoint, page_size=1)
        records = read_records(session, S3SourceTask, config)
        with pytest.raises(PySparkException, match="Checkpoint block"):
            records.collect()
        assert rows_of(read_records(session, S3SourceTask, config)) == expected()


class LackingTask(S3SourceTask):
    """A source that needs a module which executors do not have."""

    needs_modules = ("no_such_module",)


def test_executors_that_lack_a_module_are_named_with_a_way_out(session, bucket):
    with pytest.raises(FatalError, match=r"executors run .* which misses no_such_module, tests: install the wheel"):
        list_objects(session, LackingTask, configured(bucket))


def test_a_pipeline_over_connect_is_refused_with_a_way_out(connect_server):
    with pytest.raises(ConfigError, match="Spark Connect"):
        S3SourceTask().configure({"runner": {"engine": "spark"}, "spark": {"master": connect_server.url}})
