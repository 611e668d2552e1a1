"""The command line: a module per command, and their common parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from framework.cli.app import run
from framework.engine.process_exit import leave

if TYPE_CHECKING:
    from framework.task import AbstractSourceTask


def main(task_class: type[AbstractSourceTask], program: str | None = None) -> NoReturn:
    """Run the program of a source, with all its commands, and end the process with its exit code.

    Args:
        task_class: the source.
        program: its name in messages; by default that of its file or module.
    """
    name, command = _started()
    leave(run(program or name, task_class, command=command))


def _started() -> tuple[str, str]:
    """Return the name of this program and its command, as messages repeat them: `shelf`, `python shelf.py`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return Path(sys.argv[0]).stem, f"python {sys.argv[0]}"
    name = spec.name.removesuffix(".__main__")
    return name, f"python -m {name}"


__all__ = ["leave", "main", "run"]
