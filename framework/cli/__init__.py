"""The command line: a module per command, and their common parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from framework.cli.app import run
from framework.engine.process_exit import leave

if TYPE_CHECKING:
    from framework.task import AbstractSourceTask


def main(task_class: type[AbstractSourceTask], program: str | None = None) -> NoReturn:
    """Run the program of a source, with all its commands, and end the process with its exit code.

    Args:
        task_class: the source.
        program: its name in messages; by default the class name in lower case.
    """
    leave(run(program or task_class.__name__.lower(), task_class))


__all__ = ["leave", "main", "run"]
