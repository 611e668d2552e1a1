"""The driver's JVM: finds Java, starts the JVM, and forwards its output to the log.

A JVM writes to stderr at any time, through a progress bar and between JSON lines. Here it writes to a
pipe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from framework.errors import FatalError, SparkUnavailableError
from framework.model.secret_masking import without_secrets

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

log = logging.getLogger(__name__)

_VERSION = re.compile(r'^\w+ version "(?:1\.)?(\d+)', re.MULTILINE)  # other lines may be before it

_NO_FOLDER = re.compile(r"Failed to create a temp directory \(under (.+?)\) after")

OLDEST_JAVA = 17
"""Spark 4 runs on Java 17 and 21."""

NO_JAVA = (
    'engine "spark" needs Java 17 or newer and finds none: install it (apt-get install openjdk-17-jre-headless), set JAVA_HOME, '
    'or set [runner] engine = "local", which needs no Java'
)

NOISE = ("WARNING: ", "Picked up ", "at ", "... ", "Caused by: ")
"""Beginnings of lines that are dropped: Java's messages at every start, and stack traces."""

ATTEMPT = "Spark JavaUtils: Failed to create directory"
"""Part of a line that Spark writes ten times for a folder, each with an exception below; a line at the end has the result."""

USAGE = "Usage: spark-submit"
"""Beginning of 100 lines with which `spark-submit` ends when it refuses an option."""

KEPT_LINES = 5

START_OPTION = "-XX:TieredStopAtLevel=1"
"""Only Java's first compiler, which halves the CPU time of a start. Records never pass through this JVM: it schedules jobs."""

_launched: list[tuple[subprocess.Popen[bytes], _JavaOutput]] = []
"""The JVM that `launch` started; a process has one."""

_system_properties: list[str] = []
"""Names of the options that `launch` gave the JVM that runs."""

_OF_ANY_JVM = {"spark.app.name": "pyspark-shell", "spark.master": "local[*]"}
"""Options that pyspark gives each JVM, so that a session may be made without them."""

EXIT_SECONDS = 2.0
"""How long a JVM whose port is closed may take to end."""

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
"""The variable with further arguments for `spark-submit`, which pyspark reads."""


def log_option() -> str:
    """Return the option of Java that silences Spark's own log."""
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def find_java() -> str:
    """Return the path of the Java that Spark takes. Starts nothing.

    Raises:
        FatalError: there is none, or Spark in Java cannot run as this user; with advice.
    """
    _require_user_name()
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        wrong = f"JAVA_HOME is {home}, which has no bin/java: correct it, or unset it. " if home else ""
        raise FatalError(f"{wrong}{NO_JAVA}")
    return java


def require_java() -> str:
    """Find a Java that Spark can use, and ask for its version; return it.

    Raises:
        FatalError: there is none, or it is too old; with advice.
    """
    java = find_java()
    version = _version_of(java)
    if version is None:
        raise FatalError(f"{java} does not say its version. {NO_JAVA}")
    if version < OLDEST_JAVA:
        raise FatalError(f"{java} is Java {version}. {NO_JAVA}")
    return f"{java} is Java {version}"


def _require_user_name() -> None:
    """Hadoop's library, which Spark asks for the user, ends where the system has no name for it: "Invalid UID"."""
    user = os.geteuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        raise FatalError(
            f'engine "spark" needs a user with a name, and the user id {user} has no name on this machine: add it '
            f'(useradd --uid {user} NAME, in the image of a container), or set [runner] engine = "local"'
        ) from None


def _version_of(java: str) -> int | None:
    try:
        # the fixed flag of a program found on the PATH
        version_text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    found = _VERSION.search(version_text)
    return int(found[1]) if found is not None else None


