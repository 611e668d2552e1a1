"""The iterator for any object store: listing with retries, resuming streams. S3 and GCS only supply their store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.discovery.key_list.location import key_list_of
from framework.discovery.key_list.resolver import KeyListResolver
from framework.discovery.listing_memory import ListingMemory
from framework.discovery.object_filters import log_prefixes
from framework.errors import ListingError, ObjectNotFoundError, TaskClosedError
from framework.iterator import AbstractSourceRecordIterator
from framework.iterator.store_clock import StoreClock
from framework.model.objects import NativeObject
from framework.offsets.listing_hints import ListingHints
from framework.storage.author_code import author_code
from framework.storage.listing.first_contact import SinglePages
from framework.storage.listing.limiter import CallLimiter
from framework.storage.listing.listing import Listing, ListingRequest
from framework.storage.listing.parallel import ParallelListing
from framework.storage.resuming_stream import StoreInput
from framework.storage.retry import RetryPolicy
from framework.storage.stat import BucketOpener, Lookups
from framework.store import ListPage, ObjectStore
from framework.transformer import ObjectInput, Transformer

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.object_feed import ObjectFeed
    from framework.errors import RetriableError
    from framework.offsets.manager import OffsetManager


class StoreRecordIterator(AbstractSourceRecordIterator):
    """Records of the objects of a bucket. Closing the iterator does not close the store, which may be shared.

    Attributes:
        lister: lists a prefix instead of this process's own threads: a Spark driver sets it before the first listing.
        store: the bucket.
        policy: the retry policy of each single call.
        page_size: keys per page.
        closing: event set by `close`; ends every wait of a listing.
        limiter: limits the calls of all listings; what one learned holds for the next.

    Args:
        config: the whole configuration.
        transformer: the format.
        offsets: positions.
        store: the bucket.
        policy: retry policy of each single call.
        prefixes: prefixes to list in turn; no prefix begins with another.
        page_size: keys per page.
        start_key: listings begin after this key; None: at the first key.
        feed: which objects to read, when another process lists.
        once: one complete listing.
        open_bucket: makes the store of another bucket, for a list of keys in that bucket; None: only `store`.

    Raises:
        ConfigError: `[discovery] keys` names a place that this store cannot have.
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
        open_bucket: BucketOpener | None = None,
    ) -> None:
        super().__init__(config, transformer, offsets, feed=feed, once=once)
        self.lister: Callable[[ListingRequest], Listing] | None = None
        self.store = store
        self.policy = policy
        self._prefixes = tuple(prefixes)
        self.page_size = page_size
        self._start_key = start_key
        self.closing = threading.Event()
        self._pages = SinglePages(store, policy, page_size, self._count_retry)
        self._memory = ListingMemory(self.offsets.hints, store, page_size)
        self._listing: Listing | None = None
        self._listing_idle_seconds = 0.0
        self._began_monotonic = time.monotonic()
        self._clock = StoreClock(f"{store.scheme}://{store.bucket}")
        self.limiter = CallLimiter(
            requests_per_second=config.discovery.list_requests_per_second,
            bytes_per_second=config.discovery.list_bytes_per_second,
        )
        self._lookups = Lookups(
            store,
            policy,
            open_bucket=open_bucket,
            on_request=self._count_lookup,
            on_retry=self._count_retry,
            stop=self.closing,
        )
        self._named = self._name_objects() if config.discovery.mode == "keys" else None

    def _name_objects(self) -> KeyListResolver:
        """Build the objects of the configured list of keys. No I/O."""
        discovery = self.config.discovery
        form, encoding = discovery.keys_format, discovery.keys_encoding
        return KeyListResolver(
            key_list_of(discovery.keys or "", self._lookups, form=form, encoding=encoding),
            self._lookups,
            self.offsets,
            key_of=lambda native: self.get_offset_manager_key(self.get_native_key(native)),
            prefixes=tuple(self.prefixes),
            concurrency=discovery.list_concurrency,
            recheck=discovery.keys_recheck,
        )

    def _count_lookup(self) -> None:
        self.statistics.list_requests += 1

    @override
    def look_up(self, native: NativeObject) -> NativeObject | None:
        try:
            return self._lookups.stat(native.bucket, native.key)
        except ObjectNotFoundError:
            return None

    @override
    def metadata_of(self, native: NativeObject) -> Mapping[str, str]:
        return self._ask_about(native, "metadata", self.store.metadata)

    @override
    def tags_of(self, native: NativeObject) -> Mapping[str, str]:
        return self._ask_about(native, "tags", self.store.tags)

    def _ask_about(
        self, native: NativeObject, what: str, ask: Callable[[NativeObject], Mapping[str, str]]
    ) -> Mapping[str, str]:
        what = f"asking for the {what} of {native.location}"
        ask = author_code(what)(ask)
        return self.policy.call(ask, native, what=what, on_retry=self._count_retry, stop=self.closing)

    @property
    @override
    def named_objects(self) -> KeyListResolver | None:
        return self._named

    @property
    @override
    def prefixes(self) -> Sequence[str]:
        return self._prefixes

    @property
    @override
    def bucket(self) -> str:
        return self.store.bucket

    @property
    @override
    def address(self) -> str | None:
        return self.store.address

    @property
    @override
    def start_key(self) -> str | None:
        return self._start_key

    @property
    @override
    def listing_idle_seconds(self) -> float:
        return self._listing_idle_seconds

    @override
    def get_native_item_stream(self, offset: str | None) -> Iterator[NativeObject]:
        """Yield the objects of each prefix in turn.

        With `list_concurrency` above 1 a large prefix is listed in parallel key ranges: its objects are in key order
        only within a range. In mode `keys` a supplied list replaces the listing.
        """
        if self.named_objects is not None:
            return self.named_objects.objects(offset or "")
        return self._stream(dict.fromkeys(self.prefixes, offset or ""), whole=offset == self.start_key)

    @override
    def get_incremental_stream(self, starts: Mapping[str, str]) -> Iterator[NativeObject]:
        return self._stream(starts, whole=False)

    def _stream(self, starts: Mapping[str, str], *, whole: bool) -> Iterator[NativeObject]:
        self._began_monotonic = time.monotonic()
        for prefix, after in starts.items():
            yield from self._list(prefix, after, whole=whole)

    @override
    def listing_hints(self, prefix: str) -> ListingHints:
        return self._memory.past(prefix)

    def _list(self, prefix: str, after: str, *, whole: bool) -> Iterator[NativeObject]:
        self._check_order(prefix, unordered=self._memory.past(prefix).unordered or not self.store.ordered)
        request = self._memory.request(prefix, after)
        first = None if self._pages.answered else self._pages.ask(prefix, "" if request.unordered else after)
        if self.lister is None or (first is not None and first.continuation is None):
            listing: Listing = self.list_by_threads(request, first)
        else:
            self.statistics.list_requests += first is not None  # this page only showed that the store answers
            listing = self.lister(request)
        self._listing = listing
        if self.closing.is_set():  # `close` may have looked for it before
            listing.close()
        documented = self.store.ordered and self.store.order_is_documented and not request.unordered
        self.offsets.tracker.begin_listing(prefix, after, in_order=documented, whole=whole)
        try:
            yield from self._objects_of(listing)
        except ListingError:
            if listing.unordered:  # noticed too late to restart this listing: the next start knows
                self._memory.note(request, listing, whole=False)
            raise
        finally:
            self._listing = None  # the listing keeps references to the objects it handed out
        self.offsets.tracker.complete(whole=whole)
        self._memory.note(request, listing, whole=whole)
        self._check_order(prefix, unordered=listing.unordered)

    def _check_order(self, prefix: str, *, unordered: bool) -> None:
        if unordered and self.config.discovery.mode == "incremental":
            raise ListingError(
                f"{self.store.scheme}://{self.store.bucket}/{prefix}: the store does not list in the order of keys, so "
                'there is no going on behind the highest one; set [discovery] mode = "list"'
            )

    def list_by_threads(self, request: ListingRequest, first: ListPage | None = None) -> Listing:
        """List in threads of this process.

        Args:
            request: what to list.
            first: its first page, if that was requested already.
        """
        return ParallelListing(
            store=self.store,
            request=request,
            page_size=self.page_size,
            policy=self.policy,
            concurrency=self.config.discovery.list_concurrency,
            limiter=self.limiter,
            on_retry=self.log_retry,
            first=first,
        )

    def _objects_of(self, listing: Listing) -> Iterator[NativeObject]:
        """Yield the objects of a listing; add its counts to this iterator's counts, and take over its clock."""
        calls = retries = 0
        idle_before = self._listing_idle_seconds
        clock_is_set = False
        try:
            while True:
                objects = next(listing, None)
                if listing.server_time_ms is not None and not clock_is_set:
                    clock_is_set = True
                    self._clock.set(listing.server_time_ms)
                    self.offsets.tracker.start_at(
                        self._clock.listing_start_ms(listing.server_time_ms, self._began_monotonic)
                    )
                self.statistics.list_requests += listing.counts.calls - calls
                self.statistics.retries += listing.counts.retries - retries
                calls, retries = listing.counts.calls, listing.counts.retries
                self._listing_idle_seconds = idle_before + listing.counts.idle_seconds
                if objects is None:
                    break
                self.store_works("listing")
                yield from objects
                self.offsets.tracker.advance_over(listing.key_range)
            if not listing.complete:
                raise TaskClosedError(f"{self.store.scheme}://{self.store.bucket}: closed while listing")
        finally:
            self.statistics.list_requests += listing.counts.calls - calls
            self.statistics.retries += listing.counts.retries - retries
            listing.close()

    @override
    def store_clock(self) -> float:
        return self._clock.now()

    @override
    def ask_clock(self) -> float:
        if not self._clock.known and self.named_objects is None:
            self._ask_page(self.prefixes[0])
        return self._clock.now()

    @override
    def get_table_log_keys(self) -> Iterable[str]:
        if self.named_objects is not None:  # the owner of a supplied list may lack permission to list, and chose them
            return []
        tables = self.config.input.format in {"parquet", "auto"} and not self.config.discovery.allow_table_folders
        keys: list[str] = []
        for prefix in log_prefixes(self.prefixes) if tables else ():
            keys.extend(native.key for native in self._ask_page(prefix).objects)
        return keys

    def _ask_page(self, prefix: str) -> ListPage:
        """Return the first page of a prefix, and take over the store's clock."""
        self.statistics.list_requests += 1
        page = self._pages.ask(prefix, "")
        if page.server_time_ms is not None:
            self._clock.set(page.server_time_ms)
        return page

    def _count_retry(self, error: RetriableError, tries: int, seconds: float) -> None:
        self.statistics.retries += 1
        self.log_retry(error, tries, seconds)

    @override
    def get_input_stream(self, native: NativeObject) -> ObjectInput:
        return StoreInput(self.store, native, self.policy, on_retry=self._count_retry, stop=self.closing)

    @override
    def close(self) -> None:
        self.closing.set()
        self._pages.close()
        listing = self._listing
        if listing is not None:
            listing.close()
        super().close()
