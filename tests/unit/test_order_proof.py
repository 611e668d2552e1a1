"""Where no order is documented: what may rise in mid-pass, between which keys."""

import pytest

from framework import coverage
from framework.errors import StoreUnavailableError
from framework.offsets import OffsetManager
from framework.order_proof import OrderProof, look_at_order
from framework.records import NativeObject
from framework.retry import RetryPolicy
from framework.selected import SelectedObjects
from framework.stretch import Stretch
from framework.watermark import CoveredRange
from tests.support.folding import BEGIN_MS, ClockStore

OLD = BEGIN_MS - 10**6


def native(key, modified_ms=OLD):
    return NativeObject(scheme="mem", bucket="b", key=key, size=1, version="v", modified_ms=modified_ms)


class Listed:
    """A listing told page by page, of a store that has shown the keys in `places`."""

    def __init__(self, *places):
        self.offsets = OffsetManager()
        self.coverage = self.offsets.coverage
        self.in_hand = []
        self.coverage.open(
            SelectedObjects(bucket="b", prefixes=("",), options={}), window_ms=1000, in_hand=lambda: self.in_hand
        )
        self.coverage.begin_pass()
        self.coverage.begin_listing("", "", in_order=False)
        self.coverage.began(BEGIN_MS)
        self.coverage.proven(OrderProof({hash(key) for key in places}))

    def page(self, after, keys, *, cut=None, put_off=()):
        for key in keys:
            self.coverage.seen(native(key))
            if key in put_off:
                self.coverage.put_off(native(key))
        self.coverage.listed(Stretch(after, cut or keys[-1]), keys[-1])

    def risen(self):
        self.coverage.settle()
        return [(one.after, one.until) for one in self.offsets.watermark.prefixes.get("", ())]


def test_a_run_rises_between_the_first_and_the_last_place_that_it_has_shown():
    listed = Listed("b", "e", "f")
    listed.page("", "abc")
    assert listed.risen() == []
    listed.page("c", "def")
    assert listed.risen() == [("b", "f")]


def test_pages_without_a_place_wait_for_the_next_one_and_what_is_in_hand_holds_them():
    listed = Listed("a", "g")
    listed.page("", "ab")
    listed.page("b", "cd")
    listed.page("d", "ef")
    assert listed.risen() == []
    listed.in_hand = ["d"]
    listed.page("f", "gh")
    assert listed.risen() == []
    listed.in_hand = []
    assert listed.risen() == [("a", "g")]


def test_a_cut_that_is_no_key_ends_a_run():
    listed = Listed("a", "b", "x", "y")
    listed.page("", "ab", cut="m")
    listed.page("m", "xy")
    assert listed.risen() == [("a", "b"), ("x", "y")]


def test_pages_of_other_ranges_in_between_do_no_harm():
    listed = Listed("a", "d", "n", "q")
    listed.page("", "ab")
    listed.page("m", "no")
    listed.page("b", "cd")
    listed.page("o", "pq")
    assert listed.risen() == [("a", "d"), ("n", "q")]


@pytest.mark.parametrize("when", ["on its page", "before the next page", "after it"])
def test_what_came_back_behind_the_last_place_of_its_page_is_not_hidden_by_the_stretch_of_the_next(when):
    listed = Listed("a", "d")
    if when == "on its page":
        listed.page("", "abc", put_off="b")
        listed.page("c", "de")
    else:
        listed.page("", "abc")
        if when == "before the next page":
            listed.coverage.given_back(native("b"))
            listed.page("m", "no")  # of another range: it takes what was given back for its own
        listed.page("c", "de")
        if when == "after it":
            listed.coverage.given_back(native("b"))
    listed.coverage.settle()
    assert listed.offsets.watermark.prefixes[""] == (CoveredRange("a", "d", OLD),)
    assert not listed.offsets.watermark.covers("b", "b", OLD)


def test_without_a_place_nothing_rises_before_the_end():
    listed = Listed()
    listed.page("", "ab")
    listed.page("b", "cd")
    assert listed.risen() == []
    listed.coverage.complete(in_order=True, whole=True)
    assert listed.risen() == [("", None)]


def test_a_look_is_wanted_once_in_a_listing_and_not_where_the_order_is_documented(monkeypatch):
    monkeypatch.setattr(coverage, "PROVE_FROM", 3)
    listed = Listed()
    listed.coverage.begin_listing("", "", in_order=False)
    listed.coverage.began(BEGIN_MS)
    listed.page("", "ab")
    assert not listed.coverage.needs_proof
    listed.page("b", "c")
    assert listed.coverage.needs_proof
    listed.coverage.proven(None)
    listed.page("c", "defg")
    assert not listed.coverage.needs_proof
    listed.coverage.begin_listing("", "", in_order=True)
    listed.coverage.began(BEGIN_MS)
    listed.page("", "abcd")
    assert not listed.coverage.needs_proof


# ---- the look


def by_folder(key):
    return [part.encode() for part in key.split("/")]


def looked(store, prefix=""):
    return look_at_order(store, prefix, page_size=3, policy=RetryPolicy(attempts=1))


def filled(*keys, order=str.encode):
    store = ClockStore(documented=False, order=order)
    for key in keys:
        store.put_now(key)
    return store


def test_the_look_keeps_one_key_of_each_page():
    proof, calls = looked(filled(*"abcdefgh"))
    assert proof is not None
    assert proof.places == {hash(key) for key in "cfh"}
    assert calls == 3


def test_the_look_proves_nothing_of_a_store_that_lists_folder_by_folder():
    keys = ["A", *(f"logs/{number}" for number in range(9)), *(f"logs-old/{number}" for number in range(9))]
    assert looked(filled(*keys, order=by_folder))[0] is None
    assert looked(filled(*keys))[0] is not None
    assert looked(filled(*keys, order=by_folder), "logs/")[0] is not None


def test_a_look_that_fails_is_an_error_as_any_listing_is():
    store = filled(*"abcdefgh")

    def fail(**_):
        raise StoreUnavailableError("away")

    store.list_page = fail
    with pytest.raises(StoreUnavailableError):
        looked(store)
