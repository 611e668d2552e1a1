"""The Spark context: the one there is, or one made from the `[spark]` options for a run.

A context and no session: the pipeline needs no SQL, whose first use costs a JVM some seconds. Notebooks bring a session,
and its context is the active one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from framework.errors import ConfigError, FatalError
from framework.spark.failures import is_stopped, sentence
from framework.spark.jvm import launch, log_option, require_java

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

    from framework.config.sections import SparkSection

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_SECONDS = 0.1

TELL_SECONDS = 20.0
"""How long Spark may keep us waiting before a line says so; it never says so itself."""

PYTHON_OPTION = "spark.pyspark.python"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@contextlib.contextmanager
def spark_context(
    options: SparkSection, *, name: str, stopping: threading.Event | None = None
) -> Iterator[SparkContext | None]:
    """The active context, which stays, or a new one, which is stopped at the end.

    In a process that `spark-submit` started, the new one is as `spark-submit` was told. Speculation is off.

    Args:
        options: the section `[spark]`; an active context and `spark-submit` win over it.
        name: the application's name, for Spark's pages.
        stopping: ends the waiting for a master that does not answer.

    Yields:
        The context; None when `stopping` was set before it was there.

    Raises:
        FatalError: no Java, or it does not start.
        ConfigError: the context speculates, or cannot be made from the options.
    """
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - the door to Spark
        from pyspark.sql.utils import is_remote  # noqa: PLC0415
    except ImportError as exc:
        raise FatalError('engine "spark" needs the package pyspark: pip install "pyspark>=4"') from exc
    if is_remote():
        raise ConfigError(
            "this is a session of Spark Connect, which cannot run our tasks; start Spark in this process "
            '(unset SPARK_REMOTE), or set [runner] engine = "local"'
        )
    # `SparkSession.getActiveSession()` looks at this first, and then only in the thread that made the session
    active = SparkContext._active_spark_context  # noqa: SLF001
    if active is not None:
        check_speculation(active)
        yield active
        return
    # In a thread of its own: connecting to a master takes up to a minute, and a stop must not wait for it. There pyspark
    # also leaves SIGINT alone, which is ours.
    made = wait_for(
        lambda: _make(options, name),
        stopping,
        f"Spark's master {options.master}",
        too_late=lambda late: late.stop(),
    )
    try:
        yield made
    finally:
        if made is not None:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a JVM that was stopped by the same signal is no news
                made.stop()


def _make(options: SparkSection, name: str) -> SparkContext:
    from pyspark import SparkContext  # noqa: PLC0415

    # pyspark imports pandas, only to look whether it is there
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what breaks with the JVM is told once, by us
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        require_java()
    with _variables(options, submitted=submitted):
        conf = None if submitted else _conf(options, name)
        # a process has one JVM, whatever it runs
        gateway = launch(conf) if conf is not None and SparkContext._gateway is None else None  # noqa: SLF001
        try:
            context = SparkContext(conf=conf, gateway=gateway)
        except Exception as exc:
            raise ConfigError(f"[spark] no context at master {options.master}: {sentence(exc)}") from exc
    if is_stopped(context):
        raise ConfigError(f"[spark] master {options.master}: does not answer")
    # Its thread prints a traceback to stderr when the JVM ends before it; that the JVM has ended is told elsewhere.
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001
    try:
        check_speculation(context)
    except ConfigError:
        context.stop()
        raise
    return context


@contextlib.contextmanager
def _variables(options: SparkSection, *, submitted: bool) -> Iterator[None]:
    """Variables of the environment that pyspark and its JVM read at their start; afterwards all is as it was."""
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if options.master.startswith("local") and not submitted:
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in wanted}
    wanted |= {name: value for name, value in before.items() if value is not None}
    if PYTHON_OPTION in options.conf and not submitted:
        wanted["PYSPARK_PYTHON"] = options.conf[PYTHON_OPTION]  # as with spark-submit, the option wins
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _conf(options: SparkSection, name: str) -> SparkConf:
    from pyspark import SparkConf  # noqa: PLC0415

    conf = SparkConf().setMaster(options.master).setAppName(name)
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    conf.set("spark.speculation", "false")
    # A task that is lost is ours to recover: another attempt of Spark's could only say so, as soon as a core is free for it.
    conf.set("spark.task.maxFailures", "1")
    for key, value in options.conf.items():
        conf.set(key, value)
    # the user's own options stand behind ours, and win
    return conf.set(JAVA_OPTIONS, f"{log_option()} {options.conf.get(JAVA_OPTIONS, '')}".strip())


def check_speculation(context: SparkContext) -> None:
    """Refuses a context that speculates.

    Raises:
        ConfigError: it does.
    """
    if str(context.getConf().get("spark.speculation", "false")).lower() == "true":
        raise ConfigError(
            "spark.speculation is on: it runs one task twice at the same time, and a lane has one sender; set it to false"
        )


def wait_for(
    work: Callable[[], T],
    stopping: threading.Event | None,
    what: str,
    *,
    too_late: Callable[[T], object] = lambda _: None,
) -> T | None:
    """What `work()` gives; None when `stopping` was set before. It runs in a thread, which then is left behind.

    Args:
        work: waits for Spark.
        stopping: ends the waiting.
        what: is waited for; a line tells of it now and then.
        too_late: is given a result that nobody waits for any more.

    Raises:
        BaseException: what `work` raises.
    """
    results: list[T] = []
    failures: list[BaseException] = []
    lock = threading.Lock()
    left = threading.Event()
    ended = threading.Event()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            failures.append(error)
        else:
            with lock:
                results.append(result)
                late = left.is_set()
            if late:
                too_late(result)
        finally:
            ended.set()

    threading.Thread(target=run, name=f"waiting for {what}", daemon=True).start()
    waited = 0.0
    while not ended.wait(SLICE_SECONDS):
        waited += SLICE_SECONDS
        if stopping is not None and stopping.is_set():
            with lock:
                if not results:
                    left.set()
                    return None
        if waited >= TELL_SECONDS:
            waited = 0.0
            log.warning("still waiting for %s", what)
    if failures:
        raise failures[0]
    return results[0]
