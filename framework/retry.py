"""Trying again: the one retry policy, and the pause of an iterator that has nothing.

This is tenacity's only door. Every number is explicit; nothing retries for ever, and no wait outlives a stop.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import attrs
import tenacity

from framework.errors import RetriableError, TaskClosedError

T = TypeVar("T")

OnRetry = Callable[[RetriableError, int, float], None]
"""Called before each wait with the error, the number of tries so far, and the seconds that will be waited."""


def pause(seconds: float, stop: threading.Event | None) -> None:
    """Waits, or returns early when `stop` is set. The real pause of a policy; tests give another."""
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


def no_pause(seconds: float, stop: threading.Event | None) -> None:
    """Does not wait: for tests that count tries and not seconds."""


def uniform() -> float:
    """A random number in 0 .. 1. A function of this module, so that a policy pickles without a generator's state."""
    return random.random()  # noqa: S311  # jitter, not a secret


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often and for how long a single call is tried.

    The wait after the n-th failed try is `base_seconds * 2**(n - 1)`, at most `cap_seconds`, less a random part of at
    most `jitter` of it; a longer wait that the other side asked for (`retry_after_seconds`) is kept. A wait that would
    end after `budget_seconds` is not begun. With the defaults eight tries take at most 22.6 seconds of waiting.

    Pickles. Threads may share it: it holds numbers, never the state of a call.

    Attributes:
        attempts: tries in all, the first included.
        base_seconds: the wait after the first failure, before jitter.
        cap_seconds: no wait of its own choosing is longer.
        budget_seconds: tries and waits together, counted from the start of the first try.
        jitter: 0 = exact waits, 1 = anything down to none.
        clock: seconds that only go up.
        wait: waits that many seconds; must return early when the event is set.
        rand: 0 .. 1, for the jitter.
    """

    attempts: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    base_seconds: float = attrs.field(default=0.2, validator=attrs.validators.ge(0))
    cap_seconds: float = attrs.field(default=10.0, validator=attrs.validators.ge(0))
    budget_seconds: float = attrs.field(default=60.0, validator=attrs.validators.ge(0))
    jitter: float = attrs.field(default=0.5, validator=[attrs.validators.ge(0), attrs.validators.le(1)])
    clock: Callable[[], float] = attrs.field(default=time.monotonic, repr=False)
    wait: Callable[[float, threading.Event | None], None] = attrs.field(default=pause, repr=False)
    rand: Callable[[], float] = attrs.field(default=uniform, repr=False)

    def within(self, budget_seconds: float) -> RetryPolicy:
        """The same policy with a smaller budget: for a first contact, where a person is waiting for the answer."""
        return attrs.evolve(self, budget_seconds=min(self.budget_seconds, budget_seconds))

    def without_waiting(self) -> RetryPolicy:
        """The same policy that never waits: for tests."""
        return attrs.evolve(self, wait=no_pause)

    def delay(self, failures: int, asked: float | None = None) -> float:
        """Seconds to wait after that many failures in a row (1, 2, 3 ...); `asked` is what the other side wants."""
        exponential = self.base_seconds * 2.0 ** min(failures - 1, 60)
        seconds = min(exponential, self.cap_seconds) * (1.0 - self.jitter * self.rand())
        return seconds if asked is None else max(seconds, asked)

    def call(
        self,
        fn: Callable[..., T],
        *args: object,
        what: str = "",
        on_retry: OnRetry | None = None,
        stop: threading.Event | None = None,
        **kwargs: object,
    ) -> T:
        """What `fn(*args, **kwargs)` returns, tried again while it raises `RetriableError`.

        `fn` must be a single call that may be repeated; never a loop that hands something out. A call that succeeds at
        once costs nothing but a `try`.

        Args:
            fn: the call.
            *args: for it.
            what: names the call in the message of the last error: `reading s3://b/k`.
            on_retry: told before each wait; for counting and logging.
            stop: when it is set, a wait ends at once and no new try begins.
            **kwargs: for `fn`.

        Raises:
            RetriableError: the last one, of the type `fn` raised, with a sentence on tries and seconds; no try was
                left, or the next wait would not fit into the budget.
            TaskClosedError: `stop` was set while waiting; the last error is its cause.
            Exception: whatever else `fn` raises, at once.
        """
        started = self.clock()
        try:
            return fn(*args, **kwargs)
        except RetriableError as error:
            seen = [error]

        def attempt() -> T:
            # tenacity takes over with the failure that has been seen already: its own first try is that one.
            if seen:
                raise seen.pop()
            return fn(*args, **kwargs)

        return _Again(self, started, what, on_retry, stop).run(attempt)


@attrs.define
class _Again:
    """The slow path of one call: tenacity's loop with the policy's numbers, clock and pause."""

    policy: RetryPolicy
    started: float
    what: str
    on_retry: OnRetry | None
    stop: threading.Event | None
    last: RetriableError | None = None

    def run(self, attempt: Callable[[], T]) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(RetriableError),
            wait=self._delay,
            stop=self._exhausted,
            sleep=self._sleep,
            before_sleep=self._announce,
            retry_error_callback=self._give_up,
        )
        return retrying(attempt)

    def _delay(self, state: tenacity.RetryCallState) -> float:
        return self.policy.delay(state.attempt_number, _error(state).retry_after_seconds)

    def _exhausted(self, state: tenacity.RetryCallState) -> bool:
        elapsed = self.policy.clock() - self.started
        return (
            state.attempt_number >= self.policy.attempts or elapsed + state.upcoming_sleep > self.policy.budget_seconds
        )

    def _announce(self, state: tenacity.RetryCallState) -> None:
        self.last = _error(state)
        if self.on_retry is not None:
            self.on_retry(self.last, state.attempt_number, state.upcoming_sleep)

    def _sleep(self, seconds: float) -> None:
        if self.stop is None or not self.stop.is_set():
            self.policy.wait(seconds, self.stop)
        if self.stop is not None and self.stop.is_set():
            raise TaskClosedError(f"stopped while waiting to try again{_of(self.what)}") from self.last

    def _give_up(self, state: tenacity.RetryCallState) -> NoReturn:
        error = _error(state)
        tries = f"{state.attempt_number} {'try' if state.attempt_number == 1 else 'tries'}"
        elapsed = self.policy.clock() - self.started
        # The error itself, not a new one: its type may want other arguments, and it knows its cause.
        error.args = (f"{error} (gave up{_of(self.what)} after {tries} in {elapsed:.1f} seconds)",)
        raise error


def _of(what: str) -> str:
    return f" {what}" if what else ""


def _error(state: tenacity.RetryCallState) -> RetriableError:
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, RetriableError):  # tenacity asks only after the predicate said yes
        raise TypeError(f"not a retriable outcome: {error!r}")
    return error


@attrs.frozen(kw_only=True)
class BackoffConfig:
    """The pauses of an exhausted iterator.

    The n-th wait in a row (n = 0, 1, 2 ...) is `2**n` milliseconds, at most `cap_seconds * (1 - jitter)`, plus a random
    part of at most a quarter of that: 1 ms, 2 ms ... 2048 ms, 4000 ms, and never above 5 seconds.

    Attributes:
        cap_seconds: no wait is longer.
        jitter: the random part of a wait; 0.2 adds at most a quarter to the exponential part.
    """

    cap_seconds: float = attrs.field(default=5.0, validator=[attrs.validators.gt(0), attrs.validators.le(5.0)])
    jitter: float = attrs.field(default=0.2, validator=[attrs.validators.ge(0), attrs.validators.lt(1)])


class Backoff:
    """Waits longer each time nothing was there, and starts again once something was. For one thread.

    Args:
        config: the numbers.
        wait: waits that many seconds, less when the event is set.
        rand: 0 .. 1, for the jitter.
    """

    def __init__(
        self,
        config: BackoffConfig | None = None,
        *,
        wait: Callable[[float, threading.Event | None], None] = pause,
        rand: Callable[[], float] = uniform,
    ) -> None:
        self._config = config or BackoffConfig()
        self._wait = wait
        self._rand = rand
        self._waits = 0

    @property
    def delay_seconds(self) -> float:
        """The next wait without its jitter. Asking changes nothing."""
        largest = self._config.cap_seconds * (1.0 - self._config.jitter)
        return min(0.001 * 2.0 ** min(self._waits, 60), largest)

    def reset(self) -> None:
        """Something was there: the next wait is the shortest again."""
        self._waits = 0

    def wait(self, stop: threading.Event) -> bool:
        """Waits once, at most `cap_seconds`; True when `stop` is set, at once when that happens."""
        if stop.is_set():
            return True
        exponential = self.delay_seconds
        # Of 4 s the jitter is up to 1 s, of 1 ms up to 0.25 ms: always the same part, and together never above the cap.
        spread = self._config.jitter / (1.0 - self._config.jitter)
        self._waits += 1
        self._wait(exponential * (1.0 + spread * self._rand()), stop)
        return stop.is_set()
