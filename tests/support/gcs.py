"""A GCS server for the tests: the real fake-gcs-server, with buckets out of band. It starts once a session.

gcs_bucket      a fresh bucket
"""

import contextlib
import os
import uuid

import attrs
import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from framework.testing.fake_gcs import FakeGcs
from gcs_source.config import GcsConfig


@attrs.frozen(kw_only=True)
class GcsServer:
    """A running server: where it is, and a client of its own for what tests do behind the source's back."""

    endpoint: str
    client: object

    def bucket(self):
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(name)
        return GcsBucket(endpoint=self.endpoint, name=name, client=self.client)


@attrs.frozen(kw_only=True)
class GcsBucket:
    """A bucket, and what tests do with it out of band."""

    endpoint: str
    name: str
    client: object

    def put(self, key, data=b"x", *, content_encoding=None):
        blob = self.client.bucket(self.name).blob(key)
        blob.content_encoding = content_encoding
        blob.upload_from_string(data, content_type="application/octet-stream")
        return blob

    def put_version(self, key, data):
        """Puts it, and returns what names this version."""
        return str(self.put(key, data).generation)

    def delete(self, key):
        self.client.bucket(self.name).blob(key).delete()

    def section(self):
        """The section of a program's configuration that reads this bucket."""
        return {"gcs": {"bucket": self.name, "endpoint": self.endpoint, "anonymous": True}}

    def config(self, **changed):
        """A configuration that reads this bucket."""
        return GcsConfig(**(self.section()["gcs"] | changed))


@contextlib.contextmanager
def no_outside_google():
    """Keeps the machine's own credentials and emulators out of what follows."""
    ours = {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": os.devnull}
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT", *ours)
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ |= ours
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(kept)


@pytest.fixture(scope="session", autouse=True)
def _no_outside_google():
    with no_outside_google():
        yield


@contextlib.contextmanager
def running_fake_gcs():
    """The real fake-gcs-server, which keeps everything in memory."""
    with FakeGcs.start() as server, requests.Session() as session:
        client = Client(
            project="tests",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": server.endpoint},
            _http=session,
        )
        yield GcsServer(endpoint=server.endpoint, client=client)
        client.close()


@pytest.fixture(scope="session")
def gcs_server(_no_outside_google):
    with running_fake_gcs() as running:
        yield running


@pytest.fixture
def gcs_bucket(gcs_server):
    return gcs_server.bucket()
