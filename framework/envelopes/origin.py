"""What the key of an object says of the records in it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True, slots=True)
class Origin:
    """What the key of an object says of its records; None where it says nothing.

    Attributes:
        topic: their topic.
        partition: their partition.
    """

    topic: str | None = None
    partition: int | None = None
