"""The kit on the S3 source, over moto and over SeaweedFS, and through a proxy that breaks what it forwards."""

import re
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from framework.testing.faults import Fault as ProxyFault
from framework.testing.faults import FaultProxy
from framework.testing.kit import ConformanceLaws, check
from framework.testing.options import source_config
from framework.testing.rig import Capability, Fault, SourceRig, Stuck
from s3_source.client import S3Store
from s3_source.errors_map import Failed, translate
from s3_source.task import S3SourceConfig, S3SourceTask
from tests.conformance.rigs import json_lines
from tests.support import aws_errors
from tests.support.aws_errors import PASSWORD, SIGNATURE


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


FAST = {"retry_base_seconds": 0.001, "retry_cap_seconds": 0.001}

CANNOT_HOLD = {
    "moto": {"\n": "it answers that there is no such path", "\x01": "it fails when a listing begins behind such a key"},
    "seaweedfs": {
        "//|^/": "it drops the empty part",
        "/$": "it keeps a folder mark of it, without the data",
        r"(^|/)\.\.?(/|$)": "it refuses the part",
        r"\\": "it takes a backslash for a slash",
        "[^/]{200}": "it refuses parts of more than 255 bytes",
        "^a$": "a file and a folder cannot have one name",  # L3 has other keys below it
    },
}
"""Kind of server -> what a key must not have -> why. Found by trying: a key that is refused, or listed as another one."""


def is_set(attribute, value):
    """Options that say something; the others have their defaults."""
    return value not in ("", None, ()) and value != attribute.default


class SharedStoreTask(S3SourceTask):
    """Tasks of one rig share a store: making a client of boto3 takes longer than most checks."""

    def __init__(self, store):
        super().__init__()
        self._shared = store

    def open_store(self):
        return self._shared


EMPTY_PAGE_BEFORE_ITSELF = b"""<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>b</Name><Prefix></Prefix>
<IsTruncated>true</IsTruncated><NextContinuationToken>here</NextContinuationToken></ListBucketResult>"""


class S3Rig(SourceRig):
    capabilities = frozenset(Capability) - {Capability.CUT, Capability.POSITIONS}
    secrets = (PASSWORD, SIGNATURE)
    examples = 6
    crash_pairs = 8

    def __init__(self, bucket):
        self.bucket = bucket
        self.proxy = None  # made when something is to fail: it holds whole answers, which I3 would count
        self.store = S3Store(bucket.config())
        if bucket.server.kind == "seaweedfs":
            self.secrets = (*self.secrets, bucket.server.secret_key)  # moto's is too common a word

    def put(self, key, data):
        self.bucket.put(key, data)

    def put_many(self, keys, data):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: self.bucket.put(key, data), keys))

    def delete(self, key):
        self.bucket.delete(key)

    def encode(self, records):
        return json_lines(records)

    def cannot_hold(self, key):
        return next((why for what, why in CANNOT_HOLD[self.bucket.server.kind].items() if re.search(what, key)), "")

    def make_task(self, options):
        config = source_config(S3SourceConfig, **attrs.asdict(self.bucket.config(), filter=is_set), **FAST, **options)
        return SharedStoreTask(self.store), config

    def task_maker(self):
        return S3SourceTask

    def open_handles(self):
        return len(self.store._streams)

    def vendor_errors(self):
        return aws_errors.all_errors()

    def translate(self, error, key):
        return translate(error, Failed(operation="GetObject", bucket=self.bucket.name, key=key))

    def stick(self, how):
        self._through_proxy()
        self.proxy.clear()
        if how is Stuck.SAME_PAGE:
            self.proxy.add(ProxyFault(method="GET", path=self._path("list"), times=None, repeat=True))
        elif how is Stuck.SAME_PLACE:
            more = {"status": 200, "body": EMPTY_PAGE_BEFORE_ITSELF, "headers": {"Content-Type": "application/xml"}}
            self.proxy.add(ProxyFault(method="GET", path=self._path("list"), times=None, **more))
        elif how is Stuck.NEW_PLACES:
            whole, pages = self.store.list_page, []

            def list_page(**arguments):
                pages.append(pages[0] if pages else whole(**arguments))
                return attrs.evolve(pages[0], continuation=f"{len(pages):09}")

            self.store.list_page = list_page
        if how is not Stuck.NEW_PLACES:
            vars(self.store).pop("list_page", None)

    def _path(self, call):
        bucket = re.escape(self.bucket.name)
        return rf"^/{bucket}/?\?" if call == "list" else rf"^/{bucket}/[^?]"

    def _through_proxy(self):
        if self.proxy is None:
            self.proxy = FaultProxy(self.bucket.endpoint)
            self.store.close()
            self.store = S3Store(self.bucket.config(endpoint=self.proxy.endpoint))

    def fail(self, call, fault, times):
        self._through_proxy()
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


CUT = "an answer that ends early is a broken connection here, and the object is read on from there"


class TestS3OnMoto(ConformanceLaws):
    cannot = {"T2": CUT}  # noqa: RUF012

    @pytest.fixture
    def rig(self, moto_bucket):
        return S3Rig(moto_bucket)


class SeaweedFsRig(S3Rig):
    """A store that lists a folder's content where the folder's name sorts: nothing can be said of what is behind a key."""

    capabilities = S3Rig.capabilities - {Capability.ORDER}


ABOUT_THE_STORE = ["L1", "L3", "L4", "L5", "L6", "I1", "I4", "I5", "I6", "D1", "E1", "S1", "H1"]
"""Laws of which the store decides something. The others are about our own code, which is the same over every store; L2 asks for
an order that SeaweedFS does not list in."""


@pytest.mark.parametrize("law", ABOUT_THE_STORE)
def test_s3_on_seaweedfs(law, seaweedfs_bucket):
    rig = SeaweedFsRig(seaweedfs_bucket)
    try:
        assert check(law, rig).comparisons > 0
    finally:
        rig.close()


def test_a_listing_behind_a_key_is_left_out_where_there_is_no_order(seaweedfs_bucket):
    assert "in the order of the keys' bytes" in check("L2", SeaweedFsRig(seaweedfs_bucket)).skipped
