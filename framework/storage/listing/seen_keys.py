"""Keys that a listing of an unordered store has already handed out."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from framework.model.objects import NativeObject


class SeenKeys:
    """Hashes (64 bits) of keys already handed out: 1 in 10**12 keys would be mistaken for one of a million."""

    def __init__(self, hashes: array[int] | None) -> None:
        self._sorted: np.ndarray | None = None
        if hashes:
            import numpy as np  # noqa: PLC0415 - only for a store without order

            self._sorted = np.unique(np.frombuffer(hashes, dtype=np.int64))

    def without(self, objects: list[NativeObject]) -> list[NativeObject]:
        """Return the objects whose keys were not handed out yet."""
        if self._sorted is None or not objects:
            return objects
        wanted = [hash(native.key) for native in objects]
        at = self._sorted.searchsorted(wanted)
        last = len(self._sorted) - 1
        return [
            native
            for native, place, number in zip(objects, at, wanted, strict=True)
            if place > last or self._sorted[place] != number
        ]
