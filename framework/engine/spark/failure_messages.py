"""Meaning of failed Spark jobs, in one sentence: one line of a Java exception names the cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from framework.engine.spark.jvm import ended
from framework.errors import SkippableError, SourceError, SparkUnavailableError, UnknownOutcomeError
from framework.model.secret_masking import without_secrets

if TYPE_CHECKING:
    from pyspark import SparkContext

MORE_MEMORY = "raise spark.executor.pyspark.memory, or leave it out"
"""That option limits the address space of a Python worker, in which libraries and the stacks of threads count too."""

_CAUSE = re.compile(r"most recent failure: |Cannot run program|exited unexpectedly|cancelled|was shut down")
_CANCELLED = re.compile(r"\[(SPARK_JOB_CANCELLED|OPERATION_CANCELED)\]")
_WORDY = re.compile(
    r"^.*most recent failure: (?:Lost task \S+ in stage \S+ \(TID \d+\) )?|^: |(?:[a-z]\w*\.)+[A-Z]\w*: "
    r"| Consider setting .*| SQLSTATE: \w+$"
)
_CALL = "An error occurred while calling"
"""How py4j begins; the exception of Java follows in the next line, after a colon."""

_BARE = re.compile(r": (?:[a-z]\w*\.)+([A-Z]\w*: \S+)$")
"""An exception whose text is one word, such as the name of a class: only its own name tells what it means."""


def lost_job(context: SparkContext, error: Exception, what: str) -> SourceError:
    """Return the error for a lost job: recover and plan again, as long as Spark is available, else start again.

    Args:
        context: context of the job.
        error: the exception of running it.
        what: the lost part, `task 3`.
    """
    if is_stopped(context):
        return application_ended(context, f": {sentence(error)}")
    return UnknownOutcomeError(f"Spark lost {what}: {sentence(error)}")


def is_cancelled(error: Exception) -> bool:
    """Return whether a job failed because it was cancelled."""
    return _CANCELLED.search(str(error)) is not None


def on_executor(error: SourceError, host: str) -> SourceError:
    """Name the executor in its error: other credentials, files or routes there may be the cause. Return the error.

    A bad record or object is the same everywhere.
    """
    if not isinstance(error, SkippableError):
        text = error.args[0] if error.args else ""
        error.args = (f"{text} (on executor {host})",)
    return error


def application_ended(context: SparkContext, why: str = "") -> SparkUnavailableError:
    """Return the error for a context that can run no more jobs."""
    return ended() or SparkUnavailableError(
        f"Spark has ended the application {context.appName} at {context.master}{why}"
    )


def is_stopped(context: SparkContext) -> bool:
    """Return whether the context can run no more jobs."""
    try:
        java = context._jsc  # noqa: SLF001 - pyspark has no question for it
        return java is None or bool(java.sc().isStopped())
    except Exception:  # noqa: BLE001 - py4j's errors when the JVM itself is gone
        return True


def sentence(error: Exception) -> str:
    """Return the line of a Spark exception that names the cause; for a Python worker, the end of its traceback."""
    lines = str(error).split("\n")
    raised = [
        next((line.strip() for line in lines[number + 1 :] if line.strip() and _indent(line) <= _indent(head)), "")
        for number, head in enumerate(lines)
        if "Traceback (most recent call last):" in head
    ]
    if raised:
        # the text of an exception may begin with an empty line: what it was raised from says more
        cause = next((line for line in reversed(raised) if not line.endswith(":")), raised[-1])
        return _short(cause) or type(error).__name__
    cause = next((line.strip() for line in lines if _CAUSE.search(line)), "")
    if not cause:
        told = [line.strip() for line in lines if line.strip()]
        cause = next((line for line in told if not line.startswith(_CALL)), told[0] if told else type(error).__name__)
    bare = _BARE.fullmatch(cause)
    return bare[1] if bare is not None else _short(cause)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


_OWN = re.compile(r"\bframework\.errors\.\w+: ")
"""An error of this project: it has masked what others wrote, and its keys and options are to be read."""


def _short(cause: str) -> str:
    text = _WORDY.sub("", cause.strip()).rstrip(".")
    return text if _OWN.search(cause) else without_secrets(text)
