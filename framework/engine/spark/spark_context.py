"""The Spark context: the active one, or one created from the `[spark]` options for a run.

A context, not a session: the pipeline needs no SQL, whose first use costs a JVM some seconds. Notebooks
bring a session, and its context is the active one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from framework.config.sections import SparkSection, master_addresses
from framework.engine.spark.failure_messages import is_stopped, sentence
from framework.engine.spark.jvm import (
    START_OPTION,
    ended,
    environment,
    find_java,
    forget_options,
    has_ended,
    launch,
    log_option,
    set_quiet,
)
from framework.errors import ConfigError, FatalError, SparkUnavailableError
from framework.storage.daemon_threads import SLICE_SECONDS, Awaited

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

log = logging.getLogger(__name__)

T = TypeVar("T")


NOTICE_SECONDS = 20.0
"""Wait for Spark after which a line is logged; Spark itself logs none."""

REACH_SECONDS = 8.0
"""Maximum wait for connections to a master's addresses, before the JVM starts."""

MASTER_SECONDS = 30.0
"""Maximum wait for a standalone master to accept the application, once the JVM runs.

Spark itself gives up after a minute, and continues with a dead context. A driver takes 3 seconds of CPU until then: on a
crowded machine 10 seconds passed before it had asked the master, again in every start.
"""

PYTHON_OPTION = "spark.pyspark.python"
KILL_OPTION = "spark.python.worker.killOnIdleTimeout"
IDLE_OPTION = "spark.python.worker.idleTimeoutSeconds"
SAFE_PATH = "PYTHONSAFEPATH"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOOPBACK = "127.0.0.1"

NO_PYSPARK = (
    'engine "spark" needs the package pyspark, not pyspark-client, which has no Spark of its own: pip install "pyspark>=4", '
    'or set [runner] engine = "local"'
)

NO_CONNECT = "this is a session of Spark Connect, which cannot run a pipeline; start Spark in this process"

_own: list[SparkContext] = []
"""The context that this module made, once per source that uses it: the last of them stops it."""

_looking = threading.Lock()
"""Held while a context is looked for and made, and while it is stopped."""

_SECRET_OPTION = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)
_SHORTEST_MASKED = 4


@contextlib.contextmanager
def spark_context(
    options: SparkSection, *, name: str, stopping: threading.Event | None = None
) -> Iterator[SparkContext | None]:
    """Yield the active context, which is kept, or a new one, which is stopped when the last source has used it.

    In a process that `spark-submit` started, the new one has the options of `spark-submit`. Speculation
    is off.

    Args:
        options: the section `[spark]`; an active context and `spark-submit` take precedence.
        name: the application's name, for Spark's pages.
        stopping: ends the wait for a master that does not answer.

    Yields:
        The context; None when `stopping` was set first.

    Raises:
        FatalError: no Java, or it does not start; or the active context has ended.
        SparkUnavailableError: the master does not answer, or another thread is making a context.
        ConfigError: the context is not one for our tasks, or cannot be created from the options.
    """
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - the door to Spark
        from pyspark.sql.utils import is_remote  # noqa: PLC0415
    except ImportError as exc:
        raise FatalError(NO_PYSPARK) from exc
    if not _taken(_looking, stopping):
        yield None
        return
    try:
        # `SparkSession.getActiveSession()` looks at this first, and then only in the thread that made the session. While
        # `SparkSession.builder` makes it in another thread, it holds the lock.
        with SparkContext._lock:  # noqa: SLF001
            active = SparkContext._active_spark_context  # noqa: SLF001
        if is_remote() or (active is None and "SPARK_REMOTE" in os.environ):
            raise ConfigError(f'{NO_CONNECT} (unset SPARK_REMOTE), or set [runner] engine = "local"')
        if active is not None:
            require_at_work(active)
        # In a thread of its own: connecting to a master takes up to a minute, and a stop must not wait for it. There pyspark
        # also leaves SIGINT alone, which this program handles.
        context = active or wait_for(
            lambda: _make(options, name), stopping, f"Spark's master {_master(options)}", too_late=_end
        )
        own = active is None or active in _own
        if own and context is not None:
            _own.append(context)
    finally:
        _looking.release()
    try:
        if context is not None:
            check_context(context)
            warn_of_open_cluster(context)
        yield context
    finally:
        if own and context is not None:
            _give_back(context)


def _taken(lock: threading.Lock, stopping: threading.Event | None) -> bool:
    """Take a lock; return False when `stopping` was set first: another source of this process may wait for its master."""
    while not lock.acquire(timeout=SLICE_SECONDS):
        if stopping is not None and stopping.is_set():
            return False
    return True


