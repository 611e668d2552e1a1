"""Finding Java and starting Spark's process: what a start says when it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

import pytest

from framework.config.sections import SparkSection
from framework.engine.spark import jvm
from framework.engine.spark.jvm import find_java, launch, require_java
from framework.errors import FatalError
from tests.support.stopwatch import run_within


def test_a_wrong_java_home_is_named(monkeypatch, tmp_path):
    """A java on the PATH does not count then: Spark would not take it."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FatalError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java: correct it, or unset it"):
        require_java()


def test_a_user_without_a_name_is_refused_before_java_starts(monkeypatch):
    """As in a container whose USER is a bare number: Hadoop's library ends there with "Invalid UID"."""
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999_999)
    for look in (find_java, require_java):
        with pytest.raises(
            FatalError, match=r"the user id 3999999999 has no name on this machine.* engine = \"local\""
        ):
            look()


def test_a_wrong_spark_home_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(FatalError, match=f"did not start: .*; SPARK_HOME is {tmp_path}: unset it, pyspark brings"):
        launch([])


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)  # pyspark leaves a pipe open
def test_the_first_line_of_a_process_that_does_not_start_is_kept(monkeypatch, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    said = ("WARNING: package sun.x not in java.base", "Invalid maximum heap size: -Xmx2 gigs", "Error: it ends")
    java.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in said) + "exit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FatalError, match="did not start: Invalid maximum heap size: -Xmx2 gigs; Error: it ends"):
        launch([])


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)  # pyspark leaves a pipe open
def test_an_option_that_spark_refuses_is_not_hidden_by_its_usage(caplog):
    if shutil.which("java") is None:
        pytest.skip("no Java: Spark needs one")
    with pytest.raises(FatalError, match=r"did not start: Error: Not allowed to specify max heap[^;]*$"):
        launch([("spark.driver.extraJavaOptions", "-Xmx1g")])
    assert len(caplog.records) == 1


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)  # pyspark leaves a pipe open
def test_a_folder_for_temporary_files_that_cannot_be_written_is_named(monkeypatch):
    """As where the system is read-only: Java does not look for another folder, as Python does."""
    if shutil.which("java") is None:
        pytest.skip("no Java: Spark needs one")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djava.io.tmpdir=/proc")
    with pytest.raises(
        FatalError, match=r"did not start: it cannot write to /proc, .*JAVA_TOOL_OPTIONS=-Djava.io.tmpdir="
    ):
        launch([])


STOPPED_WHILE_JAVA_STARTS = """
import threading
from framework.engine.process_exit import leave
from framework.engine.spark.jvm import launch

threading.Thread(target=launch, args=([("spark.secret", "x")],), daemon=True).start()
input()
leave(0)
"""


def test_a_stop_while_java_starts_leaves_no_options_behind(monkeypatch, tmp_path, java):
    """They may hold secrets."""
    java(then="exec cat >/dev/null")  # as the real one, it ends with its input
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with subprocess.Popen([sys.executable, "-c", STOPPED_WHILE_JAVA_STARTS], stdin=subprocess.PIPE) as process:
        (file,) = wait_for(lambda: list(temporary.rglob("*.properties")))
        assert 0 in {path.stat().st_mode & 0o077 for path in (file, file.parent)}, "only its user may read it"
        assert b"spark.secret=x" in wait_for(file.read_bytes)
        process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
    assert not list(temporary.rglob("*.properties"))


def wait_for(look):
    for _ in range(1200):
        if found := look():
            return found
        threading.Event().wait(0.05)
    raise AssertionError("it never comes")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)  # pyspark leaves a pipe open
def test_an_old_java_is_named_when_spark_does_not_start(java):
    """Its version is asked only then: the question is another start of Java."""
    java('openjdk version "11.0.2"', "Error: LinkageError", status="$([ $1 = -version ]; echo $?)")
    with pytest.raises(FatalError, match="/bin/java is Java 11"):
        launch([])


@pytest.mark.parametrize("master", ["local[0]", "local[zwei]", "local[]", "local[2,x]", "locale[2]"])
def test_a_local_master_without_a_number_of_threads_is_refused(master):
    (mistake,) = SparkSection(master=master).validate_options()
    assert mistake.startswith(f'master = "{master}": must be local, local[N], ')


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[*, 3]", "local[2,3]", "local-cluster[2,1,1024]", "yarn"]
)
def test_a_master_is_accepted(master):
    assert not list(SparkSection(master=master).validate_options())


