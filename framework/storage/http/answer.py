"""A request and its answer, as its reader and the thread of the requests share it."""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from framework.errors import TaskClosedError
from framework.storage.http.errors import MAX_REFUSAL_BYTES, HttpCutError, HttpError
from framework.storage.http.head import HttpHead
from framework.store import ReadRoom

WINDOW_BYTES = 1 << 21
"""What an answer without a room of its own may hold for its reader."""

MAX_DOCUMENT_BYTES = 64_000_000
"""Limit of an answer that is a document, before and after unpacking: a page of a thousand keys has a few megabytes."""

OK = 200
REFUSALS = 300
"""From this status on an answer has no bytes of the object."""

_CHECK_SECONDS = 1.0
"""How often a reader that waits looks whether the loop's thread is alive."""

RetryAfter = Callable[["HttpAnswer"], "float | None"]
"""Called in the loop's thread with an answer that failed before its first byte: seconds until the same request is made
again, or None to let the reader see the failure. Must not block."""


class RequestLoop(Protocol):
    """The thread of the requests, as an answer sees it: `framework.storage.http.loop.HttpLoop`."""

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the loop's."""

    def post(self, command: Callable[[HttpAnswer], None], answer: HttpAnswer) -> None:
        """Have the loop's thread call `command(answer)`."""

    def drop(self, answer: HttpAnswer) -> None:
        """End a transfer whose answer is no longer wanted; only in the loop's thread."""

    def resume(self) -> None:
        """Let paused transfers go on, as far as there is room."""

    def check_alive(self) -> None:
        """Raise when no thread will ever end a request."""


