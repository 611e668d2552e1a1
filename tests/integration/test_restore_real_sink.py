"""A topic archived by Iggy's own connector runtime and S3 sink comes back into another topic, message by message.

Needs a real server (IGGY_TEST_URL) and a folder with `iggy-connectors` and `libiggy_connector_s3_sink.so`
(IGGY_CONNECTORS_DIR), built from Iggy's source.
"""

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framework.testing.servers.ports import free_port
from tests.integration.program_rig import HANGS_SECONDS, ROOT, Program, toml, wait_until, with_client
from tests.integration.test_restore import restored
from tests.support.archives import IGGY_TEMPLATE, SECOND
from tests.support.docs import blocks

CONNECTORS = os.environ.get("IGGY_CONNECTORS_DIR", "")

pytestmark = [
    pytest.mark.skipif(not CONNECTORS, reason="IGGY_CONNECTORS_DIR names no folder with Iggy's connector runtime"),
    pytest.mark.skipif("IGGY_TEST_URL" not in os.environ, reason="IGGY_TEST_URL names no real Iggy server"),
]

PARTITIONS = 2
PER_PARTITION = 60
PER_OBJECT = 12

JSON = [b'{"id": %d, "b": [1, 2.50, null], "a": "\xc3\xa9\\n"}', b"%d", b'"text %d"', b"[true, %d]"]
TEXT = [b"line %d", b'{"json": %d} as text', b'say "%d"', b"%d \xc3\xa9\n"]
RAW = [b"\x00\xff%d\xfe", b'{"json":%d}', b"plain, and no base64: %d", b"%d"]


