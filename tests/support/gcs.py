"""A GCS server for the tests: the real fake-gcs-server, with buckets out of band. It starts once a session.

gcs_bucket      a fresh bucket
"""

import contextlib
import json
import os
import re
import uuid
from typing import ClassVar

import attrs
import pytest
import requests

from framework.testing.rig import Fault
from framework.testing.servers.fake_gcs import FakeGcs
from gcs_source.client import GcsStore
from gcs_source.config import GcsConfig
from gcs_source.errors_map import Failed
from gcs_source.google_packages import AnonymousCredentials, Client
from gcs_source.task import GcsSourceConfig, GcsSourceTask
from tests.support import google_errors
from tests.support.environment import environment


def gcs_refusal(status, reason, message="no"):
    """A refusal as the JSON API makes it: what a `Fault` of the proxy answers."""
    body = {"error": {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}}
    return {"status": status, "body": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}


@attrs.frozen(kw_only=True)
class GcsVendor:
    """What is GCS about a bucket: its store, and how it says things. The other one is `tests.support.s3.S3Vendor`."""

    scheme: ClassVar = "gs"
    task_class: ClassVar = GcsSourceTask
    config_class: ClassVar = GcsSourceConfig
    largest_page: ClassVar = 5000
    secrets: ClassVar = (google_errors.PASSWORD, google_errors.SIGNATURE)
    throttled: ClassVar = (429, "rateLimitExceeded")
    denied: ClassVar = (403, "forbidden")
    may_read: ClassVar = "storage.objects.get"
    empty_page: ClassVar = b'{"kind": "storage#objects", "nextPageToken": "here"}'
    refusal: ClassVar = staticmethod(gcs_refusal)
    faults: ClassVar = {
        Fault.THROTTLED: gcs_refusal(*throttled),
        Fault.UNAVAILABLE: gcs_refusal(500, "backendError"),
        Fault.RESET: {"refuse": True},
        Fault.DENIED: gcs_refusal(*denied),
        Fault.NO_BUCKET: gcs_refusal(404, "notFound", "The specified bucket does not exist."),
    }

    def open(self, config=None, **more):
        """The store that reads this bucket."""
        return GcsStore(config or self.config(), **more)

    def listing(self):
        """A pattern of the paths of listings, for a proxy."""
        return rf"^/storage/v1/b/{re.escape(self.name)}/o\?"

    def reading(self, key=""):
        """A pattern of the paths of reads."""
        return rf"^/download/storage/v1/b/{re.escape(self.name)}/o/{re.escape(key)}"

    def asks_for(self, request, native):
        """Whether a read names the version."""
        return f"generation={native.version}" in request.path

    def vendor_errors(self):
        return google_errors.all_errors()

    def translate(self, error, key):
        return google_errors.translated(error, Failed(operation="objects.get", bucket=self.name, key=key))


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
class GcsBucket(GcsVendor):
    """A bucket, and what tests do with it out of band."""

    kind: ClassVar = "fake-gcs"
    in_order: ClassVar = True
    longest_key: ClassVar = 1024
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
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT")
    with environment(ours, without=names):
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_outside_google(_live_places):
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
