"""The rig of the store in memory: the reference for the kit and its collection of broken sources.

Also an example to copy: it has every capability except positions of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import attrs
from typing_extensions import override

from framework.config.sections import SourceCommonConfig
from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    FatalError,
    ObjectNotFoundError,
    RetriableError,
    SkippableError,
    SourceError,
    StoreUnavailableError,
    ThrottledError,
)
from framework.storage.retry import RetryPolicy
from framework.store import ListPage
from framework.task import AbstractSourceTask
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config
from framework.testing.rig import Capability, Fault, SourceRig, Stuck, VendorError

_FAULTS: dict[Fault, Callable[[], SourceError]] = {
    Fault.THROTTLED: lambda: ThrottledError("slow down"),
    Fault.UNAVAILABLE: lambda: StoreUnavailableError("500"),
    Fault.RESET: lambda: StoreUnavailableError("connection reset"),
    Fault.DENIED: lambda: AccessDeniedError("denied"),
    Fault.NO_BUCKET: lambda: BucketNotFoundError("no bucket"),
}
_CALLS = {"list": "list_page", "open": "open", "read": "read"}


def json_lines(records: Sequence[bytes]) -> bytes:
    """Encode one record per line, with some blank lines and some CR LF."""
    out: list[bytes] = []
    for number, record in enumerate(records):
        if number % 3 == 1:
            out.append(b" \n\n")
        out.append(record + (b"\r\n" if number % 4 == 2 else b"\n"))  # noqa: PLR2004  any of them
    return b"".join(out)


def bad_line(key: str, number: int) -> bytes:
    """Return a line that is not JSON."""
    return b"- bad %d of %s" % (number, key.encode())


class ShelfError(Exception):
    """Error of a fictitious vendor library: a code and a signed address."""

    def __init__(self, code: str) -> None:
        super().__init__(f"{code} from https://shelf.example/bucket?signature={SECRET}")
        self.code = code


SECRET = "c2lnbmF0dXJl"  # noqa: S105  # of nothing
_SHELF: dict[str, tuple[type[SourceError], str]] = {
    "Busy": (ThrottledError, "the shelf asks for fewer requests"),
    "Broken": (StoreUnavailableError, "the shelf did not answer as it should"),
    "Locked": (AccessDeniedError, "the credentials do not allow it; ask its owner"),
    "Missing": (ObjectNotFoundError, "it was deleted after it was listed"),
}


class MemoryRig(SourceRig):
    """A rig over a `MemoryStore`. Subclasses may use other tasks and stores.

    Attributes:
        task_class: the task that reads it.
        store: the bucket.
        policy: the retry policy, on the fake clock.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.POSITIONS}
    task_class: type[MemorySourceTask] = MemorySourceTask
    largest_page = 5000
    secrets = (SECRET,)

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = FakeClock()
        self.policy = RetryPolicy(clock=self.clock, wait=self.clock.wait, rand=lambda: 0.0)

    @override
    def put(self, key: str, data: bytes) -> None:
        self.store.put(key, data)

    @override
    def delete(self, key: str) -> None:
        self.store.delete(key)

    @override
    def encode(self, records: Sequence[bytes]) -> bytes:
        return json_lines(records)

    @override
    def bad_record(self, key: str, number: int) -> bytes:
        return bad_line(key, number)

    @override
    def make_task(self, options: dict[str, Any]) -> tuple[AbstractSourceTask, SourceCommonConfig]:
        page_size = options.pop("page_size", 1000)
        prefix = options.pop("prefix", "")
        task = self.task_class(self.store, policy=self.policy, page_size=page_size, prefixes=[prefix])
        return task, source_config(**options)

    @override
    def cut(self, key: str, at: int | None) -> None:
        self.store.cut(key, at)

    @override
    def fail(self, call: str, fault: Fault, times: int | None) -> None:
        self.store.clear_faults()
        if times != 0:
            self.store.fail(_CALLS[call], _FAULTS[fault](), times=times)

    @override
    def tries(self, call: str) -> int:
        return self.store.count(_CALLS[call])

    @override
    def stick(self, how: Stuck | None) -> None:
        pages: list[ListPage] = []

        def change(page: ListPage) -> ListPage:
            pages.append(page)
            if how is Stuck.SAME_PLACE:
                return ListPage(objects=[], continuation="here")
            if how is Stuck.NEW_PLACES:
                return attrs.evolve(pages[0], continuation=f"{len(pages):09}")
            return pages[0]

        self.store.change_page = change if how is not None else None

    @override
    def open_handles(self) -> int:
        return self.store.open_streams

    @override
    def vendor_errors(self) -> Iterable[VendorError]:
        kinds = {"Busy": RetriableError, "Broken": RetriableError, "Locked": FatalError, "Missing": SkippableError}
        for code in (*_SHELF, "Unheard"):
            yield VendorError(
                name=code, error=ShelfError(code), kind=kinds.get(code, SourceError), about_object=code != "Locked"
            )

    @override
    def translate(self, error: BaseException, key: str) -> SourceError:
        code = error.code if isinstance(error, ShelfError) else type(error).__name__
        kind, advice = _SHELF.get(code, (FatalError, "the shelf refuses the request, see its log"))
        place = f"memory://{self.store.bucket}/{key}" if key else f"memory://{self.store.bucket}"
        if issubclass(kind, SkippableError):
            return kind(f"{advice} ({code})", location=place) if key else FatalError(f"{place}: {advice} ({code})")
        return kind(f"{place}: {advice} ({code})")

    @override
    def task_maker(self) -> Callable[[], AbstractSourceTask]:
        return partial(_task_over, self.task_class, self.store.stored())


def _task_over(task_class: type[MemorySourceTask], stored: dict[str, tuple[bytes, str, int]]) -> MemorySourceTask:
    """Return a task over the same objects, in another process."""
    store = MemoryStore()
    store.restore(stored)
    return task_class(store)
