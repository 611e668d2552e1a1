"""The law of transforms: a record's result depends on the record, its number and its object, and on nothing else.

    check_transform(lambda: Redact(RedactOptions(words=("secret",))), payloads)

A transform that breaks it loses or repeats records after a restart, when batches are cut elsewhere.
"""

from __future__ import annotations

import functools
import pickle
import random
from collections.abc import Callable, Mapping, Sequence

import attrs

from framework.errors import TransformContractError
from framework.model.header_encoding import HeaderValue
from framework.model.objects import NativeObject, TopicPartition
from framework.model.payloads import column_of, size_of
from framework.pipeline.transforming import TransformChain
from framework.testing.kit.law import SEED, Comparing, Outcome, RigError
from framework.testing.kit.other_process import ElsewhereError, NotImportableError, call_elsewhere
from framework.transform import Transform, TransformContext
from framework.transformer import PayloadBatch

LAW = "X1"
SAYS = "a transform's result for a record depends on the record, its number and its object alone"

_FEWEST_PAYLOADS = 3
_CUTS = 20

CONTEXT = TransformContext(
    native=NativeObject(scheme="kit", bucket="bucket", key="a/1", size=77, version="1", modified_ms=1_700_000_000_123),
    topic_partition=TopicPartition("events", 1),
    source="kit",
    id_high=0x0123456789ABCDEF,
)
"""An object, for transforms that need none in particular."""


@attrs.frozen
class _Result:
    """What became of a record.

    Attributes:
        became: "sent", "filtered", or why it is bad.
    """

    became: str
    payload: bytes = b""
    headers: Mapping[str, HeaderValue] = attrs.field(factory=dict)
    timestamp_us: int = 0
    key_hash: int | None = None


def check_transform(
    make: Callable[[], Transform],
    payloads: Sequence[bytes],
    *,
    context: TransformContext = CONTEXT,
    seed: int = SEED,
) -> Outcome:
    """Check the law on some records: in batches of every cut, on used and new instances, and in another process.

    Args:
        make: makes the transform. A class or a function of a module is tried in another process, too.
        payloads: the records, at least three different ones. Take some that it changes, filters and rejects. The first
            is tried again behind the last, as equal records may be in an object.
        context: their object.
        seed: seed of the random cuts.

    Raises:
        LawBrokenError: it breaks the law, or a batch that it returned is impossible.
        RigError: too few records, or all of them became bad.
    """
    given = list(payloads)
    if len(set(given)) < _FEWEST_PAYLOADS:
        raise RigError(f"give at least {_FEWEST_PAYLOADS} different payloads")
    comparing = Comparing(f"{LAW} ({SAYS})", seed)
    try:
        _compare(make, [*given, given[0]], context, comparing)
    except TransformContractError as error:
        raise comparing.broken(str(error)) from error
    outcome = Outcome(LAW, comparisons=comparing.count, notes=tuple(comparing.notes))
    print(outcome)  # noqa: T201 - what was not tried must be seen
    return outcome


def _compare(
    make: Callable[[], Transform], payloads: list[bytes], context: TransformContext, comparing: Comparing
) -> None:
    used = make()
    expected = _results(used, payloads, context)
    if all(result.became not in {"sent", "filtered"} for result in expected):
        raise RigError(f"every record became bad, so nothing is proven; the first: {expected[0].became}")
    chance = random.Random(comparing.seed)  # noqa: S311 - no secret
    column = column_of(payloads)

    def same(results: list[_Result], how: str) -> None:
        comparing.same(results, expected, f"the records {how}")

    same(_results(used, payloads, context), "once more")
    same(_results(make(), payloads, context), "by a new instance")
    same(_results(used, payloads, context, cuts=range(1, len(payloads))), "one by one")
    for _ in range(_CUTS):
        cuts = sorted(chance.sample(range(1, len(payloads)), chance.randrange(1, len(payloads))))
        same(_results(used, payloads, context, cuts=cuts), f"in batches that begin behind {cuts}")
    if column is not None:
        same(_results(used, column, context), "as a column")
    for number in sorted(range(len(payloads)), key=lambda _: chance.random()):
        alone = _results(make(), payloads[number : number + 1], context, first=number + 1)
        comparing.same(alone, expected[number : number + 1], f"record {number + 1} by an instance that saw no other")
    try:
        packed = pickle.dumps(functools.partial(_made_results, make, payloads, context))
    except Exception:  # noqa: BLE001 - whatever cannot be pickled
        comparing.note("not tried in another process: `make` is no class or function of a module")
        return
    try:
        elsewhere: list[_Result] = call_elsewhere(packed)
    except NotImportableError as error:
        comparing.note(f"not tried in another process, which cannot import the transform ({error})")
        return
    except ElsewhereError as error:
        raise comparing.broken(str(error)) from error
    same(elsewhere, "in another process, where strings have other hashes")


def _made_results(make: Callable[[], Transform], payloads: list[bytes], context: TransformContext) -> list[_Result]:
    return _results(make(), payloads, context)


def _results(
    transform: Transform,
    payloads: Sequence[bytes],
    context: TransformContext,
    *,
    cuts: Sequence[int] = (),
    first: int = 1,
) -> list[_Result]:
    """Return what became of each record when the batches begin at these places."""
    chain = TransformChain([(transform, transform.name)])
    results: list[_Result] = []
    for begin, end in zip([0, *cuts], [*cuts, len(payloads)], strict=True):
        part = payloads[begin:end]
        before = list(part)
        results += _of_batch(chain, part, context, first + begin)
        if list(part) != before:
            raise TransformContractError(f"{transform.name} changed the batch that it was given")
    return results


def _of_batch(chain: TransformChain, payloads: Sequence[bytes], context: TransformContext, first: int) -> list[_Result]:
    size = size_of(payloads)
    found = chain.apply(PayloadBatch(first_record=first, payloads=payloads, size_bytes=size), context)
    batch = found.batch
    results = [_Result("filtered")] * len(payloads)
    for bad in found.bad:
        results[bad.record_number - first] = _Result(bad.error.message)
    rows = zip(
        found.number_array().tolist(),
        batch.payloads,
        batch.headers if batch.headers is not None else [None] * len(batch),
        batch.timestamps_us.tolist() if batch.timestamps_us is not None else [0] * len(batch),
        batch.key_hashes.tolist() if batch.key_hashes is not None else [None] * len(batch),
        strict=True,
    )
    for number, payload, headers, timestamp_us, key_hash in rows:
        results[number - first] = _Result("sent", bytes(payload), headers or {}, timestamp_us, key_hash)
    return results
