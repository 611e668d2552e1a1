"""Objects whose records other options number, before a leader of several tasks begins them anew: what was sent counts."""

import pytest

from framework.engine.session import Session
from framework.errors import PositionMismatchError, ReaderFailedError
from framework.model.positions import canonical_options
from tests.support.positions import Source, kinds


def killed_before_it_saved():
    """A source that has sent some of an object, of which its log knows only the begin."""
    for at in range(1, 200):
        source = Source({"a": 9}, partitions=2)
        source.live(at)
        if source.payloads() and "progress" not in kinds(source.server):
            return source
    raise AssertionError("no such kill")


@pytest.mark.parametrize(("others", "found"), [("none", 4), ("auto", 0)])
def test_a_leader_counts_what_was_sent_where_other_options_number_the_records(others, found):
    """Before its workers do: they may take seconds to start, and the listing decides earlier."""
    source = killed_before_it_saved()
    connection = source.server.connect()
    session = Session.begin(connection, source.rig.make_task({"partitions": 2})[1], several_writers=True)
    session.open_forgetful_partitions()
    (entry,) = session.offsets.table.entries()
    assert entry.records_done == 0, "the log knows only the begin"
    session.open_renumbered_partitions(canonical_options({"compression": others, "format": "jsonl"}))
    (entry,) = session.offsets.table.entries()
    assert entry.records_done == found
    connection.close()


@pytest.mark.parametrize("tasks", [1, 2])
def test_what_was_sent_and_not_saved_keeps_an_object_from_beginning_anew(tasks):
    source = killed_before_it_saved()
    sent = source.payloads()
    later = Source({}, rig=source.rig, server=source.server, partitions=2, tasks_max=tasks, compression="none")
    with pytest.raises(
        (PositionMismatchError, ReaderFailedError), match=r"numbers records in another way.*offsets reset --key a"
    ):
        later.live()
    assert later.payloads() == sent


@pytest.mark.parametrize("tasks", [1, 2])
def test_an_object_of_which_nothing_was_sent_begins_anew(tasks):
    for at in range(1, 200):
        source = Source({"a": 9}, partitions=2)
        source.live(at)
        if "begin" in kinds(source.server) and not source.payloads():
            break
    later = Source({}, rig=source.rig, server=source.server, partitions=2, tasks_max=tasks, compression="none")
    later.live()
    assert later.payloads() == source.once()
