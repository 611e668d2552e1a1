"""The kit on the GCS source, against fake-gcs-server and through a proxy that breaks what it forwards."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from framework.testing.faults import Fault as ProxyFault
from framework.testing.faults import FaultProxy
from framework.testing.kit import ConformanceLaws
from framework.testing.options import source_config
from framework.testing.rig import Capability, Fault, SourceRig
from gcs_source.client import GcsStore
from gcs_source.task import GcsSourceConfig, GcsSourceTask
from tests.conformance.rigs import json_lines


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
    capabilities = frozenset({Capability.PAGES, Capability.FAULTS, Capability.SHARES})

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
        given = self.bucket.config()
        fast = {"retry_base_seconds": 0.001, "retry_cap_seconds": 0.001}
        config = source_config(GcsSourceConfig, bucket=given.bucket, **fast, **options)
        return SharedStoreTask(self.store), config

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
