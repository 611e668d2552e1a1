"""Which objects are cut into shares, and which of them the reader has in its hands."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from framework.errors import ObjectError
from framework.ids import MAX_SHARE
from framework.offsets import OffsetManager, OffsetManagerKey
from framework.records import Lane, NativeObject
from framework.shares import count_shares

PRUNE_FROM = 1000
"""Objects that were handed out and may be finished: from this many on, or twice what was left, they are looked through."""


def _nothing(_key: str) -> bool:
    return False


@attrs.frozen(kw_only=True)
class Cutter:
    """Decides how an object is cut of which nothing was read yet. One that was begun stays as it was begun.

    Attributes:
        split_size: bytes per share; 0: nothing is cut.
        partitions: of every data topic.
        can_split: whether the format can read an object of that key from the middle.
    """

    split_size: int = 0
    partitions: int = 1
    can_split: Callable[[str], bool] = _nothing

    def size_for(self, native: NativeObject) -> int:
        """Bytes in each share of this object; 0 when it is to be read whole.

        Raises:
            ObjectError: it would have more shares than can be numbered.
        """
        size = self.split_size
        if not size or native.size <= size or not self.can_split(native.key):
            return 0
        shares = count_shares(native.size, size)
        if shares > MAX_SHARE:
            raise ObjectError(
                f"its {native.size:,} bytes would be {shares:,} shares, and there can be {MAX_SHARE:,}; raise [input] split_size",
                location=native.location,
            )
        return size

    def lane(self, first: Lane, share: int) -> Lane:
        """The lane of a share: one after the other from the object's own lane on, so that all have as many."""
        return Lane(first.topic, (first.partition + share - 1) % self.partitions)


@attrs.define
class _Held:
    native: NativeObject
    shares: set[int]
    came_back: bool = False


class InHand:
    """What the reader has: handed out, and neither finished nor given back. Whoever uses it locks it.

    Of one object only one version is in anybody's hands: the next one waits until all shares of it are finished or given
    back. So no share of a version is sent after the first one of the next.

    Attributes:
        awaited: a version was put off because of an older one of which something came back: nobody will finish that one.
    """

    def __init__(self, offsets: OffsetManager) -> None:
        self._offsets = offsets
        self._held: dict[OffsetManagerKey, _Held] = {}
        self._prune_at = PRUNE_FROM
        self.awaited = False

    def __len__(self) -> int:
        return len(self._held)

    def shares(self, key: OffsetManagerKey, version: str) -> Collection[int] | None:
        """The shares of this version that are in hand, {0} for a whole object; None while another version is.

        Args:
            key: the object's.
            version: the one that could be handed out.
        """
        held = self._held.get(key)
        if held is None:
            return frozenset()
        self._strike(key, held)
        if not held.shares:
            return frozenset()
        if held.native.version != version:
            self.awaited |= held.came_back
            return None
        return held.shares

    def take(self, key: OffsetManagerKey, native: NativeObject, share: int) -> None:
        """Notes that a share is handed out; nothing of another version may be in hand."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = _Held(native, {share})
        else:
            held.shares.add(share)

    def give_back(self, key: OffsetManagerKey, share: int, *, gone: bool) -> None:
        """Strikes out what the reader could not finish."""
        held = self._held.get(key)
        if held is None:
            return
        held.shares.discard(share)
        held.came_back |= not gone
        if not held.shares:
            del self._held[key]

    def prune(self) -> None:
        """Forgets what is finished, now and then, so that it does not pile up."""
        if len(self._held) < self._prune_at:
            return
        for key, held in list(self._held.items()):
            self._strike(key, held)
        self._prune_at = max(PRUNE_FROM, 2 * len(self._held))

    def keys(self) -> list[str]:
        """The keys of the objects that are in hand now, sorted."""
        for key, held in list(self._held.items()):
            self._strike(key, held)
        return sorted(held.native.key for held in self._held.values())

    def _strike(self, key: OffsetManagerKey, held: _Held) -> None:
        native = held.native
        for share in list(held.shares):
            if self._offsets.is_finished(key.of_share(share), native.key, native.version, native.modified_ms):
                held.shares.discard(share)
        if not held.shares:
            del self._held[key]
