"""What is wrong outside: one sentence that names it and says what to do, exit code 1, soon, and never a traceback."""

import contextlib
import os

import attrs
import pytest

from framework.testing.faults import Fault, FaultProxy
from framework.testing.servers.ports import free_port
from tests.integration.program_rig import (
    Program,
    Tarpit,
    check_exactly,
    json_lines,
    jsonl,
    wait_for_exactly,
    with_client,
)

LIMIT = 30.0
S3_WRONG_KEY = b'<?xml version="1.0"?><Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>'
S3_WRONG_SIGNATURE = b"<Error><Code>SignatureDoesNotMatch</Code><Message>computed differs</Message></Error>"
XML = {"Content-Type": "application/xml"}


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


def failed(program, *names, arguments=("--once",), within=LIMIT, code=3):
    """Runs it; returns the one sentence, which must hold all of the names."""
    ended = program.run(*arguments).no_secrets()
    assert ended.code == code, ended
    assert ended.seconds < within
    assert ended.said.startswith("error: "), ended.err
    for name in names:
        assert name in ended.said, ended.said
    return ended.said


def test_a_wrong_key(program, moto_bucket):
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(status=403, body=S3_WRONG_KEY, headers=XML, times=None))
        program.configure(s3={"endpoint": proxy.endpoint})
        failed(program, moto_bucket.name, "s3.access_key_id", within=5)
        assert len(proxy.requests) == 1, "tried again, though no try can help"


def test_a_wrong_secret(program, moto_bucket):
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(status=403, body=S3_WRONG_SIGNATURE, headers=XML, times=None))
        program.configure(s3={"endpoint": proxy.endpoint})
        failed(program, moto_bucket.name, "secret", within=5)


def test_a_real_store_refuses_a_wrong_key_and_a_wrong_secret(tmp_path, seaweedfs_bucket, iggy_url, stream_name):
    program = Program(tmp_path, seaweedfs_bucket, iggy_url, stream_name)
    program.configure(s3={"access_key_id": "nobody"})
    failed(program, seaweedfs_bucket.name, within=10)
    program.configure(s3={"access_key_id": seaweedfs_bucket.server.access_key, "secret_access_key": "wrong"})
    failed(program, seaweedfs_bucket.name, within=10)


