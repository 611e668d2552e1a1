"""Single pages of a listing, the very first one of a process within limits of its own: a person waits to hear what is wrong."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from framework.errors import StoreUnavailableError, TaskClosedError
from framework.retry import OnRetry, RetryPolicy
from framework.store import ListPage, ObjectStore

FIRST_CONTACT_SECONDS = 12.0
"""How long the very first request is tried again; later ones have the whole configured budget."""

FIRST_ANSWER_SECONDS = 15.0
"""How long the very first page may take in all. About a place that takes connections and says nothing, the limit of
silence, which is made for large objects, would tell only after a minute."""


class SinglePages:
    """Asks a store for one page at a time. For one thread; `close` may come from any.

    Args:
        store: the bucket.
        policy: how patiently each call is tried, once the store has answered.
        page_size: keys in a page.
        on_retry: told of each failed try.

    Attributes:
        answered: whether the store has answered once.
    """

    def __init__(self, store: ObjectStore, policy: RetryPolicy, page_size: int, on_retry: OnRetry) -> None:
        self._store = store
        self._policy = policy
        self._page_size = page_size
        self._on_retry = on_retry
        self._ending = threading.Event()
        self._first_contact = threading.Event()  # made, or given up
        self.answered = False

    def ask(self, prefix: str, after: str) -> ListPage:
        """The first page of a prefix behind a key.

        Raises:
            RetriableError: the store stayed away for the whole budget, the first time for `FIRST_ANSWER_SECONDS` at most.
            TaskClosedError: it was closed meanwhile.
            FatalError: whatever else the store says.
        """
        if self.answered:
            return self._ask(self._policy, prefix, after)
        page = self._first_page(prefix, after)
        self.answered = True
        return page

    def _first_page(self, prefix: str, after: str) -> ListPage:
        """In a thread of its own, which is left behind when no answer comes."""
        policy = self._policy.within(FIRST_CONTACT_SECONDS)
        answer: Future[ListPage] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._ask(policy, prefix, after))
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

    def _ask(self, policy: RetryPolicy, prefix: str, after: str) -> ListPage:
        return policy.call(
            self._store.list_page,
            prefix=prefix,
            after=after,
            page_size=self._page_size,
            what=f"listing {self._store.scheme}://{self._store.bucket}/{prefix}",
            on_retry=self._on_retry,
            stop=self._ending,
        )

    def close(self) -> None:
        """Ends every wait. May be called twice."""
        self._ending.set()
        self._first_contact.set()
