"""The contract of an object store: pages of a listing, and ranged streams of an object.

A store's package supplies an `ObjectStore`; the framework builds listing, selection, prefetch and resuming on it. A
source that is not an object store subclasses `AbstractSourceRecordIterator` instead and needs none of this.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from framework.errors import ConfigError, ListingError, ObjectNotFoundError, RetriableError
from framework.model.objects import NativeObject, length_only
from framework.transformer import ReadStream

log = logging.getLogger(__name__)

_EMPTY_PAGES = 1024
"""Pages in a row without an object before a warning; a power of two. The next warning comes after twice as many."""


@attrs.frozen(kw_only=True, slots=True)
class ListPage:
    """A page of a listing.

    Attributes:
        objects: in the store's order; may be empty although more pages follow.
        continuation: opaque token for the next call; None after the last page.
        server_time_ms: the store's clock when it answered, milliseconds since 1970 UTC; None when not reported:
            the positions of finished objects then stay, since no other clock shows which objects are late.
        exact: whether keys are shown unchanged. After a changed key a listing resumes by continuation only.
    """

    objects: Sequence[NativeObject] = attrs.field(repr=length_only)
    continuation: str | None = None
    server_time_ms: int | None = None
    exact: bool = True


class Chain:
    """Detect a cycle of pages, of any length, while remembering a single page (Brent, 1980).

    Warns of many empty pages in a row, which a store may send, but which look like an idle source.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._kept: tuple[str | None, str, str] | None = None
        self._last: str | None = None
        self._pages = self._empty = 0

    def check(self, page: ListPage) -> None:
        """Check the next page.

        Raises:
            ListingError: the page repeats an earlier page.
        """
        first, last = (page.objects[0].key, page.objects[-1].key) if page.objects else ("", "")
        place = (page.continuation, first, last)
        again = self._kept is not None and (place == self._kept or (first != "" and place[1:] == self._kept[1:]))
        if again or (page.continuation is not None and page.continuation == self._last):
            shown = f"{first!r} to {last!r}" if page.objects else "without objects"
            raise ListingError(
                f"{self._where}: a page of the listing, {shown}, repeats itself: the store's paging is broken"
            )
        self._pages += 1
        self._last = page.continuation
        if _is_power_of_two(self._pages):
            self._kept = place
        self._empty = 0 if page.objects else self._empty + 1
        if self._empty >= _EMPTY_PAGES and _is_power_of_two(self._empty):
            log.warning(
                "%s: the store answered %d pages of the listing without an object, each with a token for the next; "
                "the listing goes on",
                self._where,
                self._empty,
            )


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


class ReadRoom(Protocol):
    """Memory for a stream that is read ahead. Thread-safe."""

    def take(self, size: int, resume: Callable[[], None]) -> bool:
        """Take room for a piece that has come; False when there is none: `resume` is called when there may be."""

    def give(self, size: int) -> None:
        """Give back the room of bytes that were read."""

    def close(self) -> None:
        """Give back everything. Idempotent."""


class PendingStream(Protocol):
    """A stream whose request is under way."""

    def result(self) -> ReadStream:
        """Return the stream; blocks until the answer begins. Raises as `ObjectStore.open` does."""

    def whole(self) -> bytes | None:
        """Return all bytes of an object that was requested whole, checked as those of its stream; None: `result` tells.

        Called for small objects, before `result`. Blocks until they have come, unless they need room that is not there.
        """
        return None

    def close(self) -> None:
        """Drop the request, from any thread; a waiting `result` raises `TaskClosedError`. Idempotent."""


