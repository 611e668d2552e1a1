"""The kit itself: every law is proven by an exhibit that it kills, and refuses what proves nothing."""

import sys

import attrs
import pytest

from framework.testing.kit import ConformanceLaws, check, check_all
from framework.testing.kit.law import BATCH, LAWS, QUEUE, Comparing, LawBrokenError, RigError
from framework.testing.rig import Capability, SourceRig
from tests.conformance.broken import crashes, delivery, listings, reading
from tests.conformance.broken.exhibits import EXHIBITS, NO_LESS
from tests.conformance.broken.rigs import WithIterator, WithTransformer
from tests.conformance.rigs import MemoryRig, OwnStoreRig

WORKS = "D5"
"""The cheapest law that runs a whole source: an exhibit that is broken altogether would prove nothing."""


def neighbours(law):
    near = {other for other in LAWS if other[0] == law[0]}
    near -= {"D2", "D6"}  # where D1 holds or not says enough
    near -= set() if law in {"D3", "D5"} else {"D4"}  # it takes seconds, for calls that hang
    return sorted((near | {WORKS}) - {law} - NO_LESS.get(law, set()))


def test_every_law_has_its_exhibit():
    assert set(EXHIBITS.values()) == set(LAWS)


def test_every_exhibit_of_the_museum_is_shown():
    rooms = [vars(room).values() for room in (crashes, delivery, listings, reading)]
    made = {one for room in rooms for one in room if isinstance(one, type) and issubclass(one, SourceRig)}
    bases = {MemoryRig, OwnStoreRig, WithIterator, WithTransformer, listings.WithStore, listings.WithKeys}
    assert made - bases == set(EXHIBITS)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.__name__)
def test_an_exhibit_is_killed_by_its_law(exhibit):
    law, rig = EXHIBITS[exhibit], exhibit()
    with pytest.raises(LawBrokenError, match=rf"^{law} \(.+\) is broken: .+ \(seed \d+\)$"):
        check(law, rig)


@pytest.mark.parametrize(
    ("exhibit", "law"),
    [(exhibit, law) for exhibit, own in EXHIBITS.items() for law in neighbours(own)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_exhibit_breaks_nothing_that_is_near(exhibit, law):
    assert check(law, exhibit()).comparisons > 0


def test_without_a_test_framework_every_law_tells_what_it_compared(capsys):
    laws = ["L2", "T1", "T3", "O1", "O3", "D5"]
    outcomes = {outcome.law: outcome for outcome in check_all(MemoryRig, laws=laws)}
    assert list(outcomes) == laws
    assert min(outcome.comparisons for outcome in outcomes.values()) > 1
    assert capsys.readouterr().out.count(" holds: ") == len(laws)


def test_a_law_whose_capability_is_missing_is_skipped_and_says_so(capsys):
    class Poor(MemoryRig):
        capabilities = frozenset()

    outcome = check("T2", Poor())
    assert outcome.comparisons == 0
    assert Capability.CUT.value in outcome.skipped
    assert "T2 skipped: " in capsys.readouterr().out
    assert check("L1", Poor()).comparisons > 0  # fewer, but not none


def test_a_law_that_compares_nothing_is_a_failure(monkeypatch):
    monkeypatch.setitem(LAWS, "L1", type(LAWS["L1"])("L1", "nothing", lambda rig, comparing: None, frozenset()))
    with pytest.raises(LawBrokenError, match="compared nothing"):
        check("L1", MemoryRig())


def test_a_source_that_fails_on_the_way_breaks_the_law():
    rig = MemoryRig()
    rig.store.fail("list_page", ZeroDivisionError("odd"), times=None)
    with pytest.raises(LawBrokenError, match=r"L1 .*ZeroDivisionError.*odd"):
        check("L1", rig)


def test_a_listing_whose_objects_are_filtered_says_why():
    class Sizeless(MemoryRig):
        def __init__(self):
            super().__init__()
            self.store.change_page = lambda page: attrs.evolve(
                page, objects=[attrs.evolve(native, size=0) for native in page.objects]
            )

    with pytest.raises(LawBrokenError, match=r"filtered: \{'empty': 5\}: 0 instead of 5; number 1 is nothing"):
        check("L1", Sizeless())
    with pytest.raises(LawBrokenError, match=r"an object of \d+ bytes is listed with the size 0"):
        check("I7", Sizeless())


def test_lists_of_one_length_are_compared_without_their_lengths():
    with pytest.raises(LawBrokenError, match=r"^law is broken: the records: number 2 is 3, must be 2 \(seed 1\)$"):
        Comparing("law", 1).same([1, 3], [1, 2], "the records")


@pytest.mark.parametrize(
    "counts",
    [(), (7,), (5, 2), (5, 5, 7), (5, 10, 7), (5, 7, 2 * BATCH), (5, QUEUE), (5, 7, 6), (5, 7, 11, 3, 17, 19)],
    ids=str,
)
def test_a_rig_that_proves_nothing_is_refused(counts):
    rig = MemoryRig()
    rig.counts = counts
    with pytest.raises(RigError):
        check("L1", rig)


class Declared(ConformanceLaws):
    cannot = {"T2": "of no use here", "L1": "wrongly declared"}  # noqa: RUF012


def test_a_declared_gap_passes_and_a_wrong_declaration_does_not():
    class Poor(MemoryRig):
        capabilities = frozenset()

    Declared().test_T2(Poor())
    with pytest.raises(RigError, match="L1 holds"):
        Declared().test_L1(Poor())
    with pytest.raises(Exception, match="cannot do making calls"):
        Declared().test_E1(Poor())


def test_keys_that_a_store_cannot_hold_are_named_and_must_not_be_too_many():
    class Flat(MemoryRig):
        def cannot_hold(self, key):
            return "it has no folders" if key.startswith("long/") else ""

    outcome = check("L4", Flat())
    assert len(outcome.notes) == 3
    assert all("was not tried: it has no folders" in note for note in outcome.notes)
    assert "was not tried" in str(outcome)

    class Poor(MemoryRig):
        def cannot_hold(self, key):
            return "it takes letters only" if "/" in key else ""

    with pytest.raises(RigError, match="cannot_hold: only"):
        check("L4", Poor())


def test_a_source_with_positions_of_its_own_keeps_the_law_of_their_form():
    assert check("O2", OwnStoreRig()).comparisons > check("O2", MemoryRig()).comparisons


def test_without_hypothesis_histories_are_skipped_in_one_sentence(monkeypatch):
    monkeypatch.delitem(sys.modules, "framework.testing.kit.history", raising=False)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    outcome = check("H1", MemoryRig())
    assert outcome.skipped.startswith("it needs the package hypothesis")
    assert ".[testing]" in outcome.skipped


def test_histories_depend_on_their_seed_and_on_nothing_else(monkeypatch):
    from framework.testing.kit.history import History

    told = []
    teardown = History.teardown
    monkeypatch.setattr(History, "teardown", lambda self: (told.append(tuple(self.steps)), teardown(self))[1])

    def played(seed):
        told.clear()
        rig = MemoryRig()
        rig.examples = 4
        check("H1", rig, seed=seed)
        return list(told)

    first = played(7)
    assert first == played(7)
    assert first != played(8)
    assert max(map(len, first)) > 10
