"""Work in another process: a new interpreter that receives only pickled values, and hashes strings differently.

It imports what the work consists of, and nothing else of the framework.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

ELSEWHERE_SECONDS = 60.0
_OTHER_HASHES = "46656"
_EXIT_NOT_IMPORTABLE = 9

_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from framework.testing.kit.other_process import main; main()"
)


class ElsewhereError(Exception):
    """The other process failed; the message is the end of its output."""


class NotImportableError(ElsewhereError):
    """The other process cannot import what the work consists of."""


def call_elsewhere(work: bytes) -> Any:
    """Call a function in a new interpreter; return its result.

    Args:
        work: the pickled function. It and its result consist of what both processes can import.

    Raises:
        NotImportableError: the other process cannot import the work.
        ElsewhereError: it failed, or did not end within a minute.
    """
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, with a text from this module
            [sys.executable, "-c", _START],
            input=pickle.dumps(sys.path) + work,
            env={**os.environ, "PYTHONHASHSEED": _OTHER_HASHES},
            capture_output=True,
            timeout=ELSEWHERE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ElsewhereError(f"the other process did not end within {ELSEWHERE_SECONDS:.0f} seconds") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        kind = NotImportableError if done.returncode == _EXIT_NOT_IMPORTABLE else ElsewhereError
        raise kind(f"the other process failed: {''.join(last)}")
    return pickle.loads(done.stdout)  # noqa: S301 - from a child process


def main() -> None:
    """Run in the other process."""
    try:
        work: Callable[[], object] = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our parent
    except (ImportError, AttributeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - read by the parent
        sys.exit(_EXIT_NOT_IMPORTABLE)
    out, sys.stdout = sys.stdout, sys.stderr  # what the work prints is not its result
    result = pickle.dumps(work())
    out.buffer.write(result)
    out.flush()
