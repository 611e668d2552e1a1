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
from typing import TYPE_CHECKING, TypeVar

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
    timer: asyncio.TimerHandle = attrs.field(init=False)
    inner: asyncio.Future[object] = attrs.field(init=False)


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
        self._loop.call_soon_threadsafe(self._end, ConnectionError(reason))

    @property
    def longest_wait_seconds(self) -> float:
        """After how long a request submitted now has been answered in any case."""
        return self._timeout_seconds * (len(self._waiting) + 2)

    def _not_sent(self, what: str) -> IggyUnavailableError:
        return not_sent(what, str(self.failure), server=self._server)

    def _next(self) -> None:
        while self._current is None and self._waiting:
            request = self._waiting.popleft()
            if not request.future.set_running_or_notify_cancel():
                continue
            if self._client is None:
                request.future.set_exception(self._not_sent(request.what))
            else:
                self._begin(request, self._client)

    def _begin(self, request: _Request, client: apache_iggy.IggyClient) -> None:
        self._current = request
        try:
            request.inner = asyncio.ensure_future(request.start(client), loop=self._loop)
        except BaseException as error:  # noqa: BLE001  (bad arguments, or a panic of the client)
            request.inner = self._loop.create_future()
            request.inner.set_exception(error)
        del request.start  # lets go of the bytes: the next request is encoded into the same memory
        silence = TimeoutError(f"no answer within {self._timeout_seconds:g} s, [iggy] request_timeout")
        request.timer = self._loop.call_later(self._timeout_seconds, self._end, silence)
        request.inner.add_done_callback(functools.partial(self._done, request))

    def _done(self, request: _Request, inner: asyncio.Future[object]) -> None:
        if self._current is not request:
            if not inner.cancelled():
                inner.exception()  # a late failure of an abandoned request; retrieved, so that asyncio does not warn
            return
        is_answered = not inner.cancelled() and inner.exception() is None
        try:
            settle = functools.partial(request.future.set_result, request.finish(inner.result()))
        except BaseException as error:  # noqa: BLE001  (goes to the caller, also a panic of the client)
            made = error if is_answered and isinstance(error, Exception) else self._classified(error, request)
            if request.sending or (not is_answered and answer_of(error) is Answer.BROKEN):
                self._end(error, made)
                return
            settle = functools.partial(request.future.set_exception, made)
        self._current = None
        request.timer.cancel()
        self._next()  # first: whoever takes the answer would keep the server waiting
        settle()

    def _end(self, error: BaseException, answer: BaseException | None = None) -> None:
        """End because of `error`: the request in progress fails with `answer`, or as after a break."""
        if self.failure is None:
            self.failure = str(error)  # first: whoever waits for an answer must send nothing behind it
        self._client = None  # the official client has no close: the last reference closes the connection
        request, self._current = self._current, None
        if request is not None:
            request.timer.cancel()
            request.inner.cancel()
            request.future.set_exception(answer or self._classified(error, request))
        self._next()

    def _classified(self, error: BaseException, request: _Request) -> BaseException:
        made = classify(error, request.what, server=self._server, login=self._login, sending=request.sending)
        made.__cause__ = error
        return made
