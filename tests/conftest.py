"""Fixtures for every test: the S3 and GCS servers, and a cluster of Spark. With REQUIRE_ALL=1 no test may skip itself."""

from tests.support.gcs import _no_outside_google, gcs_bucket, gcs_server  # noqa: F401
from tests.support.s3 import (  # noqa: F401  # fixtures are found by name
    _no_outside_aws,
    moto_bucket,
    moto_server,
    s3_bucket,
    seaweedfs_bucket,
    seaweedfs_server,
)
from tests.support.spark_cluster import executor_python, local_spark, spark_cluster, spark_of_the_engine  # noqa: F401

pytest_plugins = ["tests.support.no_skips"]
