"""A stretch of keys that one page of a listing has shown wholly."""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True)
class Stretch:
    """The keys `after < key <= until`; neither need exist.

    Attributes:
        after: exclusive; empty = from the first key.
        until: inclusive; None = to the end of the prefix.
    """

    after: str
    until: str | None
