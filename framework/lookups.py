"""Single objects, looked up and opened with retries: in the source's bucket, or in another one of the same store."""

from __future__ import annotations

import threading
from collections.abc import Callable

from framework.errors import ConfigError
from framework.first_contact import FIRST_CONTACT_SECONDS
from framework.reading import StoreInput
from framework.records import NativeObject
from framework.retry import OnRetry, RetryPolicy
from framework.store import ObjectStore
from framework.transformer import ReadStream

BucketOpener = Callable[[str], ObjectStore]
"""The store of another bucket of the same vendor, with the same identity. Whoever makes it keeps it, and closes it."""


class Lookups:
    """Threads may share it.

    Args:
        store: the source's bucket.
        policy: how patiently each call is tried.
        open_bucket: makes the store of another bucket; None: there is only the source's.
        on_request: told of each lookup, by one thread at a time.
        on_retry: told of each failed try, from any thread.
        stop: ends every wait.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        *,
        open_bucket: BucketOpener | None = None,
        on_request: Callable[[], None] | None = None,
        on_retry: OnRetry | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.store = store
        self._policy = policy.within(FIRST_CONTACT_SECONDS)
        self._later_policy = policy
        self._open_bucket = open_bucket
        self._on_request = on_request
        self._on_retry = on_retry
        self._stop = stop
        self._lock = threading.Lock()

    def address(self, bucket: str, key: str) -> str:
        """An object as messages show it."""
        return f"{self.store.scheme}://{bucket}/{key}"

    def stat(self, bucket: str, key: str) -> NativeObject:
        """The object as it is now. One request, and more when it fails.

        Raises:
            ObjectNotFoundError: there is none.
            ConfigError: this source cannot look into another bucket.
            RetriableError, FatalError: what the store says.
        """
        store = self._store_of(bucket)
        if self._on_request is not None:
            with self._lock:
                self._on_request()
        what = f"looking up {self.address(bucket, key)}"
        native = self._policy.call(store.stat, key, what=what, on_retry=self._on_retry, stop=self._stop)
        self._policy = self._later_policy
        return native

    def open(self, bucket: str, native: NativeObject) -> ReadStream:
        """The whole of a version that was looked up; the stream resumes by itself.

        Raises:
            ObjectNotFoundError, ObjectChangedError: it is gone, or another one is there now.
            RetriableError, FatalError: what the store says.
        """
        store = self._store_of(bucket)
        return StoreInput(store, native, self._later_policy, on_retry=self._on_retry, stop=self._stop).open()

    def _store_of(self, bucket: str) -> ObjectStore:
        if bucket == self.store.bucket:
            return self.store
        if self._open_bucket is None:
            raise ConfigError(
                f"{self.address(bucket, '')}: this source can only look into its own bucket, {self.store.bucket}"
            )
        with self._lock:
            return self._open_bucket(bucket)
