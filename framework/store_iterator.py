"""The iterator of any object store: listing with retries, streams that resume. S3 and GCS add nothing but their store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.errors import ListingError, ObjectNotFoundError, TaskClosedError
from framework.first_contact import SinglePages
from framework.iterator import AbstractSourceRecordIterator
from framework.key_list import KeyList
from framework.key_places import place_of
from framework.listing import Listing, ListingRequest, list_parallel
from framework.listing_memory import ListingMemory
from framework.lookups import BucketOpener, Lookups
from framework.named_objects import NamedObjects
from framework.order_proof import OrderLook
from framework.pace import CallPace, set_pace
from framework.past_listing import PastListing
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

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""Between two looks whether a listing beside the pass has ended."""


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
        prefixes: what to list, one after the other; none begins with another.
        page_size: keys in a page.
        start_key: listings begin after this key; None at the first.
        feed: which objects to read, when somebody else lists.
        once: one complete pass.
        open_bucket: makes the store of another bucket, for a list of keys that lies there; None: there is only `store`.

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
        self._store = store
        self._policy = policy
        self._prefixes = tuple(prefixes)
        self._page_size = page_size
        self._start_key = start_key
        self._ending = threading.Event()
        self._pages = SinglePages(store, policy, page_size, self._count_retry)
        self._memory = ListingMemory(self.offsets, store, page_size)
        self._listing: Listing | None = None
        self._listing_began: float | None = None
        self._listing_idle_seconds = 0.0
        self._pass_began = time.time()
        self._clock_ahead_seconds = 0.0
        discovery = config.discovery
        if discovery.list_requests_per_second is not None or discovery.list_bytes_per_second is not None:
            budget = CallPace(
                requests_per_second=discovery.list_requests_per_second,
                bytes_per_second=discovery.list_bytes_per_second,
            )
            set_pace(store, budget)
        self._lookups = Lookups(
            store,
            policy,
            open_bucket=open_bucket,
            on_request=self._count_lookup,
            on_retry=self._count_retry,
            stop=self._ending,
        )
        self._named = self._name_objects() if config.discovery.mode == "keys" else None

    def _name_objects(self) -> NamedObjects:
        """The objects of the configured list of keys. No I/O."""
        discovery = self.config.discovery
        place = place_of(discovery.keys or "", self._lookups)
        return NamedObjects(
            KeyList(place, form=discovery.keys_format, encoding=discovery.keys_encoding, bucket=self._store.bucket),
            self._lookups,
            self.offsets,
            key_of=lambda native: self.get_offset_manager_key(self.get_native_key(native)),
            prefixes=self._prefixes,
            concurrency=discovery.list_concurrency,
            recheck=discovery.keys_recheck,
        )

    def _count_lookup(self) -> None:
        self.counts.list_requests += 1

    @override
    def look_up(self, native: NativeObject) -> NativeObject | None:
        try:
            return self._lookups.stat(native.bucket, native.key)
        except ObjectNotFoundError:
            return None

    @property
    @override
    def named_objects(self) -> NamedObjects | None:
        return self._named

    @property
    @override
    def prefixes(self) -> Sequence[str]:
        return self._prefixes

    @property
    @override
    def bucket(self) -> str:
        return self._store.bucket

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
        """The objects of each prefix in turn.

        With `list_concurrency` above 1 a large prefix is listed in key ranges side by side: its objects come in the order
        of their keys within a range only. A supplied list stands for the listing in mode `keys`.
        """
        if self._named is not None:
            return self._named.objects(offset or "")
        return self._stream(dict.fromkeys(self._prefixes, offset or ""), whole=offset == self._start_key)

    @override
    def get_tail_stream(self, starts: Mapping[str, str]) -> Iterator[NativeObject]:
        return self._stream(starts, whole=False)

    def _stream(self, starts: Mapping[str, str], *, whole: bool) -> Iterator[NativeObject]:
        self._listing_began = None
        self._pass_began = began = time.time()
        for prefix, after in starts.items():
            for native in self._list(prefix, after, whole=whole):
                if self._listing_began is None:
                    self._listing_began = began + self._clock_ahead_seconds
                yield native

    @override
    def past_listing(self, prefix: str) -> PastListing:
        return self._memory.past(prefix)

    def _list(self, prefix: str, after: str, *, whole: bool) -> Iterator[NativeObject]:
        self._check_order(prefix, unordered=self._memory.past(prefix).unordered or not self._store.ordered)
        request = self._memory.request(prefix, after)
        first = None if self._pages.answered else self._pages.ask(prefix, "" if request.unordered else after)
        if self.lister is None or (first is not None and first.continuation is None):
            listing: Listing = self._list_by_threads(request, first)
        else:
            self.counts.list_requests += first is not None  # it only showed that the store answers
            listing = self.lister(request)
        self._listing = listing
        documented = self._store.ordered and self._store.order_is_documented and not request.unordered
        self.offsets.coverage.begin_listing(prefix, after, in_order=documented)
        try:
            yield from self._objects_of(listing, prefix, whole=whole)
        except ListingError:
            if listing.unordered:  # noticed too late to begin again: the next start knows
                self._memory.note(request, listing, whole=False)
            raise
        finally:
            self._listing = None  # it remembers what it handed out
        self.offsets.coverage.complete(in_order=not listing.unordered, whole=whole)
        self._memory.note(request, listing, whole=whole)
        self._check_order(prefix, unordered=listing.unordered)

    def _check_order(self, prefix: str, *, unordered: bool) -> None:
        if unordered and self.config.discovery.mode == "after":
            raise ListingError(
                f"{self._store.scheme}://{self._store.bucket}/{prefix}: the store does not list in the order of keys, so "
                'there is no going on behind the highest one; set [discovery] mode = "list"'
            )

    def _list_by_threads(self, request: ListingRequest, first: ListPage | None) -> Listing:
        return list_parallel(
            self._store,
            prefix=request.prefix,
            after=request.after,
            page_size=self._page_size,
            policy=self._policy,
            concurrency=self.config.discovery.list_concurrency,
            histogram=request.histogram,
            unordered=request.unordered,
            stop=self._ending,
            on_retry=self.log_retry,
            first=first,
        )

    def _start_look(self, prefix: str) -> OrderLook:
        """Lists everything once more, so that positions need not be held until the end of a pass over very many objects."""
        self.offsets.coverage.looking()
        return OrderLook(
            self._store,
            prefix,
            page_size=self._page_size,
            policy=self._policy,
            on_retry=self._count_retry,
        )

    def _take_look(self, look: OrderLook) -> bool:
        """Tells what the look has shown; False while it goes on. Waits for it when too much is held."""
        coverage = self.offsets.coverage
        if not look.done() and not coverage.holds_too_much:
            return False
        if not look.done():
            log.info(
                "%s://%s: too many positions are held; waiting until everything is listed once more",
                self._store.scheme,
                self._store.bucket,
            )
        while not look.done(LOOK_SECONDS):
            if self._ending.is_set():
                return False
        proof, calls = look.take()
        self.counts.list_requests += calls
        coverage.proven(proof)
        return True

    def _objects_of(self, listing: Listing, prefix: str, *, whole: bool) -> Iterator[NativeObject]:
        """The objects of a listing; its counts become ours, and its clock."""
        calls = retries = 0
        idle_before = self._listing_idle_seconds
        told = False
        look: OrderLook | None = None
        try:
            while True:
                objects = next(listing, None)
                if listing.server_time_ms is not None and not told:
                    told = True
                    self._set_clock(listing.server_time_ms)
                    # the pass began before the answer was asked for, so this is never later than it was there
                    self.offsets.coverage.began(int((self._pass_began + self._clock_ahead_seconds) * 1000))
                self.counts.list_requests += listing.counts.calls - calls
                self.counts.retries += listing.counts.retries - retries
                calls, retries = listing.counts.calls, listing.counts.retries
                self._listing_idle_seconds = idle_before + listing.counts.idle_seconds
                if objects is None:
                    break
                yield from objects
                self.offsets.coverage.listed(listing.stretch, objects[-1].key)
                if whole and not listing.unordered and self.offsets.coverage.needs_proof:
                    look = self._start_look(prefix)
                if look is not None and self._take_look(look):
                    look = None
            if not listing.complete:
                raise TaskClosedError(f"{self._store.scheme}://{self._store.bucket}: closed while listing")
        finally:
            self.counts.list_requests += listing.counts.calls - calls
            self.counts.retries += listing.counts.retries - retries
            listing.close()
            if look is not None:
                look.close()

    def _set_clock(self, server_time_ms: int) -> None:
        self._clock_ahead_seconds = server_time_ms / 1000 - time.time()

    @override
    def store_clock(self) -> float:
        return time.time() + self._clock_ahead_seconds

    @property
    @override
    def listing_idle_seconds(self) -> float:
        return self._listing_idle_seconds

    @property
    def listing_began(self) -> float | None:
        """When the pass under way, or the last one, began to list: seconds since 1970 by the store's clock.

        Never later than it was: what was written before it and shown by the listing has an earlier time. None until the
        first object comes.
        """
        return self._listing_began

    @override
    def get_table_log_keys(self) -> Iterable[str]:
        if self._named is not None:  # whoever supplies a list may have no leave to list, and chose the files
            return []
        tables = self.config.input.format in {"parquet", "auto"} and not self.config.discovery.allow_table_folders
        keys: list[str] = []
        for prefix in log_prefixes(self._prefixes) if tables else ():
            self.counts.list_requests += 1
            page = self._pages.ask(prefix, "")
            if page.server_time_ms is not None:
                self._set_clock(page.server_time_ms)
            keys.extend(native.key for native in page.objects)
        return keys

    def _count_retry(self, error: RetriableError, tries: int, seconds: float) -> None:
        self.counts.retries += 1
        self.log_retry(error, tries, seconds)

    @override
    def get_input_stream(self, native: NativeObject) -> ObjectInput:
        return StoreInput(self._store, native, self._policy, on_retry=self._count_retry, stop=self._ending)

    @override
    def close(self) -> None:
        self._ending.set()
        self._pages.close()
        listing = self._listing
        if listing is not None:
            listing.close()
        super().close()
