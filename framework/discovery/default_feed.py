"""The default feed of a source: repeated listings with the filters and the routes of its configuration."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from framework.config.key_template import NOTHING_NAMED
from framework.discovery.feed import ObjectFeed
from framework.discovery.filters import RoutedSelection, Selector, selected_objects, selection_digest, with_start
from framework.discovery.incremental import IncrementalFeed, IncrementalListing
from framework.discovery.key_list.feed import KeyListFeed
from framework.discovery.listing_feed import ListingFeed, SortKey
from framework.discovery.routing import Router
from framework.discovery.splitting import SplitPolicy

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.key_list.resolver import KeyListResolver
    from framework.model.objects import NativeObject, TopicPartition
    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
    from framework.offsets.listing_hints import ListingHints
    from framework.offsets.manager import OffsetManager
    from framework.transformer import Transformer

log = logging.getLogger(__name__)


class ListedSource(Protocol):
    """What a feed lists: an iterator (`framework.iterator.AbstractSourceRecordIterator` says more of each method).

    Attributes:
        config: the whole configuration.
        transformer: the format.
        offsets: the positions.
        numbering_options: what the numbers of records depend on.
    """

    config: SourceCommonConfig
    transformer: Transformer
    offsets: OffsetManager
    numbering_options: str

    @property
    def bucket(self) -> str:
        """The bucket."""

    @property
    def prefixes(self) -> Sequence[str]:
        """The listed prefixes."""

    @property
    def address(self) -> str | None:
        """The endpoint of the store, where it says something about the bucket's content."""

    @property
    def start_key(self) -> str | None:
        """The key after which listings begin."""

    @property
    def named_objects(self) -> KeyListResolver | None:
        """The supplied list, in place of a listing."""

    @property
    def listing_idle_seconds(self) -> float:
        """Seconds in which listings waited without a request."""

    def get_native_item_stream(self, offset: str | None) -> Iterator[NativeObject]:
        """Yield the objects after a key."""

    def get_incremental_stream(self, starts: Mapping[str, str]) -> Iterator[NativeObject]:
        """Yield the objects of each prefix after its own key."""

    def get_table_log_keys(self) -> Iterable[str]:
        """Return keys that show whether the folder is a table."""

    def get_native_key(self, native: NativeObject) -> OffsetManagerKey:
        """Return the identity of an object in the positions."""

    def get_offset_manager_key(self, native_key: OffsetManagerKey) -> OffsetManagerKey:
        """Return the key of the position of an object."""

    def create_offset_manager_entry(
        self, native: NativeObject, topic_partition: TopicPartition, numbering_options: str
    ) -> OffsetManagerEntry:
        """Return the position of an object before its first record."""

    def listing_hints(self, prefix: str) -> ListingHints:
        """Return what earlier listings of a prefix left."""

    def store_clock(self) -> float:
        """Return the store's time, seconds since 1970."""

    def ask_clock(self) -> float:
        """Return the store's time, after a request if it is not known yet."""


def default_feed(source: ListedSource, *, once: bool) -> ObjectFeed:
    """Make the feed of a source's listings, and bind its positions to what the listings show. May require a request.

    Args:
        source: the iterator.
        once: one complete listing, then `finished`.
    """
    configured, offsets, start_key, named = source.config, source.offsets, source.start_key, source.named_objects
    incremental = _incremental(source) if configured.discovery.mode == "incremental" and not once else None
    config = _since_first_start(source)
    selector = Selector(config, source.store_clock, prefixes=source.prefixes)
    selector.remember_logs(source.get_table_log_keys())
    router = Router(configured, known_topics=offsets.facts.known_topics, refusal=offsets.facts.topic_refusal)
    make_feed: Callable[..., ListingFeed] = ListingFeed
    defer: Callable[[str], None] | None = None
    if incremental is not None:
        make_feed, defer = partial(IncrementalFeed, incremental), incremental.deferred.add
    elif named is not None:
        make_feed, defer = partial(KeyListFeed, named, router), named.defer

    def defer_object(native: NativeObject) -> None:
        offsets.tracker.defer(native)
        if defer is not None:
            defer(native.key)

    feed = make_feed(
        listing=lambda: source.get_native_item_stream(start_key),
        selection=RoutedSelection(selector, router, on_deferred=defer_object),
        tolerant=configured.errors.tolerance != "none",
        offsets=offsets,
        numbering_options=source.numbering_options,
        poll_interval_seconds=configured.discovery.poll_interval,
        idle_seconds=lambda: source.listing_idle_seconds,
        once=once,
        start_entry=source.create_offset_manager_entry,
        key_of=lambda native: source.get_offset_manager_key(source.get_native_key(native)),
        order=listing_order(configured),
        split_policy=SplitPolicy(
            split_size=configured.input.split_size or 0,
            partitions=configured.iggy.partitions,
            can_split=source.transformer.can_split,
            by_key=configured.divides_by_key,
        ),
    )
    window = configured.discovery.allowed_lateness
    since_start = config is not configured
    offsets.selection.bind(
        selected_objects(config, source.bucket, source.prefixes, address=source.address, since_start=since_start)
    )
    if since_start and offsets.selection.dirty:
        offsets.flush()  # a start that is killed now is the first one nevertheless
    offsets.tracker.open(None if math.isinf(window) or named is not None else int(window * 1000))
    return feed


def _since_first_start(source: ListedSource) -> SourceCommonConfig:
    """Return the configuration with `modified_after = "now"` replaced by the time of the source's first start."""
    config = source.config
    if config.discovery.modified_after != "now":
        return config
    start_ms = source.offsets.selection.first_start_ms
    if start_ms is None:  # the earlier clock: a wrong one makes objects too old only if both are ahead
        start_ms = int(min(source.ask_clock(), time.time()) * 1000)
    config = with_start(config, start_ms)
    log.info(
        '[discovery] modified_after = "now": objects last modified at %s or later are read',
        (config.discovery.modified_after or "").replace("+00:00", "Z"),
    )
    return config


def listing_order(config: SourceCommonConfig) -> Callable[[NativeObject], SortKey] | None:
    """Return the place of an object by the start offset in its key; None to keep the order of the listing."""
    template = config.naming.parsed()
    if config.discovery.order != "start_offset" or template is None:
        return None

    def place(native: NativeObject) -> SortKey:
        match = template.match(native.key) or NOTHING_NAMED
        return match.start_offset or 0, native.key

    return place


def _incremental(source: ListedSource) -> IncrementalListing:
    """Return the listing of discovery mode `incremental`; with `once` there is none, as everything is listed."""
    discovery, start_key = source.config.discovery, source.start_key
    return IncrementalListing(
        prefixes=source.prefixes,
        base=start_key or "",
        lookback_keys=discovery.lookback_keys,
        full_listing_interval=discovery.full_listing_interval,
        min_age=discovery.min_age,
        selection=selection_digest(source.config, start_key),
        table=source.offsets.table,
        hints=source.offsets.hints,
        past=source.listing_hints,
        list_whole=lambda: source.get_native_item_stream(start_key),
        list_behind=source.get_incremental_stream,
    )
