"""The law of histories: after any sequence of events the topic has the records of the bucket. See `history`."""

from __future__ import annotations

from framework.testing.kit.law import CannotTryError, Comparing, law
from framework.testing.rig import SourceRig


@law("H1", "puts, deletes, overwrites, polls, commits, crashes and restarts in any order lose and repeat nothing")
def any_history(rig: SourceRig, comparing: Comparing) -> None:
    """Check histories by the seed against a model of a dict and lists; report the shortest failure.

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
