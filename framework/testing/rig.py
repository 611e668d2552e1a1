r"""Rigs: operations on a source and its bucket that the conformance kit needs, written by the source's author.

    class FolderRig(SourceRig):
        def __init__(self, folder): self.folder = folder
        def put(self, key, data): ...                         # out of band: not through the source
        def delete(self, key): ...
        def encode(self, records): return b"".join(record + b"\n" for record in records)
        def make_task(self, options): return FolderTask(), source_config(FolderConfig, path=self.folder, **options)

A rig is one bucket, empty at first; every check gets a new one.
"""

from __future__ import annotations

import abc
import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import attrs

from framework.config.sections import SourceCommonConfig
from framework.discovery.object_feed import ObjectFeed
from framework.errors import SourceError
from framework.iterator import AbstractSourceRecordIterator
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore, OffsetStore
from framework.pipeline.producer_contract import Producer
from framework.task import AbstractSourceTask
from framework.task.context import SourceContext
from framework.testing.clock import FakeClock


class Capability(str, enum.Enum):
    """Optional capabilities of a rig. A check without its capability is skipped, with a note."""

    PAGES = "listing in pages of a given size (option page_size)"
    ORDER = "listing in the order of the keys' bytes, so that a listing can go on behind a key"
    PREFIX = "listing below a prefix of keys (option prefix)"
    STUCK = "making a listing stand still (stick)"
    CUT = "making an object's streams end early (cut)"
    FAULTS = "making calls to the store fail (fail, tries)"
    SPLITS = "a format whose objects can be split (can_split)"
    BAD_RECORDS = "making a bad record (bad_record)"
    HANDLES = "counting what is open (open_handles)"
    VENDOR_ERRORS = "naming the errors of its vendor (vendor_errors, translate)"
    PROCESSES = "making a task in another process (task_maker)"
    POSITIONS = "keeping positions in a store of its own (offset_store, reopen, spoil)"


class Fault(str, enum.Enum):
    """Kinds of failing calls to the store."""

    THROTTLED = "throttled"
    UNAVAILABLE = "server error"
    RESET = "connection reset"
    DENIED = "access denied"
    NO_BUCKET = "no such bucket"


class Stuck(str, enum.Enum):
    """Kinds of listings without progress."""

    SAME_PAGE = "every page is the first one"
    SAME_PLACE = "an empty page names itself as the next one"
    NEW_PLACES = "the first page again and again, under names that are new each time"


@attrs.frozen(kw_only=True)
class VendorError:
    """An error of a vendor's library or service.

    Attributes:
        name: its code or class, for messages.
        error: the exception as the library raises it; with the rig's `secrets` in it where the real one
            may contain some.
        kind: its required class, for example `RetriableError`.
        about_object: whether it can concern a single object; others concern the bucket or the account.
    """

    name: str
    error: BaseException
    kind: type[SourceError] = SourceError
    about_object: bool = True


