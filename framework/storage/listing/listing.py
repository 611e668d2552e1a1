"""What a listing is asked for, and what it gives, however its pages are requested."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import attrs

from framework.model.key_range import KeyRange
from framework.model.objects import NativeObject
from framework.storage.listing.histogram import Histogram


@attrs.frozen(kw_only=True, slots=True)
class ListingRequest:
    """A listing request, and prior knowledge about the prefix. Picklable.

    Attributes:
        prefix: compared as a plain string.
        after: only keys after this key; empty = from the first.
        histogram: histogram of the last complete listing of this prefix; empty = none.
        unordered: the store is known to be unordered: one chain of pages, from the start of the prefix.
    """

    prefix: str = ""
    after: str = ""
    histogram: Histogram = ()
    unordered: bool = False


@attrs.define(kw_only=True)
class ListingCounts:
    """Counts of a listing.

    Attributes:
        calls: requested pages, including second looks but not retries.
        objects: objects that were handed out or are queued.
        retries: retried calls.
        throttled: of these, retried because the store asked to slow down.
        serial: whether it is a single chain of pages.
        idle_seconds: time the consumer waited while no call to the store was in progress.
    """

    calls: int = 0
    objects: int = 0
    retries: int = 0
    throttled: int = 0
    serial: bool = False
    idle_seconds: float = 0.0


@attrs.define(eq=False, repr=False, slots=False)
class Listing(ABC, Iterator[list[NativeObject]]):
    """The objects of a prefix, a list for each page. For one consumer, which closes it.

    Iteration blocks for requests and raises permanent failures. It ends early, without an error and with `complete`
    False, when it was closed.

    Attributes:
        counts: counts so far.
        complete: whether every object was handed out.
        server_time_ms: the store's clock at its first answer, milliseconds since 1970 UTC; None until known.
        key_range: the key range that the last returned page covers completely; None for an unordered store.
        unordered: whether the store is unordered: requested or detected; an ordered chain disproves it.
    """

    counts: ListingCounts = attrs.field(factory=ListingCounts, init=False)
    complete: bool = attrs.field(default=False, init=False)
    server_time_ms: int | None = attrs.field(default=None, init=False)
    key_range: KeyRange | None = attrs.field(default=None, init=False)
    unordered: bool = attrs.field(default=False, init=False)

    @property
    @abstractmethod
    def histogram(self) -> Histogram:
        """Histogram for the next listing; empty until this listing is complete, and for an unordered store."""

    @abstractmethod
    def close(self) -> None:
        """End the listing. Idempotent."""
