"""The pipeline on a real standalone cluster: executors that do not have this project, and what dies while it works.

The master, its workers, executors and their Python are processes of their own. Executors run a second virtual environment
that has the dependencies and not the project, so that what they run of ours has travelled there.

What is about the driver's own life runs it as a process. The other faults share one application, since an application
takes some seconds to start: there the program runs in this process, whose active context it takes.
"""

import json
import signal
import threading

import pytest

from framework.testing.faults import Fault, FaultProxy
from tests.integration.program_rig import (
    SERVERS,
    SLOW,
    OwnServer,
    Program,
    check_exactly,
    check_saved,
    fill,
    wait_for_count,
    wait_until,
)
from tests.support.spark_cluster import make_environment, spark_sections
from transformers import SHIPPED_FORMATS

pytestmark = pytest.mark.timeout(240)

SECONDS = 120
"""What anything may take: executors start in some seconds, on a busy machine in many."""


def make_program(cluster, python, folder, bucket, url, stream):
    sections = spark_sections(cluster, python)
    return Program(folder, bucket, url, stream, input={"format": "auto", "prefetch_objects": 1}, **sections)


@pytest.fixture
def program(spark_cluster, executor_python, tmp_path, moto_bucket, iggy_url, stream_name):
    """The source, with the cluster for an engine."""
    made = make_program(spark_cluster, executor_python, tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


@pytest.fixture(scope="module")
def context(spark_cluster, executor_python):
    """An application on the cluster that is there already, as in a notebook."""
    from framework.config.sections import SparkSection
    from framework.engine.spark.spark_context import spark_context

    conf = spark_sections(spark_cluster, executor_python)["spark.conf"]
    with spark_context(SparkSection(master=spark_cluster.url, conf=conf), name="tests") as made:
        yield made


@pytest.fixture
def slow(program, moto_bucket):
    """A program that takes a while, in small requests: there is a middle to strike in. And the records to come."""
    expected = fill(moto_bucket, 18, least=600)
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(method="GET", path=r"/in/", times=None, delay_seconds=0.3))
        program.configure(**SLOW, s3={"endpoint": proxy.endpoint})
        yield expected


def port_of(url):
    return int(url.rpartition(":")[2])


class Meanwhile(threading.Thread):
    """Does something each time when the topic holds a part of all records, while the test runs the program."""

    def __init__(self, program, expected, *acts):
        super().__init__(daemon=True)
        self._program, self._acts = program, acts
        self._total = sum(map(len, expected.values()))
        self.failure = None
        self.start()

    def run(self):
        try:
            for part, act in self._acts:
                wait_until(lambda part=part: self._program.count() > part * self._total, SECONDS)
                act()
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            self.failure = error

    def ended(self):
        self.join(SECONDS + 10)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


# ---- what travels, and what must be there


def test_executors_without_our_packages_send_every_record_of_every_format_once(program, moto_bucket):
    expected = fill(moto_bucket, 12)
    ended = program.start("--once").wait(SECONDS).no_secrets()
    assert ended.code == 0, ended.err
    check_exactly(program.messages(), expected, same=json.loads)
    # quiet: each line is one of ours, in our format, and one of them says that this cluster is open to everybody
    others = [line for line in ended.err.splitlines() if not line[:4].isdigit() or "Z INFO " not in line]
    others = [line for line in others if "WARNING" not in line or "still waiting for" not in line]  # on a busy machine
    assert len(others) == 1, others
    assert "spark.authenticate is off" in others[0]


def test_what_executors_miss_is_named_with_their_interpreter(program, moto_bucket, spark_cluster, tmp_path):
    fill(moto_bucket, 1)
    bare = make_environment(tmp_path / "bare", without=("boto3", "msgspec"))
    program.configure(**spark_sections(spark_cluster, bare, **{"spark.cores.max": "1"}))  # one executor tells it
    ended = program.start("--once").wait(SECONDS).no_secrets()
    assert ended.code == 3
    assert f"executors run {bare} (Python " in ended.said
    assert "which misses boto3, msgspec: install" in ended.said
    assert "\tat " not in ended.err
    assert program.count() == 0


def test_credentials_of_the_drivers_environment_alone_are_named_as_such(program, moto_bucket):
    fill(moto_bucket, 1)
    store = moto_bucket.config()
    environment = {"AWS_ACCESS_KEY_ID": store.access_key_id, "AWS_SECRET_ACCESS_KEY": store.secret_access_key}
    environment["AWS_EC2_METADATA_DISABLED"] = "true"
    program.sections["s3"].pop("access_key_id")
    program.sections["s3"].pop("secret_access_key")
    program.configure(**{"spark.conf": {"spark.executorEnv.AWS_EC2_METADATA_DISABLED": "true"}})
    checked = program.start("check", environment=environment).wait(SECONDS)
    assert checked.code == 3, checked
    (failed,) = [line for line in checked.out.splitlines() if line.startswith("FAIL")]
    assert failed.startswith("FAIL on executors   on executor ")
    assert "executors find credentials, profiles and files of certificates on their own machine" in failed
    ended = program.start("--once", environment=environment).wait(SECONDS)
    assert ended.code == 3, ended
    assert "(on executor " in ended.said


