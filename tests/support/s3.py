"""S3 servers for the tests: moto (every key, strict order) and SeaweedFS (a real store), each with buckets out of band.

A server starts once a session, and only when a test asks for it. Fixtures:

    moto_bucket         a fresh bucket of moto
    seaweedfs_bucket    a fresh bucket of SeaweedFS
    s3_bucket           both, one test each
"""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
import uuid

import attrs
import boto3
import pytest
from botocore.config import Config

from framework.testing.ports import free_port
from framework.testing.seaweedfs import SeaweedFs
from s3_source.config import S3Config

READY_SECONDS = 60


@attrs.frozen(kw_only=True)
class S3Server:
    """A running server: where it is, and a client of its own for what tests do behind the source's back."""

    kind: str
    endpoint: str
    access_key: str
    secret_key: str
    client: object

    def bucket(self):
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return Bucket(server=self, name=name)


@attrs.frozen(kw_only=True)
class Bucket:
    """A bucket, and what tests do with it out of band."""

    server: S3Server
    name: str

    @property
    def endpoint(self):
        return self.server.endpoint

    @property
    def client(self):
        return self.server.client

    def put(self, key, data=b"x", **more):
        return self.client.put_object(Bucket=self.name, Key=key, Body=data, **more)

    def put_version(self, key, data):
        """Puts it, and returns what names this version."""
        return self.put(key, data)["ETag"].strip('"')

    def delete(self, key):
        self.client.delete_object(Bucket=self.name, Key=key)

    def section(self):
        """The section of a program's configuration that reads this bucket."""
        options = {
            "bucket": self.name,
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": self.server.access_key,
            "secret_access_key": self.server.secret_key,
        }
        return {"s3": options}

    def config(self, **changed):
        """A configuration that reads this bucket."""
        return S3Config(**(self.section()["s3"] | changed))


def client_for(endpoint, access_key, secret_key):
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 5, "mode": "standard"}),
    )


@contextlib.contextmanager
def no_outside_aws():
    """Keeps the machine's own AWS files, variables and metadata service out of what follows."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in kept:
        del os.environ[name]
    ours = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(kept)


@pytest.fixture(scope="session", autouse=True)
def _no_outside_aws():
    with no_outside_aws():
        yield


@contextlib.contextmanager
def running_moto(folder):
    """moto in a process of its own, which keeps its log in a folder."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    log = folder / "moto.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        limit = time.monotonic() + READY_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=10):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > limit:
                    pytest.fail(f"moto did not start: {log.read_text()[-500:]}")
                time.sleep(0.05)
        client = client_for(endpoint, "test-access", "test-secret")
        yield S3Server(
            kind="moto", endpoint=endpoint, access_key="test-access", secret_key="test-secret", client=client
        )
        client.close()
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def running_seaweedfs(folder):
    """A real store, which keeps its data in a folder."""
    with SeaweedFs.start(folder) as running:
        client = client_for(running.endpoint, running.access_key, running.secret_key)
        yield S3Server(
            kind="seaweedfs",
            endpoint=running.endpoint,
            access_key=running.access_key,
            secret_key=running.secret_key,
            client=client,
        )
        client.close()


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory, _no_outside_aws):
    """moto in a process of its own."""
    with running_moto(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory, _no_outside_aws):
    """A real store."""
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as running:
        yield running


@pytest.fixture
def moto_bucket(moto_server):
    return moto_server.bucket()


@pytest.fixture
def seaweedfs_bucket(seaweedfs_server):
    return seaweedfs_server.bucket()


@pytest.fixture(params=["moto", "seaweedfs"])
def s3_bucket(request):
    return request.getfixturevalue(f"{request.param}_bucket")
