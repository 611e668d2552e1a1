"""Which pairs have met is counted rightly, and every kind of event can be made to happen."""

from collections import Counter

import pytest

from tests.simulator.coverage import APART, EVENTS, NEEDS, PROPERTIES, pairs_met, possible_pairs, report
from tests.simulator.meetings import ACTS, FAULTS, QUIET


def test_events_meet_within_a_short_time_and_properties_always():
    events = [(1.0, "reset"), (2.9, "paused"), (4.0, "expired"), (4.5, "expired")]
    assert pairs_met(events, {"tasks", "spark"}) == {
        ("paused", "reset"),
        ("expired", "paused"),
        ("expired", "expired"),
        ("spark", "tasks"),
        *((event, one) for event in ("reset", "paused", "expired") for one in ("spark", "tasks")),
    }


def test_what_is_apart_is_no_possible_pair():
    pairs = possible_pairs()
    assert ("purged", "source killed") in pairs
    assert ("purged", "purged") in pairs
    assert ("neighbour", "purged") not in pairs
    assert ("key list", "neighbour") in pairs
    assert ("list lost", "start offsets") not in pairs  # it needs a list of keys, which is apart from them


def test_the_report_names_what_met_seldom():
    pairs = possible_pairs()
    told = report(Counter(dict.fromkeys(pairs - {("paused", "reset")}, 7)), 1)
    assert told == [
        f"{len(pairs)} pairs, of which 1 never met; a tenth of them in at most 7 histories, half in at most 7",
        "     0  paused + reset",
    ]


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_can_be_made_to_happen(kind):
    others = {"put again", "send late", "append late"}
    ways = [kind in ACTS, kind in FAULTS, kind.startswith(("wrong ", "changed ")), kind in others]
    assert sum(ways) == 1


def test_tables_name_kinds_that_there_are():
    names = {
        *ACTS,
        *FAULTS,
        *QUIET,
        *NEEDS,
        *NEEDS.values(),
        *APART,
        *(kind for apart in APART.values() for kind in apart),
    }
    assert names <= {*EVENTS, *PROPERTIES}
