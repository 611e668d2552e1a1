"""The kit on the S3 source, against moto and through a proxy that breaks what it forwards."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from framework.testing.faults import Fault as ProxyFault
from framework.testing.faults import FaultProxy
from framework.testing.kit import ConformanceLaws
from framework.testing.options import source_config
from framework.testing.rig import Capability, Fault, SourceRig
from s3_source.client import S3Store
from s3_source.task import S3SourceConfig, S3SourceTask
from tests.conformance.rigs import json_lines


def answer(status, code):
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    return {"status": status, "body": body.encode(), "headers": {"Content-Type": "application/xml"}}


ANSWERS = {
    Fault.THROTTLED: answer(503, "SlowDown"),
    Fault.UNAVAILABLE: answer(500, "InternalError"),
    Fault.RESET: {"refuse": True},
    Fault.DENIED: answer(403, "AccessDenied"),
    Fault.NO_BUCKET: answer(404, "NoSuchBucket"),
}


class SharedStoreTask(S3SourceTask):
    """Tasks of one rig share a store: making a client of boto3 takes longer than most checks."""

    def __init__(self, store):
        super().__init__()
        self._shared = store

    def open_store(self):
        return self._shared


class S3Rig(SourceRig):
    capabilities = frozenset({Capability.PAGES, Capability.FAULTS, Capability.SHARES})

    def __init__(self, bucket):
        self.bucket = bucket
        self.proxy = None  # made when something is to fail: it holds whole answers, which I3 would count
        self.store = S3Store(bucket.config())

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
        config = source_config(S3SourceConfig, bucket=given.bucket, region=given.region, **fast, **options)
        return SharedStoreTask(self.store), config

    def _path(self, call):
        bucket = re.escape(self.bucket.name)
        return rf"^/{bucket}/?\?" if call == "list" else rf"^/{bucket}/[^?]"

    def fail(self, call, fault, times):
        if self.proxy is None:
            self.proxy = FaultProxy(self.bucket.endpoint)
            self.store.close()
            self.store = S3Store(self.bucket.config(endpoint=self.proxy.endpoint))
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


class TestS3(ConformanceLaws):
    cannot = {  # noqa: RUF012
        "T2": "an answer that ends early is a broken connection here, and the object is read on from there"
    }

    @pytest.fixture
    def rig(self, moto_bucket):
        return S3Rig(moto_bucket)
