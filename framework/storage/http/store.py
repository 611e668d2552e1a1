"""Base of the stores that read objects over `framework.storage.http.loop`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.errors import RetriableError, SourceError, TaskClosedError
from framework.storage.http.answer import HttpAnswer
from framework.storage.http.body import EMPTY, HttpStream
from framework.storage.http.get import GetJudge, ObjectGet
from framework.storage.http.loop import HttpLoop
from framework.store import ObjectStore, ReadRoom
from framework.transformer import ReadStream

if TYPE_CHECKING:
    from framework.model.objects import NativeObject
    from framework.storage.checksum import Checksum


class HttpStore(ObjectStore, GetJudge):
    """A bucket whose objects are read over HTTP: sends the GETs, and ends them when it is closed.

    A subclass sets `_http`, and judges the answers as `GetJudge` describes.
    """

    _http: HttpLoop

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self._closed = False
        self._streams: set[HttpStream] = set()

    @abc.abstractmethod
    def _request(self, get: ObjectGet, more: Mapping[str, str]) -> tuple[str, list[str]]:
        """Return the address of a GET and the lines of its headers, with `more` headers."""

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
        stream = HttpStream(
            answer,
            expected,
            native=get.native,
            translate=self.failure,
            on_close=self._streams.discard,
            ends_there=ends_there,
            checksum=checksum,
        )
        self._streams.add(stream)
        return stream

    @override
    def failure(self, error: BaseException, native: NativeObject) -> SourceError:
        if isinstance(error, TaskClosedError) or self._closed:
            return TaskClosedError(f"{native.location}: the store was closed while reading")
        return self._translate(error, native)

    def _check_open(self) -> None:
        if self._closed:
            raise TaskClosedError(f"{self.scheme}://{self.bucket}: the store was used after it was closed")

    @override
    def close(self) -> None:
        self._closed = True
        for stream in tuple(self._streams):
            stream.abort()
        self._http.close()
