"""A GET of an object over the loop: what the stores of every vendor have in common."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from framework.errors import RetriableError, SourceError, TaskClosedError
from framework.storage.http.answer import HttpAnswer
from framework.storage.http.body import announces_length
from framework.storage.http.loop import HttpLoop
from framework.store import ReadRoom
from framework.transformer import ReadStream

if TYPE_CHECKING:
    from framework.model.objects import NativeObject

OK = (200, 206)


class GetJudge(Protocol):
    """A store, as it makes and judges the GETs of its objects.

    Attributes:
        judged_headers: the headers that `is_listed` looks at (`framework.storage.http.head.pattern_of`).
    """

    judged_headers: re.Pattern[str]

    @abc.abstractmethod
    def refusal(self, get: ObjectGet, answer: HttpAnswer) -> SourceError | None:
        """Return the error of an answer with another status than 200 and 206, by its head and body alone.

        None when that is not enough: then `stream_of` decides. Called in any thread; must not block.
        """

    @abc.abstractmethod
    def failure(self, error: BaseException, native: NativeObject) -> SourceError:
        """Return the framework's error for a failed read."""

    @abc.abstractmethod
    def is_listed(self, native: NativeObject, headers: Mapping[str, str], data: bytes) -> bool:
        """Return whether the body of an answer 200 is surely the whole listed version; else `stream_of` decides.

        Must not block. It gets only those of the headers that `judged_headers` names.
        """

    @abc.abstractmethod
    def stream_of(self, get: ObjectGet, answer: HttpAnswer) -> ReadStream:
        """Return the stream of an answer that has begun, or raise its error. May block and request again."""


class ObjectGet:
    """One read of one object: a `PendingStream`.

    Attributes:
        native: the object's listed version.
        start: first byte.
        stop: the byte after the last.
        ahead: whether the request was made ahead: it may have waited for long before it was sent.
        problem: why the request could not be made; `result` raises it.
        accepts_gzip: whether the request says so.
        repeats: whether another request of this read was answered in a form that may not be the stored one.
    """

    __slots__ = (
        "_answer",
        "_judge",
        "_retry",
        "accepts_gzip",
        "ahead",
        "native",
        "problem",
        "repeats",
        "start",
        "stop",
    )

    def __init__(self, judge: GetJudge, native: NativeObject, start: int, stop: int) -> None:
        self._judge = judge
        self._answer: HttpAnswer | None = None
        self._retry: Callable[[RetriableError], float | None] | None = None
        self.native = native
        self.start = start
        self.stop = stop
        self.ahead = False
        self.problem: Exception | None = None
        self.accepts_gzip = False
        self.repeats = False

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
                error: SourceError | None = self._judge.failure(answer.failure, self.native)
            else:
                error = self._judge.refusal(self, answer)
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
            raise self._judge.failure(error, self.native) from error
        try:
            if status not in OK:
                self._wait_refusal(answer)
                refused = self._judge.refusal(self, answer)
                if refused is not None:
                    raise refused  # noqa: TRY301
            return self._judge.stream_of(self, answer)
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
        judge = self._judge
        return data if judge.is_listed(native, answer.headers_named(judge.judged_headers), data) else None

    def _wait_refusal(self, answer: HttpAnswer) -> None:
        try:
            answer.wait_refusal()
        except Exception as error:
            raise self._judge.failure(error, self.native) from error

    def announces_length(self) -> bool | None:
        """Return whether the answer announces the length of its body; None when it is a refusal. Waits for it."""
        answer = self._answer
        if answer is None:
            return None
        try:
            return announces_length(answer.headers) if answer.status in OK else None
        except Exception as error:
            raise self._judge.failure(error, self.native) from error

    def close(self) -> None:
        """Drop the request, from any thread."""
        if self._answer is not None:
            self._answer.shutdown()
