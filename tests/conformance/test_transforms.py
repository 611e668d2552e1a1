"""The law of transforms: those built in keep it, and each that breaks it is found."""

import functools
import importlib
import os
import time

import pytest

from framework.config.transform_registry import SHIPPED
from framework.envelopes.layout import PAYLOAD_ENCODINGS
from framework.testing.kit import check_transform
from framework.testing.kit.law import LawBrokenError, RigError
from tests.support.transforms_elsewhere import BUILT_IN, HashesOfThisProcess, Own, built_in, built_in_beside, envelope

PAYLOADS = [
    b'{"id":1,"name":"ann","at":"2024-03-16T14:02:31Z","message":"one"}',
    b'{"id":2,"name":null,"at":"yesterday","message":{"x":[1,2]}}',
    b'{"id":"three","at":7}',
    b"no json",
    b"[1,2]",
    b'{"name":"bob","id":4,"id":5,"message":7.50}',
    b'"text"',
    '{"id":6,"name":"g\u00fcnter"}'.encode(),
    b"\xff",
    b'{"id":7}',
]


@pytest.mark.parametrize("name", BUILT_IN)
def test_those_built_in_keep_it(name, capsys):
    outcome = check_transform(functools.partial(built_in, name), PAYLOADS)
    assert outcome.comparisons > 30
    assert not outcome.notes
    assert str(outcome) in capsys.readouterr().out


ARCHIVED = [
    b'{"offset":1,"timestamp":"2026-03-16T14:02:31Z","topic":"t","partition_id":0,"headers":{"a":1},"payload":{"x":[1, 2]}}',
    b'{"timestamp":1773669751000,"headers":{"a":1},"payload":"text"}',
    b'{"timestamp":"2026-03-16T14:02:31Z","headers":[{"key":"b","value":"2"}],"payload":null}',
    b'{"headers":null,"payload":7.50}',
    b'{"payload":"AQID","timestamp":"yesterday"}',
    b'{"offset":2}',
    b'{"payload":1,"topic":5}',
    b"no json",
    b"[1]",
    b'{"payload":"\xff"}',
]


@pytest.mark.parametrize("payload", PAYLOAD_ENCODINGS)
def test_every_envelope_keeps_it(payload):
    assert check_transform(functools.partial(envelope, payload), ARCHIVED).comparisons > 30


def test_all_built_in_are_tried():
    assert set(SHIPPED) - set(BUILT_IN) == {"proto_convert"}  # it needs a descriptor set


class Counts(Own):
    """Keeps state between records."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def apply(self, batch, context):
        self.count += len(batch)
        return batch.with_payloads([b"%d" % self.count for _ in batch.payloads])


class DropsRepeated(Own):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def apply(self, batch, context):
        places = [place for place, payload in enumerate(batch.payloads) if payload not in self.seen]
        self.seen.update(batch.payloads)
        return batch.keep(places)


class DropsRepeatedOfABatch(Own):
    def apply(self, batch, context):
        seen = set()
        return batch.keep([place for place, payload in enumerate(batch.payloads) if not _seen(payload, seen)])


def _seen(payload, seen):
    known = payload in seen
    seen.add(payload)
    return known


class Sorts(Own):
    def apply(self, batch, context):
        return batch.with_payloads(sorted(batch.payloads))


class LooksAtNeighbours(Own):
    def apply(self, batch, context):
        return batch.with_payloads([batch.payloads[0] + payload for payload in batch.payloads])


class DropsTheLast(Own):
    def apply(self, batch, context):
        return batch.keep(range(max(1, len(batch) - 1)))


class Clock(Own):
    def apply(self, batch, context):
        return batch.with_payloads([b"%d" % time.perf_counter_ns()] * len(batch))


class Chance(Own):
    def apply(self, batch, context):
        return batch.with_payloads([os.urandom(8) for _ in batch.payloads])


class ChangesItsInput(Own):
    def apply(self, batch, context):
        if isinstance(batch.payloads, list):
            batch.payloads[:] = [b"x"] * len(batch)
        return batch


class AddsRecords(Own):
    def apply(self, batch, context):
        return batch.with_payloads([*batch.payloads, b"more"])


class BadByCompany(Own):
    """Rejects a record for the ones around it."""

    def apply(self, batch, context):
        return batch.reject({len(batch) - 1: "is the last of many"} if len(batch) > 1 else {})


@pytest.mark.parametrize(
    ("broken", "example"),
    [
        (Counts, "once more"),
        (DropsRepeated, "once more"),
        (LooksAtNeighbours, "one by one"),
        (DropsTheLast, "one by one"),
        (Clock, "once more"),
        (Chance, "once more"),
        (HashesOfThisProcess, "in another process"),
        (ChangesItsInput, "own changed the batch"),
        (AddsRecords, "own returned"),
        (BadByCompany, "one by one"),
    ],
)
def test_what_breaks_it_is_found(broken, example):
    with pytest.raises(LawBrokenError, match=rf"^X1 \(.+\) is broken: .*{example}.* \(seed \d+\)$"):
        check_transform(broken, PAYLOADS)


@pytest.mark.parametrize("broken", [DropsRepeatedOfABatch, Sorts])
def test_records_that_are_in_order_and_all_different_hide_nothing(broken):
    with pytest.raises(LawBrokenError, match="one by one"):
        check_transform(broken, [b"1", b"2", b"3"])


def test_what_cannot_go_to_another_process_is_said():
    (note,) = check_transform(lambda: built_in("json"), PAYLOADS).notes
    assert note == "not tried in another process: `make` is no class or function of a module"


def test_so_is_what_another_process_cannot_import(tmp_path, monkeypatch):
    (tmp_path / "just_here.py").write_text("class Here: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    just_here = importlib.import_module("just_here")
    (tmp_path / "just_here.py").unlink()
    make = functools.partial(built_in_beside, just_here.Here)
    (note,) = check_transform(make, PAYLOADS).notes
    assert "cannot import the transform" in note
    assert "just_here" in note


def test_few_records_prove_nothing():
    with pytest.raises(RigError, match="at least 3 different"):
        check_transform(functools.partial(built_in, "json"), [b"1", b"1", b"2"])


class RefusesAll(Own):
    def apply(self, batch, context):
        raise AttributeError("no 'tag'")


def test_records_that_all_become_bad_prove_nothing():
    with pytest.raises(RigError, match=r"every record became bad.*failed with AttributeError .*in apply"):
        check_transform(RefusesAll, PAYLOADS)
