"""Feed of the objects that a key list names. Released and deferred objects are reported to the list."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from framework.discovery.key_list.resolver import KeyListResolver
from framework.discovery.listing_feed import ListingFeed
from framework.discovery.object_feed import Assignment
from framework.discovery.object_filters import FilterReason
from framework.discovery.routing import Router
from framework.model.objects import NativeObject

_YOUNG = FilterReason.TOO_YOUNG.value


class KeyListFeed(ListingFeed):
    """Lists only released and deferred objects again, as long as the key list is unchanged.

    The whole list is read again once a topic is usable that was refused: its objects were skipped.

    Args:
        named: the objects of the list.
        router: what the selection asks for the topic of an object.
        **options: of `ListingFeed`; its listing is `named.objects`.
    """

    def __init__(self, named: KeyListResolver, router: Router, **options: Any) -> None:
        super().__init__(**options)
        self._named = named
        self._router = router
        self._whole_filtered: dict[str, int] = {}

    @override
    def _begin_listing(self) -> bool:
        refused = self._router.refused_topics
        begun = super()._begin_listing()
        if self._router.refused_topics < refused:
            self._named.read_again()
        return begun

    @override
    def _end_listing(self) -> None:
        """Count filtered objects as of the last listing over the whole list."""
        super()._end_listing()
        filtered = self.counts.filtered
        if self._named.whole:
            self._whole_filtered = dict(filtered)
            self._objects.offsets.tracker.end_key_list()
        else:
            # each that was too young was looked at in this pass, too
            kept = {reason: count for reason, count in self._whole_filtered.items() if reason != _YOUNG}
            filtered = kept | {reason: count for reason, count in filtered.items() if reason == _YOUNG}
        self.counts.filtered = {**filtered, **self._named.filtered()}

    @override
    def defer(self, native: NativeObject) -> None:
        super().defer(native)
        self._named.defer(native.key)

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Look the object up in the next listing, unless it is gone. Its row in the list is not trusted any more."""
        gone_for_good = gone and not assignment.archived
        self._named.released(assignment.native.key, gone=gone_for_good)  # before the next listing can begin
        super().release(assignment, gone=gone)
