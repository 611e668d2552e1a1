"""The pipeline on a real standalone cluster: executors that do not have this project, and what dies while it works.

The master, its workers, executors and their Python are processes of their own. Executors run a second virtual environment
that has the dependencies and not the project, so that what they run of ours has travelled there.
"""

import json

import pytest

from tests.integration.program_rig import Program, check_exactly, fill
from tests.support.spark_cluster import make_environment, spark_sections

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def program(spark_cluster, executor_python, tmp_path, moto_bucket, iggy_url, stream_name):
    """The source in processes of its own, with the cluster for an engine."""
    sections = spark_sections(spark_cluster, executor_python)
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name, input={"format": "auto"}, **sections)
    yield made
    made.close()


# ---- what travels, and what must be there


def test_executors_without_our_packages_send_every_record_of_every_format_once(program, moto_bucket):
    expected = fill(moto_bucket, 12)
    ended = program.start("--once").wait(90).no_secrets()
    assert ended.code == 0, ended.err
    check_exactly(program.messages(), expected, same=json.loads)
    # quiet: each line is one of ours, in our format
    assert [line for line in ended.err.splitlines() if not line[:4].isdigit() or "Z INFO " not in line] == []


def test_what_executors_miss_is_named_with_their_interpreter(program, moto_bucket, spark_cluster, tmp_path):
    fill(moto_bucket, 1)
    bare = make_environment(tmp_path / "bare", without=("boto3", "msgspec"))
    program.configure(**spark_sections(spark_cluster, bare))
    ended = program.start("--once").wait(90).no_secrets()
    assert ended.code == 1
    assert f"executors run {bare} (Python " in ended.said
    assert "which misses boto3, msgspec: install" in ended.said
    assert "\tat " not in ended.err
    assert program.count() == 0