def test_the_formats_that_ship_are_those_of_the_archive_on_executors(context):
    from framework.engine.spark.packages import ship_packages

    def look(_):
        import framework
        from framework.config.format_registry import FORMATS

        return [(name, FORMATS.find(name, shown=name).__module__, framework.__file__) for name in SHIPPED_FORMATS]

    ship_packages(context)
    (found,) = context.parallelize([0], 1).map(look).collect()
    assert {name: module for name, module, _ in found} == {
        name: place.partition(":")[0] for name, place in SHIPPED_FORMATS.items()
    }
    assert {".zip" in file for _, _, file in found} == {True}


# ---- what dies


def test_executors_killed_while_they_send(program, slow, context, spark_cluster):
    killed = []

    def kill():
        at_work = wait_until(lambda: spark_cluster.at_work(context.applicationId, port_of(program.url)))
        killed.extend(spark_cluster.kill([next(iter(at_work.values()))]))

    meanwhile = Meanwhile(program, slow, (0.1, kill), (0.45, kill))
    ended = program.once()
    meanwhile.ended()
    assert len(set(killed)) == 2
    assert ended.err.count("work broke off") == ended.err.count("ExecutorLostFailure") == 2, ended.err
    check_exactly(program.messages(), slow, same=json.loads)


def test_python_workers_killed_while_they_send(program, slow, context, spark_cluster):
    def kill():
        at_work = wait_until(lambda: spark_cluster.at_work(context.applicationId, port_of(program.url)))
        assert spark_cluster.kill(at_work)

    meanwhile = Meanwhile(program, slow, (0.2, kill), (0.6, kill))
    ended = program.once()
    meanwhile.ended()
    assert ended.err.count("Python worker exited unexpectedly") == 2, ended.err
    check_exactly(program.messages(), slow, same=json.loads)


@pytest.mark.parametrize("kind", SERVERS)
def test_iggy_killed_and_back_in_the_middle(program, slow, context, tmp_path, kind):
    server = OwnServer(tmp_path / "own", kind).start()
    try:
        program.url = server.url
        program.configure(iggy={"url": server.url})

        def restart():
            server.kill()
            server.start()

        meanwhile = Meanwhile(program, slow, (0.2, restart), (0.5, restart))
        ended = program.once()
        meanwhile.ended()
        assert ended.err.count("work broke off") == 2, ended.err
        check_exactly(program.messages(), slow, same=json.loads)
    finally:
        server.kill()


class Busy(FaultProxy):
    """Answers one call in five with 503, and counts these."""

    hit = 0

    def __init__(self, target):
        super().__init__(target)
        body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
        self.add(Fault(status=503, body=body, times=None, every=5))

    def note(self, request):
        rule = super().note(request)
        self.hit += rule is not None
        return rule


def test_a_store_that_answers_one_call_in_five_with_503(program, moto_bucket, context):
    expected = fill(moto_bucket, 18)
    with Busy(moto_bucket.endpoint) as proxy:
        program.configure(s3={"endpoint": proxy.endpoint, "page_size": 5})
        program.once()
        assert len(proxy.requests) > 25
        assert proxy.hit == -(-len(proxy.requests) // 5)
    check_exactly(program.messages(), expected, same=json.loads)


# ---- the driver's own life


def test_the_driver_killed_and_the_next_one_at_work_at_once(program, slow, context, spark_cluster):
    """The next one has its application already, so it begins while the executors of the dead one are still there."""
    running = program.start("--once")
    Meanwhile(program, slow, (0.3, running.kill)).ended()
    assert running.process.returncode == -signal.SIGKILL, running.err
    program.once()
    check_exactly(program.messages(), slow, same=json.loads)
    assert "0 records of 0 objects" in program.once().err


def test_a_signal_ends_the_driver_with_positions_saved_and_nobody_sends_after_that(
    program, slow, context, spark_cluster
):
    running = program.start()
    wait_for_count(program, 2001, seconds=SECONDS)
    ended = running.stop(signal.SIGTERM).no_secrets()
    sent = program.count()
    assert ended.code == 0, ended.err
    assert sent < sum(map(len, slow.values())), "it was not in the middle"
    wait_until(lambda: len(spark_cluster.state()["activeapps"]) == 1, SECONDS)
    wait_until(lambda: len(spark_cluster.executors()) == len(spark_cluster.executors(context.applicationId)), SECONDS)
    assert program.count() == sent
    again = program.once()
    check_saved(ended, again)
    check_exactly(program.messages(), slow, same=json.loads)
