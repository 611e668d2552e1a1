"""Histories on the store in memory while positions are compacted as soon as they can be, with no window for late arrivals at all.

The store tells its time, and each change is a second younger: so nothing is older than it says, and the window may be 0.
"""

import attrs

from framework.engine import session
from framework.iggy.offset_log import snapshots
from framework.offsets.table import PositionTable
from framework.testing.fakes.memory_rig import MemoryRig
from framework.testing.fakes.memory_store import FIRST_TIME_MS, MemoryStore
from framework.testing.kit import check


class TimedStore(MemoryStore):
    def list_page(self, **arguments):
        page = super().list_page(**arguments)
        return attrs.evolve(page, server_time_ms=FIRST_TIME_MS + 1000 * self._changes)


class CompactingRig(MemoryRig):
    examples = 60

    def __init__(self):
        super().__init__()
        self.store = TimedStore()

    def make_task(self, options):
        return super().make_task({**options, "allowed_lateness": 0.0})


def test_histories_lose_and_repeat_nothing_while_positions_are_compacted_at_once(monkeypatch):
    monkeypatch.setattr(snapshots, "COMPACT_FROM", 1)
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 1)
    monkeypatch.setattr(session, "COMPACT_SHARE", 10**9)
    compacted = []
    is_compacted = PositionTable.is_compacted

    def watched(self, *arguments):
        answer = is_compacted(self, *arguments)
        compacted.append(bool(answer))
        return answer

    monkeypatch.setattr(PositionTable, "is_compacted", watched)
    assert check("H1", CompactingRig(), seed=2).comparisons > 300
    assert any(compacted)
