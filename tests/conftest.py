"""Fixtures for every test: servers of S3 and GCS, live buckets, a cluster of Spark. With REQUIRE_ALL=1 no test may skip itself."""

import gc
import os
import signal
import sys

import pytest
from hypothesis import settings

from tests.support.examples import examples
from tests.support.gcs import _no_outside_google, gcs_bucket, gcs_server  # noqa: F401
from tests.support.live import _live_places, live_gcs_bucket, live_s3_bucket  # noqa: F401
from tests.support.s3 import (  # noqa: F401  # fixtures are found by name
    _no_outside_aws,
    moto_bucket,
    moto_server,
    s3_bucket,
    seaweedfs_bucket,
    seaweedfs_server,
)
from tests.support.spark_classes import (  # noqa: F401  # hooks, too
    java_options,
    pytest_unconfigure,
    pytest_xdist_setupnodes,
)
from tests.support.spark_cluster import (  # noqa: F401
    executor_python,
    local_spark,
    spark_cluster,
    spark_of_the_engine,
)
from tests.support.spark_connect import connect_server  # noqa: F401
from tests.support.stores import any_bucket, bucket_of, local_bucket, plain_bucket  # noqa: F401

# No test is timed: a busy machine takes a second for what takes a millisecond elsewhere.
settings.register_profile("untimed", settings(), deadline=None, max_examples=examples(100))
settings.load_profile("untimed")

# What tests start, they start by the hundred: Python keeps what it has compiled of us, and Java optimizes nothing that ends
# in seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # and pytest what it has rewritten: half of the collection, for every worker
os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())

# Started in the background by a shell they ignore Ctrl-C, and so would every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.long_first", "tests.support.no_skips", "tests.support.reruns"]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Eight thousand tests and what they import stay: no search for cycles, in any test, looks at them again."""
    gc.collect()
    gc.freeze()