class Runtime:
    """Iggy's connector runtime with its S3 sink, over one topic for each schema."""

    def __init__(self, folder, url, bucket, stream, schemas):
        user, password, address = re.fullmatch(r"iggy://([^:]+):([^@]+)@(.+)", url).groups()
        connectors = folder / "connectors"
        connectors.mkdir()
        section = bucket.section()["s3"]
        for schema in schemas:
            sink = {"type": "sink", "key": f"s3-{schema}", "enabled": True, "version": 0, "name": f"S3 sink {schema}"}
            sink["path"] = str(Path(CONNECTORS).resolve() / "libiggy_connector_s3_sink")
            options = {
                "bucket": section["bucket"],
                "prefix": "archive",
                "region": "us-east-1",
                "endpoint": section["endpoint"],
                "access_key_id": section["access_key_id"],
                "secret_access_key": section["secret_access_key"],
                "path_template": "{stream}/{topic}/{date}/{hour}",
                "file_rotation": "messages",
                "max_messages_per_file": PER_OBJECT,
                "output_format": "json_lines",
                "include_metadata": True,
                "include_headers": True,
            }
            streams = {
                "stream": stream,
                "topics": [schema],
                "schema": schema,
                "batch_length": 25,
                "poll_interval": "50ms",
                "consumer_group": f"archive-{schema}",
            }
            text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in sink.items())
            text += "\n\n[[streams]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in streams.items())
            (connectors / f"{schema}.toml").write_text(text + "\n\n" + toml({"plugin_config": options}))
        configuration = folder / "runtime.toml"
        configuration.write_text(
            toml(
                {
                    "http": {"enabled": True, "address": f"127.0.0.1:{free_port()}"},
                    "iggy": {"address": address, "username": user, "password": password, "token": ""},
                    "iggy.tls": {"enabled": False},
                    "state": {"path": str(folder / "state")},
                    "connectors": {"config_type": "local", "config_dir": str(connectors)},
                }
            )
        )
        self.log = folder / "runtime.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(Path(CONNECTORS) / "iggy-connectors")],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "IGGY_CONNECTORS_CONFIG_PATH": str(configuration)},
            )

    def check(self):
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]

    def stop(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(HANGS_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


def headers_of(number):
    """Headers of the kinds that the sink keeps, and none for every fourth message."""
    return {"trace": f"t{number % 7}", "attempt": number % 3, "ok": number % 2 == 0, "half": 0.5} if number % 4 else {}


def fill(url, stream, schemas):
    """Fill a topic for each schema with the official client; its messages as stored: {topic: {partition: [...]}}."""
    from apache_iggy import SendMessage

    async def work(client):
        await client.create_stream(stream)
        for topic, payloads in schemas.items():
            await client.create_topic(stream, topic, PARTITIONS)
            for partition in range(PARTITIONS):
                made = [
                    SendMessage(payloads[number % len(payloads)] % number, headers_of(number) or None)
                    for number in range(PER_PARTITION)
                ]
                await client.send_messages(stream, topic, partition, made)

    with_client(url, work)


def objects(bucket, prefix="archive/"):
    found = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix).get("Contents", [])
    return [item["Key"] for item in found]


def same_json(left, right):
    return json.loads(left) == json.loads(right)


def same_bytes(left, right):
    return left == right


SAME = {"json": same_json, "text": same_bytes, "raw": same_bytes}


@pytest.fixture
def archived(tmp_path, s3_bucket, stream_name):
    """A stream with a topic for each schema, and the bucket into which the real sink has archived all of it."""
    url = os.environ["IGGY_TEST_URL"]
    fill(url, stream_name, {"json": JSON, "text": TEXT, "raw": RAW})
    wanted = 3 * PARTITIONS * PER_PARTITION // PER_OBJECT
    runtime = Runtime(tmp_path, url, s3_bucket, stream_name, ("json", "text", "raw"))

    def complete():
        runtime.check()
        return len(objects(s3_bucket)) >= wanted

    try:
        wait_until(complete, pause=0.2)
    finally:
        runtime.stop()
    assert len(objects(s3_bucket)) == wanted
    return s3_bucket


def test_what_iggys_own_sink_archived_comes_back_message_by_message(archived, tmp_path, stream_name):
    url = os.environ["IGGY_TEST_URL"]
    for schema in ("json", "text", "raw"):
        folder = tmp_path / schema
        folder.mkdir()
        program = Program(folder, archived, url, stream_name)
        program.configure(
            source={"name": f"restore-{schema}"},
            naming={"template": IGGY_TEMPLATE.replace("src", stream_name), "distribution": "partition"},
            input={"envelope": "iggy-s3-sink", "envelope_payload": schema},
            iggy={"topic": "restored-{{topic}}", "partitions": PARTITIONS, "headers": "none"},
            discovery={"order": "start_offset"},
        )
        program.store(prefix=f"archive/{stream_name}/{schema}/")
        program.once().no_secrets()
        before, after = restored(program, schema), restored(program, f"restored-{schema}")
        assert sorted(after) == list(range(PARTITIONS))
        for partition in range(PARTITIONS):
            assert len(before[partition]) == len(after[partition]) == PER_PARTITION
            for old, new in zip(before[partition], after[partition], strict=True):
                assert SAME[schema](old.payload, new.payload), (old.payload, new.payload)
                assert new.headers == old.headers
        times = times_of(program, schema)
        assert {p: [message.time_us for message in after[p]] for p in after} == {
            p: [time_us // SECOND * SECOND for time_us in times[p]] for p in times
        }
        assert "0 records" in program.once().err


FILES = ("fill.py", "runtime.toml", "connectors/s3.toml", "restore.toml", "compare.py")
"""The files of the tutorial, in the order of its blocks that are no output."""


def test_the_tutorial_archives_restores_and_compares(tmp_path, seaweedfs_bucket, stream_name):
    page = ROOT / "docs" / "tutorials" / "archive-and-restore.md"
    address = os.environ["IGGY_TEST_URL"].rpartition("@")[2]
    section = seaweedfs_bucket.section()["s3"]
    replaced = {
        "127.0.0.1:8090": address,
        "http://127.0.0.1:38447": section["endpoint"],
        "local-access-key": section["access_key_id"],
        "local-secret-key": section["secret_access_key"],
        "/path/to/iggy/target/release": str(Path(CONNECTORS).resolve()),
        '"shop"': json.dumps(stream_name),
        "iggy/shop/": f"iggy/{stream_name}/",
        '"archive"': json.dumps(seaweedfs_bucket.name),
        f'consumer_group = "{seaweedfs_bucket.name}"': 'consumer_group = "archive"',
        f').create_bucket(Bucket="{seaweedfs_bucket.name}")': ")",
    }
    (tmp_path / "connectors").mkdir()
    made = [block.text for block in blocks(page) if block.info in {"python", "toml"} or " = " in block.text]
    for name, text in zip(FILES, made, strict=True):
        (tmp_path / name).write_text(functools.reduce(lambda done, pair: done.replace(*pair), replaced.items(), text))

    def run(*arguments):
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    run("fill.py")
    with (tmp_path / "runtime.log").open("wb") as log:
        runtime = subprocess.Popen(
            [str(Path(CONNECTORS) / "iggy-connectors")],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "IGGY_CONNECTORS_CONFIG_PATH": "runtime.toml"},
        )
    try:
        wait_until(
            lambda: len(objects(seaweedfs_bucket, "iggy/")) >= 6, pause=0.2
        )  # the last, smaller ones come at its end
        runtime.send_signal(signal.SIGINT)
        runtime.wait(HANGS_SECONDS)
    finally:
        runtime.kill()
        runtime.wait()
    run("-m", "s3_source", "check", "--config", "restore.toml")
    assert "sent 1,000 records of 8 objects" in run("-m", "s3_source", "--config", "restore.toml", "--once")
    assert run("compare.py").count("500 messages, all the same") == 2


def times_of(program, topic):
    """Partition -> when the server stored each message."""
    from apache_iggy import Consumer, PollingStrategy

    async def work(client):
        found = {}
        for partition in range(PARTITIONS):
            batch = await client.poll_messages(
                program.stream,
                topic,
                consumer=Consumer.Single(1),
                polling_strategy=PollingStrategy.Offset(0),
                count=PER_PARTITION,
                auto_commit=False,
                partition_id=partition,
            )
            found[partition] = [message.timestamp() for message in batch]
        return found

    return with_client(program.url, work)
