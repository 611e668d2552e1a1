"""`modified_after = "now"`: the time of the source's first start, by the store's clock, however often it starts."""

import logging

import attrs
import pytest

from framework.engine.positions_admin import reset_positions
from framework.offsets.position_filter import PositionFilter
from framework.testing.options import source_config
from tests.support.compaction import ClockStore, Leader


@pytest.fixture
def store():
    made = ClockStore()
    made.put_now("before")
    pass_time(made)
    return made


def pass_time(store, seconds=60):
    store.now_ms += 1000 * seconds


def source(store, **options):
    one = Leader(store, **{"modified_after": "now", **options})
    one.quiet()
    return one


def change(one, **options):
    one.config = source_config(**{**one.options, **options})


def read(one):
    """Keys of what is in the topic once nothing is left to do."""
    one.quiet()
    return sorted({payload.split("@")[0] for payload in one.stored()})


def test_what_appears_while_the_source_is_stopped_is_read(store):
    one = source(store)
    assert read(one) == []
    for number in range(3):
        pass_time(store)
        store.put_now(f"later {number}")
        pass_time(store)
        one.start()
        assert read(one) == [f"later {earlier}" for earlier in range(number + 1)]


def test_also_when_the_first_start_was_killed_before_it_saved_a_position(store):
    one = Leader(store, modified_after="now")
    one.take()
    pass_time(store)
    store.put_now("later")
    pass_time(store)
    one.start()  # the first one saved no position
    assert read(one) == ["later"]


def test_also_when_positions_were_compacted_and_snapshots_written(store):
    one = source(store, allowed_lateness="10s")
    store.put_now("later 0")
    one.quiet()
    pass_time(store)
    one.quiet()
    one.compact()
    store.put_now("later 1")
    pass_time(store)
    one.start()
    assert read(one) == ["later 0", "later 1"]


@pytest.mark.parametrize(("here_ahead", "answers_ahead"), [(0, 0), (3600, 0), (0, 3600)])
def test_the_earlier_one_of_two_clocks_decides(store, monkeypatch, here_ahead, answers_ahead):
    monkeypatch.setattr("time.time", lambda: store.now_ms / 1000 + here_ahead)
    tell = store.list_page
    ahead_ms = 1000 * answers_ahead
    store.list_page = lambda **call: attrs.evolve(tell(**call), server_time_ms=store.now_ms // 1000 * 1000 + ahead_ms)
    one = source(store)
    store.put_now("in the second of the start")
    assert read(one) == ["in the second of the start"]


def test_now_in_place_of_a_date_is_the_present_and_then_stays(store):
    one = source(store, modified_after="2020-01-01")
    assert read(one) == ["before"]
    store.put_now("unread")
    pass_time(store)
    change(one, modified_after="now")
    one.start()
    assert read(one) == ["before"]
    store.put_now("later")
    pass_time(store)
    one.start()
    assert read(one) == ["before", "later"]


def test_a_date_in_place_of_now_is_that_date(store):
    one = source(store)
    pass_time(store)
    store.put_now("unread")
    pass_time(store)
    change(one, modified_after="2040-01-01")
    one.start()
    assert read(one) == []


def test_a_reset_of_everything_reads_again_what_was_read(store):
    one = source(store)
    store.put_now("later")
    assert read(one) == ["later"]
    pass_time(store)
    connection = one.server.connect()
    one.session.close()
    reset_positions(connection, one.config, PositionFilter())
    connection.close()
    one.start()
    assert read(one) == ["later"]
    assert len(one.stored()) == 4  # twice two records


def test_the_log_names_the_moment(store, caplog):
    with caplog.at_level(logging.INFO, logger="framework.iterator.abstract_iterator"):
        one = source(store)
        first = [record.getMessage() for record in caplog.records if "modified_after" in record.getMessage()]
        pass_time(store)
        one.start()
        one.quiet()
        second = [record.getMessage() for record in caplog.records if "modified_after" in record.getMessage()]
    assert first == [
        '[discovery] modified_after = "now": objects last modified at 2023-11-14T22:14:20Z or later are read'
    ]
    assert second == first * 2
