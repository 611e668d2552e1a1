"""That a store lists in the order of its keys, shown by the store itself while a pass over it is under way.

    the prefix, listed once more in one chain -> its keys rise -> stretches of the pass between keys that the chain showed

A page of a listing shows everything between its first and its last key *in the store's own order*. Nothing but that order being
the order of the keys makes it everything between them by their bytes; and stores that list folder by folder look ordered for
as long as no folder `logs-old/` comes behind `logs/`. So an order is documented, or it is looked at as a whole:

Let the chain have shown the keys K, rising from the first to the last. Then the store's order, whatever it is, has K in the
order of the keys. Let F and L be keys of K that one run of pages has shown, each page going on where the one before it ended. A
key of K between F and L by its bytes lies between them in the store's order, too: the run has shown it. And every object that was
there before the pass began and still is, is in K. So the watermark may rise over `(F, L]`: what it hides is older than the
window, was there before the pass began, and was shown. Keys that are not in K (newer ones, deleted ones) may stand anywhere: they
are no ends of a stretch. Nor are the cuts between ranges, which no object has: a run ends there.

That a store has one order, and that a listing behind a key goes on behind that key's place in it, is taken for granted, here as
at the end of a pass.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

import attrs

from framework.errors import ListingError, SourceError
from framework.listing import list_parallel
from framework.retry import OnRetry, RetryPolicy
from framework.store import ObjectStore

log = logging.getLogger(__name__)


@attrs.define(slots=True)
class OrderProof:
    """Keys that the chain showed, and which of them the page shows that is being looked at.

    Attributes:
        places: hashes of one key of each page of the chain: 64 bits, some 60 kB for a million objects.
        first: the first of these keys on the page; empty before it comes.
        last: the last one.
    """

    places: set[int]
    first: str = ""
    last: str = ""

    def saw(self, key: str) -> None:
        """The page shows a key."""
        if hash(key) in self.places:
            self.first = self.first or key
            self.last = key

    def page(self) -> tuple[str, str]:
        """The page has ended: its first and its last place, empty when it has none."""
        ends, self.first, self.last = (self.first, self.last), "", ""
        return ends


def look_at_order(
    store: ObjectStore,
    prefix: str,
    *,
    page_size: int,
    policy: RetryPolicy,
    stop: threading.Event | None = None,
    on_retry: OnRetry | None = None,
) -> tuple[OrderProof | None, int]:
    """Lists a prefix in one chain of pages, and asks for nothing else: whether its keys rise, and the calls it took.

    Blocks for all of it.

    Returns:
        None in place of a proof when the keys do not rise, or `stop` was set.

    Raises:
        SourceError: a call failed for good.
    """
    where = f"{store.scheme}://{store.bucket}/{prefix}"
    log.info(
        "%s: that this store lists in the order of keys is not documented; everything is listed once more to see it, so that "
        "positions of finished objects can go while the pass is under way",
        where,
    )
    places: set[int] = set()
    listing = list_parallel(
        store, prefix=prefix, page_size=page_size, policy=policy, concurrency=1, stop=stop, on_retry=on_retry
    )
    with listing:
        try:
            for objects in listing:
                if listing.stretch is None:
                    break
                places.add(hash(objects[-1].key))
        except ListingError as error:
            log.warning("%s", error)
        proven = listing.complete and not listing.unordered
        if not proven and not (stop is not None and stop.is_set()):
            log.info("%s: the listing is not in the order of keys; positions are kept until the end of the pass", where)
        return OrderProof(places) if proven else None, listing.counts.calls


class OrderLook:
    """A look at the order of a prefix beside the pass over it, in a thread of its own. Made for one pass, and closed with it.

    Args:
        store: the bucket.
        prefix: what is listed.
        page_size: keys in a page.
        policy: how patiently each call is tried.
        on_retry: told of each call that is tried again.
    """

    def __init__(
        self, store: ObjectStore, prefix: str, *, page_size: int, policy: RetryPolicy, on_retry: OnRetry | None = None
    ) -> None:
        self._stop = threading.Event()
        self._result: Future[tuple[OrderProof | None, int]] = Future()

        def look() -> None:
            try:
                self._result.set_result(
                    look_at_order(store, prefix, page_size=page_size, policy=policy, stop=self._stop, on_retry=on_retry)
                )
            except SourceError as error:
                if not self._stop.is_set():
                    log.warning("%s; positions are kept until the end of the pass", error)
                self._result.set_result((None, 0))
            except BaseException as error:  # noqa: BLE001 - raised where the result is taken
                self._result.set_exception(error)

        self._thread = threading.Thread(target=look, name="order-look", daemon=True)
        self._thread.start()

    def done(self, seconds: float = 0.0) -> bool:
        """Whether `take` returns at once; waits so long for it."""
        return bool(wait_for([self._result], timeout=seconds).done)

    def take(self) -> tuple[OrderProof | None, int]:
        """What `look_at_order` returned; waits for it. None, and no calls, when a call failed for good."""
        return self._result.result()

    def close(self) -> None:
        """Ends it; a call under way is not waited for."""
        self._stop.set()
