"""The envelope as the first transform of a source."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from typing_extensions import override

from framework.envelopes.layout import Origin
from framework.envelopes.options import EnvelopeOptions
from framework.envelopes.restore import Envelope
from framework.transform import Transform, TransformBatch, TransformContext


class EnvelopeTransform(Transform):
    """Take archived records out of their envelopes. Deterministic: a function of the record and its object's key.

    Args:
        options: how the topic was archived.
        origin_of: what a key says of the object's records.
    """

    name = "envelope"
    options_class = EnvelopeOptions

    def __init__(self, options: EnvelopeOptions, origin_of: Callable[[str], Origin]) -> None:
        super().__init__(options)
        self._envelope = Envelope(options.layout(), check_origin=options.check_origin)
        self._origin_of = origin_of

    @override
    def apply(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        found = self._envelope.restore(batch.payloads, self._origin_of(context.native.key))
        return attrs.evolve(
            batch.reject(found.wrong),
            payloads=found.payloads,
            headers=found.headers,
            timestamps_us=found.timestamps_us,
        )
