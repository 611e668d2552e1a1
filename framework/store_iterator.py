"""The iterator of any object store: listing with retries, streams that resume. S3 and GCS add nothing but their store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.errors import ListingError, StoreUnavailableError, TaskClosedError
from framework.iterator import AbstractSourceRecordIterator
from framework.listing import Listing, ListingRequest
from framework.reading import StoreInput
from framework.records import NativeObject
from framework.retry import RetryPolicy
from framework.selection import log_prefixes
from framework.store import ListPage, ObjectStore
from framework.transformer import ObjectInput, Transformer

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.errors import RetriableError
    from framework.feed import ObjectFeed
    from framework.offsets import OffsetManager


FIRST_CONTACT_SECONDS = 12.0
"""How long the very first request is tried again; later ones have the whole configured budget."""

FIRST_ANSWER_SECONDS = 15.0
"""How long the very first page may take in all. About a place that takes connections and says nothing, the limit of
silence, which is made for large objects, would tell only after a minute."""


class StoreRecordIterator(AbstractSourceRecordIterator):
    """Records of the objects of one bucket. Closing it does not close the store, which others may use.

    Attributes:
        lister: who lists a prefix, when somebody else than this process's own threads does: a Spark driver sets it before
            the first pass.

    Args:
        config: the whole configuration.
        transformer: the format.
        offsets: positions.
        store: the bucket.
        policy: how patiently each single call is tried.
        prefixes: what to list, one chain of pages each; none begins with another.
        page_size: keys in a page.
        start_key: listings begin after this key; None at the first.
        feed: which objects to read, when somebody else lists.
        once: one complete pass.
    """

    def __init__(
        self,
        config: SourceCommonConfig,
        transformer: Transformer,
        offsets: OffsetManager | None = None,
        *,
        store: ObjectStore,
        policy: RetryPolicy,
        prefixes: Sequence[str] = ("",),
        page_size: int = 1000,
        start_key: str | None = None,
        feed: ObjectFeed | None = None,
        once: bool = False,
    ) -> None:
        super().__init__(config, transformer, offsets, feed=feed, once=once)
        self.lister: Callable[[ListingRequest], Listing] | None = None
        self._store = store
        self._policy = policy
        # until the store has answered once, a person is waiting to hear what is wrong
        self._first_policy: RetryPolicy | None = policy.within(FIRST_CONTACT_SECONDS)
        self._prefixes = tuple(prefixes)
        self._page_size = page_size
        self._start_key = start_key
        self._ending = threading.Event()
        self._first_contact = threading.Event()  # made, or given up
        self._clock_ahead_seconds = 0.0

    @property
    @override
    def prefixes(self) -> Sequence[str]:
        return self._prefixes

    @property
    @override
    def start_key(self) -> str | None:
        return self._start_key

    @property
    def store(self) -> ObjectStore:
        """The bucket."""
        return self._store

    @property
    def policy(self) -> RetryPolicy:
        """How patiently each single call is tried."""
        return self._policy

    @property
    def page_size(self) -> int:
        """Keys in a page."""
        return self._page_size

    @property
    def closing(self) -> threading.Event:
        """Set by `close`; ends every wait of a listing."""
        return self._ending

    @override
    def list_with(self, make: Callable[[StoreRecordIterator], Callable[[ListingRequest], Listing]]) -> None:
        self.lister = make(self)

    @override
    def get_native_item_stream(self, offset: str | None) -> Iterator[NativeObject]:
        for prefix in self._prefixes:
            if self.lister is not None:
                yield from self._listed(self.lister(ListingRequest(prefix=prefix, after=offset or "")))
                continue
            continuation: str | None = None
            while True:
                page = self._page(prefix, offset or "", continuation)
                yield from page.objects
                if page.continuation is None:
                    break
                if page.continuation == continuation:
                    raise ListingError(
                        f"{self._store.scheme}://{self._store.bucket}/{prefix}: a page of the listing repeats itself"
                    )
                continuation = page.continuation

    def _listed(self, listing: Listing) -> Iterator[NativeObject]:
        """The objects of a listing; its counts become ours, and its clock."""
        calls = retries = 0
        try:
            for objects in listing:
                if listing.server_time_ms is not None and not calls:
                    self._clock_ahead_seconds = listing.server_time_ms / 1000 - time.time()
                self.counts.list_requests += listing.counts.calls - calls
                self.counts.retries += listing.counts.retries - retries
                calls, retries = listing.counts.calls, listing.counts.retries
                yield from objects
            if not listing.complete:
                raise TaskClosedError(f"{self._store.scheme}://{self._store.bucket}: closed while listing")
        finally:
            self.counts.list_requests += listing.counts.calls - calls
            self.counts.retries += listing.counts.retries - retries
            listing.close()

    @override
    def store_clock(self) -> float:
        return time.time() + self._clock_ahead_seconds

    @override
    def get_table_log_keys(self) -> Iterable[str]:
        tables = self.config.input.format in {"parquet", "auto"} and not self.config.discovery.allow_table_folders
        prefixes = log_prefixes(self._prefixes) if tables else ()
        return [native.key for prefix in prefixes for native in self._page(prefix, "", None).objects]

    def _page(self, prefix: str, after: str, continuation: str | None) -> ListPage:
        self.counts.list_requests += 1
        page = self._first_page(prefix, after) if self._first_policy else self._ask(prefix, after, continuation)
        self._first_policy = None
        if page.server_time_ms is not None:
            self._clock_ahead_seconds = page.server_time_ms / 1000 - time.time()
        return page

    def _first_page(self, prefix: str, after: str) -> ListPage:
        """In a thread of its own, which is left behind when no answer comes."""
        answer: Future[ListPage] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._ask(prefix, after, None))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                answer.set_exception(error)

        threading.Thread(target=ask, name="first-page", daemon=True).start()
        answer.add_done_callback(lambda _: self._first_contact.set())
        self._first_contact.wait(FIRST_ANSWER_SECONDS)
        if answer.done():
            return answer.result()
        if self._ending.is_set():
            raise TaskClosedError(f"{self._store.scheme}://{self._store.bucket}/{prefix}: closed while listing")
        place = f" at {self._store.address}" if self._store.address else ""
        raise StoreUnavailableError(
            f"{self._store.scheme}://{self._store.bucket}/{prefix}: no answer{place} within "
            f"{FIRST_ANSWER_SECONDS:.0f} seconds; check the address, the network and the proxy"
        )

    def _ask(self, prefix: str, after: str, continuation: str | None) -> ListPage:
        return (self._first_policy or self._policy).call(
            self._store.list_page,
            prefix=prefix,
            after=after,
            continuation=continuation,
            page_size=self._page_size,
            what=f"listing {self._store.scheme}://{self._store.bucket}/{prefix}",
            on_retry=self._count_retry,
            stop=self._ending,
        )

    def _count_retry(self, error: RetriableError, tries: int, seconds: float) -> None:
        self.counts.retries += 1
        self.log_retry(error, tries, seconds)

    @override
    def get_input_stream(self, native: NativeObject) -> ObjectInput:
        return StoreInput(self._store, native, self._policy, on_retry=self._count_retry, stop=self._ending)

    @override
    def close(self) -> None:
        self._ending.set()
        self._first_contact.set()
        super().close()