@attrs.define(eq=False, repr=False, slots=False)
class HttpAnswer:
    """A request and its answer. One reader; `shutdown` may come from any thread.

    Attributes:
        room: memory that the body may take.
        is_ahead: whether it is read ahead: a `read` takes what has come, and never waits for more.
        is_head: whether the request is a HEAD, which has no body.
        is_small: whether its connection may be shared, over HTTP/2.
        is_document: whether the reader waits for the whole body.
        started: whether the reader may look at it: it will not be requested again.
        complete: whether the transfer has ended.
        ended: whether it has ended for the reader, too.
        failure: why the transfer ended early; set by the loop.
    """

    _loop: RequestLoop
    url: str
    request_headers: Sequence[str]
    room: ReadRoom
    retry: RetryAfter | None
    is_head: bool = attrs.field(default=False, kw_only=True)
    is_ahead: bool = attrs.field(default=False, kw_only=True)
    is_small: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.transfer: Any = None  # a `Transfer` while it is under way; the loop's thread alone uses it
        self.sent_at = self.active_at = self.began_at = self.measured_at = 0.0
        self.measured_bytes = 0
        self.paused = self.permitted = self.is_document = False
        self._waiter: LockType | None = None
        self._reserved = 0  # bytes; used by the loop's thread alone
        self._begin()

    def _begin(self) -> None:
        self.lines: list[bytes] = []
        self._chunks: deque[bytes] = deque()
        self._refused = 0  # bytes of a piece that waits for room
        self._head: HttpHead | None = None
        self.started = self.complete = self.ended = False
        self.failure: Exception | None = None

    def begin_again(self) -> None:
        """Forget the answer so far: the same request is made again; only in the loop's thread."""
        self.room.give(self._size + self._reserved)
        self._reserved = 0
        self._begin()

    # The reader's side

    @property
    def status(self) -> int:
        """The status; waits for it.

        Raises:
            HttpError: there was no answer.
            TaskClosedError: the request was aborted, or the loop is closed.
        """
        if not self.started:
            self._wait_until(lambda: self.started or self.ended or self._is_judged)
            if self.failure is not None and not self.started:
                raise self.failure
        status = self.status_so_far()
        if not status:
            raise HttpError("the answer has no status")
        return status

    def status_so_far(self) -> int:
        """Return the status in the lines that have come; 0 without one."""
        return self._read_head().status

    def breaks_off_in_head(self) -> bool:
        """Return whether the answer, which has ended, ended between two headers: libcurl takes that for its end."""
        head = self._read_head()
        return bool(head.status) and not head.is_whole

    def _read_head(self) -> HttpHead:
        head = self._head
        if head is None:
            head = HttpHead(self.lines)
            if head.status:  # else more lines may come
                self._head = head
        return head

    @property
    def _is_judged(self) -> bool:
        """Whether the loop's thread is asking whether to make the request again; the reader does not see it yet."""
        return self.complete and self._loop.is_current

    @property
    def headers(self) -> Mapping[str, str]:
        """The answer's headers, names in lower case; only after `status`."""
        return self._read_head().headers

    def read(self, size: int, /) -> bytes:
        """Return the next bytes: `size` of them, or what has come of a body that is read ahead; waits for the first.

        `b""` at the end, also at a premature end.

        Raises:
            HttpError: the connection broke, or was silent for too long.
            TaskClosedError: the request was aborted, or the loop is closed.
        """
        chunks = self._chunks
        if not chunks:
            self._wait_until(lambda: bool(chunks) or self.ended)
        if not chunks:
            if self.failure is not None and not isinstance(self.failure, HttpCutError):
                raise self.failure
            return b""
        parts: list[bytes] = []
        length = given = 0
        while chunks:
            data = chunks.popleft()
            if length + len(data) > size:
                chunks.appendleft(data[size - length :])
                data = data[: size - length]
            parts.append(data)
            length += len(data)
            if length == size:
                break
            if not self.is_ahead and not chunks:
                self.room.give(length - given)
                given = length
                self._wait_until(lambda: bool(chunks) or self.ended)
        self.room.give(length - given)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_all(self, max_bytes: int | None = None) -> bytes:
        """Return the whole body, which is a document.

        Args:
            max_bytes: its limit; None: `MAX_DOCUMENT_BYTES`.

        Raises:
            HttpError: it did not come whole, or has more bytes.
            TaskClosedError: the request was aborted, or the loop is closed.
        """
        parts, size = [], 0
        limit = MAX_DOCUMENT_BYTES if max_bytes is None else max_bytes
        self.is_document = True
        while True:
            self._wait_until(lambda: self.ended or bool(self._refused))
            data = self.read(WINDOW_BYTES)
            if not data:
                break
            parts.append(data)
            size += len(data)
            if size > limit:
                raise HttpError(f"the answer is a document of more than {limit:,} bytes")
        if self.failure is not None:
            raise self.failure
        return b"".join(parts)

    def wait_refusal(self) -> bytes:
        """Return the beginning of the body of an answer that is an error, waiting for it; may be called again.

        Raises:
            HttpError: it did not come whole.
            TaskClosedError: the request was aborted, or the loop is closed.
        """
        self._wait_until(lambda: self.ended or self._is_judged or self._size >= MAX_REFUSAL_BYTES)
        if self.failure is not None:
            raise self.failure
        return b"".join(self._chunks)[:MAX_REFUSAL_BYTES]

    def whole(self, size: int) -> bytes | None:
        """Return the body of an answer 200 of `size` bytes, waiting for it, and take nothing.

        None when it is another answer, ended early, or has no room for all of it now: `status` and `read` tell.

        Raises:
            TaskClosedError: the loop is closed.
        """
        came = self._size
        if came < size:
            self._wait_until(lambda: self._size >= size or self.ended or bool(self._refused) or self._is_judged)
            came = self._size
        if came != size or self.failure is not None or self.status_so_far() != OK:
            return None
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return data if len(data) == size else None  # what came may have been a refusal, and this is the next answer

    @property
    def _size(self) -> int:
        return sum(map(len, tuple(self._chunks)))  # a copy, made in one step: the loop's thread may be adding to it

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for the loop's thread until `ready()`."""
        while True:
            seen = self._state  # before the look: a change between look and wait must not be missed
            if ready():
                return
            waiter = allocate_lock()
            waiter.acquire()
            self._waiter = waiter  # from here on a change releases it
            if self._state == seen:
                self._loop.check_alive()
                while not waiter.acquire(timeout=_CHECK_SECONDS):
                    self._loop.check_alive()  # its thread may have failed with this answer in its hands
            self._waiter = None

    @property
    def _state(self) -> tuple[int, bool, bool, int]:
        return len(self._chunks), self.started, self.ended, self._refused

    def close(self) -> None:
        """End the transfer; its connection is closed unless all has come."""
        if not self.ended:
            self._loop.post(self._loop.drop, self)
        self.room.close()

    def shutdown(self) -> None:
        """End the transfer at once, from another thread; a waiting `read` raises."""
        self.end(TaskClosedError("the request was aborted"))
        self._loop.post(self._loop.drop, self)

    # The loop's side

    def keep(self, data: bytes) -> bool:
        """Add a piece of the body; False when there is no room for it now."""
        reserved, self._reserved = self._reserved, 0
        if reserved != len(data):
            if reserved:
                self.room.give(reserved)
            if not self.room.take(len(data), self._loop.resume):
                self._refused = len(data)
                self._wake_reader()
                return False
        self._chunks.append(data)
        if not self.started:
            # a refusal that goes on and on is judged by its reader: there may be no room for its end
            self.started = self.retry is None or self.status_so_far() < REFUSALS or self._size >= MAX_REFUSAL_BYTES
        if not self.is_document:  # each piece would wake its reader
            self._wake_reader()
        return True

    def has_room(self) -> bool:
        """Whether a paused transfer may go on; room for the piece that it was paused with is then reserved.

        To let it go on in vain would copy that piece once more.
        """
        if not self._reserved:
            if not self.room.take(self._refused, self._loop.resume):
                return False
            self._reserved, self._refused = self._refused, 0
        return True

    def end(self, failure: Exception | None) -> None:
        """End the answer. Idempotent: the first failure counts."""
        if not self.ended:
            self.failure = failure
            self.started = self.started or failure is None
            self.ended = True
            self.retry = None  # it refers back to this answer, and Python frees a cycle only when it looks for cycles
        self._wake_reader()

    def _wake_reader(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            waiter.release()
