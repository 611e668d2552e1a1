"""Fixtures for every test: the S3 servers."""

from tests.support.s3 import (  # noqa: F401  # fixtures are found by name
    _no_outside_aws,
    moto_bucket,
    moto_server,
    s3_bucket,
    seaweedfs_bucket,
    seaweedfs_server,
)
