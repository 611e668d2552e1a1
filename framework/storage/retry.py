"""The one retry policy.

The only use of tenacity. Every number is explicit; every retry is bounded, and no wait outlives a stop.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import attrs
import tenacity

from framework.errors import RetriableError, TaskClosedError, drop_tracebacks

T = TypeVar("T")

OnRetry = Callable[[RetriableError, int, float], None]
"""Called before each wait with the error, the number of tries so far, and the seconds to wait."""


def pause(seconds: float, stop: threading.Event | None) -> None:
    """Sleep, or return early when `stop` is set. The default wait of a policy; tests replace it."""
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


def no_pause(seconds: float, stop: threading.Event | None) -> None:
    """Return at once: for tests that count tries and not seconds."""


def uniform() -> float:
    """Return a random number in 0 .. 1. A module function, so that a policy pickles without a generator's state."""
    return random.random()  # noqa: S311  # jitter, not a secret


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """Limits on the tries, waits and total time of a single call.

    The wait after the n-th failed try is `base_seconds * 2**(n - 1)`, at most `cap_seconds`, less a random part of at
    most `jitter` of it. A wait that would end after `budget_seconds` is not started. With the defaults, eight tries
    take at most 22.6 seconds of waiting.

    A longer wait that the other side requests (`retry_after_seconds`) is a hint: it is honored up to `cap_seconds`, and
    as far as it leaves time for every other try. MinIO requests a minute with each 503, whatever its cause.

    Picklable and thread-safe: it holds numbers, never the state of a call.

    Attributes:
        attempts: maximum of tries, including the first.
        base_seconds: the wait after the first failure, before jitter.
        cap_seconds: maximum wait.
        budget_seconds: limit of tries and waits together, counted from the start of the first try.
        jitter: 0 = exact waits, 1 = any part of the wait may be removed.
        clock: monotonic seconds.
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
        """Return the policy with a smaller budget, for a first contact, where a user is waiting for the answer."""
        return self if budget_seconds >= self.budget_seconds else attrs.evolve(self, budget_seconds=budget_seconds)

    def without_waiting(self) -> RetryPolicy:
        """Return the policy without waits, for tests."""
        return attrs.evolve(self, wait=no_pause)

    def delay(self, failures: int, asked: float | None = None, elapsed_seconds: float = 0.0) -> float:
        """Return the seconds to wait after that many failures in a row (1, 2, 3 ...).

        Args:
            failures: failures of this call so far.
            asked: the wait that the other side requested; None if it did not.
            elapsed_seconds: time since the first try began.
        """
        exponential = self.base_seconds * 2.0 ** min(failures - 1, 60)
        seconds = min(exponential, self.cap_seconds) * (1.0 - self.jitter * self.rand())
        if asked is None:
            return seconds
        left = (self.budget_seconds - elapsed_seconds) / (1 + max(1, self.attempts - failures))
        return max(seconds, min(asked, self.cap_seconds, left))

    def call(
        self,
        fn: Callable[..., T],
        *args: object,
        what: str = "",
        failed: RetriableError | None = None,
        on_retry: OnRetry | None = None,
        stop: threading.Event | None = None,
        **kwargs: object,
    ) -> T:
        """Return `fn(*args, **kwargs)`, retried while it raises `RetriableError`.

        `fn` must be a single repeatable call, never a loop that yields results. A call that succeeds at once costs only
        a `try`.

        Args:
            fn: the call.
            *args: its arguments.
            what: names the call in the message of the last error: `reading s3://b/k`.
            failed: the failure of the first try, if there was one already.
            on_retry: called before each wait, for counting and logging.
            stop: when set, ends a wait at once, and no further try begins.
            **kwargs: its keyword arguments.

        Raises:
            RetriableError: the last error, of the type `fn` raised, with tries and seconds in its message; no try was
                left, or the next wait would not fit into the budget.
            TaskClosedError: `stop` was set while waiting; the last error is its cause.
            Exception: any other error of `fn`, at once.
        """
        started = self.clock()
        if failed is None:
            try:
                return fn(*args, **kwargs)
            except RetriableError as error:
                failed = error
        seen = [failed]

        def attempt() -> T:
            # tenacity starts with the failure already seen: it counts as its own first try.
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
        elapsed = self.policy.clock() - self.started
        return self.policy.delay(state.attempt_number, _error(state).retry_after_seconds, elapsed)

    def _exhausted(self, state: tenacity.RetryCallState) -> bool:
        elapsed = self.policy.clock() - self.started
        return (
            state.attempt_number >= self.policy.attempts or elapsed + state.upcoming_sleep > self.policy.budget_seconds
        )

    def _announce(self, state: tenacity.RetryCallState) -> None:
        self.last = _error(state)
        if self.on_retry is not None:
            self.on_retry(self.last, state.attempt_number, state.upcoming_sleep)
        drop_tracebacks(self.last)  # its frames hold what was read so far

    def _sleep(self, seconds: float) -> None:
        if self.stop is None or not self.stop.is_set():
            self.policy.wait(seconds, self.stop)
        if self.stop is not None and self.stop.is_set():
            raise TaskClosedError(f"stopped while waiting to try again{_of(self.what)}") from self.last

    def _give_up(self, state: tenacity.RetryCallState) -> NoReturn:
        error = _error(state)
        tries = f"{state.attempt_number} {'try' if state.attempt_number == 1 else 'tries'}"
        elapsed = self.policy.clock() - self.started
        # Raise the error itself, not a new one: its type may need other arguments, and it keeps its cause.
        error.args = (f"{error} (gave up{_of(self.what)} after {tries} in {elapsed:.1f} seconds)",)
        raise error


def _of(what: str) -> str:
    return f" {what}" if what else ""


def _error(state: tenacity.RetryCallState) -> RetriableError:
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, RetriableError):  # tenacity asks only after the predicate accepted
        raise TypeError(f"not a retriable outcome: {error!r}")
    return error
