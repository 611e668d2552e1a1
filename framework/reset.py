"""What `offsets reset` forgets: one object, the objects of a prefix, or all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from framework.watermark import Watermark

if TYPE_CHECKING:
    from framework.offsets import OffsetManagerEntry


@attrs.frozen(kw_only=True, slots=True)
class Reset:
    """A choice of objects whose positions are given up, so that they are read again from their first record.

    Attributes:
        key: only the object of that key, all its shares.
        prefix: only objects whose keys begin so. Without either: all.
    """

    key: str | None = None
    prefix: str | None = None

    @property
    def everything(self) -> bool:
        """Whether every position goes."""
        return self.key is None and not self.prefix

    def takes(self, key: str) -> bool:
        """Whether the object of that key is among them."""
        if self.key is not None:
            return key == self.key
        return key.startswith(self.prefix or "")

    def takes_entry(self, entry: OffsetManagerEntry) -> bool:
        """Whether a position goes."""
        return self.everything or self.takes(entry.key)

    def touches(self, prefix: str) -> bool:
        """Whether an object below that prefix can be among them: what is remembered of its listing goes, too."""
        if self.key is not None:
            return self.key.startswith(prefix)
        own = self.prefix or ""
        return own.startswith(prefix) or prefix.startswith(own)

    def opened(self, watermark: Watermark) -> Watermark:
        """The watermark without these objects: they are new then, also those whose positions were folded."""
        if self.everything:
            return Watermark()
        if self.key is not None:
            return watermark.opened(self.key, exactly=True)
        return watermark.opened(self.prefix or "")

    def to_json(self) -> dict[str, str]:
        """The stored form."""
        if self.everything:
            return {"kind": "all"}
        if self.key is not None:
            return {"kind": "key", "key": self.key}
        return {"kind": "prefix", "prefix": self.prefix or ""}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Reset:
        """The inverse of `to_json`.

        Raises:
            KeyError, ValueError: the stored form is none of ours.
        """
        kind = stored["kind"]
        if kind not in {"all", "key", "prefix"}:
            raise ValueError(f"a reset of kind {kind}")
        return cls(
            key=str(stored["key"]) if kind == "key" else None,
            prefix=str(stored["prefix"]) if kind == "prefix" else None,
        )
