"""Selection of dead letters by a command."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class DeadLetterChoice:
    """Selection of dead letters; None does not restrict.

    Attributes:
        key: the object's key.
        prefix: prefix of the object's key.
        kind: class of the error.
        dead_letter: number of the dead letter: its offset in the topic.
        since: a time, or a duration before now.
    """

    key: str | None = None
    prefix: str | None = None
    kind: str | None = None
    dead_letter: int | None = None
    since: str | None = None
