"""Waiting for Spark without being held up by it, what pyspark finds in the environment, and what is refused."""

import os
import re
import shlex
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import attrs
import pyspark
import pytest
from pyspark import SparkContext

from framework.config.sections import SparkSection
from framework.engine.spark import jvm
from framework.engine.spark import spark_context as module
from framework.engine.spark.spark_context import Awaited, check_context, spark_context, wait_for
from framework.errors import ConfigError, FatalError, SparkUnavailableError

SECONDS = 20


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch):
    """A configuration reads the properties of a JVM that runs already: that of tests before this one."""
    monkeypatch.setattr(SparkContext, "_jvm", None)


def test_what_work_gives_or_raises_comes_out():
    assert wait_for(lambda: 7, None, "nothing") == 7
    assert wait_for(lambda: 7, threading.Event(), "nothing") == 7
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0, threading.Event(), "nothing")


def test_a_stop_leaves_the_work_behind_and_its_late_result_is_taken_care_of():
    go, stopping, late, given = threading.Event(), threading.Event(), threading.Event(), []

    def work():
        stopping.set()
        assert go.wait(SECONDS)
        return 7

    def too_late(result):
        given.append(result)
        late.set()

    assert wait_for(work, stopping, "a master", too_late=too_late) is None
    assert not given
    go.set()
    assert late.wait(SECONDS)
    assert given == [7]


def test_several_threads_wait_for_one_result():
    go, results, never = threading.Event(), [], threading.Event()
    awaited = Awaited(lambda: go.wait(SECONDS), "work")
    waiting = [threading.Thread(target=lambda: results.append(awaited.wait(never))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    go.set()
    for thread in waiting:
        thread.join(SECONDS)
    assert results == [True] * 3
    assert not awaited.leave()


def test_a_waiter_that_stops_takes_the_result_from_nobody():
    go, stopping, late = threading.Event(), threading.Event(), []
    awaited = Awaited(lambda: go.wait(SECONDS), "work", too_late=late.append)
    stopping.set()
    assert awaited.wait(stopping) is None
    go.set()
    assert awaited.wait(threading.Event()) is True
    assert not late


def test_a_failure_after_a_stop_is_nobodys():
    go, stopping, late = threading.Event(), threading.Event(), []

    def work():
        stopping.set()
        assert go.wait(SECONDS)
        raise OSError("too late")

    awaited = Awaited(work, "work", too_late=late.append)
    assert awaited.wait(stopping) is None
    assert awaited.leave()
    go.set()
    assert awaited.ended.wait(SECONDS)
    assert not late


def test_what_is_waited_for_is_told(monkeypatch, caplog):
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(module, "SLICE_SECONDS", 0.001)
    told = threading.Event()
    caplog.handler.addFilter(lambda record: told.set() or True)
    assert wait_for(lambda: told.wait(SECONDS), None, "an executor") is True
    assert "still waiting for an executor" in caplog.text


@attrs.frozen
class Context:
    """What a context says of its configuration."""

    conf: dict
    version: str = pyspark.__version__

    def getConf(self):  # noqa: N802 - pyspark's name
        return self.conf


@pytest.mark.parametrize("value", ["true", "True", " TRUE "])  # Spark cuts blanks off
def test_a_context_that_speculates_is_refused(value):
    with pytest.raises(ConfigError, match=r"spark\.speculation is on: .*set it to false"):
        check_context(Context({"spark.speculation": value}))


@pytest.mark.parametrize(
    ("home", "said"),
    [
        (
            "/opt/spark",
            r"^Spark in SPARK_HOME /opt/spark is 3\.5\.1, .*: unset SPARK_HOME, or install pyspark==3\.5\.1$",
        ),
        (None, r"^Spark is 3\.5\.1, and the package pyspark is .*: install pyspark==3\.5\.1$"),
    ],
)
def test_spark_of_another_version_is_refused(monkeypatch, home, said):
    """Its tasks would die of an assertion inside pyspark, again in every recovery."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    if home:
        monkeypatch.setenv("SPARK_HOME", home)
    with pytest.raises(ConfigError, match=said):
        check_context(Context({}, "3.5.1"))


def test_a_master_that_does_not_answer_may_be_of_another_version(monkeypatch):
    """It only writes into its own log that it cannot read what an application of another version sends."""

    def silent(*_, limit_seconds, **__):
        raise SparkUnavailableError(f"waited {limit_seconds:.0f} seconds for it")

    monkeypatch.setattr(module, "wait_for", silent)
    monkeypatch.setattr(module, "find_java", lambda: None)
    monkeypatch.setattr(module, "_reach", lambda _: None)
    monkeypatch.setattr(module, "launch", lambda _: None)
    said = f"waited 30 seconds for it; is its Spark {pyspark.__version__}, as pyspark is here?"
    with pytest.raises(SparkUnavailableError, match=re.escape(said)):
        module._make(SparkSection(master="spark://head:7077"), "orders")


def test_a_master_is_away_when_none_of_its_addresses_takes_a_connection():
    with socket.socket() as listening, socket.socket() as closed:
        for one in (listening, closed):
            one.bind(("127.0.0.1", 0))
        listening.listen()
        here, away = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listening, closed))
        module._reach(f"spark://{away},{here}")
        with pytest.raises(SparkUnavailableError, match=f"spark://{away}: no answer .Connection refused.; start it"):
            module._reach(f"spark://{away}")


def test_a_master_of_spark_submit_is_not_named_as_the_one_of_the_configuration(monkeypatch):
    def refuse(**_):
        raise ValueError("no such master")

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(pyspark, "SparkContext", refuse)
    refuse._gateway = None
    with pytest.raises(ConfigError, match="no context at master of spark-submit: "):
        module._make(SparkSection(master="spark://elsewhere:7077"), "orders")


def test_a_server_of_spark_connect_in_the_environment_is_refused(monkeypatch):
    """`spark-submit` says of it that there is a master, too, which the user never named."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://head:15002")
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(ConfigError, match="unset SPARK_REMOTE"), spark_context(SparkSection(), name="orders"):
        pass


@pytest.mark.parametrize("java", [None, SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: True))])
def test_an_active_context_that_has_ended_is_refused_with_the_way_out(monkeypatch, java):
    """A notebook whose application the master ended, or whose JVM died, still has it."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(_jsc=java))
    with pytest.raises(FatalError, match="has ended: call stop"), spark_context(SparkSection(), name="orders"):
        pass


def test_a_context_that_another_thread_is_making_is_one_sentence(monkeypatch):
    """pyspark sets it before it has anything to ask."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace())
    with (
        pytest.raises(SparkUnavailableError, match="another thread of this process is making a Spark context: start"),
        spark_context(SparkSection(), name="orders"),
    ):
        pass


