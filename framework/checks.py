"""One line of the command `check`: what was tried, whether it works, and what to do when not."""

from __future__ import annotations

import attrs


@attrs.frozen
class CheckResult:
    """The outcome of one step.

    Attributes:
        step: what was tried, in a word or two: `credentials`, `bucket`, `list`, `read`.
        ok: whether it works.
        detail: one sentence: what was found, or what is wrong and what to do.
    """

    step: str
    ok: bool
    detail: str
