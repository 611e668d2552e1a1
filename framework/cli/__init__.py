"""The command line: a module per command, and their common parts."""

from __future__ import annotations

import sys
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
    leave(run(program or task_class.__name__.lower(), task_class, command=_command()))


def _command() -> str:
    """Return how this program was started, as messages repeat it: `python shelf.py`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return f"python -m {spec.name.removesuffix('.__main__')}" if spec is not None else f"python {sys.argv[0]}"


__all__ = ["leave", "main", "run"]
