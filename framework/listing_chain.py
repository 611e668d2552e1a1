"""One chain of pages, for a store whose listing is in no order: what notices circles, and what was handed out before."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from framework.errors import ListingError
from framework.records import NativeObject
from framework.store import ListPage

if TYPE_CHECKING:
    import numpy as np


class Chain:
    """Notices a chain of pages that goes in a circle, of any length, with one page remembered (Brent, 1980)."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._kept: tuple[str | None, str, str] | None = None
        self._last: str | None = None
        self._pages = 0

    def check(self, page: ListPage) -> None:
        """Takes in the next page.

        Raises:
            ListingError: it was there before.
        """
        first, last = (page.objects[0].key, page.objects[-1].key) if page.objects else ("", "")
        one = (page.continuation, first, last)
        again = self._kept is not None and (one == self._kept or (first != "" and one[1:] == self._kept[1:]))
        if again or (page.continuation is not None and page.continuation == self._last):
            raise ListingError(f"{self._where}: a page of the listing, {first!r} to {last!r}, repeats itself; stopped")
        self._pages += 1
        self._last = page.continuation
        if self._pages & (self._pages - 1) == 0:  # 1, 2, 4, 8 ... pages
            self._kept = one


class Hashes:
    """Keys that were handed out already, as 64-bit hashes: one in 10**12 keys would be taken for one of a million."""

    def __init__(self, hashes: array[int] | None) -> None:
        self._sorted: np.ndarray | None = None
        if hashes:
            import numpy as np  # noqa: PLC0415 - only for a store without order

            self._sorted = np.unique(np.frombuffer(hashes, dtype=np.int64))

    def without(self, objects: list[NativeObject]) -> list[NativeObject]:
        """Those that are not among them."""
        if self._sorted is None or not objects:
            return objects
        wanted = [hash(one.key) for one in objects]
        at = self._sorted.searchsorted(wanted)
        last = len(self._sorted) - 1
        return [
            one
            for one, place, number in zip(objects, at, wanted, strict=True)
            if place > last or self._sorted[place] != number
        ]