def launch(options: Iterable[tuple[str, str]]) -> JavaGateway:
    """Start a JVM for Spark; it ends with this process. Every new SparkConf has its options, until `forget_options`.

    The options go through a file that only this user can read: a command line is visible in `ps` to all
    users, and options contain secrets.

    Raises:
        FatalError: it did not start; with its last lines of output, or what is wrong with its Java.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - the door to Spark
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    threading.Thread(target=_import_converters, name="imports", daemon=True).start()
    options = list(options)
    read_end, write_end = os.pipe()
    output = _JavaOutput(read_end)
    try:
        with _submitted(options):
            gateway = launch_gateway(None, {"stdout": write_end, "stderr": write_end})  # type: ignore[no-untyped-call]
    except (PySparkRuntimeError, OSError) as exc:
        os.close(write_end)
        write_end = -1
        # asked only now: that is another start of Java
        java = find_java()
        version = _version_of(java)
        if version is not None and version < OLDEST_JAVA:
            raise FatalError(f"{java} is Java {version}. {NO_JAVA}") from exc
        home = os.environ.get("SPARK_HOME")
        advice = f"; SPARK_HOME is {home}: unset it, pyspark brings a Spark of its own" if home else ""
        if "pyspark-shell" not in os.environ.get(SUBMIT_ARGS, "pyspark-shell"):
            advice += f"; {SUBMIT_ARGS} must end with pyspark-shell"
        said = output.last_words()
        raise FatalError(f"Spark's Java process did not start: {_explained(said) or exc}{advice}") from exc
    finally:
        if write_end >= 0:
            os.close(write_end)
    _launched[:] = [(gateway.proc, output)]
    _system_properties[:] = [name for name, _ in options]
    return gateway


def forget_options() -> None:
    """Clear the options of `launch`: a later context is of another source, or of the user, and must not have its secrets."""
    from pyspark import SparkContext  # noqa: PLC0415 - the door to Spark

    names = _system_properties[:]
    _system_properties.clear()
    with contextlib.suppress(Exception):  # of a JVM that is gone
        system = SparkContext._jvm.java.lang.System  # type: ignore[union-attr]  # noqa: SLF001
        for name in names:
            system.clearProperty(name)
        for name in _OF_ANY_JVM.keys() & names:
            system.setProperty(name, _OF_ANY_JVM[name])


def has_ended() -> bool:
    """Return whether the JVM that `launch` started has ended: a context needs another one."""
    return any(process.poll() is not None for process, _ in _launched)


def ended() -> SparkUnavailableError | None:
    """Return the error for a call that failed if the JVM that `launch` started has ended, else None.

    Its ports close a little before its end, which is therefore waited for.
    """
    for process, output in _launched:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
            said = _explained(output.last_words()) or "it was killed; has this machine enough memory?"
            return SparkUnavailableError(f"Spark's Java process ended: {said}")
    return None


def _explained(said: str) -> str:
    """Return what Java said at its end; of a folder that cannot be written, a sentence in place of its lines."""
    found = _NO_FOLDER.search(said)
    if found is None:
        return said
    return (
        f"it cannot write to {found[1]}, its folder for temporary files: make that writable, or name another with the "
        f"environment variable JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=FOLDER, or SPARK_LOCAL_DIRS=FOLDER if you set that"
    )


def set_quiet(quiet: bool) -> None:
    """Forward the output of the JVM that `launch` started, or keep it only for `ended`.

    While its context stops, it complains of tasks that end with it, and this program's log may be closed already.
    """
    for _, output in _launched:
        output.quiet = quiet


def kill() -> bool:
    """Kill the JVM that `launch` started, so that calls that wait for its answer fail; return whether it was running.

    Calls to a JVM have no time limit.
    """
    running = [process for process, _ in _launched if process.poll() is None]
    for process in running:
        process.kill()
    return bool(running)


def _import_converters() -> None:
    """Import, while Java starts, what pyspark imports at the first call to it: numpy and, where installed, pandas."""
    with contextlib.suppress(Exception):  # then that call says what is wrong
        from pyspark.sql.types import NumpyScalarConverter  # noqa: PLC0415

        NumpyScalarConverter().can_convert(0)


@contextlib.contextmanager
def _submitted(options: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Set the environment in which pyspark starts a JVM with these options; afterwards file and variable are removed.

    A stop leaves the thread of a start behind: the file is then removed at the exit of the process.
    """
    with tempfile.TemporaryDirectory(prefix="spark-") as folder:  # mode 0700
        file = Path(folder, "options.properties")
        file.touch(mode=0o600)
        file.write_text(properties_text(options), encoding="ascii")
        given = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults"
        # what the user gives there wins, as ever
        with environment({SUBMIT_ARGS: f"{given} {os.environ.get(SUBMIT_ARGS) or 'pyspark-shell'}"}):
            yield


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables, for the start of pyspark and its JVM; restore them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def properties_text(options: Iterable[tuple[str, str]]) -> str:
    """Return options in the format of Java's properties files; all characters except plain letters are escaped."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in options)


def _escaped(text: str) -> str:
    def escape(found: re.Match[str]) -> str:
        raw = found[0].encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{raw[at : at + 2].hex()}" for at in range(0, len(raw), 2))

    return re.sub(r"[^A-Za-z0-9._/-]", escape, text)


class _JavaOutput:
    """Reads the pipe to its end and logs the relevant lines.

    Attributes:
        quiet: whether lines are kept, and not logged.
    """

    def __init__(self, pipe: int) -> None:
        self.quiet = False
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._read, args=(pipe,), name="spark-jvm", daemon=True)
        self._thread.start()

    def _read(self, pipe: int) -> None:
        with open(pipe, encoding="utf-8", errors="replace") as lines:
            in_trace = False
            for raw in lines:
                line = raw.strip()
                if line.startswith(USAGE):  # after the line that says what is wrong
                    for _ in lines:
                        pass
                    break
                if ATTEMPT in line:
                    next(lines, None)
                    continue
                # of a Python worker's traceback only its last line, which says what happened
                if line.startswith("Traceback (most recent call last):"):
                    in_trace = True
                    continue
                if in_trace and raw.startswith((" ", "\n")):
                    continue
                in_trace = False
                if line and not line.startswith(NOISE):
                    line = without_secrets(line)
                    self._lines.append(line)
                    if not self.quiet:
                        log.warning("Spark says: %s", line)

    def last_words(self) -> str:
        self._thread.join(1.0)
        return "; ".join(self._lines)
