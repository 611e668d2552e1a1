"""The whole program on servers of both vendors: the same commands, options, errors and exit codes."""

import gzip
import json
import os
import signal
import urllib.request

import pytest

from framework.testing.faults import Fault, FaultProxy
from framework.testing.servers.ports import free_port
from tests.integration.program_rig import (
    FORMS,
    SLOW,
    TASKS,
    HookProxy,
    Program,
    chance,
    check_exactly,
    fill,
    json_lines,
    jsonl,
    opened,
    rounds,
    wait_for_count,
    wait_until,
)
from tests.integration.test_program_world import failed

LOCAL, PROCESSES = {"engine": "local", "tasks_max": 1}, {"engine": "local", "tasks_max": 3}
SPARK = {"engine": "spark"}


@pytest.fixture
def program_on(tmp_path, iggy_url, stream_name):
    """Makes the program that reads a bucket."""
    made = []

    def make(bucket):
        made.append(Program(tmp_path, bucket, iggy_url, stream_name))
        return made[-1].configure(input={"format": "auto"})

    yield make
    for one in made:
        one.close()


@pytest.fixture
def program(program_on, gcs_bucket):
    return program_on(gcs_bucket)


@pytest.fixture
def plain_program(program_on, plain_bucket):
    return program_on(plain_bucket)


@pytest.mark.parametrize(
    ("kind", "engine"),
    [("moto", LOCAL), ("fake-gcs", LOCAL), ("fake-gcs", PROCESSES), ("fake-gcs", SPARK)],
    ids=["moto-local", "gcs-local", "gcs-processes", "gcs-spark"],
)
@pytest.mark.usefixtures("spark_of_the_engine")
def test_every_format_arrives_once_and_a_second_run_opens_nothing(program_on, bucket_of, kind, engine):
    bucket = bucket_of(kind)
    expected = fill(bucket, 2 * len(FORMS) + 1)
    program = program_on(bucket).configure(runner=engine)
    with FaultProxy(bucket.endpoint) as proxy:
        program.store(endpoint=proxy.endpoint).once()
        check_exactly(program.messages(), expected, same=json.loads)
        names = {path.partition("?")[0].replace("%2F", "/").rpartition("/")[2] for path in opened(proxy)}
        assert names == {key.rpartition("/")[2] for key in expected}
        assert len(opened(proxy)) >= len(expected)
        proxy.clear()
        ended = program.once()
        assert opened(proxy) == []
        assert 1 <= len(proxy.requests) <= 5  # the listing, a look behind its end, and a look for tables
        assert "0 records of 0 objects" in ended.err
    check_exactly(program.messages(), expected, same=json.loads)
    assert program.messages()[0].headers["bucket"] == bucket.name


def test_an_object_overwritten_after_it_was_read_is_read_again_as_a_new_version(plain_program, plain_bucket):
    first, second = json_lines("first", 50), json_lines("second", 30)
    plain_bucket.put("a.jsonl", jsonl(first))
    plain_program.once()
    plain_bucket.put("a.jsonl", jsonl(second))
    plain_program.once()
    messages = plain_program.messages()
    assert [message.payload for message in messages] == first + second
    assert [message.record for message in messages] == [*range(1, 51), *range(1, 31)]
    versions = {message.headers["version"] for message in messages}
    assert len(versions) == 2
    assert all(version.isdigit() == (plain_bucket.kind == "fake-gcs") for version in versions)  # generations


def test_an_object_deleted_between_list_and_read_is_left_out_and_counted(plain_program, plain_bucket):
    expected = {f"{n}.jsonl": json_lines(str(n), 20) for n in range(4)}
    for key, payloads in expected.items():
        plain_bucket.put(key, jsonl(payloads))
    with HookProxy(plain_bucket.endpoint, "2.jsonl", lambda _: plain_bucket.delete("2.jsonl")) as proxy:
        ended = plain_program.store(endpoint=proxy.endpoint).once()
    assert "1 object deleted between list and read" in ended.err
    assert f"{plain_bucket.scheme}://{plain_bucket.name}/2.jsonl" in ended.err
    del expected["2.jsonl"]
    check_exactly(plain_program.messages(), expected)


@pytest.mark.parametrize(("kind", "tasks"), [("moto", 1), ("moto", 2), ("fake-gcs", 1)])
def test_an_object_overwritten_between_list_and_read_is_read_in_its_new_version(program_on, bucket_of, kind, tasks):
    bucket = bucket_of(kind)
    program = program_on(bucket)
    expected = {f"{n}.jsonl": json_lines(str(n), 20) for n in range(4)}
    for key, payloads in expected.items():
        bucket.put(key, jsonl(payloads))
    expected["2.jsonl"] = json_lines("new", 33)
    new = jsonl(expected["2.jsonl"])
    with HookProxy(bucket.endpoint, "2.jsonl", lambda _: bucket.put("2.jsonl", new)) as proxy:
        program.store(endpoint=proxy.endpoint).configure(runner={"tasks_max": tasks})
        ended = program.start("--once").wait().no_secrets()
    assert ended.code == 0, ended.err
    assert "overwritten" in ended.err
    check_exactly(program.messages(), expected)


