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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import attrs

from framework.config.sections import SourceCommonConfig
from framework.discovery.feed import ObjectFeed
from framework.errors import SourceError
from framework.iterator import AbstractSourceRecordIterator
from framework.offsets.manager import MemoryOffsetStore, OffsetManager, OffsetStore
from framework.pipeline.producer import Producer
from framework.task import AbstractSourceTask
from framework.task.context import SourceContext
from framework.testing.clock import FakeClock


class Capability(str, enum.Enum):
    """What a rig can do beyond the least. A check that needs one that is missing is skipped, and says so."""

    PAGES = "listing in pages of a given size (option page_size)"
    ORDER = "listing in the order of the keys' bytes, so that a listing can go on behind a key"
    PREFIX = "listing below a prefix of keys (option prefix)"
    STUCK = "making a listing stand still (stick)"
    CUT = "making an object's streams end early (cut)"
    FAULTS = "making calls to the store fail (fail, tries)"
    SPLITS = "a format whose objects can be split (can_split)"
    HANDLES = "counting what is open (open_handles)"
    VENDOR_ERRORS = "naming the errors of its vendor (vendor_errors, translate)"
    PROCESSES = "making a task in another process (task_maker)"
    POSITIONS = "keeping positions in a store of its own (offset_store, reopen, spoil)"


class Fault(str, enum.Enum):
    """How a call to the store fails."""

    THROTTLED = "throttled"
    UNAVAILABLE = "server error"
    RESET = "connection reset"
    DENIED = "access denied"
    NO_BUCKET = "no such bucket"


class Stuck(str, enum.Enum):
    """How a listing stands still."""

    SAME_PAGE = "every page is the first one"
    SAME_PLACE = "an empty page names itself as the next one"
    NEW_PLACES = "the first page again and again, under names that are new each time"


@attrs.frozen(kw_only=True)
class VendorError:
    """One error of a vendor's library or service.

    Attributes:
        name: its code or class, for messages.
        error: the exception as the library raises it; with the rig's `secrets` in it where the real one may hold some.
        kind: what it must become at least, `RetriableError` for instance.
        about_object: whether it can be about one object; the others are of the bucket or the account.
    """

    name: str
    error: BaseException
    kind: type[SourceError] = SourceError
    about_object: bool = True


class SourceRig(abc.ABC):
    """One source over one fresh bucket.

    Attributes:
        capabilities: what the rig can do beyond the abstract methods.
        counts: records in each object that the checks write. At least two objects and three records in each; the kit
            refuses numbers that divide each other or the sizes it uses, since they hide errors at edges.
        many_keys: objects for the check of a listing of more than one real page.
        largest_page: the largest page_size that the source takes.
        crash_pairs: how many pairs of crashes the law of two crashes tries, chosen by the seed.
        examples: how many histories the machine of law H1 plays; fewer for a slow store.
        secrets: texts that no message of an error and no repr may hold: keys, tokens, signed addresses.
        stop_seconds: what a stop may take.
        clock: the clock of the source's retry policy, when it is a fake one: then its budget is checked.
        budget_seconds: of that policy.
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

    def cannot_hold(self, key: str) -> str:
        """Why the store cannot hold an object of that key; empty when it can. Such keys are skipped, and named."""
        del key
        return ""

    def offset_store(self) -> OffsetStore:
        """A new, empty store of positions; for a source that brings its own."""
        return MemoryOffsetStore()

    def reopen(self, store: OffsetStore) -> OffsetStore:
        """`Capability.POSITIONS`: another store over what was saved in this one, as after a restart."""
        raise NotImplementedError

    def spoil(self, store: OffsetStore) -> None:
        """`Capability.POSITIONS`: what was saved is of a later version of the layout now, which no reader knows yet."""
        raise NotImplementedError

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

    def stick(self, how: Stuck | None) -> None:
        """`Capability.STUCK`: every listing stands still so from now on; None puts it right again."""
        raise NotImplementedError

    def open_handles(self) -> int:
        """`Capability.HANDLES`: files, sockets or streams over objects that are open now."""
        raise NotImplementedError

    def vendor_errors(self) -> Iterable[VendorError]:
        """`Capability.VENDOR_ERRORS`: every error that the vendor's library and service are known to raise."""
        raise NotImplementedError

    def translate(self, error: BaseException, key: str) -> SourceError:
        """`Capability.VENDOR_ERRORS`: what the source raises for it; `key` is empty for a call about the bucket."""
        raise NotImplementedError

    def task_maker(self) -> Callable[[], AbstractSourceTask]:
        """`Capability.PROCESSES`: what makes a task, and can be pickled; the task's class as a rule."""
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
        offsets = OffsetManager(offset_store)
        offsets.populate_offset_manager()
        iterator = task.get_iterator(SourceContext(config=config, offsets=offsets, feed=feed, once=once))
        try:
            yield iterator
        finally:
            iterator.close()
            task.close_resources()
