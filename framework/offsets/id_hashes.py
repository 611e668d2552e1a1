"""The hashes of message ids of objects in progress: no two objects have the same one.

Progress and messages name their object by its hash alone. XXH3 has no secret: whoever chooses keys can make two with one
hash, and then the progress of one object would count as the other's. So the second one begins in a later generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from framework.model.message_ids import entry_hash64
from framework.model.positions import OffsetManagerEntry

PRUNE_FROM = 1000
"""Number of hashes at which those of ended objects are first removed; then at twice the number that remained."""


class Identities:
    """The hashes of objects in progress. Not thread-safe.

    Args:
        source: name of the source.
        in_progress: returns the positions that may still get progress.
    """

    def __init__(self, source: str, in_progress: Callable[[], Iterable[OffsetManagerEntry]]) -> None:
        self._source = source
        self._in_progress = in_progress
        self._objects: dict[int, tuple[str, str]] = {}
        self._highest = self._prune_at = 0

    def take(self, entry: OffsetManagerEntry) -> OffsetManagerEntry:
        """Return the position in its own or a later generation whose hash no other object has; take that hash.

        Args:
            entry: the position before it starts, or the first of its splits: they share the hash.
        """
        if len(self._objects) >= self._prune_at:
            in_progress = self._in_progress()
            self._objects = {entry_hash64(self._source, other): (other.bucket, other.key) for other in in_progress}
            self._prune_at = max(PRUNE_FROM, 2 * len(self._objects))
        own = entry.bucket, entry.key
        while self._objects.setdefault(entry_hash64(self._source, entry), own) != own:
            # above all that were chosen so: of many objects with one hash, each finds its generation at once
            self._highest = max(self._highest, entry.generation) + 1
            entry = entry.changed(generation=self._highest)
        return entry
