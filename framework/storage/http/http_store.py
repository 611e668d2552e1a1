"""Base of the stores that read objects over `framework.storage.http.loop`, and the GET of an object."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from framework.errors import AccessDeniedError, RetriableError, SourceError, StoreUnavailableError, TaskClosedError
from framework.storage.http.answer import HttpAnswer
from framework.storage.http.body import EMPTY, HttpStream, announces, announces_length
from framework.storage.http.loop import HttpLoop
from framework.store import ObjectStore, ReadRoom
from framework.transformer import ReadStream

if TYPE_CHECKING:
    from framework.model.objects import NativeObject
    from framework.storage.checksum import Checksum


OK = (200, 206)


class HttpStore(ObjectStore):
    """A bucket whose objects are read over HTTP: sends the GETs, and ends them when it is closed.

    A subclass sets `_http`, makes the requests, and judges the answers.
    """

    _http: HttpLoop
    section: str
    """The store's section of the configuration."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self._closed = False
        self._bucket_seen = False
        self._named_kinds: set[str] = set()

    @abc.abstractmethod
    def _request(self, get: ObjectGet, more: Mapping[str, str]) -> tuple[str, list[str]]:
        """Return the address of a GET and the lines of its headers, with `more` headers."""

    @abc.abstractmethod
    def refusal(self, get: ObjectGet, answer: HttpAnswer) -> SourceError | None:
        """Return the error of an answer with another status than 200 and 206, by its head and body alone.

        None when that is not enough: then `stream_of` decides. Called in any thread; must not block.
        """

    @abc.abstractmethod
    def is_listed(self, native: NativeObject, headers: Mapping[str, str], data: bytes) -> bool:
        """Return whether the body of an answer 200 is surely the whole listed version; else `stream_of` decides.

        Must not block.
        """

    @abc.abstractmethod
    def stream_of(self, get: ObjectGet, answer: HttpAnswer) -> ReadStream:
        """Return the stream of an answer that has begun, or raise its error. May block and request again."""

    @abc.abstractmethod
    def _translate(self, error: BaseException, native: NativeObject) -> SourceError:
        """Return the framework's error for a failure of the connection, the vendor's library or the credentials."""

    @override
    def open(self, native: NativeObject, start: int = 0, end: int | None = None) -> ReadStream:
        self._check_open()
        stop = native.size if end is None or end > native.size else end
        if start >= stop:
            return EMPTY
        return self._send_get(native, start, stop).result()

    @override
    def begin(
        self,
        native: NativeObject,
        start: int,
        end: int | None,
        *,
        room: ReadRoom,
        retry: Callable[[RetriableError], float | None],
    ) -> ObjectGet:
        return self._send_get(native, start, native.size if end is None else end, room=room, retry=retry)

    def _send_get(
        self,
        native: NativeObject,
        start: int,
        stop: int,
        more: Mapping[str, str] | None = None,
        *,
        room: ReadRoom | None = None,
        retry: Callable[[RetriableError], float | None] | None = None,
    ) -> ObjectGet:
        """Send the GET of a range; its `result` raises the error of a request that could not be sent."""
        get = ObjectGet(self, native, start, stop)
        try:
            self._check_open()
            url, lines = self._request(get, more or {})
            get.send(self._http, url, lines, room=room, retry=retry)
        except Exception as error:  # noqa: BLE001 - raised in `result`, in the order of the objects
            get.problem = self.failure(error, native)
            if get.problem is not error:
                get.problem.__cause__ = error
        return get

    def _stream(
        self, get: ObjectGet, answer: HttpAnswer, expected: int, checksum: Checksum | None, *, ends_there: bool
    ) -> ReadStream:
        """Return the stream of an answer, which ends when the store is closed."""
        return HttpStream(
            answer,
            expected,
            native=get.native,
            translate=self.failure,
            ends_there=ends_there,
            goes_on=answer.status == OK[0] and expected < get.native.size,
            checksum=checksum,
        )

    def _check_named(self, native: NativeObject, answer: HttpAnswer, *, named: bool, kind: str = "") -> None:
        """Refuse an answer that nothing ties to the object: its head names no version.

        A maintenance page of an ingress comes with status 200 and another length. Its bytes would be taken for the beginning
        of the object. From a store that names versions elsewhere, an answer without one may be of another version, also
        when it is a range of the listed size: a read would go on with other bytes.

        Args:
            native: the object as listed.
            answer: its status is 200 or 206; a 206 names its range and the object's size.
            named: whether the head names a version, whichever.
            kind: objects of one kind are named alike.

        Raises:
            StoreUnavailableError: so it is.
        """
        headers, why = answer.headers, ""
        if named:
            self._named_kinds.add(kind)
        elif answer.status == OK[0] and not announces(headers, native.size):
            length = headers.get("content-length") if announces_length(headers) else None
            why = f"announces {length or 'no'} bytes, listed are {native.size}"
        elif kind in self._named_kinds:
            why = "others of this store do"
        if why:
            raise StoreUnavailableError(
                f"{native.location}: the answer names no version of it and {why}: an ingress, load balancer or proxy made it; "
                f"when that stays so, check {self.section}.endpoint and {self.section}.proxy"
            )

    def failure(self, error: BaseException, native: NativeObject) -> SourceError:
        """Return the framework's error for a failed read."""
        if isinstance(error, TaskClosedError) or self._closed:
            return TaskClosedError(f"{native.location}: the store was closed while reading")
        return self._translate(error, native)

    def _check_bucket(self) -> None:
        """Raise if the bucket is missing, which an answer about a missing object may not tell. Asks once."""
        if self._bucket_seen:
            return
        with contextlib.suppress(AccessDeniedError):  # who may not ask about it knows at least that it is there
            self.list_page(page_size=1)
        self._bucket_seen = True

    def _check_open(self) -> None:
        if self._closed:
            raise TaskClosedError(f"{self.scheme}://{self.bucket}: the store was used after it was closed")

    @override
    def close(self) -> None:
        self._closed = True
        self._http.close()