@attrs.define(eq=False)
class Running:
    """A context at work; `stop` as of pyspark."""

    stops: int = 0
    master: str = "local[1]"
    version: str = pyspark.__version__
    _jsc: object = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))

    def getConf(self):  # noqa: N802 - pyspark's name
        return {}

    def stop(self):
        self.stops += 1
        SparkContext._active_spark_context = None


def test_a_context_that_a_builder_makes_in_another_thread_is_waited_for(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace())
    holds, made = threading.Event(), Running()

    def build():
        with SparkContext._lock:
            holds.set()
            while not module._looking.locked():
                time.sleep(0.001)
            SparkContext._active_spark_context = made

    thread = threading.Thread(target=build)
    thread.start()
    assert holds.wait(SECONDS)
    with spark_context(SparkSection(), name="orders") as context:
        assert context is made
    thread.join(SECONDS)
    assert made.stops == 0


def test_two_sources_of_a_process_share_a_context_and_the_last_stops_it(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    made = []

    def make(*_):
        made.append(Running())
        SparkContext._active_spark_context = made[-1]
        return made[-1]

    monkeypatch.setattr(module, "_make", make)
    first, second = (spark_context(SparkSection(), name=name) for name in ("first", "second"))
    with second as context:
        with first as shared:
            assert shared is context
        assert context.stops == 0
    assert [context.stops for context in made] == [1]
    with spark_context(SparkSection(), name="third"):
        pass
    assert [context.stops for context in made] == [1, 1]


def test_a_stop_ends_the_wait_for_another_source_that_waits_for_its_master():
    stopping = threading.Event()
    stopping.set()
    with module._looking, spark_context(SparkSection(), name="t", stopping=stopping) as context:
        assert context is None


def test_a_context_whose_jvm_is_gone_does_not_stay_the_active_one(monkeypatch):
    gone = SimpleNamespace()  # its stop() raises
    monkeypatch.setattr(SparkContext, "_active_spark_context", gone)
    module._end(gone)
    assert SparkContext._active_spark_context is None


KILLS_IDLE = {"spark.python.worker.killOnIdleTimeout": "true"}


@pytest.mark.parametrize("seconds", ["300", " 5min"])
def test_a_context_that_kills_python_workers_at_work_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"spark\.python\.worker\.killOnIdleTimeout is on: .*set it to false"):
        check_context(Context({**KILLS_IDLE, "spark.python.worker.idleTimeoutSeconds": seconds}))


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"spark.speculation": "false"},
        KILLS_IDLE,
        {**KILLS_IDLE, "spark.python.worker.idleTimeoutSeconds": "0s"},
        {"spark.python.worker.idleTimeoutSeconds": "300"},
    ],
)
def test_one_that_does_not_is_not(conf):
    check_context(Context(conf))


