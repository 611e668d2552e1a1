"""One rig for all stores: the same tests on moto, SeaweedFS and fake-gcs-server, and on live buckets that the environment names.

    any_bucket      a fresh one of each server, and an empty place in each live bucket
    local_bucket    the servers: for what needs a proxy in front, or a bucket that may be broken
    plain_bucket    moto and fake-gcs-server: every key, strict order

Live buckets are no parameters when none is named, so nothing is skipped: see docs/development/live-buckets.md.
"""

import pytest

from tests.support.live import LIVE

PLAIN = ("moto", "fake-gcs")
LOCAL = ("moto", "seaweedfs", "fake-gcs")

_FIXTURES = {
    "moto": "moto_bucket",
    "seaweedfs": "seaweedfs_bucket",
    "fake-gcs": "gcs_bucket",
    "live-s3": "live_s3_bucket",
    "live-gcs": "live_gcs_bucket",
}


@pytest.fixture
def bucket_of(request):
    """Gives the bucket of a kind of store, one for each test."""
    return lambda kind: request.getfixturevalue(_FIXTURES[kind])


@pytest.fixture(params=(*LOCAL, *LIVE))
def any_bucket(request, bucket_of):
    return bucket_of(request.param)


@pytest.fixture(params=LOCAL)
def local_bucket(request, bucket_of):
    return bucket_of(request.param)


@pytest.fixture(params=PLAIN)
def plain_bucket(request, bucket_of):
    return bucket_of(request.param)
