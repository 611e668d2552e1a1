"""Listing by many requests at once, through the real client and the whole program: nothing missing, and what it costs."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from framework.offsets.manager import OffsetManager
from framework.task import SourceContext
from framework.testing.faults import Fault, FaultProxy
from framework.testing.options import source_config
from s3_source.task import S3SourceConfig, S3SourceTask
from tests.integration.program_rig import TASKS, Program, by_key, check_exactly, jsonl, wait_for_exactly, wait_until

LISTING = re.compile(r"list-type=2")
SLOW_DOWN = {
    "status": 503,
    "body": b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code><Message>no</Message></Error>",
    "headers": {"Content-Type": "application/xml"},
}


def put_all(bucket, objects):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: bucket.put(*one), objects.items()))


def listings(proxy):
    return [one.path for one in proxy.requests if one.method == "GET" and LISTING.search(one.path)]


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


@pytest.fixture
def iterator_of():
    """Iterators of the real source over a bucket, closed at the end."""
    tasks = []

    def make(bucket, offsets=None, **options):
        task = S3SourceTask()
        tasks.append(task)
        given = {
            "bucket": bucket.name,
            "endpoint": bucket.endpoint,
            "region": "us-east-1",
            "access_key_id": bucket.server.access_key,
            "secret_access_key": bucket.server.secret_key,
            "retry_base": 0.01,
        }
        config = source_config(S3SourceConfig, **{**given, **options})
        known = offsets if offsets is not None else OffsetManager()
        task.iterator = task.get_iterator(SourceContext(config=config, offsets=known))
        return task.iterator

    yield make
    for task in tasks:
        task.stop()


def keys_of(iterator):
    return [one.key for one in iterator.get_native_item_stream(iterator.start_key)]


# no control characters: moto answers 500 to a start-after that has one
ODD = ["\ufffd", "\U00010000", "\U0001f600", "a b", "a+b", "a%2Fb", "a//b", "a/./b", "é", "~", "k" * 900]


def test_odd_keys_by_many_requests_while_one_in_five_is_refused(moto_bucket, iterator_of):
    keys = sorted({f"{odd}{number:02}" for odd in ODD for number in range(25)})
    put_all(moto_bucket, dict.fromkeys(keys, b"x"))
    with FaultProxy(moto_bucket.endpoint) as proxy:
        for number in range(100):
            proxy.add(Fault(path="list-type=2", skip=4 + 4 * number, **SLOW_DOWN))
        iterator = iterator_of(moto_bucket, endpoint=proxy.endpoint, page_size=7)
        for _ in range(2):
            assert sorted(keys_of(iterator)) == keys
        refused = len(listings(proxy)) - iterator.statistics.list_requests
        assert refused == iterator.statistics.retries > 15


def test_a_real_store_that_lists_by_folders_is_noticed_and_remembered(seaweedfs_bucket, iterator_of):
    keys = [f"{folder}{number:02}" for folder in ("a/", "a b/", "a-", "b/c/", "b") for number in range(30)]
    put_all(seaweedfs_bucket, dict.fromkeys(keys, b"x"))
    offsets = OffsetManager()
    iterator = iterator_of(seaweedfs_bucket, offsets, page_size=7)
    for _ in range(2):
        assert sorted(keys_of(iterator)) == sorted(keys)
    assert offsets.hints.get("").unordered
    again = iterator_of(seaweedfs_bucket, offsets, page_size=7)
    assert sorted(keys_of(again)) == sorted(keys)
    assert again.statistics.list_requests <= len(keys) // 7 + 2


def test_many_objects_arrive_and_the_second_start_lists_with_what_the_first_learnt(program, moto_bucket):
    expected = {f"in/{number % 7}/{number:05}.jsonl": [b'{"n":%d}' % number] for number in range(440)}
    put_all(moto_bucket, {key: jsonl(payloads) for key, payloads in expected.items()})
    pages = len(expected) // 8
    with FaultProxy(moto_bucket.endpoint) as proxy:
        program.configure(s3={"endpoint": proxy.endpoint, "page_size": 8})
        program.once()
        check_exactly(program.messages(), expected)
        first = len(listings(proxy))
        assert first >= pages
        proxy.clear()
        assert "0 records of 0 objects" in program.once().err
        second = len(listings(proxy))
        assert pages <= second <= min(first, 1.15 * pages)
        starts = {path.partition("start-after=")[2].partition("&")[0] for path in listings(proxy)[1:20]}
        assert (
            len({one.partition("%2F")[2][:1] for one in starts}) > 3
        )  # all over the bucket from the first requests on


def test_one_request_at_once_reads_the_objects_in_the_order_of_their_keys(program, moto_bucket):
    expected = {f"{number * 7919 % 1000:03}.jsonl": [b'{"n":%d}' % number] for number in range(120)}
    put_all(moto_bucket, {key: jsonl(payloads) for key, payloads in expected.items()})
    program.configure(s3={"page_size": 11}, discovery={"list_concurrency": 1}, iggy={"partitions": 1})
    program.once()
    assert list(by_key(program.messages())) == sorted(expected)


@pytest.mark.parametrize("tasks", TASKS)
def test_mode_incremental_lists_the_end_of_the_bucket_only_also_after_a_restart(program, moto_bucket, tasks):
    expected = {f"{number:04}.jsonl": [b'{"n":%d}' % number] for number in range(200)}
    put_all(moto_bucket, {key: jsonl(payloads) for key, payloads in expected.items()})
    with FaultProxy(moto_bucket.endpoint) as proxy:
        program.configure(
            s3={"endpoint": proxy.endpoint, "page_size": 10},
            runner={"tasks_max": tasks},
            discovery={"mode": "incremental", "lookback_keys": 30, "poll_interval": 0.05},
        )

        def two_passes_cost():
            proxy.clear()
            wait_until(lambda: len(listings(proxy)) >= 6)
            return [path for path in listings(proxy) if "start-after=" in path]

        running = program.start()
        wait_for_exactly(program, len(expected))
        for _ in range(2):
            behind = {path.partition("start-after=")[2].partition("&")[0] for path in two_passes_cost()}
            assert min(behind) >= "0168"
            expected[f"{len(expected):04}.jsonl"] = [b'{"n":1}']
            moto_bucket.put(max(expected), jsonl([b'{"n":1}']))
            wait_for_exactly(program, len(expected))
        assert running.stop().code == 0
        proxy.clear()
        expected["9999.jsonl"] = [b'{"n":2}']
        moto_bucket.put("9999.jsonl", jsonl([b'{"n":2}']))
        running = program.start()
        wait_for_exactly(program, len(expected))
        assert len(listings(proxy)) < 10  # the whole bucket has more than twenty pages
        assert running.stop().code == 0
    check_exactly(program.messages(), expected)