def test_the_file_of_sparks_defaults_does_not_let_it_kill_python_workers_at_work():
    assert module._conf(SparkSection(), "orders").get("spark.python.worker.killOnIdleTimeout") == "false"


@pytest.mark.parametrize(
    ("given", "conf", "submitted", "python", "address"),
    [
        ({}, {}, False, sys.executable, "127.0.0.1"),
        ({"PYSPARK_PYTHON": "/a", "SPARK_LOCAL_IP": "10.0.0.1"}, {}, False, "/a", "10.0.0.1"),
        ({"PYSPARK_PYTHON": "/a"}, {"spark.pyspark.python": "/b"}, False, "/b", "127.0.0.1"),
        ({}, {"spark.pyspark.python": "/b"}, True, sys.executable, None),
        ({"PYSPARK_PYTHON": "/a"}, {}, True, "/a", None),
    ],
)
def test_the_interpreter_of_executors_and_nothing_is_left_behind(monkeypatch, given, conf, submitted, python, address):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with jvm.environment(module._variables(SparkSection(conf=conf), submitted=submitted)):
        assert os.environ["PYSPARK_PYTHON"] == python
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
        assert os.environ.get("SPARK_LOCAL_IP") == address
    assert dict(os.environ) == before


@pytest.mark.parametrize("safe", [True, False, None])
def test_workers_import_from_the_current_folder_only_as_this_process_does(monkeypatch, safe):
    """Python 3.10 has no `-P`."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**({} if safe is None else {"safe_path": safe})))
    wanted = "1" if safe else None
    assert module._variables(SparkSection(), submitted=False).get("PYTHONSAFEPATH") == wanted
    option = "spark.executorEnv.PYTHONSAFEPATH"
    assert module._conf(SparkSection(), "orders").get(option) == wanted
    assert module._conf(SparkSection(conf={option: ""}), "orders").get(option) == ""


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]"])
def test_a_local_driver_authenticates_and_stays_on_this_machine(master):
    conf = dict(module._conf(SparkSection(master=master), "orders").getAll())
    assert conf["spark.authenticate"] == "true"
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    given = SparkSection(master=master, conf={"spark.driver.host": "10.0.0.1", "spark.authenticate": "false"})
    assert dict(module._conf(given, "orders").getAll()) == {**conf, **given.conf}


def test_the_end_of_a_context_takes_its_options_from_the_jvm(monkeypatch):
    """A process has one JVM: the next context in it would begin with them, secrets included."""
    cleared, given = [], []
    system = SimpleNamespace(clearProperty=cleared.append, setProperty=lambda *option: given.append(option))
    monkeypatch.setattr(
        SparkContext, "_jvm", SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    )
    monkeypatch.setattr(jvm, "_system_properties", ["spark.a", "spark.hadoop.fs.s3a.secret.key", "spark.master"])
    for _ in range(2):
        module._end(SimpleNamespace(stop=lambda: None))
    assert cleared == ["spark.a", "spark.hadoop.fs.s3a.secret.key", "spark.master"]
    assert given == [("spark.master", "local[*]")], "a session may be made without one, as in any JVM of pyspark"


def test_a_jvm_that_is_gone_has_no_options(monkeypatch):
    monkeypatch.setattr(jvm, "_system_properties", ["spark.a"])
    module._end(SimpleNamespace(stop=lambda: None))
    assert jvm._system_properties == []


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "local-cluster[1,1,1024]"])
def test_a_cluster_is_left_as_it_is_configured(master):
    conf = dict(module._conf(SparkSection(master=master), "orders").getAll())
    assert not {"spark.authenticate", "spark.driver.host", "spark.driver.bindAddress"}.intersection(conf)


@pytest.mark.parametrize(
    ("master", "conf", "said"),
    [
        ("local[*]", {}, None),
        ("spark://h:7077", {}, "spark.authenticate is off"),
        ("spark://h:7077", {"spark.network.crypto.enabled": "true"}, "spark.authenticate is off"),
        ("yarn", {"spark.authenticate": "true"}, "spark.network.crypto.enabled is off"),
        ("yarn", {"spark.authenticate": "True", "spark.network.crypto.enabled": "true"}, None),
        ("yarn", {"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"}, None),
    ],
)
def test_an_open_cluster_is_told(caplog, master, conf, said):
    @attrs.frozen
    class OnCluster(Context):
        master: str = attrs.field(kw_only=True)

    module.warn_of_open_cluster(OnCluster(conf, master=master))
    assert [said in line for line in caplog.messages] == ([True] if said else [])


def test_a_start_is_quick_and_options_of_the_user_win():
    """Java takes the last of two options that contradict each other."""
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    options = dict(module._conf(SparkSection(conf=conf), "orders").getAll())["spark.driver.extraJavaOptions"].split()
    assert options[0] == "-XX:TieredStopAtLevel=1"
    assert options[-1] == "-XX:TieredStopAtLevel=4"


@pytest.mark.parametrize(
    ("conf", "attempts", "excludes"),
    [
        ({}, "1", "false"),
        ({"spark.excludeOnFailure.enabled": "true"}, None, "true"),
        ({"spark.excludeOnFailure.enabled": "true", "spark.task.maxFailures": "3"}, "3", "true"),
    ],
)
def test_executors_are_excluded_only_where_tasks_have_several_attempts(conf, attempts, excludes):
    """Spark's scheduler fails at two attempts per node with one per task, and the file of its defaults may ask for that."""
    options = dict(module._conf(SparkSection(conf=conf), "orders").getAll())
    assert (options.get("spark.task.maxFailures"), options["spark.excludeOnFailure.enabled"]) == (attempts, excludes)