def require_at_work(active: SparkContext) -> None:
    """Check that a context of the user's own can run jobs.

    Raises:
        FatalError: it has ended.
        SparkUnavailableError: another thread is making it.
    """
    if not hasattr(active, "_jsc"):  # pyspark names it the active one before it has this
        raise SparkUnavailableError(
            "another thread of this process is making a Spark context: start the source when it is ready"
        )
    if is_stopped(active):
        raise FatalError(
            "the active Spark context has ended: call stop() of its session, then make another, or restart this process"
        )


def _give_back(context: SparkContext) -> None:
    with _looking:
        _own.remove(context)
        if context not in _own:
            _end(context)


def _end(context: SparkContext) -> None:
    from pyspark import SparkContext  # noqa: PLC0415 - the door to Spark

    set_quiet(True)
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a JVM that was stopped by the same signal is no news
        context.stop()
    if SparkContext._active_spark_context is context:  # noqa: SLF001 - of a JVM that is gone: pyspark keeps it
        SparkContext._active_spark_context = None  # noqa: SLF001
    forget_options()


def _reach(master: str) -> None:
    """Check that an address of the master accepts connections: Java takes seconds to start, and Spark tells no reason.

    Raises:
        SparkUnavailableError: none does.
    """
    addresses = master_addresses(master)
    reasons = []
    for address in addresses:
        try:
            socket.create_connection(address, timeout=REACH_SECONDS / len(addresses)).close()
        except OSError as exc:
            reasons.append(exc.strerror or str(exc) or type(exc).__name__)
        else:
            return
    if addresses:
        raise SparkUnavailableError(
            f"[spark] master {master}: no answer ({'; '.join(dict.fromkeys(reasons))}); start it, or correct the address"
        )


def _make(options: SparkSection, name: str) -> SparkContext:
    import pyspark  # noqa: PLC0415 - the door to Spark
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415

    # pyspark imports pandas, only to look whether it is there
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # errors of the JVM are reported once, by this package
    submitted = _is_submitted()
    if not submitted:
        find_java()
        _reach(options.master)
        if has_ended():  # in an earlier run of this process; pyspark would go on asking it
            SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    standalone = options.master.startswith("spark://") and not submitted
    with environment(_variables(options, submitted=submitted)):
        conf = None if submitted else _conf(options, name)
        # a process has one JVM, whatever it runs
        set_quiet(False)
        gateway = launch(conf.getAll()) if conf is not None and SparkContext._gateway is None else None  # noqa: SLF001
        try:
            context = wait_for(
                lambda: SparkContext(conf=conf, gateway=gateway),
                None,
                f"an answer of Spark's master {_master(options)}",
                limit_seconds=MASTER_SECONDS if standalone else None,
                too_late=_end,
            )
        except SparkUnavailableError as exc:
            raise SparkUnavailableError(f"{exc}; is its Spark {pyspark.__version__}, as pyspark is here?") from exc
        except Exception as exc:
            if isinstance(exc, OSError | Py4JNetworkError) and (error := ended()) is not None:
                raise error from exc
            forget_options()
            reason = without_secrets(sentence(exc), options.conf)
            raise ConfigError(f"[spark] no context at master {_master(options)}: {reason}") from exc
    if context is None or is_stopped(context):
        forget_options()
        raise ended() or SparkUnavailableError(
            f"[spark] master {_master(options)}: does not answer, or has refused the application"
        )
    # Its thread prints a traceback to stderr when the JVM ends before it; that the JVM has ended is reported elsewhere.
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001
    return context


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _master(options: SparkSection) -> str:
    """Return the master for messages. `spark-submit` names its own, which only the context knows."""
    return "of spark-submit" if _is_submitted() else options.master


def _variables(options: SparkSection, *, submitted: bool) -> dict[str, str]:
    """Return the environment variables for the start of pyspark and its JVM; those that the user has set win."""
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if options.master.startswith("local") and not submitted:
        wanted["SPARK_LOCAL_IP"] = LOOPBACK
    if _is_safe_path():
        wanted[SAFE_PATH] = "1"
    wanted |= {name: os.environ[name] for name in wanted if name in os.environ}
    if PYTHON_OPTION in options.conf and not submitted:
        wanted["PYSPARK_PYTHON"] = options.conf[PYTHON_OPTION]  # as with spark-submit, the option wins
    return wanted


def _is_safe_path() -> bool:
    """Return whether this process was started with `-P`: Spark starts its workers by `-m`, in the current folder."""
    return getattr(sys.flags, "safe_path", False)  # Python 3.11


