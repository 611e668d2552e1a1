"""A GCS server for the tests: the real fake-gcs-server, with buckets out of band. It starts once a session.

gcs_bucket      a fresh bucket
"""

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
class GcsBucket:
    """A bucket, and what tests do with it out of band."""

    endpoint: str
    name: str
    client: object

    def put(self, key, data=b"x", *, content_encoding=None):
        blob = self.client.bucket(self.name).blob(key)
        blob.content_encoding = content_encoding
        blob.upload_from_string(data, content_type="application/octet-stream")

    def delete(self, key):
        self.client.bucket(self.name).blob(key).delete()

    def section(self):
        """The section of a program's configuration that reads this bucket."""
        return {"gcs": {"bucket": self.name, "endpoint": self.endpoint, "anonymous": True}}

    def config(self, **changed):
        """A configuration that reads this bucket."""
        return GcsConfig(**(self.section()["gcs"] | changed))


@pytest.fixture(scope="session", autouse=True)
def _no_outside_google():
    """Keeps the machine's own credentials and emulators out of every test."""
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CONFIG")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ |= {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": os.devnull}
    yield
    for name in ("NO_GCE_CHECK", "CLOUDSDK_CONFIG"):
        del os.environ[name]
    os.environ.update(kept)


@pytest.fixture(scope="session")
def gcs_server(_no_outside_google):
    with FakeGcs.start() as server:
        session = requests.Session()
        client = Client(
            project="tests",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": server.endpoint},
            _http=session,
        )
        yield server, client
        client.close()
        session.close()


@pytest.fixture
def gcs_bucket(gcs_server):
    server, client = gcs_server
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client.create_bucket(name)
    return GcsBucket(endpoint=server.endpoint, name=name, client=client)
