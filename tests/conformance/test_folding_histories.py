"""Histories on the store in memory while positions fold as soon as they can, with no window for late arrivals at all.

The store tells its time, and each change is a second younger: so nothing is older than it says, and the window may be 0.
"""

import attrs

from framework.engine import snapshots
from framework.offsets import OffsetManager
from framework.testing.kit import check
from framework.testing.memory import FIRST_TIME_MS, MemoryStore
from framework.testing.memory_rig import MemoryRig


class TimedStore(MemoryStore):
    def list_page(self, **arguments):
        page = super().list_page(**arguments)
        return attrs.evolve(page, server_time_ms=FIRST_TIME_MS + 1000 * self._changes)


class FoldingRig(MemoryRig):
    examples = 60

    def __init__(self):
        super().__init__()
        self.store = TimedStore()

    def make_task(self, options):
        return super().make_task({**options, "late_arrival_window": 0.0})


def test_histories_lose_and_repeat_nothing_while_positions_fold_at_once(monkeypatch):
    monkeypatch.setattr(snapshots, "FOLD_FROM", 1)
    monkeypatch.setattr(snapshots, "SNAPSHOT_DELTAS", 1)
    monkeypatch.setattr(snapshots, "SETTLE_SECONDS", 0.0)
    folded = []
    is_folded = OffsetManager.is_folded

    def watched(self, *arguments):
        answer = is_folded(self, *arguments)
        folded.append(bool(answer))
        return answer

    monkeypatch.setattr(OffsetManager, "is_folded", watched)
    assert check("H1", FoldingRig(), seed=2).comparisons > 300
    assert any(folded)
