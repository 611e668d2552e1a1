"""What one listing of a prefix leaves for the next: asked before it begins, told when it is complete."""

from __future__ import annotations

import logging

import attrs

from framework.histogram import Histogram
from framework.listing import Listing, ListingRequest
from framework.offsets import OffsetManager
from framework.past_listing import PastListing, differs_notably, worth_keeping
from framework.store import ObjectStore

log = logging.getLogger(__name__)


class ListingMemory:
    """The memory of a source's listings: in the positions, and for small listings in this process only.

    Args:
        offsets: the positions.
        store: the bucket.
        page_size: keys in a page.
    """

    def __init__(self, offsets: OffsetManager, store: ObjectStore, page_size: int) -> None:
        self._offsets = offsets
        self._store = store
        self._page_size = page_size
        # whatever is another place with other keys, or orders them in another way
        self._of = f"{store.scheme}://{store.bucket}" + (f" at {store.address}" if store.address else "")
        self._histograms: dict[str, Histogram] = {}
        self._said: set[str] = set()

    def past(self, prefix: str) -> PastListing:
        """What is known of the prefix; empty when that is nothing."""
        past = self._offsets.past_listing(prefix)
        return past if past is not None and past.of == self._of else PastListing(of=self._of)

    def request(self, prefix: str, after: str) -> ListingRequest:
        """What to ask a lister for. The first time it says so when the store is known to have no order."""
        past = self.past(prefix)
        unordered = past.unordered or not self._store.ordered
        if unordered and prefix not in self._said:
            self._said.add(prefix)
            why = (
                "was seen to list out of the order of keys" if past.unordered else "does not list in the order of keys"
            )
            log.warning("%s/%s: the store %s; one chain of pages lists it", self._of, prefix, why)
        histogram = self._histograms.get(prefix, past.histogram)
        return ListingRequest(prefix=prefix, after=after, histogram=() if unordered else histogram, unordered=unordered)

    def note(self, request: ListingRequest, listing: Listing, *, whole: bool) -> None:
        """Takes in a complete listing, or one that failed for want of order. What differs notably from what is kept is saved.

        Args:
            request: what was asked for.
            listing: what came of it.
            whole: whether it showed all that is ever listed of the prefix. The keys of a part say nothing of the rest.
        """
        prefix, past = request.prefix, self.past(request.prefix)
        unordered = listing.unordered and self._store.ordered
        now = attrs.evolve(past, unordered=unordered if whole else past.unordered or unordered)
        if now.unordered:
            self._said.add(prefix)  # the listing itself has said it
            now = attrs.evolve(now, histogram=())
        elif whole and listing.histogram:
            self._histograms[prefix] = listing.histogram
            kept = worth_keeping(listing.histogram, self._page_size)
            if differs_notably(past.histogram, kept):
                now = attrs.evolve(now, histogram=kept)
        if now != past:
            self._offsets.note_listing(prefix, now)