@attrs.define(eq=False, repr=False)
class ObjectGet:
    """One read of one object: a `PendingStream`.

    Attributes:
        native: the object's listed version.
        start: first byte.
        stop: the byte after the last.
        ahead: whether the request was made ahead: it may have waited for long before it was sent.
        problem: why the request could not be made; `result` raises it.
        accepts_gzip: whether the request says so.
        pinned: conditions of the request that the listed version does not state.
        repeats: whether an answer to another request of this read had a form that may not be the stored one.
    """

    _store: HttpStore
    native: NativeObject
    start: int
    stop: int
    ahead: bool = False
    problem: Exception | None = None
    accepts_gzip: bool = False
    repeats: bool = False
    pinned: Mapping[str, str] = attrs.field(factory=dict)
    _answer: HttpAnswer | None = None
    _retry: Callable[[RetriableError], float | None] | None = None

    @property
    def wanted(self) -> str | None:
        """The header `Range`; None for the whole object."""
        if self.start == 0 and self.stop == self.native.size:
            return None
        return f"bytes={self.start}-{self.stop - 1}"

    def send(
        self,
        loop: HttpLoop,
        url: str,
        headers: Sequence[str],
        *,
        room: ReadRoom | None = None,
        retry: Callable[[RetriableError], float | None] | None = None,
    ) -> None:
        """Start the request."""
        self._retry = retry
        self.ahead = room is not None
        again = self._again if retry is not None else None
        self._answer = loop.get(url, headers, size=self.stop - self.start, room=room, retry=again)

    def _again(self, answer: HttpAnswer) -> float | None:
        """Decide in the loop's thread about a request made ahead that failed before its first byte."""
        try:
            if answer.failure is not None:
                error: SourceError | None = self._store.failure(answer.failure, self.native)
            else:
                error = self._store.refusal(self, answer)
        except Exception:  # noqa: BLE001 - the reader judges it again, and raises
            return None
        retry = self._retry  # `whole` lets go of it in another thread
        return retry(error) if retry is not None and isinstance(error, RetriableError) else None

    def result(self) -> ReadStream:
        """Return the stream; raise as `ObjectStore.open` does."""
        if self.problem is not None:
            raise self.problem
        answer = self._answer
        assert answer is not None
        try:
            status = answer.status
        except Exception as error:
            raise self._store.failure(error, self.native) from error
        try:
            if status not in OK:
                self._wait_refusal(answer)
                refused = self._store.refusal(self, answer)
                if refused is not None:
                    raise refused  # noqa: TRY301
            return self._store.stream_of(self, answer)
        except BaseException:
            answer.close()
            raise

    def whole(self) -> bytes | None:
        """Return the bytes of the whole object, checked; None when `result` must tell. Waits for them."""
        answer, native = self._answer, self.native
        if answer is None or self.wanted is not None:
            return None
        try:
            data = answer.whole(native.size)
        except TaskClosedError:
            return None
        if data is None:
            return None
        self._retry = None  # it refers back to this request, and Python frees a cycle only when it looks for cycles
        store = self._store
        return data if store.is_listed(native, answer.headers, data) else None

    def _wait_refusal(self, answer: HttpAnswer) -> None:
        try:
            answer.wait_refusal()
        except Exception as error:
            raise self._store.failure(error, self.native) from error

    def announces_length(self) -> bool | None:
        """Return whether the answer announces the length of its body; None when it is a refusal. Waits for it."""
        answer = self._answer
        if answer is None:
            return None
        try:
            return announces_length(answer.headers) if answer.status in OK else None
        except Exception as error:
            raise self._store.failure(error, self.native) from error

    def close(self) -> None:
        """Drop the request, from any thread."""
        if self._answer is not None:
            self._answer.shutdown()
