"""The conformance kit: laws that every source must keep, each proven to catch a source that breaks it.

Without a test framework:

    for outcome in check_all(lambda: MyRig()):
        print(outcome)

With pytest, by inheritance; every law is a test, and one whose capability is missing is skipped:

    class TestMySource(ConformanceLaws):
        @pytest.fixture
        def rig(self):
            return MyRig()

A check raises `LawBrokenError` (an `AssertionError`) with the law's id, the smallest example it found and the seed.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

from framework.testing.kit import (
    laws_crash,
    laws_delivery,
    laws_errors,
    laws_history,
    laws_iterator,
    laws_keys,
    laws_listing,
    laws_offsets,
    laws_process,
    laws_streams,
    laws_transformer,
)
from framework.testing.kit.law import (
    LAWS,
    SEED,
    CannotTryError,
    Comparing,
    LawBrokenError,
    Outcome,
    RigError,
    refuse_unfit,
)
from framework.testing.rig import SourceRig

_MODULES = (
    laws_listing,
    laws_keys,
    laws_iterator,
    laws_streams,
    laws_transformer,
    laws_offsets,
    laws_crash,
    laws_delivery,
    laws_errors,
    laws_process,
    laws_history,
)


def check(law_id: str, rig: SourceRig, *, seed: int = SEED) -> Outcome:
    """Check a law on a fresh rig, and print the outcome.

    Args:
        law_id: one of `LAWS`.
        rig: over an empty bucket. The caller closes it.
        seed: seed of random choices.

    Raises:
        LawBrokenError: the source breaks the law or failed, or nothing was compared.
        RigError: the rig's numbers prove nothing.
    """
    law = LAWS[law_id]
    refuse_unfit(rig)
    missing = sorted(capability.value for capability in law.needs - rig.capabilities)
    skipped = f"the rig cannot do {', '.join(missing)}"
    outcome = Outcome(law_id, skipped=skipped) if missing else _compare(law_id, rig, seed)
    print(outcome)  # noqa: T201 - what was skipped must be seen
    return outcome


def _compare(law_id: str, rig: SourceRig, seed: int) -> Outcome:
    law = LAWS[law_id]
    comparing = Comparing(f"{law_id} ({law.says})", seed)
    try:
        law.check(rig, comparing)
    except (AssertionError, RigError):
        raise
    except CannotTryError as reason:
        return Outcome(law_id, skipped=str(reason))
    except Exception as error:
        raise LawBrokenError(
            f"{comparing.law} is broken: {type(error).__name__} after {comparing.count} comparisons: {error} (seed {seed})"
        ) from error
    if comparing.count == 0:
        raise LawBrokenError(f"{comparing.law}: the check compared nothing")
    return Outcome(law_id, comparisons=comparing.count, notes=tuple(comparing.notes))


def check_all(
    make_rig: Callable[[], SourceRig], *, laws: Iterable[str] | None = None, seed: int = SEED
) -> Iterator[Outcome]:
    """Check every law, or the named laws, each on its own rig.

    Raises:
        LawBrokenError: a law is broken; later laws are not checked.
    """
    for law_id in LAWS if laws is None else laws:
        rig = make_rig()
        try:
            yield check(law_id, rig, seed=seed)
        finally:
            rig.close()


class ConformanceLaws:
    """Every law as a test. A subclass has a fixture `rig`, which returns a fresh rig for each test.

    Attributes:
        cannot: law -> why it cannot be checked on this source. Such a law passes, and fails once it can be checked; any
            other that is skipped for want of a capability is reported as skipped.
    """

    cannot: ClassVar[Mapping[str, str]] = {}

    def _check(self, law_id: str, rig: SourceRig) -> None:
        try:
            outcome = check(law_id, rig)
        finally:
            rig.close()
        reason = self.cannot.get(law_id)
        if reason is not None and not outcome.skipped:
            raise RigError(f"{law_id} holds: take it out of `cannot`, which says {reason}")
        if outcome.skipped and reason is None:
            raise unittest.SkipTest(outcome.skipped)


def _as_test(law_id: str) -> Callable[[ConformanceLaws, SourceRig], None]:
    def test(self: ConformanceLaws, rig: SourceRig) -> None:
        self._check(law_id, rig)

    test.__doc__ = LAWS[law_id].says
    test.__name__ = f"test_{law_id}"
    return test


for _id in LAWS:
    setattr(ConformanceLaws, f"test_{_id}", _as_test(_id))