@pytest.mark.parametrize("tasks", TASKS)
def test_killed_at_any_moment_nothing_is_lost_or_repeated(program, gcs_bucket, tasks):
    expected = fill(gcs_bucket, 18, least=600)
    total = sum(map(len, expected.values()))
    dice = chance(f"gcs-{tasks}")
    program.configure(**SLOW, runner={"tasks_max": tasks}).configure(input={"format": "auto"})
    for _ in range(rounds(3)):
        running = program.start("--once")
        target = min(total, program.count() + dice.randrange(total // 3))
        wait_for_count(program, target, running)
        running.kill()
        assert running.process.returncode in (0, -signal.SIGKILL), running.err
    program.once()
    check_exactly(program.messages(), expected, same=json.loads)


def test_a_store_that_throttles_and_breaks_is_waited_for(program, gcs_bucket):
    expected = fill(gcs_bucket, 12)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        proxy.add(Fault(path="/o\\?", status=429, times=2))
        proxy.add(Fault(path="/download/", status=503, every=4, times=None))
        proxy.add(Fault(path="/download/", reset_at=3000, every=3, times=None))
        program.configure(gcs={"endpoint": proxy.endpoint, "retry_base": 0.01}).once()
    check_exactly(program.messages(), expected, same=json.loads)


def test_commands(program, gcs_bucket):
    gcs_bucket.put("a.jsonl", b'{"n":1}\n')
    checked = program.run("check")
    assert checked.code == 0
    assert f"gs://{gcs_bucket.name}/a.jsonl can be read" in checked.out
    program.once()
    read = program.run("read")
    assert json.loads(read.out.splitlines()[0])["key"] == "a.jsonl"
    assert program.run("--help").code == 0


def test_whatever_a_bucket_of_google_holds_arrives_once(program, gcs_bucket):
    """Packed by the store's own encoding, composed, empty, a folder's mark; and changed metadata is no new version."""
    packed, whole = json_lines("packed", 30), json_lines("whole", 40)
    gcs_bucket.put("packed.jsonl", gzip.compress(jsonl(packed)), content_encoding="gzip")
    place = gcs_bucket.client.bucket(gcs_bucket.name)
    halves = jsonl(whole[:11]), jsonl(whole[11:])
    parts = [gcs_bucket.put(f"_part{number}", half) for number, half in enumerate(halves)]
    place.blob("whole.jsonl").compose(parts)
    gcs_bucket.put("folder/", b"")
    gcs_bucket.put("empty.jsonl", b"")
    ended = program.once()
    check_exactly(program.messages(), {"packed.jsonl": packed, "whole.jsonl": whole})
    assert "filtered, folder mark: 1 object" in ended.err
    changed = place.get_blob("whole.jsonl")
    changed.metadata = {"seen": "yes"}
    changed.patch()
    assert "0 records of 0 objects" in program.once().err


def test_a_supplied_list_is_read_without_a_listing(program, gcs_bucket):
    expected = {f"{n} +%2F.jsonl": json_lines(str(n), 20) for n in range(3)}
    for key, payloads in expected.items():
        gcs_bucket.put(key, jsonl(payloads))
    gcs_bucket.put("not-named.jsonl", jsonl(json_lines("no", 5)))
    gcs_bucket.put("list.txt", "".join(f"{key}\n" for key in [*expected, "missing.jsonl"]).encode())
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        proxy.add(Fault(path=gcs_bucket.listing(), status=403, times=None))
        program.store(endpoint=proxy.endpoint)
        program.configure(discovery={"mode": "keys", "keys": f"gs://{gcs_bucket.name}/list.txt"})
        assert "missing.jsonl: skipped, the object does not exist" in program.once().err
    check_exactly(program.messages(), expected)


@pytest.mark.parametrize("status", [412, 416])
def test_a_read_that_is_refused_for_good_ends_the_run(program, gcs_bucket, status):
    """The object is there, as it was listed: listing it again would never end."""
    gcs_bucket.put("a.jsonl", jsonl(json_lines("a", 20)))
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        proxy.add(Fault(path="/download/", status=status, times=None))
        program.configure(gcs={"endpoint": proxy.endpoint, "max_attempts": 3, "retry_base": 0.01})
        failed(program, f"gs://{gcs_bucket.name}/a.jsonl", f"HTTP {status}", "gcs.endpoint", within=30, code=1)
        assert len(proxy.requests) < 100


def test_a_store_that_lists_what_it_does_not_give_ends_the_run(program_on, moto_bucket):
    moto_bucket.put("a.jsonl", jsonl(json_lines("a", 20)))
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(
            Fault(path=moto_bucket.reading("a.jsonl"), times=None, **moto_bucket.refusal(412, "PreconditionFailed"))
        )
        program = program_on(moto_bucket).store(endpoint=proxy.endpoint).configure(discovery={"poll_interval": "10ms"})
        failed(program, f"s3://{moto_bucket.name}/a.jsonl", "does not give what it lists", within=60, code=1)
        assert len(proxy.requests) < 100


def test_an_object_that_is_listed_and_said_to_be_gone_for_good_ends_the_run_and_is_not_gone(program_on, moto_bucket):
    moto_bucket.put("a.jsonl", jsonl(json_lines("a", 20)))
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(path=moto_bucket.reading("a.jsonl"), times=None, **moto_bucket.refusal(404, "NoSuchKey")))
        program = program_on(moto_bucket).store(endpoint=proxy.endpoint, retry_base=0.01)
        failed(program, f"s3://{moto_bucket.name}/a.jsonl", "the store lists it", within=60, code=1)
    program.store(endpoint=moto_bucket.endpoint).once()
    check_exactly(program.messages(), {"a.jsonl": json_lines("a", 20)})


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_store_that_is_away_is_waited_for_by_a_run_that_was_at_work(plain_program, plain_bucket, tasks):
    plain_bucket.put("a.jsonl", jsonl(json_lines("a", 20)))
    metrics = free_port()
    with FaultProxy(plain_bucket.endpoint) as proxy:
        program = plain_program.store(endpoint=proxy.endpoint, retry_base=0.01, retry_cap=0.05)
        program.configure(
            discovery={"poll_interval": "50ms"},
            runner={"tasks_max": tasks},
            metrics={"address": f"127.0.0.1:{metrics}"},
        )
        running = program.start()
        wait_for_count(program, 20, running)
        proxy.add(Fault(status=404, body=b"404 page not found\n", times=None))
        running.wait_for("the store is away")

        def shown():
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
                return 'iggy_source_up{source="orders",target="store"} 0.0' in answer.read().decode()

        wait_until(shown)
        plain_bucket.put("b.jsonl", jsonl(json_lines("b", 20)))
        proxy.clear()
        running.wait_for("the store is back")
        wait_for_count(program, 40, running)
        running.stop()
    check_exactly(program.messages(), {name: json_lines(name[0], 20) for name in ("a.jsonl", "b.jsonl")})


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_store_that_is_away_ends_a_run_that_goes_on_once(plain_program, plain_bucket, tasks):
    plain_bucket.put("a.jsonl", jsonl(json_lines("a", 20)))
    plain_bucket.put("b.jsonl", jsonl(json_lines("b", 20)))
    with FaultProxy(plain_bucket.endpoint) as proxy:
        program = plain_program.store(endpoint=proxy.endpoint, retry_base=0.01, retry_cap=0.05)
        program.configure(runner={"tasks_max": tasks})
        proxy.add(Fault(path=plain_bucket.reading("b.jsonl"), status=500, times=None))
        failed(program, "b.jsonl", within=20, code=1)


def test_no_such_bucket(plain_program):
    plain_program.store(bucket="no-such-bucket-anywhere")
    failed(plain_program, "no-such-bucket-anywhere", within=10)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])  # parquet looks for tables first
