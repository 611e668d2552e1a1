"""What a driver of ours shows to other users of its machine: no secret on a command line, no port that believes a stranger."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.integration.program_rig import ROOT

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="no Java: Spark needs one")
pytest.importorskip("pyspark")

SECRET = "hunter22 =:#\\ é"
SCRIPT = """
import json, os, pathlib, sys
from framework.config.sections import SparkSection
from framework.engine.spark.spark_context import spark_context

conf = {"spark.hadoop.fs.s3a.secret.key": sys.argv[1], "spark.driver.memory": "520m"}
with spark_context(SparkSection(master="local[1]", conf=conf), name="secrets") as context:
    lines = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"java" in (path / "cmdline").read_bytes().split(b"\\0")[0] and os.getpgid(int(path.name)) == os.getpgid(0):
                lines[path.name] = (path / "cmdline").read_bytes().decode()
        except OSError:
            pass
    found = context.getConf()
    seen = {
        "lines": list(lines.values()),
        "secret": found.get("spark.hadoop.fs.s3a.secret.key"),
        "hadoop": context._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
        "authenticate": context._jsc.sc().conf().get("spark.authenticate"),
        "host": found.get("spark.driver.host"),
        "sum": context.parallelize(range(10), 2).sum(),
        "left": [name for name in os.listdir(os.environ["TMPDIR"]) if name.endswith(".properties")],
    }
with spark_context(SparkSection(master="local[2]"), name="later") as context:
    found = context.getConf()
    seen["later"] = [found.get(name) for name in conf] + [found.get("spark.master"), context.parallelize([1], 1).sum()]
    seen["later_hadoop"] = context._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
from pyspark import SparkConf
seen["users"] = sorted(name for name, _ in SparkConf().getAll() if "submit" not in name)
from pyspark.sql import SparkSession
session = SparkSession.builder.getOrCreate()
seen["session"] = [session.sparkContext.appName, session.sparkContext.master]
session.stop()
print(json.dumps(seen))
"""


def test_no_secret_is_on_a_command_line_or_left_behind_and_the_driver_authenticates(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, SECRET],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        start_new_session=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["lines"], "no Java process was found"
    for line in found["lines"]:
        assert "hunter22" not in line
        assert "-Xmx520m" in line  # what the JVM needs at its start has come through
    assert found["secret"] == found["hadoop"] == SECRET
    assert (found["authenticate"], found["host"], found["sum"], found["left"]) == ("true", "127.0.0.1", 45, [])
    # a source or a session that comes later in the same process has options of its own
    assert (found["later"], found["later_hadoop"]) == ([None, None, "local[2]", 1], None)
    assert found["users"] == ["spark.app.name", "spark.master"]
    assert found["session"] == ["pyspark-shell", "local[*]"], "as in a JVM of pyspark's own"