def _conf(options: SparkSection, name: str) -> SparkConf:
    from pyspark import SparkConf  # noqa: PLC0415

    conf = SparkConf().setMaster(options.master).setAppName(name)
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    conf.set("spark.speculation", "false").set(KILL_OPTION, "false")
    if not is_on(options.conf, "spark.excludeOnFailure.enabled"):  # which takes several attempts
        # The driver recovers lost tasks: another attempt of Spark's could only say so, as soon as a core is free for it.
        conf.set("spark.task.maxFailures", "1").set("spark.excludeOnFailure.enabled", "false")
    if is_local(options.master):
        # Without it the driver deserialises what any process of the machine sends to its port. Spark makes a secret of its own
        # for each run.
        conf.set("spark.authenticate", "true")
        conf.set("spark.driver.host", LOOPBACK).set("spark.driver.bindAddress", LOOPBACK)
    if _is_safe_path():
        conf.set(f"spark.executorEnv.{SAFE_PATH}", "1")
    for key, value in options.conf.items():
        conf.set(key, value)
    # the user's options follow these, and take precedence
    return conf.set(JAVA_OPTIONS, f"{START_OPTION} {log_option()} {options.conf.get(JAVA_OPTIONS, '')}".strip())


def without_secrets(text: str, conf: Mapping[str, str]) -> str:
    """Return the text without values of options that Spark's own pages hide: Spark repeats invalid values."""
    for name, value in conf.items():
        if _SECRET_OPTION.search(name) and len(value) >= _SHORTEST_MASKED:
            text = text.replace(value, "***")
    return text


def is_local(master: str) -> bool:
    """Return whether the executors are threads of the driver's own JVM."""
    return re.match(r"local(\[|$)", master) is not None


def runs_locally(context: SparkContext) -> bool:
    """Return whether a context's executors are threads of the driver's own JVM."""
    return is_local(str(context.master))


def is_on(conf: SparkConf | Mapping[str, str], option: str) -> bool:
    """Return whether an option is true as Spark reads it; absent is false."""
    return str(conf.get(option, "false")).strip().lower() == "true"


def warn_of_open_cluster(context: SparkContext) -> None:
    """Warn about an open cluster: jobs carry the credentials of store and Iggy to the executors."""
    if runs_locally(context):
        return
    conf = context.getConf()
    if not is_on(conf, "spark.authenticate"):
        log.warning(
            "spark.authenticate is off: whoever reaches the driver's port may register as an executor and is given the "
            "credentials of the configuration; docs/guides/secure.md says how a cluster is secured"
        )
    elif not (is_on(conf, "spark.network.crypto.enabled") or is_on(conf, "spark.ssl.rpc.enabled")):
        log.warning(
            "spark.network.crypto.enabled is off: the credentials of the configuration go over the network in the clear; "
            "docs/guides/secure.md says how a cluster is secured"
        )


def check_context(context: SparkContext) -> None:
    """Reject a context that cannot run our tasks.

    Raises:
        ConfigError: it speculates or kills Python workers at work, or its Spark has another version than pyspark: their
            protocol differs.
    """
    import pyspark  # noqa: PLC0415 - the door to Spark

    if _release(str(context.version)) != _release(pyspark.__version__):
        home = os.environ.get("SPARK_HOME")
        where = f" in SPARK_HOME {home}" if home else ""
        way_out = "unset SPARK_HOME, or " if home else ""
        raise ConfigError(
            f"Spark{where} is {context.version}, and the package pyspark is {pyspark.__version__}: {way_out}install "
            f"pyspark=={context.version}"
        )
    if is_on(context.getConf(), "spark.speculation"):
        raise ConfigError(
            "spark.speculation is on: it runs one task twice at the same time, and a partition has one sender; set it to false"
        )
    conf = context.getConf()
    no_limit = str(conf.get(IDLE_OPTION, "0")).strip() in {"0", "0s"}
    if is_on(conf, KILL_OPTION) and not no_limit:
        raise ConfigError(
            f"{KILL_OPTION} is on: a job answers Spark only at its end, so it is killed when it takes longer than "
            f"{IDLE_OPTION}; set it to false"
        )


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


def wait_for(
    work: Callable[[], T],
    stopping: threading.Event | None,
    what: str,
    *,
    limit_seconds: float | None = None,
    too_late: Callable[[T], object] = lambda _: None,
) -> T | None:
    """Return the result of `work()`, run in a thread; None when `stopping` was set first, and the thread is abandoned.

    Args:
        work: waits for Spark.
        stopping: ends the wait.
        what: subject of the wait, for regular log lines.
        limit_seconds: maximum wait; None means no limit.
        too_late: called with a result that arrives after the wait has ended.

    Raises:
        SparkUnavailableError: the limit has passed.
        BaseException: the exception of `work`.
    """
    awaited = Awaited(work, f"waiting for {what}", too_late=too_late)
    waited = 0.0
    began = time.monotonic()
    while not awaited.ended.wait(SLICE_SECONDS):
        waited += SLICE_SECONDS
        late = limit_seconds is not None and time.monotonic() - began >= limit_seconds
        if (late or (stopping is not None and stopping.is_set())) and awaited.leave():
            if late:
                raise SparkUnavailableError(f"waited {limit_seconds:.0f} seconds for {what}")
            return None
        if waited >= NOTICE_SECONDS:
            waited = 0.0
            log.warning("still waiting for %s", what)
    return awaited.result()