class ObjectStore(abc.ABC):
    """A bucket of a store. Threads may share it; each process makes its own.

    Every method maps the vendor's errors to those of `framework.errors` and makes a single attempt. The framework's
    callers retry, in one place and with one policy.

    Attributes:
        scheme: the store's scheme in an address: `s3`, `gs`.
        bucket: the bucket's name.
        ordered: whether listings are in the order of the keys' UTF-8 bytes.
        address: the store's endpoint, for messages; empty for the vendor's own endpoint.
        order_is_documented: whether the store guarantees `ordered`, rather than merely behaves so. Then positions of
            finished objects can be compacted during a listing; otherwise only at its end. See
            `framework.offsets.watermark_tracker`.
        bounds_pages: whether `list_page` also accepts `until`, a key: the page omits keys after it, except for a few.
            Key ranges are requested with it. A store that sets it guarantees the order, too: see `order_is_documented`.
        ends_are_reliable: whether nothing follows a page without `continuation`. Otherwise a listing asks once more, behind
            the last key: servers that leave out hidden entries after they have counted a page end too early.
        lists_milliseconds: whether last-modified in its listings may have fractions of a second. If so, a row of a
            supplied list without fractions is looked up before it is trusted.
    """

    scheme: str
    bucket: str
    ordered: bool = True
    address: str = ""
    order_is_documented: bool = False
    bounds_pages: bool = False
    ends_are_reliable: bool = True
    lists_milliseconds: bool = True

    @abc.abstractmethod
    def list_page(
        self, *, prefix: str = "", after: str = "", continuation: str | None = None, page_size: int = 1000
    ) -> ListPage:
        """Return a page of the objects whose keys begin with `prefix` and sort strictly after `after`.

        Blocks for a single request. May be called again with the same arguments.

        Args:
            prefix: compared as a plain string; it is not a folder.
            after: exclusive; need not exist. Used only for the first page of a chain.
            continuation: from the previous page, with the same `prefix`.
            page_size: maximum number of objects; the store may return fewer.

        Raises:
            RetriableError, BucketNotFoundError, AccessDeniedError, CredentialsError: as their names say.
        """

    @abc.abstractmethod
    def open(self, native: NativeObject, start: int = 0, end: int | None = None) -> ReadStream:
        """Open a stream of the bytes `start .. end - 1` of exactly the listed version. Makes a single request; blocks.

        The stream's `read` raises `RetriableError` when the connection breaks or ends before the promised length. It
        raises an `ObjectError` when more bytes arrive than listed. The stream may have a `checksum` of the whole
        object: see `framework.storage.checksum`.

        An object counts as deleted, and is not read again, only after two proofs. The store reports it in its own
        words, *and* a check such as a listing confirms it. A 4xx or 5xx from an intermediary (an ingress, a
        firewall) is a `StoreUnavailableError`. So is its page with status 200, which names no version and has another
        length: it must never become bytes of the object.

        Raises:
            ObjectNotFoundError: the object was deleted.
            ObjectChangedError: another version has replaced it.
            ObjectArchivedError: the object must be restored first.
            RetriableError, AccessDeniedError, CredentialsError: as their names say.
        """

    def begin(
        self,
        native: NativeObject,
        start: int,
        end: int | None,
        *,
        room: ReadRoom,
        retry: Callable[[RetriableError], float | None],
    ) -> PendingStream | None:
        """Start what `open` does and return at once; None, the default, when this store can only block.

        A store that reads over `framework.storage.http.loop` overrides it: then objects are prefetched without threads.

        Args:
            native: the listed version.
            start: first byte.
            end: the byte after the last; None: to the object's end.
            room: memory for what comes before it is read.
            retry: called with a retriable failure that came before the first byte; returns the seconds to wait before
                the same request, or None to give up. May be called from any thread.
        """
        del native, start, end, room, retry
        return None

    def close(self) -> None:  # noqa: B027 - a store without connections has nothing to release
        """Release all connections, within a second; by default there are none. May be called twice."""

    def identity(self) -> str:
        """Describe the source of the credentials, for the command `check`; never return a credential.

        Raises:
            CredentialsError: no credentials were found.
        """
        return "not described by this source"

    def stat(self, key: str) -> NativeObject:
        """Return the object of that key exactly as a listing would show it now, including its version.

        Blocks, by default for a page of a listing. A store with a cheaper request may override this.

        Raises:
            ObjectNotFoundError: no such object.
            RetriableError, BucketNotFoundError, AccessDeniedError, CredentialsError: as their names say.
        """
        for native in self.list_all(prefix=key, page_size=1 if self.ordered else 1000):
            if native.key == key:
                return native
            if self.ordered:  # a key sorts before all longer keys that begin with it
                break
        raise ObjectNotFoundError("there is no such object", location=f"{self.scheme}://{self.bucket}/{key}")

    def metadata(self, native: NativeObject) -> Mapping[str, str]:
        """Return the metadata of exactly the listed version: `content-type`, and `meta:NAME` for each of the user's own.

        Makes a single request; blocks. Called once per object, and only when a transform asks for metadata. By default a
        store gives none.

        Raises:
            ObjectNotFoundError, ObjectChangedError: the listed version is gone.
            ConfigError: this store gives no metadata.
            RetriableError, AccessDeniedError, CredentialsError: as their names say.
        """
        raise ConfigError(
            f"{self.scheme}://{self.bucket}/{native.key}: this store gives no metadata of objects; leave the headers from "
            "metadata and content type out of [[transforms]]"
        )

    def tags(self, native: NativeObject) -> Mapping[str, str]:
        """Return the tags of an object as they are now, by name; which version they belong to is not promised.

        Makes a single request; blocks. Called once per object, and only when a transform asks for tags. By default a
        store has none.

        Raises:
            ObjectNotFoundError: no such object.
            ConfigError: this store has no tags.
            RetriableError, AccessDeniedError, CredentialsError: as their names say.
        """
        raise ConfigError(
            f"{self.scheme}://{self.bucket}/{native.key}: objects of this store have no tags; leave the headers from "
            "tags out of [[transforms]]"
        )

    def listed_version(self, *, etag: str, modified_ms: int) -> str | None:
        """Return the `version` that a listing gives an object with this etag and last-modified.

        None, the default, means that etag and last-modified do not determine the version. An override lets a supplied
        list with both columns, such as an S3 Inventory, replace a listing.

        Args:
            etag: as the store returns it, with or without quotes.
            modified_ms: last-modified, milliseconds since 1970 UTC.
        """
        del etag, modified_ms
        return None

    def list_all(self, *, prefix: str = "", after: str = "", page_size: int = 1000) -> Iterator[NativeObject]:
        """Yield every object under `prefix` after `after`, page by page.

        For small uses; the framework lists with retries.

        Raises:
            ListingError: the pages repeat.
        """
        continuation: str | None = None
        chain = Chain(f"{self.scheme}://{self.bucket}/{prefix}")
        while True:
            page = self.list_page(prefix=prefix, after=after, continuation=continuation, page_size=page_size)
            chain.check(page)
            yield from page.objects
            if page.continuation is None:
                return
            continuation = page.continuation
