"""Laws of errors: what may pass is tried again within a budget, what a person must change is not."""

from __future__ import annotations

from framework.errors import AccessDeniedError, BucketNotFoundError, FatalError, RetriableError, SourceError
from framework.testing.law import Comparing, fill, law
from framework.testing.laws_iterator import drain, payloads_of
from framework.testing.rig import Capability, Fault, SourceRig

_PASSING = (Fault.THROTTLED, Fault.UNAVAILABLE, Fault.RESET)
_LASTING = {
    ("list", Fault.DENIED): AccessDeniedError,
    ("list", Fault.NO_BUCKET): BucketNotFoundError,
    ("open", Fault.DENIED): AccessDeniedError,
}
_TIMES = 3


@law(
    "E1", "what may pass is tried again within the budget; what cannot pass is raised after one try", Capability.FAULTS
)
def retries(rig: SourceRig, comparing: Comparing) -> None:
    """Three failures of each kind at each call; failures without end; failures that a person must put right."""
    written = fill(rig, rig.counts[:2])
    expected = sorted(record for records in written.values() for record in records)
    for call in ("list", "open", "read"):
        for fault in _PASSING:
            rig.fail(call, fault, _TIMES)
            read, error = _read(rig)
            comparing.that(error is None, f"{call} fails {_TIMES} times ({fault.value}): {error!r}")
            comparing.same(sorted(read), expected, f"{call} fails {_TIMES} times ({fault.value})")
    for fault in _PASSING:
        began = rig.clock() if rig.clock is not None else 0.0
        rig.fail("list", fault, None)
        _, error = _read(rig)
        comparing.that(isinstance(error, RetriableError), f"a listing that always fails ({fault.value}): {error!r}")
        comparing.that(
            rig.tries("list") > _TIMES, f"a listing that always fails: {rig.tries('list')} tries ({fault.value})"
        )
        if rig.clock is not None:
            took = rig.clock() - began
            comparing.that(took <= rig.budget_seconds, f"a listing that always fails took {took:.0f} seconds")
    rig.delete(next(iter(written)))  # one object is left: another one would be opened ahead, and counted
    for (call, fault), kind in _LASTING.items():
        rig.fail(call, fault, None)
        _, error = _read(rig)
        comparing.that(
            isinstance(error, kind) and isinstance(error, FatalError), f"{call}: {fault.value} was raised as {error!r}"
        )
        comparing.that(rig.tries(call) == 1, f"{call}: {fault.value} was tried {rig.tries(call)} times")
    rig.fail("list", Fault.RESET, 0)


def _read(rig: SourceRig) -> tuple[list[bytes], SourceError | None]:
    with rig.open_iterator(fetch_ahead=1) as iterator:
        try:
            return payloads_of(drain(iterator)), None
        except SourceError as error:
            return [], error
