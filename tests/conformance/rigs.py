"""Rigs of our own sources."""

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    StoreUnavailableError,
    ThrottledError,
)
from framework.retry import RetryPolicy
from framework.testing.clock import FakeClock
from framework.testing.memory import MemoryStore
from framework.testing.memory_source import MemorySourceTask
from framework.testing.options import source_config
from framework.testing.rig import Capability, Fault, SourceRig

ERRORS = {
    Fault.THROTTLED: lambda: ThrottledError("slow down"),
    Fault.UNAVAILABLE: lambda: StoreUnavailableError("500"),
    Fault.RESET: lambda: StoreUnavailableError("connection reset"),
    Fault.DENIED: lambda: AccessDeniedError("denied"),
    Fault.NO_BUCKET: lambda: BucketNotFoundError("no bucket"),
}
CALLS = {"list": "list_page", "open": "open", "read": "read"}


def json_lines(records):
    """One record a line, with blank lines between some and CR LF after others."""
    out = []
    for number, record in enumerate(records):
        if number % 3 == 1:
            out.append(b" \n\n")
        out.append(record + (b"\r\n" if number % 4 == 2 else b"\n"))
    return b"".join(out)


class MemoryRig(SourceRig):
    """The reference: a store in memory."""

    capabilities = frozenset(Capability)
    task_class = MemorySourceTask

    def __init__(self):
        self.store = MemoryStore()
        self.clock = FakeClock()
        self.policy = RetryPolicy(clock=self.clock, wait=self.clock.wait, rand=lambda: 0.0)

    def put(self, key, data):
        self.store.put(key, data)

    def delete(self, key):
        self.store.delete(key)

    def encode(self, records):
        return json_lines(records)

    def make_task(self, options):
        page_size = options.pop("page_size", 1000)
        task = self.task_class(self.store, policy=self.policy, page_size=page_size)
        return task, source_config(**options)

    def cut(self, key, at):
        self.store.cut(key, at)

    def fail(self, call, fault, times):
        self.store.clear_faults()
        if times != 0:
            self.store.fail(CALLS[call], ERRORS[fault](), times=times)

    def tries(self, call):
        return self.store.count(CALLS[call])
