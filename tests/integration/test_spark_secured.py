"""A cluster that is secured as docs/guides/secure.md says: the source works on it, and finds nothing to warn of."""

import json

import pytest

from tests.integration.program_rig import check_exactly, fill
from tests.integration.test_spark_cluster import SECONDS, make_program
from tests.support.spark_cluster import SparkCluster, spark_or_skip

SECURED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "hunter22-of-the-cluster",
    "spark.network.crypto.enabled": "true",
}


@pytest.fixture(scope="module")
def secured_cluster(tmp_path_factory):
    spark_or_skip()
    cluster = SparkCluster(tmp_path_factory.mktemp("secured"), workers=1, properties=SECURED)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def program(secured_cluster, executor_python, tmp_path, moto_bucket, iggy_url, stream_name):
    made = make_program(secured_cluster, executor_python, tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


def test_a_secured_cluster_sends_every_record_once_and_is_not_warned_of(program, moto_bucket):
    expected = fill(moto_bucket, 6)
    program.configure(**{"spark.conf": SECURED})
    ended = program.start("--once").wait(SECONDS).no_secrets()
    assert ended.code == 0, ended.err
    check_exactly(program.messages(), expected, same=json.loads)
    assert "how a cluster is secured" not in ended.err
    assert "hunter22" not in ended.err


def test_whoever_does_not_know_the_secret_is_given_nothing(program, moto_bucket):
    fill(moto_bucket, 1)
    program.configure(**{"spark.conf": {**SECURED, "spark.authenticate.secret": "another-secret"}})
    limit = {"framework.engine.spark.spark_context.MASTER_SECONDS": 12.0}
    ended = program.start("--once", constants=limit).wait(SECONDS)
    assert ended.code != 0
    assert "Exception while bootstrapping client" in ended.err, "it had no time to be refused"
    assert "another-secret" not in ended.err
    assert program.count() == 0