def test_listing_denied(plain_program, plain_bucket, format):  # noqa: A002
    with FaultProxy(plain_bucket.endpoint) as proxy:
        proxy.add(Fault(**plain_bucket.refusal(*plain_bucket.denied), times=None))
        plain_program.store(endpoint=proxy.endpoint).configure(input={"format": format})
        may_list = plain_bucket.may_read.replace("GetObject", "ListBucket").replace("get", "list")
        failed(plain_program, plain_bucket.name, may_list, within=10)


def test_reading_denied(plain_program, plain_bucket):
    plain_bucket.put("secret/part.jsonl", b"{}\n")
    with FaultProxy(plain_bucket.endpoint) as proxy:
        proxy.add(Fault(**plain_bucket.refusal(*plain_bucket.denied), times=None, path=plain_bucket.reading()))
        plain_program.store(endpoint=proxy.endpoint)
        place = f"{plain_bucket.scheme}://{plain_bucket.name}/secret/part.jsonl"
        failed(plain_program, place, plain_bucket.may_read, within=10)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"bucket": "no-such-bucket-anywhere"}, 3, "gs://no-such-bucket-anywhere: there is no such bucket"),
        ({"bucket": "gs://x"}, 2, "[gcs] bucket: give the bare name"),
        ({"credentials_file": "/nowhere/key.json", "anonymous": False}, 3, "gcs.credentials_file: /nowhere/key.json"),
        ({"endpont": "http://x"}, 2, "endpoint"),
        ({"page_size": 5001}, 2, "page_size"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(program, options, code, words):
    ended = program.configure(gcs=options, runner={"engine": "local"}).run("--once")
    assert ended.code == code
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_without_emulator_and_credentials_it_ends_with_one_sentence(program):
    program.configure(gcs={"endpoint": None, "anonymous": False}, runner={"engine": "local"})
    ended = program.run("--once")
    assert ended.code == 3
    assert "no credentials were found" in ended.said
    assert os.environ.get("STORAGE_EMULATOR_HOST") is None
