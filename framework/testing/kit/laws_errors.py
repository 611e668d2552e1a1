"""Laws of errors: transient errors are retried within a budget, permanent errors are not."""

from __future__ import annotations

import pickle
import re

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    FatalError,
    RetriableError,
    SkippableError,
    SourceError,
)
from framework.testing.kit.law import Comparing, fill, law
from framework.testing.kit.laws_iterator import drain, payloads_of
from framework.testing.rig import Capability, Fault, SourceRig

_PASSING = (Fault.THROTTLED, Fault.UNAVAILABLE, Fault.RESET)
_LASTING = {
    ("list", Fault.DENIED): AccessDeniedError,
    ("list", Fault.NO_BUCKET): BucketNotFoundError,
    ("open", Fault.DENIED): AccessDeniedError,
}
_TIMES = 3


@law(
    "E1",
    "a transient error is retried within the budget; a permanent error is raised after one attempt",
    Capability.FAULTS,
)
def retries(rig: SourceRig, comparing: Comparing) -> None:
    """Check each call with three failures of each kind, endless failures, and permanent failures."""
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
    with rig.open_iterator(prefetch_objects=1) as iterator:
        try:
            return payloads_of(drain(iterator)), None
        except SourceError as error:
            return [], error


_FEWEST_WORDS = 3


@law(
    "E2",
    "every error of the vendor becomes one of the framework's that names bucket, key and what to do, and no secret",
    Capability.VENDOR_ERRORS,
)
def vendor_errors(rig: SourceRig, comparing: Comparing) -> None:
    """Check each error of the rig, for the bucket and for an object."""
    fill(rig, rig.counts[:2])
    with rig.open_iterator() as iterator:
        native = next(iter(iterator.get_native_item_stream(None)))
        config = repr(iterator.config)
    names: set[str] = set()
    for vendor in rig.vendor_errors():
        names.add(vendor.name)
        for key in ("", native.key) if vendor.about_object else ("",):
            error = rig.translate(vendor.error, key)
            kind = vendor.kind if key or not issubclass(vendor.kind, SkippableError) else SourceError
            _maps(comparing, error, kind, f"{vendor.name} of {'the object' if key else 'the bucket'}")
            text = str(error)
            comparing.that(native.bucket in text, f"{vendor.name}: the message does not name the bucket: {text}")
            comparing.that(key in text, f"{vendor.name}: the message does not name the key {key!r}: {text}")
            own = text.replace(f"{native.bucket}/{key}", "").replace(native.bucket, "").replace(str(vendor.error), "")
            words = re.findall(r"[^\W\d_]{2,}", re.sub(r"\([^()]*\)", "", own))
            comparing.that(len(words) >= _FEWEST_WORDS, f"{vendor.name}: the message does not say what to do: {text}")
            _no_secret(comparing, rig, f"{vendor.name}", text, repr(error), *map(repr, error.args))
            again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
            comparing.that(
                (type(again), str(again)) == (type(error), text),
                f"{vendor.name}: it came from another process as {again!r}",
            )
    comparing.that(bool(names), "the rig names no error of its vendor")
    _no_secret(comparing, rig, "the configuration", config)


def _maps(comparing: Comparing, error: object, kind: type[SourceError], example: str) -> None:
    comparing.that(
        isinstance(error, (RetriableError, SkippableError, FatalError)),
        f"{example} became {error!r}, which does not say whether to try again, to leave it out, or to stop",
    )
    comparing.that(isinstance(error, kind), f"{example} became {type(error).__name__}, must be a {kind.__name__}")


def _no_secret(comparing: Comparing, rig: SourceRig, what: str, *texts: str) -> None:
    for secret in rig.secrets:
        shown = any(secret in text for text in texts)
        comparing.that(not shown, f"{what}: a message or a repr shows the secret that begins with {secret[:3]!r}")
