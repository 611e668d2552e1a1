"""All GETs and HEADs of a store in one thread: libcurl's multi interface.

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
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pycurl

from framework.errors import FatalError, TaskClosedError
from framework.storage.http.answer import REFUSALS, WINDOW_BYTES, HttpAnswer, RetryAfter
from framework.storage.http.errors import HttpError, HttpReadTimeoutError
from framework.storage.http.kept_connections import KeptConnections
from framework.storage.http.read_room import FetchBudget, StreamRoom
from framework.storage.http.transfer import HttpOptions, Transfer, failure_of
from framework.storage.listing.limiter import CallLimiter
from framework.store import ReadRoom

log = logging.getLogger(__name__)

MULTIPLEXED_BYTES = 65_536
"""An answer of at most so many bytes may share a connection with others, over HTTP/2: libcurl buffers megabytes of each
larger one whose reader has no room, and of one over HTTP/1.1 nothing."""

MIN_BYTES_PER_SECOND = 100
"""A body that brings fewer, over twice the limit of silence, is broken off; not while its reader has no room."""

DOCUMENT_BYTES_PER_SECOND = 50_000
"""A refusal, and a document such as a listing, may take twice the limit of silence and its size at this rate. Then a
document is broken off, and a refusal judged by what has come: neither may keep a retry from its time."""

CLOSE_SECONDS = 1.0
_SLOWEST_SWEEP_SECONDS = 1.0
_THROTTLED = (429, 503)


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
        self._paused: list[HttpAnswer] = []
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._commands: deque[tuple[Callable[[HttpAnswer], None], HttpAnswer]] = deque()
        self._asleep = False
        self._wake_fd = -1
        self._resuming = False
        self._waiting: deque[HttpAnswer] = deque()
        self._later: list[tuple[float, int, HttpAnswer]] = []
        self._numbers = itertools.count()
        self._transfers: dict[Any, Transfer] = {}
        self._free: list[Transfer] = []
        self._kept = KeptConnections()
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
        is_ahead = room is not None
        is_small = size is not None and size <= MULTIPLEXED_BYTES
        answer = HttpAnswer(self, url, headers, room or _window(), retry, is_ahead=is_ahead, is_small=is_small)
        self.post(self._queue if is_ahead else self._start, answer)
        return answer

    def head(self, url: str, headers: Sequence[str]) -> HttpAnswer:
        """Start a HEAD and return at once."""
        answer = HttpAnswer(self, url, headers, _window(), None, is_head=True)
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
        under_way = [transfer.answer for transfer in self._transfers.values() if transfer.answer is not None]
        for answer in [*under_way, *self._waiting, *(answer for _, _, answer in self._later)]:
            answer.end(failure)
        while self._commands:
            self._commands.popleft()[1].end(failure)
        # not before: libcurl waits here for a name that is being resolved
        for curl in self._transfers:
            multi.remove_handle(curl)
        for transfer in [*self._transfers.values(), *self._free]:
            transfer.curl.close()
        self._transfers.clear()
        self._free.clear()
        multi.close()

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

    def _receive(self, answer: HttpAnswer, data: bytes) -> bool:
        """Hand a piece of a body to its answer; False when the transfer must be paused."""
        answer.active_at = self.now
        if answer.keep(data):
            return True
        answer.paused = True
        self._paused.append(answer)
        return False

    def _resume_paused(self) -> None:
        self._resuming = False
        paused, self._paused = self._paused, []
        for answer in paused:
            if answer.transfer is None:
                continue
            if not answer.has_room():
                self._paused.append(answer)
                continue
            answer.paused = False
            answer.active_at = answer.measured_at = self.now
            try:
                answer.transfer.go_on()
            except pycurl.error as error:
                self._end(answer.transfer, failure_of(0, str(error.args[-1]), proxy=self.options.proxy))

    @property
    def _all_paused(self) -> bool:
        """Whether every transfer waits for room: the object being delivered may then be the one that is to start."""
        if not self._paused:
            return False
        return all(transfer.answer is None or transfer.answer.paused for transfer in self._transfers.values())

    def _queue(self, answer: HttpAnswer) -> None:
        self._waiting.append(answer)

    def _start(self, answer: HttpAnswer) -> None:
        if answer.ended:
            return
        transfer = self._free.pop() if self._free else Transfer(self.options, self._receive, self._kept)
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
            self._give_back(answer)
        answer.end(TaskClosedError("the request was dropped"))

    def _release(self, transfer: Transfer) -> HttpAnswer | None:
        """Free a transfer for the next request; return the answer that it had."""
        answer, transfer.answer = transfer.answer, None
        self._multi.remove_handle(transfer.curl)
        del self._transfers[transfer.curl]
        self._free.append(transfer)
        return answer

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
                failure = failure_of(code, message, proxy=self.options.proxy)
                self._end(self._transfers[curl], failure)
        return len(self._transfers) < before

    def _end(self, transfer: Transfer, failure: HttpError | None) -> None:
        transfer.close_request()
        answer = self._release(transfer)
        if answer is None:
            return
        if transfer.spoilt and not answer.ended:
            self._start(answer)  # each time closes one connection
            return
        status = answer.status_so_far()
        if failure is None and answer.breaks_off_in_head():
            failure = HttpError("the connection ended within the head of the answer")
        good = failure is None and status < REFUSALS
        if status in _THROTTLED:
            self.limiter.throttled(answer.sent_at)
        self._give_back(answer, succeeded=good)
        if not answer.ended:
            answer.failure = failure
            answer.complete = True
            # what broke in its body is resumed by its reader, behind what has come
            unseen = not answer.started and (status >= REFUSALS or not status)
            if answer.retry is not None and not good and unseen and self._again(answer):
                return
        answer.end(failure)

    def _again(self, answer: HttpAnswer) -> bool:
        """Make a request again that was refused or got no answer, if its maker wants that."""
        retry = answer.retry  # whoever gives the answer up meanwhile takes it away
        delay = retry(answer) if retry is not None else None
        if delay is None:
            return False
        answer.begin_again()
        heapq.heappush(self._later, (self.now + delay, next(self._numbers), answer))
        return True

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

    def _end_slow(self, transfer: Transfer, answer: HttpAnswer) -> None:
        """End a transfer whose body comes too slowly. It is measured from its first byte, and from its last pause."""
        came, window = transfer.curl.getinfo(pycurl.SIZE_DOWNLOAD_T), 2 * self.options.read_seconds
        if not answer.measured_bytes:
            answer.began_at = self.now
        elif self.now > answer.began_at + window + came / DOCUMENT_BYTES_PER_SECOND:
            refused = answer.status_so_far() >= REFUSALS
            if refused or answer.is_document:
                why = f"only {came:,} bytes came within {self.now - answer.began_at:.0f} seconds"
                self._break_off(transfer, None if refused else why)
                return
        if answer.measured_bytes and self.now < answer.measured_at + window:
            return
        if answer.measured_bytes and came - answer.measured_bytes < window * MIN_BYTES_PER_SECOND:
            self._break_off(transfer, f"only {came - answer.measured_bytes:,} bytes came within {window:g} seconds")
            return
        answer.measured_at, answer.measured_bytes = self.now, came

    def _break_off(self, transfer: Transfer, why: str | None) -> None:
        """End a transfer and its connection; without a reason as if all had come.

        libcurl would keep a shared one, and send each later request over it, as long as no error of the socket comes. It is
        found by its port: libcurl before 8.22 does not tell the socket of a connection that was kept.
        """
        port = transfer.curl.getinfo(pycurl.LOCAL_PORT)
        for fd in self._watched:
            # some are no sockets, or have no port: libcurl's threads that resolve names wake it by them
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                if connection.getsockname()[1:2] == (port,):
                    connection.shutdown(socket.SHUT_RDWR)
        self._end(transfer, HttpReadTimeoutError(why) if why is not None else None)

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


def _window() -> StreamRoom:
    """Return the room of an answer that is not read ahead."""
    return StreamRoom(FetchBudget(WINDOW_BYTES), is_head=True)


_OF_PARENTS: list[object] = []
"""Handles of a parent process: closing one here would write into the parent's connections."""
