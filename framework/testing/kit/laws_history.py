"""The law of histories: whatever happens in whatever order, the topic holds what the bucket held. See `history`."""

from __future__ import annotations

from framework.testing.kit.law import CannotTryError, Comparing, law
from framework.testing.rig import SourceRig


@law("H1", "puts, deletes, overwrites, polls, commits, crashes and restarts in any order lose and repeat nothing")
def any_history(rig: SourceRig, comparing: Comparing) -> None:
    """Histories by the seed, each to its end, the shortest that breaks it reported; the model is a dict and lists.

    Raises:
        CannotTryError: the package hypothesis is not installed.
    """
    try:
        from framework.testing.kit.history import play  # noqa: PLC0415 - the one law that needs hypothesis
    except ModuleNotFoundError as missing:
        if missing.name != "hypothesis":
            raise
        raise CannotTryError(
            "it needs the package hypothesis, which is not installed: pip install '.[testing]' in a checkout of this project"
        ) from missing
    play(rig, comparing)
