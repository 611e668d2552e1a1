"""A filter of positions, and of dead letters: one object, the objects of a prefix, or all."""

from __future__ import annotations

import attrs

from framework.offsets.watermark import Watermark


@attrs.frozen(kw_only=True, slots=True)
class PositionFilter:
    """A filter by the object.

    Attributes:
        key: only the object of that key, with all its splits.
        prefix: only objects whose keys begin with it. Without key and prefix: all objects.
        bucket: only dead letters of objects in it; None: in every bucket.
    """

    key: str | None = None
    prefix: str | None = None
    bucket: str | None = None

    @property
    def everything(self) -> bool:
        """Whether it selects every position."""
        return self.key is None and not self.prefix

    def takes(self, key: str) -> bool:
        """Return whether it selects the object of that key."""
        if self.key is not None:
            return key == self.key
        return key.startswith(self.prefix or "")

    def takes_object(self, bucket: str, key: str) -> bool:
        """Return whether it selects dead letters of that object."""
        return self.takes(key) and self.bucket in {None, bucket}

    def touches(self, prefix: str) -> bool:
        """Return whether it may select an object below that prefix: a reset then drops the listing hints, too."""
        if self.key is not None:
            return self.key.startswith(prefix)
        own = self.prefix or ""
        return own.startswith(prefix) or prefix.startswith(own)

    def removed_from(self, watermark: Watermark) -> Watermark:
        """Return the watermark without these objects: they are new again, including those with compacted positions."""
        if self.everything:
            return Watermark()
        if self.key is not None:
            return watermark.without(self.key, exactly=True)
        return watermark.without(self.prefix or "")
