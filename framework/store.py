"""The contract of an object store: pages of a listing, and ranged streams of an object.

A store's package supplies one `ObjectStore`; listing, choosing, reading ahead and resuming are built on it once, here in
the framework. A source that is no object store subclasses `AbstractSourceRecordIterator` instead and needs none of this.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

import attrs

from framework.errors import ListingError, ObjectNotFoundError
from framework.records import NativeObject, length_only
from framework.transformer import ReadStream


@attrs.frozen(kw_only=True, slots=True)
class ListPage:
    """One answer of a listing.

    Attributes:
        objects: in the store's order; may be empty although more follow.
        continuation: what the next call needs to go on; None after the last page. Opaque.
        server_time_ms: the store's clock when it answered, milliseconds since 1970 UTC; None when it does not tell.
    """

    objects: Sequence[NativeObject] = attrs.field(repr=length_only)
    continuation: str | None = None
    server_time_ms: int | None = None


class ObjectStore(abc.ABC):
    """One bucket of one store. Threads may share it; a process makes its own.

    Every method maps the vendor's errors to those of `framework.errors` and makes one attempt only: trying again is done
    once, by the callers in the framework, with one policy.

    Attributes:
        scheme: the store, as it stands in an address: `s3`, `gs`.
        bucket: the bucket's name.
        ordered: whether listings come in the order of the keys' UTF-8 bytes.
        address: where it answers, for messages; empty when that is the vendor's own place.
        order_is_documented: whether `ordered` is what the store promises, not only what most of its kind do. Then positions of
            finished objects can be folded while the first pass is still under way; else once the store has shown its order, in
            one more listing of very many objects, or at the end of the pass. See `framework.coverage`.
        bounds_pages: whether `list_page` takes `until` too, a key: what lies behind it, but for a few keys, is left out of the
            page. Ranges of keys are asked for so. Whoever says so promises the order: see `order_is_documented`.
        lists_milliseconds: whether last-modified in its listings may have parts of a second. A supplied row that shows none
            is looked up then before it is believed.
    """

    scheme: str
    bucket: str
    ordered: bool = True
    address: str = ""
    order_is_documented: bool = False
    bounds_pages: bool = False
    lists_milliseconds: bool = True

    @abc.abstractmethod
    def list_page(
        self, *, prefix: str = "", after: str = "", continuation: str | None = None, page_size: int = 1000
    ) -> ListPage:
        """One page of the objects whose keys begin with `prefix` and come strictly after `after`.

        Blocks for one request. May be called again with the same arguments.

        Args:
            prefix: compared as a plain string, nothing is a folder.
            after: exclusive; need not exist. Used for the first page of a chain only.
            continuation: from the page before, with the same `prefix`.
            page_size: at most this many objects; the store may give fewer.

        Raises:
            RetriableError, BucketNotFoundError, AccessDeniedError, CredentialsError: as their names say.
        """

    @abc.abstractmethod
    def open(self, native: NativeObject, start: int = 0, end: int | None = None) -> ReadStream:
        """A stream of the bytes `start .. end - 1` of exactly the version that was listed. One request; blocks.

        The stream's `read` raises `RetriableError` when the connection breaks or ends before the promised length.

        Raises:
            ObjectNotFoundError: it was deleted.
            ObjectChangedError: another version is there now.
            ObjectArchivedError: it must be restored first.
            RetriableError, AccessDeniedError, CredentialsError: as their names say.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Gives all connections back, within a second. May be called twice."""

    def identity(self) -> str:
        """Where the credentials come from, in some words for the command `check`; never one of them.

        Raises:
            CredentialsError: there are none.
        """
        return "not told"

    def stat(self, key: str) -> NativeObject:
        """The object of that key exactly as a listing would show it now, its version included.

        Blocks; by default for one page of a listing. A store with a cheaper request for it says more with that one.

        Raises:
            ObjectNotFoundError: there is none.
            RetriableError, BucketNotFoundError, AccessDeniedError, CredentialsError: as their names say.
        """
        for native in self.list_all(prefix=key, page_size=1 if self.ordered else 1000):
            if native.key == key:
                return native
            if self.ordered:  # a key comes before all longer ones that begin with it
                break
        raise ObjectNotFoundError("there is no such object", location=f"{self.scheme}://{self.bucket}/{key}")

    def listed_version(self, *, etag: str, modified_ms: int) -> str | None:
        """The `version` that a listing gives an object with this etag and last-modified; None when they do not tell it.

        It lets a supplied list that names both, such as an S3 Inventory, stand for a listing. By default they do not.

        Args:
            etag: as the store gives it, with or without quotes.
            modified_ms: last-modified, milliseconds since 1970 UTC.
        """
        del etag, modified_ms
        return None

    def list_all(self, *, prefix: str = "", after: str = "", page_size: int = 1000) -> Iterator[NativeObject]:
        """Every object under `prefix` after `after`, page after page. For small uses; the framework lists with retries.

        Raises:
            ListingError: a page brought the listing no further.
        """
        continuation: str | None = None
        while True:
            page = self.list_page(prefix=prefix, after=after, continuation=continuation, page_size=page_size)
            yield from page.objects
            if page.continuation is None:
                return
            if page.continuation == continuation:
                raise ListingError(
                    f"{self.scheme}://{self.bucket}/{prefix}: a page of the listing repeats itself: the store's paging is broken"
                )
            continuation = page.continuation
