"""Rigs of our own. The reference, over a store in memory, is shipped: framework.testing.fakes.memory_rig."""

import json

from framework.errors import PositionError
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.offset_store import MemoryOffsetStore, PositionDelta
from framework.testing.fakes.memory_rig import MemoryRig, bad_line, json_lines
from framework.testing.rig import Capability

__all__ = ["MemoryRig", "OwnStoreRig", "TextStore", "bad_line", "json_lines"]


class TextStore(MemoryOffsetStore):
    """Positions as one JSON text."""

    def __init__(self, text='{"layout": 1, "positions": []}'):
        super().__init__()
        self.text = text
        if json.loads(text)["layout"] == 1:
            super().save(PositionDelta(entries=list(self.load())))

    def load(self, keys=None):
        stored = json.loads(self.text)
        if stored["layout"] != 1:
            raise PositionError(
                f"positions of layout {stored['layout']}: read everything again, or use a newer version"
            )
        for key, properties in stored["positions"]:
            yield OffsetManagerEntry.from_properties(OffsetManagerKey.of(key), properties)

    def save(self, delta):
        super().save(delta)
        positions = [[dict(entry.get_manager_key().properties), entry.get_properties()] for entry in super().load()]
        self.text = json.dumps({"layout": 1, "positions": positions})


class OwnStoreRig(MemoryRig):
    """The reference with a store of positions of its own."""

    capabilities = frozenset(Capability)
    store_class = TextStore

    def offset_store(self):
        return self.store_class()

    def reopen(self, store):
        return self.store_class(store.text)

    def spoil(self, store):
        store.text = store.text.replace('"layout": 1', '"layout": 7')
