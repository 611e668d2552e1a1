"""The pauses of an idle reader: 1 ms, 2 ms and so on, up to 5 seconds."""

from __future__ import annotations

import attrs

from framework.storage.retry import RetryPolicy


@attrs.frozen(kw_only=True)
class BackoffConfig:
    """The pauses of an exhausted iterator.

    The n-th wait in a row (n = 0, 1, 2 ...) is `2**n` milliseconds, at most `cap_seconds * (1 - jitter)`, plus a random
    part of at most a quarter of that: 1 ms, 2 ms ... 2048 ms, 4000 ms, and never above 5 seconds.

    Attributes:
        cap_seconds: maximum wait.
        jitter: the random part of a wait; 0.2 adds at most a quarter to the exponential part.
    """

    cap_seconds: float = attrs.field(default=5.0, validator=[attrs.validators.gt(0), attrs.validators.le(5.0)])
    jitter: float = attrs.field(default=0.2, validator=[attrs.validators.ge(0), attrs.validators.lt(1)])

    def policy(self) -> RetryPolicy:
        """Return the policy whose delays are these waits."""
        return RetryPolicy(base_seconds=0.001 / (1 - self.jitter), cap_seconds=self.cap_seconds, jitter=self.jitter)
