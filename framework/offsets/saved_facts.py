"""What is saved with the positions: hints of listings, and the selection of objects."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from framework.offsets.listing_hints import ListingHints
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.table import PositionTable


class HintTable:
    """The listing hints by prefix. Thread-safe.

    Args:
        table: the positions, with what is not saved of them.
        hints: known hints; the table takes ownership and changes them.
    """

    def __init__(self, table: PositionTable, hints: dict[str, ListingHints] | None = None) -> None:
        self._table = table
        self._hints = hints if hints is not None else {}

    def get(self, prefix: str) -> ListingHints | None:
        """Return the hints of the last listing of that prefix."""
        with self._table.lock:
            return self._hints.get(prefix)

    def set(self, prefix: str, hints: ListingHints) -> None:
        """Set the hints for the next listing of that prefix; the next flush writes them."""
        with self._table.lock:
            self._hints[prefix] = self._table.unsaved.listings[prefix] = hints

    def load(self, hints: Mapping[str, ListingHints]) -> None:
        """Add stored hints; hints already here stay."""
        with self._table.lock:
            for prefix, left in hints.items():
                self._hints.setdefault(prefix, left)


class BoundSelection:
    """The selection of objects to which the positions belong. Thread-safe.

    Args:
        table: the positions.
        scope: the selection so far; None when unknown.

    Attributes:
        scope: the present selection.
    """

    def __init__(self, table: PositionTable, scope: SelectionScope | None = None) -> None:
        self._table = table
        self.scope = scope

    def bind(self, scope: SelectionScope) -> None:
        """Bind the positions to a selection; it is written before any position starts.

        Raises:
            PositionError: the positions or the watermark belong to other objects; the message says how to resolve that.
        """
        table = self._table
        with table.compacting, table.lock:
            known = self.scope
            if known is not None:
                scope.check(known, table.watermark)
                table.watermark = scope.left_of(known, table.watermark)
            if not table.watermark.bucket:
                table.watermark = replace(table.watermark, bucket=scope.bucket)
            if known != scope:
                self.scope = table.unsaved.selected = scope

    @property
    def first_start_ms(self) -> int | None:
        """The source's first start with `modified_after = "now"`, in milliseconds since 1970; None before it."""
        return self.scope.oldest_ms if self.scope is not None and self.scope.since_start else None
