"""Hints that one listing of a prefix leaves for the next: read before it starts, stored when it is complete."""

from __future__ import annotations

import logging
from collections import Counter

from msgspec.structs import replace

from framework.offsets.listing_hints import ListingHints, differs_notably, worth_keeping
from framework.offsets.saved_facts import HintTable
from framework.storage.listing.histogram import Histogram
from framework.storage.listing.listing import Listing, ListingRequest
from framework.store import ObjectStore

log = logging.getLogger(__name__)

MAX_FAILURES = 2
"""Listings by ranges that may fail: afterwards a chain in order does not clear a prefix. Some stores hide keys only there."""


class ListingMemory:
    """Hints from a source's listings: stored in the positions, or for small listings in this process only.

    Args:
        hints: the hints that are stored with the positions.
        store: the bucket.
        page_size: keys per page.
    """

    def __init__(self, hints: HintTable, store: ObjectStore, page_size: int) -> None:
        self._hints = hints
        self._store = store
        self._page_size = page_size
        # everything that makes it another place, with other keys or another order
        self._of = f"{store.scheme}://{store.bucket}" + (f" at {store.address}" if store.address else "")
        self._histograms: dict[str, Histogram] = {}
        self._reported: set[str] = set()
        self._failures: Counter[str] = Counter()  # listings by ranges that found a prefix unordered

    def past(self, prefix: str) -> ListingHints:
        """Return the stored hints of the prefix; empty if there are none."""
        past = self._hints.get(prefix)
        return past if past is not None and past.of == self._of else ListingHints(of=self._of)

    def request(self, prefix: str, after: str) -> ListingRequest:
        """Return the request for a lister. The first call per prefix warns if the store is known to be unordered."""
        past = self.past(prefix)
        unordered = past.unordered or not self._store.ordered
        if unordered and prefix not in self._reported:
            self._reported.add(prefix)
            why = (
                "was seen to list keys out of order or in another form"
                if past.unordered
                else "does not list in the order of keys"
            )
            log.warning("%s/%s: the store %s; one chain of pages lists it", self._of, prefix, why)
        histogram = self._histograms.get(prefix, past.histogram)
        return ListingRequest(prefix=prefix, after=after, histogram=() if unordered else histogram, unordered=unordered)

    def note(self, request: ListingRequest, listing: Listing, *, whole: bool) -> None:
        """Store the hints of a complete listing, or of one that failed for lack of order. Saves notable changes only.

        Args:
            request: the request.
            listing: its result.
            whole: whether it covered everything that is ever listed of the prefix. A part says nothing about the rest.
        """
        prefix, past = request.prefix, self.past(request.prefix)
        unordered = listing.unordered and self._store.ordered
        self._failures[prefix] += unordered and not request.unordered
        if not whole or self._failures[prefix] >= MAX_FAILURES:
            unordered = unordered or past.unordered
        now = past if unordered == past.unordered else replace(past, unordered=unordered)
        if unordered:
            self._reported.add(prefix)  # the listing itself has already reported it
            now = now.with_histogram(())
        elif whole and listing.histogram:
            self._histograms[prefix] = listing.histogram
            kept = worth_keeping(listing.histogram, self._page_size)
            if differs_notably(past.histogram, kept):
                now = now.with_histogram(kept)
        if now != past:
            self._hints.set(prefix, now)
