"""The kit's rig for the sources that ship: over any bucket of `tests.support.stores`, and a proxy that breaks what it forwards."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import attrs

from framework.testing.faults import Fault as ProxyFault
from framework.testing.faults import FaultProxy
from framework.testing.options import source_config
from framework.testing.rig import Capability, SourceRig, Stuck
from tests.conformance.rigs import bad_line, json_lines

FAST = {"retry_base": 0.001, "retry_cap": 0.001}

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
    "live-gcs": {"[\r\n]": "Google forbids line ends in names"},
}
"""Kind of server -> what a key must not have -> why. Found by trying: a key that is refused, or listed as another one."""


class SharedStore:
    """Tasks of one rig share a store: making a vendor's client takes longer than most checks."""

    def __init__(self, store):
        super().__init__()
        self._shared = store

    def open_store(self, config):
        del config
        return self._shared


def is_open(stream):
    return not stream._closed


class StoreRig(SourceRig):
    """A source that ships, over a bucket of `tests.support.stores`."""

    capabilities = frozenset(Capability) - {Capability.CUT, Capability.POSITIONS}
    examples = 6
    crash_pairs = 8

    def __init__(self, bucket):
        self.bucket = bucket
        self.largest_page = bucket.largest_page
        self.secrets = bucket.secrets
        self.proxy = None  # made when something is to fail: it holds whole answers, which I3 would count
        self._streams = []  # of its stores, that were not closed when the last one was opened
        self.store = self._open()
        self._task_class = type("SharedStoreTask", (SharedStore, bucket.task_class), {})
        if bucket.kind == "seaweedfs":
            self.secrets = (*self.secrets, bucket.server.secret_key)  # moto's is too common a word

    def _open(self, **changed):
        store = self.bucket.open(self.bucket.config(**changed))
        if (
            self.bucket.kind == "fake-gcs"
        ):  # it keeps Google's order: so ranges are asked for with their ends, as Google is
            store.bounds_pages = store.order_is_documented = True
        inner = getattr(store, "inner", store)  # of a place in a live bucket
        inner._stream = partial(self._noted, inner._stream)
        return store

    def _noted(self, open_stream, *arguments, **options):
        self._streams = [*filter(is_open, self._streams), open_stream(*arguments, **options)]
        return self._streams[-1]

    def put(self, key, data):
        self.bucket.put(key, data)

    def put_many(self, keys, data):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: self.bucket.put(key, data), keys))

    def delete(self, key):
        self.bucket.delete(key)

    def encode(self, records):
        return json_lines(records)

    def bad_record(self, key, number):
        return bad_line(key, number)

    def cannot_hold(self, key):
        if len(key.encode()) > self.bucket.longest_key:
            return f"it takes {self.bucket.longest_key} bytes"
        known = CANNOT_HOLD.get(self.bucket.kind, {})
        return next((why for what, why in known.items() if re.search(what, key)), "")

    def make_task(self, options):
        bucket = self.bucket
        given = attrs.asdict(
            bucket.config(), filter=lambda attribute, value: value not in ("", None, (), attribute.default)
        )
        return self._task_class(self.store), source_config(bucket.config_class, **given, **FAST, **options)

    def task_maker(self):
        return self.bucket.task_class

    def open_handles(self):
        return sum(map(is_open, self._streams))

    def vendor_errors(self):
        return self.bucket.vendor_errors()

    def translate(self, error, key):
        return self.bucket.translate(error, key)

    def stick(self, how):
        self._through_proxy()
        self.proxy.clear()
        vars(self.store).pop("list_page", None)
        if how is Stuck.SAME_PAGE:
            self.proxy.add(ProxyFault(method="GET", path=self.bucket.listing(), times=None, repeat=True))
        elif how is Stuck.SAME_PLACE:
            empty = {"status": 200, "body": self.bucket.empty_page, "headers": {"Content-Type": "text/plain"}}
            self.proxy.add(ProxyFault(method="GET", path=self.bucket.listing(), times=None, **empty))
        elif how is Stuck.NEW_PLACES:
            whole, pages = self.store.list_page, []

            def list_page(**arguments):
                pages.append(pages[0] if pages else whole(**arguments))
                return attrs.evolve(pages[0], continuation=f"{len(pages):09}")

            self.store.list_page = list_page

    def _through_proxy(self):
        if self.proxy is None:
            self.proxy = FaultProxy(self.bucket.endpoint).start()
            self.store.close()
            self.store = self._open(endpoint=self.proxy.endpoint)

    def _path(self, call):
        return self.bucket.listing() if call == "list" else self.bucket.reading()

    def fail(self, call, fault, times):
        self._through_proxy()
        self.proxy.clear()
        if times == 0:
            return
        what = {"reset_at": 10} if call == "read" else self.bucket.faults[fault]
        self.proxy.add(ProxyFault(method="GET", path=self._path(call), times=times, **what))

    def tries(self, call):
        return sum(re.search(self._path(call), request.path) is not None for request in self.proxy.requests)

    def close(self):
        self.store.close()
        if self.proxy is not None:
            self.proxy.close()


class UnorderedRig(StoreRig):
    """A store that lists a folder's content where the folder's name sorts: nothing can be said of what is behind a key."""

    capabilities = StoreRig.capabilities - {Capability.ORDER}


class LiveRig(StoreRig):
    """A cloud: no proxy can stand in front, and a process elsewhere would not know the place in the bucket."""

    capabilities = StoreRig.capabilities - {Capability.FAULTS, Capability.STUCK, Capability.PROCESSES}