def test_options_of_spark_show_no_value():
    assert "hunter22" not in repr(SparkSection(conf={"spark.authenticate.secret": "hunter22"}))
    assert "spark.authenticate.secret" in repr(SparkSection(conf={"spark.authenticate.secret": "hunter22"}))


def test_options_go_to_the_jvm_through_a_file_of_this_user_alone(monkeypatch):
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    secret = " a=b:#!\\u0041\n\t'\"é\U0001f600 "
    with jvm._submitted([("spark.x", secret)]):
        arguments = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        file = Path(arguments[1])
        text = file.read_text()
        assert (arguments[0], arguments[-1], stat.S_IMODE(file.stat().st_mode)) == (
            "--properties-file",
            "pyspark-shell",
            0o600,
        )
        assert "a=b" not in " ".join(arguments)
    assert not file.exists()
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ
    name, _, value = text.rstrip("\n").partition("=")
    units = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), value)
    assert (name, units.encode("utf-16", "surrogatepass").decode("utf-16")) == ("spark.x", secret)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars a.jar pyspark-shell")
    with jvm._submitted([]):
        assert os.environ["PYSPARK_SUBMIT_ARGS"].endswith(" --jars a.jar pyspark-shell")
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--jars a.jar pyspark-shell"


def test_what_spark_says_of_an_option_holds_no_secret():
    conf = {"spark.authenticate.secret": "hunter22", "spark.ssl.keyPassword": "swordfish", "spark.cores.max": "many"}
    said = module.without_secrets("spark.cores.max: many; hunter22 is too short, swordfish too", conf)
    assert said == "spark.cores.max: many; *** is too short, *** too"


def test_the_client_without_a_spark_of_its_own_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace())
    with (
        pytest.raises(FatalError, match="needs the package pyspark, not pyspark-client"),
        spark_context(SparkSection(), name="orders"),
    ):
        pass
