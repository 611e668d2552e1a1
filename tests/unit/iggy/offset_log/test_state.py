"""What a writer's progress does to the state of the log."""

import attrs

from framework.iggy.offset_log.codec import Progress, ProgressItem
from framework.iggy.offset_log.state import LogState
from framework.model.message_ids import entry_hash64
from tests.support.positions import position

OF_A = entry_hash64("kit", position("a"))


def test_progress_of_the_owner_changes_every_count_and_nothing_else():
    before = position("a")
    state = LogState(source="kit")
    state.begin([before])
    state.owners[before.topic_partition] = "owner"
    item = ProgressItem(
        object_hash=OF_A,
        split_number=before.split_number,
        saved=3,
        sent=5,
        total=9,
        failed=True,
        skipped=2,
        extra={"row": 7},
    )
    after = attrs.evolve(
        before, records_saved=3, records_done=5, total=9, failed=True, skipped=2, mark=None, extra={"row": 7}
    )
    assert state.advance(Progress(items=[item]), "another") == []
    assert state.find(OF_A, before.split_number) == before
    assert state.advance(Progress(items=[item]), "owner") == [(before, after)]
    assert state.find(OF_A, before.split_number) == after
