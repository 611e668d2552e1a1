"""Which dead letters a command is about."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class DeadLetterChoice:
    """Which letters a command is about; all that is None chooses nothing.

    Attributes:
        key: of the object.
        prefix: of the object's key.
        kind: the error's class.
        letter: the letter's number: its offset in the topic.
        since: a time, or a duration back from now.
    """

    key: str | None = None
    prefix: str | None = None
    kind: str | None = None
    letter: int | None = None
    since: str | None = None
