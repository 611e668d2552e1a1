"""Transforms of tests, named in a configuration while `registered` is active."""

import attrs
import numpy as np

from framework.config import transform_registry as by_name
from framework.config.option import option
from framework.transform import Transform, TransformBatch


def register(monkeypatch, **classes):
    """Give these classes names that a configuration may use."""
    shipped = {name: f"{one.__module__}:{one.__qualname__}" for name, one in classes.items()}
    monkeypatch.setattr(by_name, "SHIPPED", {**by_name.SHIPPED, **shipped})


class DropMarked(Transform):
    """Filters records with the byte `!`."""

    name = "drop"

    def apply(self, batch, context):
        return batch.keep([place for place, payload in enumerate(batch.payloads) if b"!" not in payload])


class FailOnMarked(Transform):
    """Cannot handle records with the byte `?`."""

    name = "fail"

    def apply(self, batch, context):
        if any(b"?" in payload for payload in batch.payloads):
            raise ValueError("a secret of the record")
        return batch


@attrs.frozen(kw_only=True)
class TagOptions:
    tag: str = option("tag", doc="The header's name.", minimum=1)


class Tag(Transform):
    """Gives each record a header with its number, and its number in seconds as its time of origin."""

    name = "tag"
    options_class = TagOptions

    def apply(self, batch, context):
        headers = [{self.options.tag: int(number)} for number in batch.numbers]
        return attrs.evolve(batch, headers=headers, timestamps_us=np.asarray(batch.numbers, dtype=np.int64) * 1_000_000)


class Shout(Transform):
    """Writes each record in capitals."""

    name = "shout"

    def apply(self, batch, context):
        return batch.with_payloads([payload.upper() for payload in batch.payloads])


class Empty(Transform):
    name = "empty"

    def apply(self, batch, context):
        return batch.with_payloads([b"" if b"?" in payload else payload for payload in batch.payloads])


class BadHeader(Transform):
    name = "bad_header"

    def apply(self, batch, context):
        return attrs.evolve(batch, headers=[{"": "x"} if b"?" in payload else None for payload in batch.payloads])


class Twice(Transform):
    """Breaks the contract: a record comes out twice."""

    name = "twice"

    def apply(self, batch, context):
        numbers = [number for number in batch.numbers for _ in range(2)]
        return TransformBatch(payloads=[b"x"] * len(numbers), numbers=np.asarray(numbers))


class Backwards(Transform):
    name = "backwards"

    def apply(self, batch, context):
        return TransformBatch(payloads=list(batch.payloads)[::-1], numbers=np.asarray(batch.numbers)[::-1])


class Stranger(Transform):
    name = "stranger"

    def apply(self, batch, context):
        return attrs.evolve(batch, numbers=np.asarray(batch.numbers) + 1)


class Short(Transform):
    name = "short"

    def apply(self, batch, context):
        return attrs.evolve(batch, payloads=[b"x"])


class Nothing(Transform):
    name = "nothing"

    def apply(self, batch, context):
        return None