class SourceRig(abc.ABC):
    """One source over one new bucket.

    Attributes:
        capabilities: capabilities beyond the abstract methods.
        counts: records in each object that the checks write. At least two objects and three records each.
            The kit rejects numbers that divide each other or its sizes, because they hide errors at
            boundaries.
        many_keys: objects for the check of a listing with several real pages.
        largest_page: the largest page_size of the source.
        crash_pairs: number of crash pairs that the law of two crashes tries, chosen by the seed.
        examples: number of histories of law H1; fewer for a slow store.
        secrets: texts that no error message and no repr may contain: keys, tokens, signed addresses.
        stop_seconds: maximum duration of a stop.
        clock: the clock of the source's retry policy, when it is a fake: then its budget is checked.
        budget_seconds: budget of that policy.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    counts: Sequence[int] = (5, 7, 11, 3, 17)
    many_keys: int = 1001
    largest_page: int = 1000
    crash_pairs: int = 20
    examples: int = 20
    secrets: Sequence[str] = ()
    stop_seconds: float = 5.0
    clock: FakeClock | None = None
    budget_seconds: float = 60.0

    @abc.abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write an object, without the source; an existing object gets a new version."""

    def put_many(self, keys: Sequence[str], data: bytes) -> None:
        """Write the same bytes under many keys; override it where that can be faster."""
        for key in keys:
            self.put(key, data)

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object, without the source."""

    @abc.abstractmethod
    def encode(self, records: Sequence[bytes]) -> bytes:
        """Return an object with these records, encoded without the code that reads them.

        It should contain everything that the format allows between records (blank lines, several blocks).
        """

    @abc.abstractmethod
    def make_task(self, options: dict[str, Any]) -> tuple[AbstractSourceTask, SourceCommonConfig]:
        """Return a new task, not started, and the configuration to start it with.

        Args:
            options: flat names over those of the source itself, see
                `framework.testing.options.source_config`; with `Capability.PAGES` also `page_size`.
        """

    def cannot_hold(self, key: str) -> str:
        """Return why the store cannot hold an object of that key; empty when it can. Such keys are skipped, and named."""
        del key
        return ""

    def offset_store(self) -> OffsetStore:
        """Return a new, empty store of positions; for a source that has its own."""
        return MemoryOffsetStore()

    def reopen(self, store: OffsetStore) -> OffsetStore:
        """`Capability.POSITIONS`: return another store over the saved data of this one, as after a restart."""
        raise NotImplementedError

    def spoil(self, store: OffsetStore) -> None:
        """`Capability.POSITIONS`: change the saved data to a later, unknown version of the layout."""
        raise NotImplementedError

    def make_records(self, key: str, count: int) -> list[bytes]:
        """Return records for an object; for a format that cannot hold every JSON object."""
        return [b'{"object":"%s","n":%d}' % (key.encode(), number) for number in range(1, count + 1)]

    def bad_record(self, key: str, number: int) -> bytes:
        """`Capability.BAD_RECORDS`: what `encode` takes as a record and the format refuses as one bad record.

        No two are equal. A dead letter holds exactly these bytes.
        """
        raise NotImplementedError

    def difficult_records(self) -> list[bytes]:
        """Return records that a codec may get wrong."""
        texts = ["", " ", "é", "\u2028", "\U0001f600", "\\", '"', "a" * 300, "null", "\u0001"]
        escaped = [text.replace("\\", "\\\\").replace('"', '\\"').replace("\u0001", "\\u0001") for text in texts]
        return ['{{"n":{},"text":"{}"}}'.format(n, text).encode() for n, text in enumerate(escaped)]  # noqa: UP032

    def cut(self, key: str, at: int | None) -> None:
        """`Capability.CUT`: end every stream of that object at this byte; None restores it."""
        raise NotImplementedError

    def fail(self, call: str, fault: Fault, times: int | None) -> None:
        """`Capability.FAULTS`: fail the next calls of `list`, `open` or `read`; None = all. Resets the counts."""
        raise NotImplementedError

    def tries(self, call: str) -> int:
        """`Capability.FAULTS`: return the number of these calls since `fail`."""
        raise NotImplementedError

    def stick(self, how: Stuck | None) -> None:
        """`Capability.STUCK`: stop the progress of every listing from now on; None restores it."""
        raise NotImplementedError

    def open_handles(self) -> int:
        """`Capability.HANDLES`: return the number of open files, sockets or streams over objects."""
        raise NotImplementedError

    def vendor_errors(self) -> Iterable[VendorError]:
        """`Capability.VENDOR_ERRORS`: return every known error of the vendor's library and service."""
        raise NotImplementedError

    def translate(self, error: BaseException, key: str) -> SourceError:
        """`Capability.VENDOR_ERRORS`: return the source's error for it; `key` is empty for a call about the bucket."""
        raise NotImplementedError

    def task_maker(self) -> Callable[[], AbstractSourceTask]:
        """`Capability.PROCESSES`: return a picklable factory of tasks, usually the task's class."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most rigs hold nothing
        """Release the rig's resources. Idempotent."""

    # ---- what the checks use

    def open_task(
        self,
        offset_store: OffsetStore | None = None,
        producer: Producer | None = None,
        *,
        once: bool = True,
        feed: ObjectFeed | None = None,
        **options: Any,
    ) -> AbstractSourceTask:
        """Yield a started task over the positions of a store. Override it for a source that must know its producer."""
        del producer
        task, config = self.make_task(options)
        offsets = OffsetManager(offset_store)
        offsets.populate_offset_manager()
        task.start(config, offsets=offsets, once=once, feed=feed)
        return task

    @contextlib.contextmanager
    def open_iterator(
        self,
        offset_store: OffsetStore | None = None,
        *,
        once: bool = True,
        feed: ObjectFeed | None = None,
        **options: Any,
    ) -> Iterator[AbstractSourceRecordIterator]:
        """Yield the iterator of a task that is not started; it is closed at the end."""
        task, config = self.make_task(options)
        offsets = OffsetManager(offset_store)
        offsets.populate_offset_manager()
        iterator = task.get_iterator(SourceContext(config=config, offsets=offsets, feed=feed, once=once))
        try:
            yield iterator
        finally:
            iterator.close()
            iterator.leave()  # as a reader's thread does: a format may keep a stream between two batches
            task.close_resources()
