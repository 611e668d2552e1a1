"""Single objects, looked up and opened with retries, in the source's bucket or another bucket of the same store."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from framework.errors import ConfigError, StoreContractError
from framework.model.objects import NativeObject
from framework.storage.author_code import author_code
from framework.storage.listing.first_contact import FIRST_CONTACT_SECONDS
from framework.storage.resuming_stream import StoreInput
from framework.storage.retry import OnRetry, RetryPolicy
from framework.store import ObjectStore
from framework.transformer import ReadStream

BucketOpener = Callable[[str], ObjectStore]
"""Returns the store of another bucket of the same vendor, with the same identity. The creator keeps and closes it."""


@attrs.define(eq=False, repr=False, slots=False)
class Lookups:
    """Lookups of single objects. Thread-safe.

    Args:
        store: the source's bucket.
        policy: the retry policy of each call.
        open_bucket: opens the store of another bucket; None: only the source's bucket is available.
        on_request: called for each lookup, by one thread at a time.
        on_retry: called for each failed try, from any thread.
        stop: ends every wait.
    """

    store: ObjectStore
    _later_policy: RetryPolicy = attrs.field(alias="policy")
    _open_bucket: BucketOpener | None = attrs.field(default=None, kw_only=True)
    _on_request: Callable[[], None] | None = attrs.field(default=None, kw_only=True)
    _on_retry: OnRetry | None = attrs.field(default=None, kw_only=True)
    _stop: threading.Event | None = attrs.field(default=None, kw_only=True)
    _policy: RetryPolicy = attrs.field(init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    @_policy.default
    def _first_contact(self) -> RetryPolicy:
        return self._later_policy.within(FIRST_CONTACT_SECONDS)

    def address(self, bucket: str, key: str) -> str:
        """Return an object's address for messages."""
        return f"{self.store.scheme}://{bucket}/{key}"

    def stat(self, bucket: str, key: str) -> NativeObject:
        """Look the object up as it is now. One request, and more when it fails.

        Raises:
            ObjectNotFoundError: the object does not exist.
            ConfigError: this source cannot read another bucket.
            StoreContractError: the store returned no object, or failed with an error that is none of the framework's.
            RetriableError, FatalError: the store's error.
        """
        store = self._store_of(bucket)
        if self._on_request is not None:
            with self._lock:
                self._on_request()
        what = f"looking up {self.address(bucket, key)}"
        stat = author_code(what)(store.stat)
        native: object = self._policy.call(stat, key, what=what, on_retry=self._on_retry, stop=self._stop)
        if not isinstance(native, NativeObject):
            raise StoreContractError(
                f"{self.address(bucket, key)}: {type(store).__name__}.stat returned {type(native).__name__}, not a NativeObject; "
                "of an object that is not there it must raise ObjectNotFoundError"
            )
        self._policy = self._later_policy
        return native

    def open(self, bucket: str, native: NativeObject) -> ReadStream:
        """Open the whole of a version that was looked up; the stream resumes by itself.

        Raises:
            ObjectNotFoundError, ObjectChangedError: it is gone, or was replaced.
            RetriableError, FatalError: the store's error.
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