@pytest.fixture
def java(monkeypatch, tmp_path):
    """A Java that answers with these lines."""

    def make(*lines, status="0", then=":"):
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(
            "".join(
                [
                    "#!/bin/sh\n",
                    "cat >&2 <<'END'\n",
                    *(f"{line}\n" for line in lines),
                    "END\n",
                    f"{then}\nexit {status}\n",
                ]
            )
        )
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    return make


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('openjdk version "17.0.12" 2024-07-16', 17),
        ('openjdk version "21" 2023-09-19 LTS', 21),
        ('java version "24-ea" 2025-03-18', 24),
    ],
)
@pytest.mark.parametrize("before", [(), ('Picked up JAVA_TOOL_OPTIONS: -Dname="1.8 x" -Da=\'version "11"\'',)])
def test_the_version_of_java_is_read(java, line, version, before):
    java(*before, line, "OpenJDK Runtime Environment (build 1)")
    assert require_java().endswith(f"/bin/java is Java {version}")


def test_an_old_java_is_refused(java):
    java('Picked up _JAVA_OPTIONS: "17.0"', 'java version "1.8.0_202"')
    with pytest.raises(FatalError, match="is Java 8"):
        require_java()


def test_a_java_that_does_not_say_its_version_is_refused(java):
    java('Picked up JAVA_TOOL_OPTIONS: "17.0"', "no version")
    with pytest.raises(FatalError, match="does not say its version"):
        require_java()


def test_what_java_says_while_its_context_stops_is_not_logged(monkeypatch, caplog):
    """The program's log is closed then, and a line would stand between lines of JSON."""
    read_end, write_end = os.pipe()
    output = jvm._JavaOutput(read_end)
    monkeypatch.setattr(jvm, "_launched", [(None, output)])
    with os.fdopen(write_end, "w") as java:
        print("ERROR Spark: a disk is full", file=java, flush=True)
        wait_for(lambda: caplog.messages)
        jvm.set_quiet(True)
        print("ERROR Spark TaskContextImpl: Error in TaskCompletionListener", file=java)
    assert output.last_words() == (
        "ERROR Spark: a disk is full; ERROR Spark TaskContextImpl: Error in TaskCompletionListener"
    )
    assert caplog.messages == ["Spark says: ERROR Spark: a disk is full"]


def test_ten_attempts_to_make_a_folder_are_said_once(caplog):
    read_end, write_end = os.pipe()
    output = jvm._JavaOutput(read_end)
    with os.fdopen(write_end, "w") as java:
        for number in range(10):
            print(f"2026-01-31T12:00:00.000 ERROR Spark JavaUtils: Failed to create directory /x/a{number}", file=java)
            print("java.nio.file.NoSuchFileException: /x", file=java)
            print("\tat java.base/sun.nio.fs.UnixException.translateToIOException(Unknown Source)", file=java)
        print("java.io.IOException: Failed to create a temp directory (under /x) after 10 attempts!", file=java)
    said = "java.io.IOException: Failed to create a temp directory (under /x) after 10 attempts!"
    assert output.last_words() == said
    assert caplog.messages == [f"Spark says: {said}"]


def test_a_line_of_java_shows_no_secret(caplog):
    read_end, write_end = os.pipe()
    output = jvm._JavaOutput(read_end)
    with os.fdopen(write_end, "w") as java:
        print("Traceback (most recent call last):\n  File x\nError: invalid XML:\nb'<SessionToken>hunter22", file=java)
    assert output.last_words() == "Error: invalid XML:; b'<SessionToken>***"
    assert "hunter22" not in caplog.text


STARTED_TWICE = """
from framework.config.sections import SparkSection
from framework.engine.process_exit import leave
from framework.engine.spark.spark_context import spark_context
from framework.errors import SparkUnavailableError

for folder in ("/proc/nowhere", "/tmp"):
    try:
        with spark_context(SparkSection(master="local[1]", conf={"spark.local.dir": folder}), name="orders") as context:
            print(context.master)
    except SparkUnavailableError as error:
        print(error)
leave(0)
"""


def test_spark_that_ends_while_it_starts_says_why_and_can_be_started_again():
    """pyspark sees a connection that is refused, and goes on asking the process that has ended."""
    if shutil.which("java") is None:
        pytest.skip("no Java: Spark needs one")
    done = run_within(120, [sys.executable, "-c", STARTED_TWICE])
    first, second = done.stdout.splitlines()
    assert first.startswith("Spark's Java process ended: "), done.stderr
    assert "it cannot write to /proc/nowhere, " in first
    assert second == "local[1]"
