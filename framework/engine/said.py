"""A task's log on its way to the leader, which alone knows how lines look and where they go."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import attrs
from typing_extensions import override


@attrs.frozen(slots=True)
class Said:
    """A line of a task's log: which logger, how important (as `logging` counts), what."""

    logger: str
    level: int
    text: str

    def repeat(self) -> None:
        """Says it here, where the log is set up."""
        logging.getLogger(self.logger).log(self.level, "%s", self.text)


class Teller(logging.Handler):
    """Tells warnings on.

    Args:
        tell: called with each, in the thread that warns.
    """

    def __init__(self, tell: Callable[[Said], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text = "\n".join([text, *traceback.format_exception(*record.exc_info)])
        self._tell(Said(record.name, record.levelno, text))