def test_no_credentials_at_all(program, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_") and "KEY" in name]:
        monkeypatch.delenv(name)
    program.configure(s3={"access_key_id": None, "secret_access_key": None})
    failed(program, "credentials", within=10)


@attrs.frozen(kw_only=True)
class Slow:
    """A start that fails after some seconds only, and what its sentence must name."""

    changes: dict
    names: tuple


def test_what_takes_its_time_to_fail(tmp_path, moto_bucket, iggy_url, stream_name):
    """All at the same time: the endpoint is down, is silent, is no S3, has no name; Iggy is silent; a second instance."""
    down = f"127.0.0.1:{free_port()}"
    bucket = moto_bucket.name
    with Tarpit() as pit, contextlib.ExitStack() as stack:

        def started(name, arguments, changes):
            folder = tmp_path / name
            folder.mkdir()
            program = Program(folder, moto_bucket, iggy_url, stream_name, source={"name": name})
            stack.callback(program.close)
            return program, program.configure(**changes).start(*arguments)

        moto_bucket.put("a.jsonl", jsonl(json_lines("a", 20)))
        program, first = started("first", (), {})
        wait_for_exactly(program, 20)
        slow = {
            "down": Slow(changes={"s3": {"endpoint": f"http://{down}"}}, names=(bucket, down)),
            "silent": Slow(changes={"s3": {"endpoint": pit.endpoint}}, names=(bucket, pit.endpoint)),
            "no-s3": Slow(changes={"s3": {"endpoint": f"http://{iggy_url.rpartition('@')[2]}"}}, names=(bucket,)),
            "no-name": Slow(changes={"s3": {"endpoint": "http://none.invalid:9000"}}, names=(bucket, "none.invalid")),
            "silent-iggy": Slow(
                changes={"iggy": {"url": f"iggy://iggy:drowssap@127.0.0.1:{pit.port}"}},
                names=(f"127.0.0.1:{pit.port}",),
            ),
            "second": Slow(
                changes={"source": {"name": "first"}},
                names=('"first" is running already', f"process {first.pid}", os.uname().nodename),
            ),
        }
        failing = {name: started(name, ("--once",), one.changes)[1] for name, one in slow.items()}
        for name, one in slow.items():
            ended = failing[name].wait().no_secrets()
            assert ended.code == 1, (name, ended)
            assert ended.seconds < LIMIT, (name, ended)
            assert ended.said.startswith("error: "), (name, ended)
            for place in one.names:
                assert place in ended.said, (name, ended)
        assert first.process.poll() is None, "the first instance was disturbed"
        moto_bucket.put("late.jsonl", b'{"n":1}\n')
        wait_for_exactly(program, 21)
        assert first.stop().no_secrets().code == 0
    check_exactly(program.messages(), {"a.jsonl": json_lines("a", 20), "late.jsonl": [b'{"n":1}']})


def test_iggy_is_down(program):
    address = f"127.0.0.1:{free_port()}"
    program.configure(iggy={"url": f"iggy://iggy:drowssap@{address}"})
    for arguments in ((), ("--once",), ("read",)):
        failed(program, address, arguments=arguments, within=10, code=1)


def test_a_wrong_password_for_iggy(program, iggy_url):
    program.configure(iggy={"url": iggy_url.replace(":iggy@", ":drowssap@")})
    failed(program, iggy_url.rpartition("@")[2], "iggy", within=10)


def make_topic(program, topic, partitions):
    async def work(client):
        await client.create_stream(program.stream)
        await client.create_topic(program.stream, topic, partitions)

    with_client(program.url, work)


def test_the_topic_has_other_partitions(program):
    make_topic(program, "records", 2)
    said = failed(program, '"records"', f'"{program.stream}"', "2 partitions", within=10)
    assert "set [iggy] partitions = 2" in said
    assert "delete" not in said, "positions count on what is in it"


def test_the_offsets_topic_has_two_partitions(program):
    make_topic(program, "orders-offsets", 2)
    said = failed(program, '"orders-offsets"', f'"{program.stream}"', "2 partitions", within=10)
    assert "[iggy] partitions" not in said, "there is no such option for the offsets topic"
    assert "delete the others, or name another topic with [offsets] topic" in said
    assert "delete this one" not in said


def test_the_topic_is_missing_and_may_not_be_made(program):
    program.configure(iggy={"create_topics": False})
    failed(program, "orders-offsets", f'"{program.stream}"', within=10)


def test_the_embedded_folder_cannot_be_written(program, tmp_path):
    (tmp_path / "file").write_text("in the way")
    program.configure(iggy={"url": f"embedded:{tmp_path / 'file'}"})
    failed(program, str(tmp_path / "file"), within=10)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_embedded_folder_is_not_ours(program, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    program.configure(iggy={"url": f"embedded:{tmp_path / 'locked' / 'data'}"})
    failed(program, str(tmp_path / "locked" / "data"), within=10)


def test_another_format_than_the_positions_were_made_with(program, moto_bucket):
    moto_bucket.put("a.jsonl", jsonl([*json_lines("a", 5), b"no json"]))
    failed(program, f"s3://{moto_bucket.name}/a.jsonl", "record 6")
    program.configure(input={"format": "bytes"})
    said = failed(program, f"s3://{moto_bucket.name}/a.jsonl", "format")
    assert "offsets reset --key a.jsonl" in said


@pytest.mark.parametrize("format", ["avro", "csv", "json", "parquet"])
def test_another_format_than_the_objects_have(program, moto_bucket, format):  # noqa: A002
    moto_bucket.put("a.jsonl", jsonl([b'{"text":"a, b"}', b'{"text":"c, d, e"}', b'{"text":"f"}']))
    program.configure(input={"format": format})
    failed(program, f"s3://{moto_bucket.name}/a.jsonl")


def test_a_real_process_ends_with_one_sentence(program):
    address = f"127.0.0.1:{free_port()}"
    program.configure(iggy={"url": f"iggy://iggy:drowssap@{address}"})
    ended = program.start("--once").wait().no_secrets()
    assert ended.code == 1
    assert ended.seconds < LIMIT
    assert ended.said.startswith("error: ")
    assert address in ended.said
