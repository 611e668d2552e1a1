"""Single listing pages. The first of a process has its own limits, as a user waits to learn what is wrong."""

from __future__ import annotations

import threading

import attrs

from framework.errors import StoreUnavailableError, TaskClosedError
from framework.storage.daemon_threads import Awaited
from framework.storage.listing.pages import check_prefix, checked_page
from framework.storage.retry import OnRetry, RetryPolicy
from framework.store import ListPage, ObjectStore

FIRST_CONTACT_SECONDS = 12.0
"""Limit of retries of the very first request; later requests have the whole configured budget."""

FIRST_ANSWER_SECONDS = 15.0
"""Time limit of the very first page. For an endpoint that accepts connections but never answers, the read timeout,
which is made for large objects, would fail only after a minute.
"""


@attrs.define(eq=False, repr=False, slots=False)
class SinglePages:
    """Requests a store's pages one at a time. Not thread-safe, except `close`.

    Args:
        store: the bucket.
        policy: the retry policy of each call, once the store has answered.
        page_size: keys per page.
        on_retry: called for each failed try.

    Attributes:
        answered: whether the store has answered once.
    """

    _store: ObjectStore
    _policy: RetryPolicy
    _page_size: int
    _on_retry: OnRetry
    _ending: threading.Event = attrs.field(factory=threading.Event)
    answered: bool = False

    def ask(self, prefix: str, after: str) -> ListPage:
        """Return the first page of a prefix after a key.

        Raises:
            RetriableError: the store was away for the whole budget, the first time for `FIRST_ANSWER_SECONDS` at most.
            TaskClosedError: it was closed meanwhile.
            FatalError: any other error of the store.
        """
        if self.answered:
            return self._ask(self._policy, prefix, after)
        page = self._first_page(prefix, after)
        self.answered = True
        return page

    def _first_page(self, prefix: str, after: str) -> ListPage:
        """Request the page in a separate thread, which is abandoned when no answer comes."""
        policy = self._policy.within(FIRST_CONTACT_SECONDS)
        page = Awaited(lambda: self._ask(policy, prefix, after), "first-page").wait(self._ending, FIRST_ANSWER_SECONDS)
        if page is not None:
            return page
        if self._ending.is_set():
            raise TaskClosedError(f"{self._store.scheme}://{self._store.bucket}/{prefix}: closed while listing")
        place = f" at {self._store.address}" if self._store.address else ""
        raise StoreUnavailableError(
            f"{self._store.scheme}://{self._store.bucket}/{prefix}: no answer{place} within "
            f"{FIRST_ANSWER_SECONDS:.0f} seconds; check the address, the network and the proxy"
        )

    def _ask(self, policy: RetryPolicy, prefix: str, after: str) -> ListPage:
        where = f"{self._store.scheme}://{self._store.bucket}/{prefix}"
        page = policy.call(
            checked_page,
            self._store,
            prefix=prefix,
            after=after,
            page_size=self._page_size,
            what=f"listing {where}",
            on_retry=self._on_retry,
            stop=self._ending,
        )
        check_prefix(where, page, prefix)
        return page

    def close(self) -> None:
        """End every wait. Idempotent."""
        self._ending.set()
