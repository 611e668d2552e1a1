"""One sentence of what Spark says: the texts are as Spark 4.3 gave them, shortened in the middle."""

import pytest

pytest.importorskip("pyspark")

from framework.engine.spark.failure_messages import is_cancelled, on_executor, sentence
from framework.errors import ConfigError, CorruptObjectError, CredentialsError, ReaderFailedError

CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: "
ABORTED = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, "
    "most recent failure: Lost task 0.1 in stage 1.0 (TID 3) (127.0.0.1 executor 1): "
)
STACK = "\n\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n\t... 20 more\n\nDriver stacktrace:\n"
WORKER = (
    "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
    'Traceback (most recent call last):\n  File "worker.py", line 75, in read_command\n    command = loads(file)\n'
    "              ^^^^^^^^^^^^\n"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            WORKER + "ModuleNotFoundError: No module named 'nothere'\n SQLSTATE: 38000" + STACK,
            "ModuleNotFoundError: No module named 'nothere'",
        ),
        (
            WORKER
            + "ImportError: libopenblas.so: failed to map segment\n\nThe above exception was the direct cause:\n\n"
            "Traceback (most recent call last):\n  File ...\nImportError: \n\nPLEASE READ THIS\n" + STACK,
            "ImportError: libopenblas.so: failed to map segment",
        ),
        (
            WORKER
            + "pyspark.errors.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker: 3.10.\n"
            + STACK,
            "[PYTHON_VERSION_MISMATCH] Python in worker: 3.10",
        ),
        (
            ABORTED + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting "
            "'spark.python.worker.faulthandler.enabled' configuration to 'true'." + STACK,
            "(127.0.0.1 executor 1): Python worker exited unexpectedly (crashed)",
        ),
        (
            # an interpreter that is too old for pyspark, before it can compare versions
            ABORTED
            + "org.apache.spark.SparkException: \nError from python worker:\n  Traceback (most recent call last):\n"
            '    File "types.py", line 557, in GeographyType\n  TypeError: unsupported operand type(s) for |\n'
            "PYTHONPATH was:\n  /pyspark.zip\norg.apache.spark.SparkException: EOFException occurred" + STACK,
            "TypeError: unsupported operand type(s) for |",
        ),
        (
            ABORTED + 'java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file' + STACK,
            '(127.0.0.1 executor 1): Cannot run program "/nowhere/python": error=2, No such file',
        ),
        (
            ABORTED + "ExecutorLostFailure (executor 1 exited caused by a task) Reason: exited with code 137" + STACK,
            "(127.0.0.1 executor 1): ExecutorLostFailure (executor 1 exited caused by a task) Reason: exited with code 137",
        ),
        (
            "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group g "
            "SQLSTATE: XXKDA" + STACK,
            "[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group g",
        ),
        (
            "org.apache.spark.SparkException: Job 4 cancelled because SparkContext was shut down" + STACK,
            "Job 4 cancelled because SparkContext was shut down",
        ),
        (
            "java.lang.IllegalArgumentException: requirement failed: startPort should be between 1024 and 65535."
            + STACK,
            "requirement failed: startPort should be between 1024 and 65535",
        ),
        (
            "org.apache.spark.SparkIllegalArgumentException: [INVALID_EXECUTOR_MEMORY.CONFIG_MEMORY] Insufficient executor "
            "memory: Executor memory 1024 must be at least 4718592.\nPlease increase it. SQLSTATE: F0000" + STACK,
            "[INVALID_EXECUTOR_MEMORY.CONFIG_MEMORY] Insufficient executor memory: Executor memory 1024 must be at least 4718592",
        ),
        (
            WORKER + "ValueError: no XML: b'<Credentials><SecretAccessKey>hunter22\n" + STACK,
            "ValueError: no XML: b'<Credentials><SecretAccessKey>***",
        ),
        ("java.lang.ClassNotFoundException: nonsense.Class" + STACK, "ClassNotFoundException: nonsense.Class"),
    ],
)
def test_the_line_that_says_what_happened(text, told):
    assert sentence(RuntimeError(CALL + text)) == told


@pytest.mark.parametrize(
    ("text", "told"), [("", "RuntimeError"), ("\n\n", "RuntimeError"), ("one\ntwo", "one"), (WORKER, "RuntimeError")]
)
def test_a_text_that_says_little(text, told):
    assert sentence(RuntimeError(text)) == told


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CredentialsError("none"), "none (on executor w)"),
        (ConfigError("[s3] ca_file: missing"), "[s3] ca_file: missing (on executor w)"),
        (ReaderFailedError.of(KeyError("k")), "KeyError: 'k' (on executor w)"),
        (CorruptObjectError("bad", location="s3://b/k"), "s3://b/k: bad"),
    ],
)
def test_an_error_keeps_its_type_and_names_the_executor(error, said):
    assert str(on_executor(error, "w")) == said
    assert on_executor(error, "w") is error


@pytest.mark.parametrize(
    ("text", "cancelled"),
    [
        (CALL + "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 1 cancelled  SQLSTATE: XXKDA", True),
        ("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008", True),
        (CALL + ABORTED + "ExecutorLostFailure (executor 1 exited)", False),
    ],
)
def test_a_cancelled_job_is_told_from_a_lost_one(text, cancelled):
    assert is_cancelled(RuntimeError(text)) is cancelled
