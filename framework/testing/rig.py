r"""What the conformance kit must be able to do with a source: a rig, written by the source's author.

    class FolderRig(SourceRig):
        def __init__(self, folder): self.folder = folder
        def put(self, key, data): ...                         # out of band: not through the source
        def delete(self, key): ...
        def encode(self, records): return b"".join(record + b"\n" for record in records)
        def make_task(self, options): return FolderTask(), source_config(FolderConfig, path=self.folder, **options)

One rig is one bucket, empty at first; every check gets a fresh one.
"""

from __future__ import annotations

import abc
import contextlib
import enum
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from framework.config.sections import SourceCommonConfig
from framework.feed import ObjectFeed
from framework.iterator import AbstractSourceRecordIterator
from framework.offsets import MemoryOffsetStore, OffsetManager, OffsetStore
from framework.producer import Producer
from framework.task import AbstractSourceTask
from framework.testing.clock import FakeClock


class Capability(str, enum.Enum):
    """What a rig can do beyond the least. A check that needs one that is missing is skipped, and says so."""

    PAGES = "listing in pages of a given size (option page_size)"
    CUT = "making an object's streams end early (cut)"
    FAULTS = "making calls to the store fail (fail, tries)"
    SHARES = "a format whose objects can be cut into shares (can_split)"


class Fault(str, enum.Enum):
    """How a call to the store fails."""

    THROTTLED = "throttled"
    UNAVAILABLE = "server error"
    RESET = "connection reset"
    DENIED = "access denied"
    NO_BUCKET = "no such bucket"


class SourceRig(abc.ABC):
    """One source over one fresh bucket.

    Attributes:
        capabilities: what the rig can do beyond the abstract methods.
        counts: records in each object that the checks write. At least two objects and three records in each; the kit
            refuses numbers that divide each other or the sizes it uses, since they hide errors at edges.
        many_keys: objects for the check of a listing of more than one real page.
        stop_seconds: what a stop may take.
        clock: the clock of the source's retry policy, when it is a fake one: then its budget is checked.
        budget_seconds: of that policy.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    counts: Sequence[int] = (5, 7, 11, 3, 17)
    many_keys: int = 1001
    stop_seconds: float = 5.0
    clock: FakeClock | None = None
    budget_seconds: float = 60.0

    @abc.abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Writes an object behind the source's back; an existing one becomes a new version."""

    def put_many(self, keys: Sequence[str], data: bytes) -> None:
        """Writes the same bytes under many keys; for a rig that can do so faster than one by one."""
        for key in keys:
            self.put(key, data)

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Removes an object behind the source's back."""

    @abc.abstractmethod
    def encode(self, records: Sequence[bytes]) -> bytes:
        """An object that holds these records. Written without the help of the code that reads them.

        What the format allows between records (blank lines, several blocks) should be there.
        """

    @abc.abstractmethod
    def make_task(self, options: dict[str, Any]) -> tuple[AbstractSourceTask, SourceCommonConfig]:
        """A new task that is not started, and the configuration to start it with.

        Args:
            options: flat names over those of the source itself, see `framework.testing.options.source_config`; with
                `Capability.PAGES` also `page_size`.
        """

    def offset_store(self) -> OffsetStore:
        """A new, empty store of positions; for a source that brings its own."""
        return MemoryOffsetStore()

    def make_records(self, key: str, count: int) -> list[bytes]:
        """Records for an object; for a format that cannot hold any JSON object."""
        return [b'{"object":"%s","n":%d}' % (key.encode(), number) for number in range(1, count + 1)]

    def difficult_records(self) -> list[bytes]:
        """Records that a codec may get wrong."""
        texts = ["", " ", "é", "\u2028", "\U0001f600", "\\", '"', "a" * 300, "null", "\u0001"]
        escaped = [text.replace("\\", "\\\\").replace('"', '\\"').replace("\u0001", "\\u0001") for text in texts]
        return ['{{"n":{},"text":"{}"}}'.format(n, text).encode() for n, text in enumerate(escaped)]  # noqa: UP032

    def cut(self, key: str, at: int | None) -> None:
        """`Capability.CUT`: every stream of that object ends at this byte; None puts it right again."""
        raise NotImplementedError

    def fail(self, call: str, fault: Fault, times: int | None) -> None:
        """`Capability.FAULTS`: the next calls of `list`, `open` or `read` fail so; None = all. Counting begins again."""
        raise NotImplementedError

    def tries(self, call: str) -> int:
        """`Capability.FAULTS`: how often that call was made since `fail`."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most rigs hold nothing
        """Gives back what the rig holds. May be called twice."""

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
        """A started task over the positions of a store. Override it for a source that must know its producer."""
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
        """The iterator of a task that is not started, closed at the end."""
        task, config = self.make_task(options)
        task.config, task.once, task.feed = config, once, feed
        task.offsets = OffsetManager(offset_store)
        task.offsets.populate_offset_manager()
        iterator = task.get_iterator(task.backoff_config)
        try:
            yield iterator
        finally:
            iterator.close()
            task.close_resources()
