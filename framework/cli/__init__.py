"""The command line: one module for each command, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from framework.cli.app import run
from framework.engine.process_exit import leave

if TYPE_CHECKING:
    from framework.task import AbstractSourceTask


def main(task_class: type[AbstractSourceTask], program: str | None = None) -> NoReturn:
    """Runs the program of a source, with all its commands, and ends the process with its exit code.

    Args:
        task_class: the source.
        program: what it calls itself; by default its class in lower case.
    """
    leave(run(program or task_class.__name__.lower(), task_class))


__all__ = ["leave", "main", "run"]
