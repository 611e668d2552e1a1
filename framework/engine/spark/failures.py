"""What the failure of a Spark job means for us, in one sentence: of a Java exception one line says what happened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from framework.errors import FatalError, SourceError, UnknownOutcomeError

if TYPE_CHECKING:
    from pyspark import SparkContext

_CAUSE = re.compile(r"most recent failure: |Cannot run program|exited unexpectedly|cancelled|was shut down")
_WORDY = re.compile(
    r"^.*most recent failure: (?:Lost task \S+ in stage \S+ \(TID \d+\) )?|^: |(?:[a-z]\w*\.)+[A-Z]\w*: "
    r"| Consider setting .*| SQLSTATE: \w+$"
)


def lost_job(context: SparkContext, error: Exception, what: str) -> SourceError:
    """The error that a job's failure is to us: recover and plan again, as long as there is a Spark to do it.

    Args:
        context: of the job.
        error: what running it raised.
        what: who was lost, `task 3`.
    """
    if is_stopped(context):
        return FatalError(f"Spark has ended the application {context.appName} at {context.master}: {sentence(error)}")
    return UnknownOutcomeError(f"Spark lost {what}: {sentence(error)}")


def is_stopped(context: SparkContext) -> bool:
    """Whether nothing can run in this context any more."""
    java = context._jsc  # noqa: SLF001 - pyspark has no question for it
    try:
        return java is None or bool(java.sc().isStopped())
    except Exception:  # noqa: BLE001 - py4j's errors when the JVM itself is gone
        return True


def sentence(error: Exception) -> str:
    """The line of an exception from Spark that says what happened; of a Python worker's, the end of its traceback."""
    lines = str(error).split("\n")
    tracebacks = [number for number, line in enumerate(lines) if "Traceback (most recent call last):" in line]
    if tracebacks:
        cause = next((line for line in lines[tracebacks[-1] + 1 :] if line.strip() and not line.startswith(" ")), "")
        return _short(cause) or type(error).__name__
    cause = next((line.strip() for line in lines if _CAUSE.search(line)), "")
    cause = cause or next((line.strip() for line in lines if line.strip()), type(error).__name__)
    return _short(cause)


def _short(cause: str) -> str:
    return _WORDY.sub("", cause.strip()).rstrip(".")
