"""The requests of one connection: one under way, the others waiting, each with a time limit and a future.

Everything but `submit` and `stop` runs in the background loop's thread, so nothing here needs a lock. A request that must
wait wakes no thread: the end of the one under way begins it. One request at a time, although the client would queue more:
two that are inside it at once may change places, and after a failure the second would still go out, past records that
were not stored.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NoReturn, TypeVar

import attrs

from framework.errors import IggyUnavailableError
from framework.iggy.errors_map import Answer, answer_of, classify, not_sent

if TYPE_CHECKING:
    import apache_iggy

T = TypeVar("T")
Start = Callable[["apache_iggy.IggyClient"], Awaitable[object]]


@attrs.define(eq=False)
class _Request:
    """From its submission to its end."""

    what: str
    start: Start
    finish: Callable[..., object]
    sending: bool
    future: Future[object] = attrs.field(factory=Future)
    timer: asyncio.TimerHandle | None = None
    inner: asyncio.Future[object] | None = None


@attrs.define(eq=False, repr=False, slots=False)
class RequestQueue:
    """Puts requests to one client, in the order of the calls, until the first break or the first send that fails.

    Attributes:
        failure: why it ended; None while it works.
    """

    _client: apache_iggy.IggyClient | None
    _loop: asyncio.AbstractEventLoop
    _server: str = attrs.field(kw_only=True)
    _login: str = attrs.field(kw_only=True)
    _timeout_seconds: float = attrs.field(kw_only=True)
    failure: str | None = attrs.field(default=None, init=False)
    _waiting: deque[_Request] = attrs.field(factory=deque, init=False)
    _current: _Request | None = attrs.field(default=None, init=False)

    def submit(self, what: str, start: Start, finish: Callable[..., T], *, sending: bool = False) -> Future[T]:
        """The answer to come. Callable from any thread.

        Args:
            what: for messages, with the names in it.
            start: calls the client; runs in the loop's thread.
            finish: makes the result out of the client's answer; runs there too.
            sending: whether the request stores records.
        """
        self.check(what)
        request = _Request(what, start, finish, sending)
        self._waiting.append(request)
        if self._current is None:  # else its end begins the next
            self._loop.call_soon_threadsafe(self._next)
        return request.future  # type: ignore[return-value]  # `finish` gives the T

    def check(self, what: str) -> None:
        """Raise when it has ended."""
        if self.failure is not None:
            raise self._not_sent(what)

    def stop(self, reason: str) -> None:
        """End soon: the request in progress fails as after a break, waiting ones are not sent. Idempotent."""
        self._loop.call_soon_threadsafe(self._end, reason)

    @property
    def longest_wait_seconds(self) -> float:
        """After how long a request submitted now has been answered in any case."""
        return self._timeout_seconds * (len(self._waiting) + 2)

    def _not_sent(self, what: str) -> IggyUnavailableError:
        return not_sent(what, str(self.failure), server=self._server)

    def _next(self) -> None:
        while self._current is None and self._waiting:
            request = self._waiting.popleft()
            client = self._client
            if client is None:
                _fail(request, self._not_sent(request.what))
            elif request.future.set_running_or_notify_cancel():
                self._begin(request, client)

    def _begin(self, request: _Request, client: apache_iggy.IggyClient) -> None:
        try:
            inner = asyncio.ensure_future(request.start(client), loop=self._loop)
        except BaseException as error:  # noqa: BLE001  (bad arguments, or a panic of the client: nothing was sent)
            self._answer_failed(
                request, self._classified(error, request, sending=False), error if request.sending else None
            )
            return
        self._current = request
        request.start = _started  # lets go of the bytes: the next request is encoded into the same memory
        request.inner = inner
        request.timer = self._loop.call_later(self._timeout_seconds, self._expire, request)
        inner.add_done_callback(functools.partial(self._done, request))

    def _done(self, request: _Request, inner: asyncio.Future[object]) -> None:
        if self._current is not request:
            if not inner.cancelled():
                inner.exception()  # a late failure of an abandoned request; retrieved, so that asyncio does not warn
            return
        self._current = None
        if request.timer is not None:
            request.timer.cancel()
        error = ConnectionError("cancelled") if inner.cancelled() else inner.exception()
        if error is None:
            try:
                answer = request.finish(inner.result())
            except BaseException as wrong:  # noqa: BLE001  (goes to the caller, also a panic of the client)
                plain = isinstance(wrong, Exception)
                made = wrong if plain else self._classified(wrong, request, sending=request.sending)
                self._answer_failed(request, made, wrong if request.sending else None)
            else:
                self._next()  # first: whoever takes the answer would keep the server waiting
                request.future.set_result(answer)
                return
        else:
            made = self._classified(error, request, sending=request.sending)
            refused = not request.sending and answer_of(error) is not Answer.BROKEN  # it is as good as before
            self._answer_failed(request, made, None if refused else error)
        self._next()

    def _answer_failed(self, request: _Request, error: BaseException, ends: BaseException | None) -> None:
        """Answer a request with an error, after which the connection ends where `ends` is given."""
        if ends is not None and self.failure is None:
            self.failure = str(ends)  # first: whoever waits for the answer must send nothing behind it
        _fail(request, error)
        if ends is not None:
            self._end(str(ends))

    def _expire(self, request: _Request) -> None:
        if self._current is request:
            self._end(
                f"no answer within {self._timeout_seconds:g} s, [iggy] request_timeout",
                TimeoutError,
            )

    def _end(self, reason: str, kind: type[OSError] = ConnectionError) -> None:
        if self.failure is None:
            self.failure = reason
        self._client = None  # the official client has no close: the last reference closes the connection
        request, self._current = self._current, None
        if request is not None:
            if request.timer is not None:
                request.timer.cancel()
            if request.inner is not None:
                request.inner.cancel()
            _fail(request, self._classified(kind(reason), request, sending=request.sending))
        self._next()

    def _classified(self, error: BaseException, request: _Request, *, sending: bool) -> BaseException:
        made = classify(error, request.what, server=self._server, login=self._login, sending=sending)
        made.__cause__ = error
        return made


def _fail(request: _Request, error: BaseException) -> None:
    if not request.future.done():
        request.future.set_exception(error)


def _started(_client: object) -> NoReturn:
    raise RuntimeError("a request is started once")
