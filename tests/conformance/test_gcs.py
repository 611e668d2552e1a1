"""The kit on the GCS source, against fake-gcs-server and through a proxy that breaks what it forwards."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from framework.store import ListPage
from framework.testing.faults import Fault as ProxyFault
from framework.testing.faults import FaultProxy
from framework.testing.kit import ConformanceLaws
from framework.testing.options import source_config
from framework.testing.rig import Capability, Fault, SourceRig, Stuck
from gcs_source.client import GcsStore
from gcs_source.errors_map import Failed
from gcs_source.task import GcsSourceConfig, GcsSourceTask
from tests.conformance.rigs import json_lines
from tests.support import google_errors
from tests.support.google_errors import PASSWORD, SIGNATURE


def answer(status, code):
    body = {"error": {"code": status, "message": code, "errors": [{"reason": code, "message": code}]}}
    return {"status": status, "body": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}


ANSWERS = {
    Fault.THROTTLED: answer(429, "rateLimitExceeded"),
    Fault.UNAVAILABLE: answer(500, "backendError"),
    Fault.RESET: {"refuse": True},
    Fault.DENIED: answer(403, "forbidden"),
    Fault.NO_BUCKET: answer(404, "The specified bucket does not exist."),
}


class SharedStoreTask(GcsSourceTask):
    """Tasks of one rig share a store: making a client of Google's takes longer than most checks."""

    def __init__(self, store):
        super().__init__()
        self._shared = store

    def open_store(self):
        return self._shared


class GcsRig(SourceRig):
    capabilities = frozenset(Capability) - {Capability.CUT, Capability.POSITIONS}
    secrets = (PASSWORD, SIGNATURE)
    largest_page = 5000
    examples = 6
    crash_pairs = 8

    def __init__(self, bucket):
        self.bucket = bucket
        self.proxy = None  # made when something is to fail: it holds whole answers, which I3 would count
        self.store = GcsStore(bucket.config())

    def put(self, key, data):
        self.bucket.put(key, data)

    def put_many(self, keys, data):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: self.bucket.put(key, data), keys))

    def delete(self, key):
        self.bucket.delete(key)

    def encode(self, records):
        return json_lines(records)

    def make_task(self, options):
        fast = {"retry_base_seconds": 0.001, "retry_cap_seconds": 0.001}
        config = source_config(GcsSourceConfig, **self.bucket.section()["gcs"], **fast, **options)
        return SharedStoreTask(self.store), config

    def task_maker(self):
        return GcsSourceTask

    def open_handles(self):
        return len(self.store._streams)

    def vendor_errors(self):
        return google_errors.all_errors()

    def translate(self, error, key):
        return google_errors.translated(error, Failed(operation="objects.get", bucket=self.bucket.name, key=key))

    def stick(self, how):
        pages = []
        whole = type(self.store).list_page.__get__(self.store)

        def list_page(**arguments):
            if how is Stuck.SAME_PLACE:
                return ListPage(objects=[], continuation="here")
            pages.append(pages[0] if pages else whole(**arguments))
            return pages[0] if how is Stuck.SAME_PAGE else attrs.evolve(pages[0], continuation=f"{len(pages):09}")

        vars(self.store).pop("list_page", None)
        if how is not None:
            self.store.list_page = list_page

    def _path(self, call):
        bucket = re.escape(self.bucket.name)
        return rf"^/storage/v1/b/{bucket}/o\?" if call == "list" else rf"^/download/storage/v1/b/{bucket}/o/"

    def fail(self, call, fault, times):
        if self.proxy is None:
            self.proxy = FaultProxy(self.bucket.endpoint)
            self.store.close()
            self.store = GcsStore(self.bucket.config(endpoint=self.proxy.endpoint))
        self.proxy.clear()
        if times == 0:
            return
        what = {"reset_at": 10} if call == "read" else ANSWERS[fault]
        self.proxy.add(ProxyFault(method="GET", path=self._path(call), times=times, **what))

    def tries(self, call):
        return sum(re.search(self._path(call), request.path) is not None for request in self.proxy.requests)

    def close(self):
        self.store.close()
        if self.proxy is not None:
            self.proxy.close()


class TestGcs(ConformanceLaws):
    cannot = {  # noqa: RUF012
        "T2": "an answer that ends early is a broken connection here, and the object is read on from there"
    }

    @pytest.fixture
    def rig(self, gcs_bucket):
        return GcsRig(gcs_bucket)
