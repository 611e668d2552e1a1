"""Laws: id, statement, and the check that compares. Checks need no test framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

if TYPE_CHECKING:
    from framework.testing.rig import Capability, SourceRig

SEED = 20_240_229
BATCH = 4
QUEUE = 13
PAGES = (1, 2, 3)
KEYS = ("a/1", "a/b", "a-c", "b d", "é")
"""Five keys: only page size 1 divides that, and their byte order differs from any other order (`a-c` is the first)."""

_FEWEST_OBJECTS, _FEWEST_RECORDS = 2, 3


class LawBrokenError(AssertionError):
    """A source breaks a law. The message has its id, the smallest example found, and the seed."""


class RigError(Exception):
    """The rig cannot prove anything."""


class CannotTryError(Exception):
    """The law cannot be tried here, for a reason outside the rig: it is skipped, with the reason."""


class Comparing:
    """Counts comparisons, and fails with a law's name.

    Attributes:
        count: comparisons so far.
        seed: seed of all random choices.
        notes: parts that could not be tried, and why.
    """

    def __init__(self, law: str, seed: int) -> None:
        self.law = law
        self.seed = seed
        self.count = 0
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Add to the outcome a part that could not be tried."""
        self.notes.append(text)

    def that(self, holds: object, example: str) -> None:
        """Compare once; `example` describes the attempt and the observation in a few words."""
        self.count += 1
        if not holds:
            raise self.broken(example)

    def same(self, seen: Sequence[object], expected: Sequence[object], example: str) -> None:
        """Compare two sequences; the message shows only the first difference."""
        self.count += 1
        if list(seen) == list(expected):
            return
        at = next((n for n, (left, right) in enumerate(zip(seen, expected, strict=False)) if left != right), None)
        if at is None:
            at = min(len(seen), len(expected))
        left, right = (repr(side[at])[:80] if at < len(side) else "nothing" for side in (seen, expected))
        counts = f"{len(seen)} instead of {len(expected)}; " if len(seen) != len(expected) else ""
        raise self.broken(f"{example}: {counts}number {at + 1} is {left}, must be {right}")

    def broken(self, example: str) -> LawBrokenError:
        """Return the error to raise for an example that breaks the law."""
        return LawBrokenError(f"{self.law} is broken: {example} (seed {self.seed})")


Check = Callable[["SourceRig", Comparing], None]


@attrs.frozen
class Law:
    """A law.

    Attributes:
        id: its id: L1, D4.
        says: the law in one sentence.
        check: raises when it is broken.
        needs: capabilities without which it cannot be checked.
    """

    id: str
    says: str
    check: Check
    needs: frozenset[Capability]


LAWS: dict[str, Law] = {}
"""All laws by id; filled by the modules `laws_*`."""


@attrs.frozen
class Outcome:
    """Result of a check that found no error.

    Attributes:
        law: its id.
        comparisons: number of comparisons; 0 when it was skipped.
        skipped: why it was skipped; empty otherwise.
        notes: parts that could not be tried, and why.
    """

    law: str
    comparisons: int = 0
    skipped: str = ""
    notes: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        if self.skipped:
            return f"{self.law} skipped: {self.skipped}"
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        return f"{self.law} holds: {self.comparisons} comparisons{notes}"


def law(number: str, says: str, *needs: Capability) -> Callable[[Check], Check]:
    """Register a check as the proof of a law."""

    def register(check: Check) -> Check:
        LAWS[number] = Law(number, says, check, frozenset(needs))
        return check

    return register


def in_order(keys: Iterable[str]) -> list[str]:
    """Return the keys sorted by their UTF-8 bytes."""
    return sorted(keys, key=lambda key: key.encode())


def refuse_unfit(rig: SourceRig) -> None:
    """Reject a rig whose numbers prove nothing: too few objects or records, or sizes that divide each other.

    With equal or dividing sizes, "resume skips one" and "the last batch is dropped" go unnoticed.

    Raises:
        RigError: names the numbers.
    """
    counts = list(rig.counts)
    if len(counts) < _FEWEST_OBJECTS or len(counts) > len(KEYS):
        raise RigError(f"counts: {_FEWEST_OBJECTS} to {len(KEYS)} objects, not {len(counts)}")
    if min(counts) < _FEWEST_RECORDS:
        raise RigError(f"counts: at least {_FEWEST_RECORDS} records in each object, not {min(counts)}")
    sizes = {f"object of {count}": count for count in counts}
    sizes |= {f"batch of {BATCH}": BATCH, f"queue of {QUEUE}": QUEUE, f"total of {sum(counts)}": sum(counts)}
    if len(sizes) < len(counts) + 3:
        raise RigError(f"counts: {counts} has equal numbers, among themselves or with batch, queue or total")
    for name, small in sizes.items():
        for other, large in sizes.items():
            if name != other and large % small == 0:
                raise RigError(f"counts: the {name} divides the {other}; choose numbers that do not divide each other")


def fill(rig: SourceRig, counts: Sequence[int] | None = None) -> dict[str, list[bytes]]:
    """Write the rig's objects; return key -> records, in the order of the keys' bytes."""
    counts = rig.counts if counts is None else counts
    written = {key: rig.make_records(key, count) for key, count in zip(KEYS, counts, strict=False)}
    for key, records in written.items():
        rig.put(key, rig.encode(records))
    return {key: written[key] for key in sorted(written, key=str.encode)}
