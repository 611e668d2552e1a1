"""The envelope of a configuration, as the first transform of its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from framework.envelopes.layout import Origin

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.transform import Transform


def make_envelope(config: SourceCommonConfig) -> Sequence[tuple[Transform, str]]:
    """Return the transform of `[input] envelope` with its place in the configuration; nothing without one."""
    options = config.input.envelope_options()
    if options is None:
        return []
    from framework.envelopes.restore import EnvelopeTransform  # noqa: PLC0415 - loaded when used

    template = config.naming.parsed()

    def origin_of(key: str) -> Origin:
        match = None if template is None else template.match(key)
        return Origin() if match is None else Origin(topic=match.topic, partition=match.partition)

    transform = EnvelopeTransform(options.layout(), origin_of, check_origin=options.check_origin)
    return [(transform, f"envelope {options.envelope}")]
