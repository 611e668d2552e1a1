"""S3 servers for the tests: moto (every key, strict order) and SeaweedFS (a real store), each with buckets out of band.

A server starts once a session, and only when a test asks for it. Fixtures:

    moto_bucket         a fresh bucket of moto
    seaweedfs_bucket    a fresh bucket of SeaweedFS
    s3_bucket           both, one test each
"""

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request
import uuid
from typing import ClassVar

import attrs
import boto3
import pytest
from botocore.config import Config

from framework.testing.rig import Fault
from framework.testing.servers.ports import free_port
from framework.testing.servers.seaweedfs import SeaweedFs
from s3_source.client import S3Store
from s3_source.config import S3Config
from s3_source.errors_map import Failed, translate
from s3_source.task import S3SourceConfig, S3SourceTask
from tests.support import aws_errors, shared_models  # noqa: F401  # shared by being imported
from tests.support.environment import environment

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


def s3_refusal(status, code, message="no"):
    """A refusal as S3 makes it: what a `Fault` of the proxy answers."""
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return {"status": status, "body": body.encode(), "headers": {"Content-Type": "application/xml"}}


@attrs.frozen(kw_only=True)
class S3Vendor:
    """What is S3 about a bucket: its store, and how it says things. The other one is `tests.support.gcs.GcsVendor`."""

    scheme: ClassVar = "s3"
    task_class: ClassVar = S3SourceTask
    config_class: ClassVar = S3SourceConfig
    largest_page: ClassVar = 1000
    secrets: ClassVar = (aws_errors.PASSWORD, aws_errors.SIGNATURE)
    throttled: ClassVar = (503, "SlowDown")
    denied: ClassVar = (403, "AccessDenied")
    may_read: ClassVar = "s3:GetObject"
    empty_page: ClassVar = (
        b'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>b</Name><Prefix></Prefix>'
        b"<IsTruncated>true</IsTruncated><NextContinuationToken>here</NextContinuationToken></ListBucketResult>"
    )
    refusal: ClassVar = staticmethod(s3_refusal)
    faults: ClassVar = {
        Fault.THROTTLED: s3_refusal(*throttled),
        Fault.UNAVAILABLE: s3_refusal(500, "InternalError"),
        Fault.RESET: {"refuse": True},
        Fault.DENIED: s3_refusal(*denied),
        Fault.NO_BUCKET: s3_refusal(404, "NoSuchBucket"),
    }

    def open(self, config=None, **more):
        """The store that reads this bucket."""
        return S3Store(config or self.config(), **more)

    def listing(self):
        """A pattern of the paths of listings, for a proxy."""
        return rf"^/{re.escape(self.name)}/?\?"

    def reading(self, key=""):
        """A pattern of the paths of reads."""
        return rf"^/{re.escape(self.name)}/{re.escape(key) or '[^?]'}"

    def asks_for(self, request, native):
        """Whether a read names the version."""
        return request.headers.get("if-match") == f'"{native.version.rpartition("@")[0]}"'

    def vendor_errors(self):
        return aws_errors.all_errors()

    def translate(self, error, key):
        return translate(error, Failed(operation="GetObject", bucket=self.name, key=key))


@attrs.frozen(kw_only=True)
class Bucket(S3Vendor):
    """A bucket, and what tests do with it out of band."""

    longest_key: ClassVar = 1024
    server: S3Server
    name: str

    @property
    def kind(self):
        return self.server.kind

    @property
    def in_order(self):
        return self.server.kind == "moto"

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
    ours = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with environment(ours, without=[name for name in os.environ if name.startswith("AWS_")]):
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_outside_aws(_live_places):
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
