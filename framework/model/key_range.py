"""Parts of a bucket's keys: the range that a page of a listing covers completely, and the prefix that a key begins with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

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


def prefix_of(prefixes: Sequence[str], key: str) -> str | None:
    """Return the prefix that a key begins with; None: it begins with none of them.

    Args:
        prefixes: sorted; none begins with another. There may be thousands, and each listed key is looked up.
        key: the key.
    """
    at = bisect_right(prefixes, key) - 1
    return prefixes[at] if at >= 0 and key.startswith(prefixes[at]) else None
