"""A range of keys that a page of a listing covers completely."""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True)
class KeyRange:
    """The keys `after < key <= until`; neither key needs to exist.

    Attributes:
        after: exclusive; empty = from the first key.
        until: inclusive; None = to the end of the prefix.
    """

    after: str
    until: str | None
