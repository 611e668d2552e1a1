"""The whole program on a real GCS server: the same commands, options, errors and exit codes as on S3."""

import json
import os
import signal

import pytest

from framework.testing.faults import Fault, FaultProxy
from tests.integration.program_rig import FORMS, Program, chance, check_exactly, fill, json_lines, jsonl, rounds
from tests.integration.test_program_life import SLOW, wait_for_count

ENGINES = [
    pytest.param({"engine": "local", "tasks_max": 1}, id="local"),
    pytest.param({"engine": "local", "tasks_max": 3}, id="processes"),
    pytest.param({"engine": "spark"}, id="spark"),
]


@pytest.fixture
def program(tmp_path, gcs_bucket, iggy_url, stream_name):
    made = Program(tmp_path, gcs_bucket, iggy_url, stream_name)
    yield made.configure(input={"format": "auto"})
    made.close()


@pytest.mark.parametrize("runner", ENGINES)
def test_every_format_arrives_once_and_a_second_run_opens_nothing(program, gcs_bucket, runner):
    expected = fill(gcs_bucket, 2 * len(FORMS) + 1)
    program.configure(runner=runner)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        program.configure(gcs={"endpoint": proxy.endpoint})
        program.once()
        check_exactly(program.messages(), expected, same=json.loads)
        opened = [one for one in proxy.requests if "/download/" in one.path]
        assert len(opened) >= len(expected)
        before = len(proxy.requests)
        program.once()
        again = proxy.requests[before:]
        assert again
        assert not [one for one in again if "/download/" in one.path]
    check_exactly(program.messages(), expected, same=json.loads)
    assert program.messages()[0].headers["bucket"] == gcs_bucket.name


def test_versions_are_generations(program, gcs_bucket):
    gcs_bucket.put("a.jsonl", jsonl(json_lines("one", 50)))
    program.once()
    gcs_bucket.put("a.jsonl", jsonl(json_lines("two", 30)))
    program.once()
    messages = program.messages()
    versions = list(dict.fromkeys(message.headers["version"] for message in messages))
    assert len(versions) == 2
    assert all(version.isdigit() for version in versions)
    assert [message.payload for message in messages] == [*json_lines("one", 50), *json_lines("two", 30)]


@pytest.mark.parametrize("tasks", [1, 2])
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
        program.configure(gcs={"endpoint": proxy.endpoint, "retry_base_seconds": 0.01}).once()
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


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"bucket": "no-such-bucket-anywhere"}, 1, "gs://no-such-bucket-anywhere: there is no such bucket"),
        ({"bucket": "gs://x"}, 2, "[gcs] bucket: give the bare name"),
        ({"credentials_file": "/nowhere/key.json", "anonymous": False}, 1, "gcs.credentials_file: /nowhere/key.json"),
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
    assert ended.code == 1
    assert "no credentials were found" in ended.said
    assert os.environ.get("STORAGE_EMULATOR_HOST") is None
