"""Stale-listing guard: limits and spaces listings for objects that could not be read as listed.

Otherwise a store that lists a version and returns another would be asked a thousand times a second, without end.
"""

from __future__ import annotations

import attrs

from framework.errors import ObjectChangedError
from framework.model.objects import NativeObject
from framework.model.positions import OffsetManagerKey

FIRST_PAUSE_SECONDS = 0.1
NOT_GIVEN = "listed, and not given"
"""Why such an object is filtered, in the counts."""

MAX_LISTINGS = 8
"""Maximum of listings in which an object may be released in the version that was listed."""


@attrs.define(eq=False, repr=False, slots=False)
class StaleListingGuard:
    """Guard of a feed that lists as soon as an object was released. The caller must lock.

    An object that every listing shows in another version is read at once, however often: it is being overwritten.

    Attributes:
        pause_seconds: pause before the next listing; 0 the first time, then 0.1 seconds, doubled with each listing.

    Args:
        longest_seconds: maximum pause.
    """

    _longest_seconds: float
    # version, listings, and the number of the last one
    _seen: dict[OffsetManagerKey, tuple[str, int, int]] = attrs.field(factory=dict)
    pause_seconds: float = 0.0

    def begin_listing(self) -> None:
        """Reset the pause: earlier releases have been waited for."""
        self.pause_seconds = 0.0

    def note(self, key: OffsetManagerKey, native: NativeObject, listings: int) -> None:
        """Note the release of an object or a split; `listings` is the number of complete listings."""
        version, times, last = self._seen.get(key, ("", 0, -1))
        if version != native.version:
            times = 1
        elif listings != last:
            times += 1
        self._seen[key] = native.version, times, listings
        if times > 1:
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (times - 2), self._longest_seconds)
            self.pause_seconds = max(self.pause_seconds, pause)

    def check(self, key: OffsetManagerKey, native: NativeObject) -> None:
        """Raise ObjectChangedError if it was released too often in this version."""
        if not self._seen:
            return
        version, times, _ = self._seen.get(key, ("", 0, 0))
        if times >= MAX_LISTINGS and version == native.version:
            raise ObjectChangedError(
                f"{times} times the store said that it was overwritten, and listed version {version} again: it does not give "
                f"what it lists; check the endpoint, and what lies in between",
                location=native.location,
            )
