"""Objects that came back to a feed because they could not be read as listed: pauses between the passes made for them, and an end.

A store that lists a version and gives another would be asked a thousand times a second otherwise, and for ever.
"""

from __future__ import annotations

from framework.errors import ObjectChangedError
from framework.offsets import OffsetManagerKey
from framework.records import NativeObject

FIRST_PAUSE_SECONDS = 0.1
NOT_GIVEN = "listed, and not given"
"""Why such an object is left out, in the counts."""

MOST_PASSES = 8
"""In so many passes an object may come back in the version that was listed."""


class CameBack:
    """For a feed that makes a pass as soon as something came back. The caller holds a lock.

    An object of which each pass lists another version is read at once, however often: it is overwritten.

    Attributes:
        pause_seconds: before the next pass; 0 the first time, then 0.1 seconds, doubled with each pass.

    Args:
        longest_seconds: no pause is longer.
    """

    def __init__(self, longest_seconds: float) -> None:
        self._longest = longest_seconds
        self._seen: dict[OffsetManagerKey, tuple[str, int, int]] = {}  # version, passes, the last one
        self.pause_seconds = 0.0

    def begin_pass(self) -> None:
        """What came back before has been waited for."""
        self.pause_seconds = 0.0

    def note(self, key: OffsetManagerKey, native: NativeObject, passes: int) -> None:
        """It came back, or a share of it, when so many passes were over."""
        version, times, last = self._seen.get(key, ("", 0, -1))
        if version != native.version:
            times = 1
        elif passes != last:
            times += 1
        self._seen[key] = native.version, times, passes
        if times > 1:
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (times - 2), self._longest)
            self.pause_seconds = max(self.pause_seconds, pause)

    def check(self, key: OffsetManagerKey, native: NativeObject) -> None:
        """Raises ObjectChangedError when it came back too often in this version."""
        version, times, _ = self._seen.get(key, ("", 0, 0))
        if times >= MOST_PASSES and version == native.version:
            raise ObjectChangedError(
                f"{times} times the store said that it was overwritten, and listed version {version} again: it does not give "
                f"what it lists; check the endpoint, and what lies in between",
                location=native.location,
            )
