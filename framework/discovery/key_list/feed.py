"""Passes over the objects that a list names; the list hears what comes back from the reader, and what is put off."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from framework.discovery.feed import Assignment, ListingFeed
from framework.discovery.filters import FilterReason
from framework.discovery.key_list.resolver import NamedObjects
from framework.model.objects import NativeObject

_YOUNG = FilterReason.TOO_YOUNG.value


class NamedFeed(ListingFeed):
    """Passes of which most look only at what came back or was put off, while the list is not rewritten.

    Args:
        named: the list.
        **options: of `ListingFeed`; its listing is `named.objects`.
    """

    def __init__(self, named: NamedObjects, **options: Any) -> None:
        super().__init__(**options)
        self._named = named
        self._whole_filtered: dict[str, int] = {}

    @override
    def _end_listing(self) -> None:
        """What was left out is that of the last pass over the whole list."""
        super()._end_listing()
        filtered = self.counts.filtered
        if self._named.whole:
            self._whole_filtered = dict(filtered)
        else:
            # each that was too young was looked at in this pass, too
            kept = {reason: count for reason, count in self._whole_filtered.items() if reason != _YOUNG}
            filtered = kept | {reason: count for reason, count in filtered.items() if reason == _YOUNG}
        self.counts.filtered = {**filtered, **self._named.filtered()}

    @override
    def _defer(self, native: NativeObject) -> None:
        self._named.defer(native.key)

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Has the next pass look the object up, unless it is gone; its row in the list is not believed any more."""
        self._named.released(
            assignment.native.key, gone=gone and not assignment.archived
        )  # before the next pass can begin
        super().release(assignment, gone=gone)
