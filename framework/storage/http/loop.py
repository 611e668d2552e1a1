"""All GETs and HEADs of a store in one thread: libcurl's multi interface. The one door to pycurl.

Callers start a request and wait for its answer later, so hundreds can be under way. A store signs requests and judges
answers; here are connections, time limits, back-pressure, the number of requests at once, and retries of what was
requested ahead.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import socket
import threading
import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pycurl

from framework.errors import FatalError, TaskClosedError
from framework.storage.http.errors import (
    MAX_REFUSAL_BYTES,
    HttpConnectError,
    HttpConnectTimeoutError,
    HttpCutError,
    HttpError,
    HttpProxyError,
    HttpReadTimeoutError,
    HttpTlsError,
)
from framework.storage.http.head import HttpHead
from framework.storage.listing.limiter import CallLimiter
from framework.store import ReadRoom

if TYPE_CHECKING:
    import re

log = logging.getLogger(__name__)

WINDOW_BYTES = 1 << 21
"""What an answer without a room of its own may hold for its reader."""

BUFFER_BYTES = 1 << 19
"""The most that libcurl takes off a socket at once: large, because each piece costs a call into Python."""

MAX_DOCUMENT_BYTES = 64_000_000
"""Limit of an answer that is a document, before and after unpacking: a page of a thousand keys has a few megabytes."""

MULTIPLEXED_BYTES = 65_536
"""An answer of at most so many bytes may share a connection with others, over HTTP/2: libcurl buffers megabytes of each
larger one whose reader has no room, and of one over HTTP/1.1 nothing."""

MIN_BYTES_PER_SECOND = 100
"""A body that brings fewer, over twice the limit of silence, is broken off; not while its reader has no room."""

CLOSE_SECONDS = 1.0
_SLOWEST_SWEEP_SECONDS = 1.0
OK = 200
_THROTTLED = (429, 503)
_REFUSALS = 300
"""From this status on an answer has no bytes of the object."""

RetryAfter = Callable[["HttpAnswer"], "float | None"]
"""Called in the loop's thread with an answer that failed before its first byte: seconds until the same request is made
again, or None to let the reader see the failure. Must not block."""


@attrs.frozen(kw_only=True)
class HttpOptions:
    """How the loop connects.

    Attributes:
        connect_seconds: limit of a connection attempt, with TLS.
        read_seconds: limit of silence; over twice this time a body must bring `MIN_BYTES_PER_SECOND`.
        max_connections: connections kept, and requests made ahead at once.
        proxy: address of the proxy; empty = none, whatever the environment says.
        ca_file: the certificate authorities to trust; a file, or a folder of hashed names.
    """

    connect_seconds: float
    read_seconds: float
    max_connections: int
    proxy: str = attrs.field(default="", repr=False)
    ca_file: str = ""


class HttpAnswer:
    """A request and its answer. One reader; `abort` may come from any thread.

    Attributes:
        room: memory that the body may take; None: `WINDOW_BYTES`.
        is_head: whether the request is a HEAD, which has no body.
        is_small: whether the body has at most `MULTIPLEXED_BYTES`.
        started: whether the reader may look at it: it will not be requested again.
        complete: whether the transfer has ended.
        ended: whether it has ended for the reader, too.
        failure: why the transfer ended early; set by the loop.
    """

    __slots__ = (
        "_came",
        "_chunks",
        "_gone",
        "_head",
        "_loop",
        "_refused",
        "_reserved",
        "_waiter",
        "_whole",
        "active_at",
        "complete",
        "ended",
        "failure",
        "is_head",
        "is_small",
        "lines",
        "measured_at",
        "measured_bytes",
        "paused",
        "permitted",
        "request_headers",
        "retry",
        "room",
        "sent_at",
        "started",
        "transfer",
        "url",
    )

    def __init__(
        self, loop: HttpLoop, url: str, headers: Sequence[str], room: ReadRoom | None, retry: RetryAfter | None
    ) -> None:
        self._loop = loop
        self.url = url
        self.request_headers = headers
        self.room = room
        self.retry = retry
        self.transfer: _Transfer | None = None
        self.sent_at = self.active_at = self.measured_at = 0.0
        self.measured_bytes = 0
        self.paused = self.permitted = self._whole = self.is_head = self.is_small = False
        self._waiter: LockType | None = None
        self._came = self._gone = 0  # bytes, without a room: each counted by one thread alone
        self._reserved = 0  # bytes, with a room; used by the loop's thread alone
        self._begin()

    def _begin(self) -> None:
        self.lines: list[bytes] = []
        self._chunks: deque[bytes] = deque()
        self._refused = 0  # bytes of a piece that waits for room
        self._head: HttpHead | None = None
        self.started = self.complete = self.ended = False
        self.failure: Exception | None = None

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

    def headers_named(self, pattern: re.Pattern[str]) -> Mapping[str, str]:
        """Return those of them that a pattern of `framework.storage.http.head` names."""
        return self._read_head().named(pattern)

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
            if self.room is None and not chunks:  # what is not read ahead is read in full
                self._give(length - given)
                given = length
                self._wait_until(lambda: bool(chunks) or self.ended)
        self._give(length - given)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_all(self) -> bytes:
        """Return the whole body, which is a document.

        Raises:
            HttpError: it did not come whole, or has more than `MAX_DOCUMENT_BYTES`.
            TaskClosedError: the request was aborted, or the loop is closed.
        """
        parts, size = [], 0
        self._whole = True
        while True:
            self._wait_until(lambda: self.ended or self._is_full)
            data = self.read(WINDOW_BYTES)
            if not data:
                break
            parts.append(data)
            size += len(data)
            if size > MAX_DOCUMENT_BYTES:
                raise HttpError(f"the answer is a document of more than {MAX_DOCUMENT_BYTES:,} bytes")
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

    def _give(self, size: int) -> None:
        room = self.room
        if room is not None:
            room.give(size)
        else:
            self._gone += size
            if self.paused:
                self._loop.resume()

    @property
    def _size(self) -> int:
        return sum(map(len, tuple(self._chunks)))  # a copy, made in one step: the loop's thread may be adding to it

    @property
    def _is_full(self) -> bool:
        return self._came - self._gone >= WINDOW_BYTES

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
                waiter.acquire()
            self._waiter = None

    @property
    def _state(self) -> tuple[int, bool, bool, int]:
        return len(self._chunks), self.started, self.ended, self._refused

    def close(self) -> None:
        """End the transfer; its connection is closed unless all has come."""
        if not self.ended:
            self._loop.post(self._loop.drop, self)
        if self.room is not None:
            self.room.close()

    def shutdown(self) -> None:
        """End the transfer at once, from another thread; a waiting `read` raises."""
        self.end(TaskClosedError("the request was aborted"))
        self._loop.post(self._loop.drop, self)

    # The loop's side

    def keep(self, data: bytes) -> bool:
        """Add a piece of the body; False when there is no room for it now."""
        room = self.room
        if room is not None:
            reserved, self._reserved = self._reserved, 0
            if reserved != len(data):
                if reserved:
                    room.give(reserved)
                if not room.take(len(data), self._loop.resume):
                    self._refused = len(data)
                    self._wake_reader()
                    return False
        else:
            if self._is_full:
                self.paused = True  # before the last look: the reader may make room at any moment
                if self._is_full:
                    return False
                self.paused = False
            self._came += len(data)
        self._chunks.append(data)
        if not self.started:
            # a refusal that goes on and on is judged by its reader: there may be no room for its end
            self.started = self.retry is None or self.status_so_far() < _REFUSALS or self._size >= MAX_REFUSAL_BYTES
        waiter = self._waiter
        if waiter is not None and not (self._whole and not self._is_full):  # each piece would wake its reader
            self._waiter = None
            waiter.release()
        return True

    def has_room(self) -> bool:
        """Whether a paused transfer may go on; room for the piece that it was paused with is then reserved.

        To let it go on in vain would copy that piece once more.
        """
        room, size = self.room, self._refused
        if room is not None and not self._reserved:
            if not room.take(size, self._loop.resume):
                return False
            self._reserved, self._refused = size, 0
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


class _Transfer:
    """An easy handle of libcurl, used for one request after the other: options that stay are set once."""

    __slots__ = ("_is_head", "_is_small", "_loop", "answer", "curl", "lines")

    def __init__(self, loop: HttpLoop, options: HttpOptions) -> None:
        self._loop = loop
        self.answer: HttpAnswer | None = None
        self.lines: list[bytes] = []
        self._is_head = self._is_small = False
        self.curl = curl = pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.PATH_AS_IS, 1),  # a key may be `./x` or `a//b`
            (pycurl.FOLLOWLOCATION, 0),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.CONNECTTIMEOUT_MS, int(options.connect_seconds * 1000)),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.TCP_NODELAY, 1),
            (pycurl.BUFFERSIZE, BUFFER_BYTES),
            (pycurl.PROXY, options.proxy),
            (pycurl.NOPROXY, ""),
            (pycurl.WRITEFUNCTION, self._body),
        ):
            curl.setopt(option, value)
        if options.ca_file:
            folder = Path(options.ca_file).is_dir()
            curl.setopt(pycurl.CAPATH if folder else pycurl.CAINFO, options.ca_file)
            curl.setopt(pycurl.PROXY_CAPATH if folder else pycurl.PROXY_CAINFO, options.ca_file)

    def prepare(self, answer: HttpAnswer) -> None:
        """Take the next request."""
        self.answer = answer
        curl = self.curl
        if answer.is_head is not self._is_head:
            self._is_head = answer.is_head
            curl.setopt(pycurl.NOBODY if answer.is_head else pycurl.HTTPGET, 1)  # codespell:ignore nobody
        if answer.is_small is not self._is_small:
            self._is_small = answer.is_small
            version = pycurl.CURL_HTTP_VERSION_2TLS if answer.is_small else pycurl.CURL_HTTP_VERSION_1_1
            curl.setopt(pycurl.HTTP_VERSION, version)
        curl.setopt(pycurl.URL, answer.url)
        curl.setopt(pycurl.HTTPHEADER, answer.request_headers)
        curl.setopt(pycurl.HEADERFUNCTION, answer.lines.append)

    def go_on(self) -> None:
        """Resume the transfer, which is paused."""
        self.curl.pause(pycurl.PAUSE_CONT)

    def _body(self, data: bytes) -> int | None:
        answer = self.answer
        if answer is None:
            return None
        answer.active_at = self._loop.now
        if answer.keep(data):
            return None
        answer.paused = True
        self._loop.paused.append(answer)
        pause: int = pycurl.WRITEFUNC_PAUSE
        return pause


class HttpLoop:
    """The GETs and HEADs of one store. Threads may share it; its thread starts with the first request, also in a forked process.

    Requests made ahead are started in order, as many at once as `CallLimiter` allows: it starts low, and halves when the
    store throttles. A request that a reader waits for is started at once.
    """

    def __init__(self, options: HttpOptions) -> None:
        self.options = options
        self.now = 0.0
        self._lock = threading.Lock()
        self._closed = False
        self._failed: Exception | None = None
        self._reset()

    def _reset(self) -> None:
        self.limiter = CallLimiter(most=self.options.max_connections)
        self.paused: list[HttpAnswer] = []
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._commands: deque[tuple[Callable[[HttpAnswer], None], HttpAnswer]] = deque()
        self._asleep = False
        self._wake_fd = -1
        self._resuming = False
        self._waiting: deque[HttpAnswer] = deque()
        self._later: list[tuple[float, int, HttpAnswer]] = []
        self._numbers = itertools.count()
        self._transfers: dict[Any, _Transfer] = {}
        self._free: list[_Transfer] = []
        self._watched: set[int] = set()
        self._due: float | None = None

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the loop's."""
        return threading.current_thread() is self._thread

    @property
    def connections(self) -> int:
        """Requests under way."""
        return len(self._transfers)

    def get(
        self,
        url: str,
        headers: Sequence[str],
        *,
        size: int | None = None,
        room: ReadRoom | None = None,
        retry: RetryAfter | None = None,
    ) -> HttpAnswer:
        """Start a GET and return at once.

        Args:
            url: percent-encoded; sent as it is.
            headers: lines, `Name: value`; `Name:` leaves out what libcurl would send.
            size: how many bytes the body has, if that is known.
            room: given for a request made ahead: memory that its body may take.
            retry: decides on retries of a request made ahead.
        """
        answer = HttpAnswer(self, url, headers, room, retry)
        answer.is_small = size is not None and size <= MULTIPLEXED_BYTES
        self.post(self._start if room is None else self._queue, answer)
        return answer

    def head(self, url: str, headers: Sequence[str]) -> HttpAnswer:
        """Start a HEAD and return at once."""
        answer = HttpAnswer(self, url, headers, None, None)
        answer.is_head = True
        self.post(self._start, answer)
        return answer

    def post(self, command: Callable[[HttpAnswer], None], answer: HttpAnswer) -> None:
        """Have the loop's thread call `command(answer)`."""
        if self._pid != os.getpid():
            self._start_thread()
        self._commands.append((command, answer))
        if self._closed:
            answer.end(self._why_closed())
        if self._asleep:
            self._wake()

    def resume(self) -> None:
        """Let paused transfers go on, as far as there is room."""
        if not self._resuming:
            self._resuming = True
            if self._asleep:
                self._wake()

    def check_alive(self) -> None:
        """Raise when no thread will ever end a request.

        Raises:
            TaskClosedError: the loop is closed, or belongs to the process that this one was forked from.
            FatalError: its thread failed.
        """
        if self._closed or self._pid != os.getpid():
            raise self._why_closed()

    def _why_closed(self) -> Exception:
        failed = self._failed
        if failed is None:
            return TaskClosedError("the store is closed")
        error = FatalError(
            f"the thread of the store's requests failed, start the source again: {type(failed).__name__}: {failed}"
        )
        error.__cause__ = failed
        return error

    def close(self) -> None:
        """End all transfers, connections and the thread, within a second. Idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread if self._pid == os.getpid() else None
        if thread is not None and thread is not threading.current_thread():
            self._wake()
            thread.join(CLOSE_SECONDS)

    def _wake(self) -> None:
        with self._lock:
            self._asleep = False
            if self._wake_fd >= 0:
                with contextlib.suppress(BlockingIOError):  # full: it is awake
                    os.write(self._wake_fd, b"x")

    def _start_thread(self) -> None:
        with self._lock:
            if self._pid == os.getpid() or self._closed:
                return
            if self._pid:  # forked: what the parent's thread uses must not be closed here
                _OF_PARENTS.append((self._transfers, self._free))
                self._reset()
            multi, poll = pycurl.CurlMulti(), select.epoll()
            read_fd, write_fd = os.pipe()
            os.set_blocking(read_fd, False)
            os.set_blocking(write_fd, False)
            self._thread = threading.Thread(target=self._run, args=(multi, poll, read_fd), name="http", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                os.close(read_fd)
                os.close(write_fd)
                raise
            self._wake_fd, self._pid = write_fd, os.getpid()  # not before: the next request tries again

    # Everything below runs in the loop's thread

    def _run(self, multi: Any, poll: select.epoll, wake_fd: int) -> None:
        self._multi, self._poll = multi, poll
        poll.register(wake_fd, select.EPOLLIN)
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        multi.setopt(pycurl.M_MAXCONNECTS, self.options.max_connections)
        sweep = min(self.options.read_seconds / 4, _SLOWEST_SWEEP_SECONDS)
        swept = 0.0
        try:
            while not self._closed:
                self.now = time.monotonic()
                if self.now >= swept + sweep:
                    swept = self.now
                    self._end_silent()
                self._work(multi)
                ended = self._collect(multi)  # an answer may come while its request is made: no event tells of it
                self._asleep = True
                at_once = ended or self._commands or self._resuming or self._closed
                timeout = 0.0 if at_once else self._patience(sweep)
                events = poll.poll(timeout)
                self._asleep = False
                self.now = time.monotonic()
                for fd, event in events:
                    if fd == wake_fd:
                        os.read(wake_fd, 4096)
                    else:
                        multi.socket_action(fd, _MASKS.get(event, pycurl.CSELECT_IN | pycurl.CSELECT_ERR))
                if self._due is not None and self._due <= self.now:
                    self._due = None
                    multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
                self._collect(multi)
        except Exception as error:
            log.exception("the thread of the store's requests failed")
            self._failed = error
        finally:
            self._finish(multi, self._why_closed())
            poll.close()
            with self._lock:
                os.close(wake_fd)
                os.close(self._wake_fd)
                self._wake_fd = -1

    def _finish(self, multi: Any, failure: Exception) -> None:
        self._closed = True
        for transfer in list(self._transfers.values()):
            multi.remove_handle(transfer.curl)
            transfer.curl.close()
            if transfer.answer is not None:
                transfer.answer.end(failure)
        self._transfers.clear()
        for transfer in self._free:
            transfer.curl.close()
        self._free.clear()
        multi.close()
        for answer in [*self._waiting, *(answer for _, _, answer in self._later)]:
            answer.end(failure)
        while self._commands:
            self._commands.popleft()[1].end(failure)

    def _patience(self, sweep: float) -> float:
        until = self.now + sweep if self._transfers else None
        for due in (self._due, self._later[0][0] if self._later else None):
            if due is not None and (until is None or due < until):
                until = due
        return -1 if until is None else max(0.0, until - self.now)

    def _work(self, multi: Any) -> None:
        """Obey commands, start what may be started, and let paused transfers go on."""
        commands = self._commands
        while commands:
            command, answer = commands.popleft()
            command(answer)
        while self._later and self._later[0][0] <= self.now:
            self._waiting.appendleft(heapq.heappop(self._later)[2])
        waiting = self._waiting
        while waiting:
            permits = self.limiter.take(len(waiting))
            if not permits and not self._all_paused:
                break
            for _ in range(max(1, permits)):
                answer = waiting.popleft()
                answer.permitted = permits > 0
                if answer.ended:
                    self._give_back(answer)
                else:
                    self._start(answer)
        if self._resuming:
            self._resume_paused()
        if self._due is not None and self._due <= self.now:
            self._due = None
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def _resume_paused(self) -> None:
        self._resuming = False
        paused, self.paused = self.paused, []
        for answer in paused:
            if answer.transfer is None:
                continue
            if not answer.has_room():
                self.paused.append(answer)
                continue
            answer.paused = False
            answer.active_at = answer.measured_at = self.now
            try:
                answer.transfer.go_on()
            except pycurl.error as error:
                self._end(answer.transfer, HttpError(str(error.args[-1])))

    @property
    def _all_paused(self) -> bool:
        """Whether every transfer waits for room: the object being delivered may then be the one that is to start."""
        if not self.paused:
            return False
        return all(transfer.answer is None or transfer.answer.paused for transfer in self._transfers.values())

    def _queue(self, answer: HttpAnswer) -> None:
        self._waiting.append(answer)

    def _start(self, answer: HttpAnswer) -> None:
        if answer.ended:
            return
        transfer = self._free.pop() if self._free else _Transfer(self, self.options)
        answer.transfer = transfer
        answer.sent_at = answer.active_at = self.now
        answer.measured_bytes = 0
        try:
            transfer.prepare(answer)
        except (pycurl.error, TypeError, ValueError) as error:
            answer.end(HttpError(f"the request cannot be made: {error}"))
            self._give_back(answer)
            return
        self._transfers[transfer.curl] = transfer
        self._multi.add_handle(transfer.curl)

    def drop(self, answer: HttpAnswer) -> None:
        """End a transfer whose answer is no longer wanted; only in the loop's thread."""
        if answer.transfer is not None:
            self._release(answer.transfer)
        answer.end(TaskClosedError("the request was dropped"))

    def _release(self, transfer: _Transfer) -> None:
        answer = transfer.answer
        self._multi.remove_handle(transfer.curl)
        del self._transfers[transfer.curl]
        transfer.answer = None
        self._free.append(transfer)
        if answer is not None:
            self._give_back(answer)

    def _give_back(self, answer: HttpAnswer, *, succeeded: bool = False) -> None:
        answer.transfer = None
        if answer.permitted:
            answer.permitted = False
            self.limiter.give_back(1, succeeded=succeeded)

    def _collect(self, multi: Any) -> bool:
        """End the answers whose transfers have ended; whether there were any."""
        before = len(self._transfers)
        left = 1
        while left:
            left, done, failed = multi.info_read()
            for curl in done:
                self._end(self._transfers[curl], None)
            for curl, code, message in failed:
                self._end(self._transfers[curl], self._failure(code, message))
        return len(self._transfers) < before

    def _end(self, transfer: _Transfer, failure: HttpError | None) -> None:
        answer = transfer.answer
        self._multi.remove_handle(transfer.curl)
        del self._transfers[transfer.curl]
        transfer.answer = None
        self._free.append(transfer)
        if answer is None:
            return
        status = answer.status_so_far()
        good = failure is None and status < _REFUSALS
        if status in _THROTTLED:
            self.limiter.throttled(answer.sent_at)
        self._give_back(answer, succeeded=good)
        if not answer.ended:
            answer.failure = failure
            answer.complete = True
            # what broke in its body is resumed by its reader, behind what has come
            unseen = not answer.started and (status >= _REFUSALS or not status)
            if answer.retry is not None and not good and unseen and self._again(answer):
                return
        answer.end(failure)

    def _again(self, answer: HttpAnswer) -> bool:
        """Make a request again that was refused or got no answer, if its maker wants that."""
        retry = answer.retry  # whoever gives the answer up meanwhile takes it away
        delay = retry(answer) if retry is not None else None
        if delay is None:
            return False
        if answer.room is not None:
            answer.room.give(answer._size + answer._reserved)  # noqa: SLF001
            answer._reserved = 0  # noqa: SLF001
        answer._begin()  # noqa: SLF001
        heapq.heappush(self._later, (self.now + delay, next(self._numbers), answer))
        return True

    def _failure(self, code: int, message: str) -> HttpError:
        if code == pycurl.E_PARTIAL_FILE:
            return HttpCutError(message)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return HttpConnectTimeoutError(message)
        if code in _TLS:
            message = f"WRONG_VERSION: {message}" if "wrong version" in message.lower() else message
            return HttpTlsError(message if code == pycurl.E_SSL_CONNECT_ERROR else f"CERTIFICATE: {message}")
        if self.options.proxy and (code in _PROXY or "CONNECT tunnel" in message):
            return HttpProxyError(message)
        if code in (pycurl.E_COULDNT_CONNECT, pycurl.E_COULDNT_RESOLVE_HOST):
            return HttpConnectError(message)
        return HttpError(message or _UNNAMED.get(code) or f"libcurl's error {code}")

    def _end_silent(self) -> None:
        limit = self.now - self.options.read_seconds
        for transfer in list(self._transfers.values()):
            answer = transfer.answer
            if answer is None or answer.paused:
                continue
            if answer.active_at > limit:
                self._end_slow(transfer, answer)
                continue
            before = transfer.curl.getinfo(pycurl.PRETRANSFER_TIME)
            if before and max(answer.active_at, answer.sent_at + before) <= limit:
                self._break_off(transfer, f"nothing came for {self.options.read_seconds:g} seconds")

    def _end_slow(self, transfer: _Transfer, answer: HttpAnswer) -> None:
        """End a transfer whose body comes too slowly. It is measured from its first byte, and from its last pause."""
        came, window = transfer.curl.getinfo(pycurl.SIZE_DOWNLOAD_T), 2 * self.options.read_seconds
        if answer.measured_bytes and self.now < answer.measured_at + window:
            return
        if answer.measured_bytes and came - answer.measured_bytes < window * MIN_BYTES_PER_SECOND:
            self._break_off(transfer, f"only {came - answer.measured_bytes:,} bytes came within {window:g} seconds")
            return
        answer.measured_at, answer.measured_bytes = self.now, came

    def _break_off(self, transfer: _Transfer, why: str) -> None:
        """End a transfer and its connection.

        libcurl would keep a shared one, and send each later request over it, as long as no error of the socket comes. It is
        found by its port: libcurl before 8.22 does not tell the socket of a connection that was kept.
        """
        port = transfer.curl.getinfo(pycurl.LOCAL_PORT)
        for fd in self._watched:
            # some are no sockets, or have no port: libcurl's threads that resolve names wake it by them
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                if connection.getsockname()[1:2] == (port,):
                    connection.shutdown(socket.SHUT_RDWR)
        self._end(transfer, HttpReadTimeoutError(why))

    def _watch(self, event: int, fd: int, _multi: Any, _data: Any) -> None:
        """Called by libcurl: which events of a socket it waits for."""
        if event == pycurl.POLL_REMOVE:
            self._watched.discard(fd)
            try:
                self._poll.unregister(fd)
            except OSError:
                return  # closed already, so no longer registered
            return
        self._watched.add(fd)
        try:  # each request of a kept connection begins and ends with a socket that is not registered
            self._poll.register(fd, _EVENTS[event])
        except FileExistsError:
            self._poll.modify(fd, _EVENTS[event])

    def _set_timer(self, milliseconds: int) -> None:
        """Called by libcurl: when it wants to be called without an event."""
        self._due = None if milliseconds < 0 else self.now + milliseconds / 1000


_EVENTS = {
    pycurl.POLL_NONE: 0,
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
_MASKS = {
    select.EPOLLIN: pycurl.CSELECT_IN,
    select.EPOLLOUT: pycurl.CSELECT_OUT,
    select.EPOLLIN | select.EPOLLOUT: pycurl.CSELECT_IN | pycurl.CSELECT_OUT,
}
_TLS = (
    pycurl.E_SSL_CONNECT_ERROR,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CACERT_BADFILE,
    pycurl.E_SSL_CERTPROBLEM,
)
_UNNAMED = {pycurl.E_HTTP2: "the connection over HTTP/2 broke", 100: "a header of the answer is too large"}
"""What libcurl gives no message for; pycurl has no name for the 100."""
_PROXY = (pycurl.E_COULDNT_RESOLVE_PROXY, pycurl.E_COULDNT_CONNECT)

_OF_PARENTS: list[object] = []
"""Handles of a parent process: closing one here would write into the parent's connections."""
