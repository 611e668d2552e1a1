"""Work in another process: a new interpreter that receives only pickled values, and hashes strings differently.

It does what local workers and Spark executors do with a source, without either.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from framework.config.sections import SourceCommonConfig
from framework.discovery.feed import Assignment, HandedFeed
from framework.model.positions import OffsetManagerEntry
from framework.offsets.manager import OffsetManager
from framework.offsets.store import MemoryOffsetStore, PositionDelta
from framework.task import AbstractSourceTask

ELSEWHERE_SECONDS = 60.0
_OTHER_HASHES = "46656"
_EXIT_NOT_IMPORTABLE = 9

_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from framework.testing.kit.other_process import main; main()"
)


@attrs.frozen(kw_only=True)
class TaskPlan:
    """The work of a task in another process.

    Attributes:
        make_task: makes the task.
        config: its configuration.
        entries: its start positions.
        assignments: the objects to read.
    """

    make_task: Callable[[], AbstractSourceTask]
    config: SourceCommonConfig
    entries: Sequence[OffsetManagerEntry]
    assignments: Sequence[Assignment]


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


def read_plan(plan: TaskPlan) -> dict[str, list[bytes]]:
    """Run the plan; return key -> payloads."""
    task = plan.make_task()
    store = MemoryOffsetStore()
    store.save(PositionDelta(entries=plan.entries))
    offsets = OffsetManager(store)
    offsets.populate_offset_manager()
    read: dict[str, list[bytes]] = {}
    try:
        task.start(plan.config, offsets=offsets, feed=HandedFeed(plan.assignments, closed=True))
        while not task.finished:
            for batch in task.poll(timeout_seconds=1.0):
                read.setdefault(batch.native.key, []).extend(batch.payloads)
    finally:
        task.stop()
    return read


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
