"""Conditions on the version of objects that a store lists without an ETag."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from framework.errors import ObjectChangedError
from framework.model.objects import NativeObject
from s3_source.object_version import condition_of

MAX_PINS = 4096


class VersionConditions:
    """Conditions from the first answer of objects that are listed without ETag, so that a resumed read stays with them.

    Threads share it. The oldest are dropped: each is needed only while its object is read.
    """

    def __init__(self) -> None:
        self._conditions: dict[tuple[str, str], dict[str, str]] = {}

    def of(self, native: NativeObject) -> dict[str, str]:
        """Return the conditions of the next request; empty before the first answer."""
        return self._conditions.get((native.key, native.version), {})

    def check(self, native: NativeObject, headers: Mapping[str, str]) -> None:
        """Compare an answer with the first one, for stores that ignore conditions.

        Raises:
            ObjectChangedError: they differ.
        """
        now = condition_of(headers)
        for name, pinned in self.of(native).items():
            if now.get(name, pinned) != pinned:
                self.drop(native, self.of(native))
                error = ObjectChangedError(
                    f"it was overwritten while it was read ({now[name]}, {pinned} at first)", location=native.location
                )
                error.in_place = True
                raise error

    def drop(self, native: NativeObject, conditions: Mapping[str, str]) -> None:
        """Forget these conditions, which no answer fulfils any more; no effect when others are kept by now."""
        place = (native.key, native.version)
        if self._conditions.get(place) == conditions:
            self._conditions.pop(place, None)

    def remember(self, native: NativeObject, headers: Mapping[str, str]) -> None:
        """Keep the conditions of an answer, unless an earlier answer gave some."""
        if len(self._conditions) >= MAX_PINS:
            with contextlib.suppress(StopIteration, KeyError, RuntimeError):  # another thread does the same
                del self._conditions[next(iter(self._conditions))]
        self._conditions.setdefault((native.key, native.version), condition_of(headers))
