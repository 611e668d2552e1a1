"""Buckets of real clouds, which LIVE_S3_BUCKET and LIVE_GCS_BUCKET name: an empty place for each test, gone afterwards.

Everything lies below `LIVE_PREFIX`, then a name of this run's own, then one of the test's own. Tests do not see that: a
store in front takes the place off each key and puts it before each. What is below the run's name is deleted at its end.

Identities are those that the machine has: they are looked up before the other tests are shut off from them.
"""

import itertools
import os
import uuid
from typing import ClassVar

import attrs
import pytest

from framework.store import ObjectStore
from gcs_source.client import GcsStore
from gcs_source.config import GcsConfig
from s3_source.client import S3Store
from s3_source.config import S3Config
from tests.support.gcs import GcsVendor
from tests.support.s3 import S3Vendor

LIVE = tuple(
    kind for kind, name in (("live-s3", "LIVE_S3_BUCKET"), ("live-gcs", "LIVE_GCS_BUCKET")) if os.environ.get(name)
)
"""The kinds of live stores that this run tests on."""

LONGEST_KEY = 1024


class PlacedStore(ObjectStore):
    """A place in a bucket, as if it were a bucket.

    Args:
        inner: over the whole bucket.
        place: what all keys there begin with.
    """

    def __init__(self, inner, place):
        self.inner = inner
        self.place = place
        for name in (
            "scheme",
            "bucket",
            "address",
            "ordered",
            "order_is_documented",
            "bounds_pages",
            "ends_are_reliable",
            "lists_milliseconds",
        ):
            setattr(self, name, getattr(inner, name))

    def list_page(self, *, prefix="", after="", until=None, **more):
        if until is not None:
            more["until"] = self.place + until
        page = self.inner.list_page(prefix=self.place + prefix, after=after and self.place + after, **more)
        return attrs.evolve(page, objects=[self._seen(one) for one in page.objects])

    def _seen(self, native):
        return attrs.evolve(native, key=native.key.removeprefix(self.place))

    def stat(self, key):
        return self._seen(self.inner.stat(self.place + key))

    def metadata(self, native):
        return self.inner.metadata(attrs.evolve(native, key=self.place + native.key))

    def tags(self, native):
        return self.inner.tags(attrs.evolve(native, key=self.place + native.key))

    def listed_version(self, **told):
        return self.inner.listed_version(**told)

    def open(self, native, start=0, end=None):
        return self.inner.open(attrs.evolve(native, key=self.place + native.key), start, end)

    def identity(self):
        return self.inner.identity()

    def close(self):
        self.inner.close()


class _Placed:
    """What live buckets of both vendors have in common."""

    in_order: ClassVar = True

    @property
    def longest_key(self):
        return LONGEST_KEY - len(self.place.encode())

    def config(self, **changed):
        return attrs.evolve(self.options, **changed)


@attrs.frozen(kw_only=True)
class LiveS3Bucket(_Placed, S3Vendor):
    """A place in a bucket of S3."""

    kind: ClassVar = "live-s3"
    name: str
    place: str
    client: object
    options: S3Config

    def put(self, key, data=b"x"):
        self.client.put_object(Bucket=self.name, Key=self.place + key, Body=data)

    def delete(self, key):
        self.client.delete_object(Bucket=self.name, Key=self.place + key)

    def open(self, config=None):
        return PlacedStore(S3Store(config or self.options), self.place)


@attrs.frozen(kw_only=True)
class LiveGcsBucket(_Placed, GcsVendor):
    """A place in a bucket of GCS."""

    kind: ClassVar = "live-gcs"
    name: str
    place: str
    client: object
    credentials: object
    options: GcsConfig

    def put(self, key, data=b"x"):
        blob = self.client.bucket(self.name).blob(self.place + key)
        blob.upload_from_string(data, content_type="application/octet-stream")

    def delete(self, key):
        self.client.bucket(self.name).blob(self.place + key).delete()

    def open(self, config=None):
        return PlacedStore(GcsStore(config or self.options, self.credentials), self.place)


def _place():
    return f"{os.environ.get('LIVE_PREFIX', '')}iggy-cloud-sources-{uuid.uuid4().hex[:12]}/"


def s3_places():
    """Places in the bucket that LIVE_S3_BUCKET names; `close` of this generator deletes them. For one run."""
    import boto3

    name, endpoint = os.environ["LIVE_S3_BUCKET"], os.environ.get("LIVE_S3_ENDPOINT", "")
    session = boto3.Session()
    found = session.get_credentials().get_frozen_credentials()
    options = S3Config(
        bucket=name,
        endpoint=endpoint,
        region=session.region_name or "",
        access_key_id=found.access_key,
        secret_access_key=found.secret_key,
        session_token=found.token or "",
    )
    client = boto3.client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=options.region or None,
        aws_access_key_id=found.access_key,
        aws_secret_access_key=found.secret_key,
        aws_session_token=found.token,
    )
    run = _place()
    try:
        for number in itertools.count():
            yield LiveS3Bucket(name=name, place=f"{run}{number}/", client=client, options=options)
    finally:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=run):
            for one in page.get("Contents", ()):
                client.delete_object(Bucket=name, Key=one["Key"])
        client.close()


def gcs_places():
    """Places in the bucket that LIVE_GCS_BUCKET names; `close` of this generator deletes them. For one run."""
    import google.auth

    from gcs_source.google_packages import AnonymousCredentials, Client

    name, endpoint = os.environ["LIVE_GCS_BUCKET"], os.environ.get("LIVE_GCS_ENDPOINT", "")
    if endpoint:
        credentials, project = AnonymousCredentials(), "tests"
    else:
        scope = "https://www.googleapis.com/auth/devstorage.read_write"
        credentials, project = google.auth.default(scopes=[scope])
    options = {"api_endpoint": endpoint} if endpoint else None
    client = Client(project=project or "tests", credentials=credentials, client_options=options)
    config, run = GcsConfig(bucket=name, endpoint=endpoint), _place()
    try:
        for number in itertools.count():
            yield LiveGcsBucket(
                name=name, place=f"{run}{number}/", client=client, credentials=credentials, options=config
            )
    finally:
        for blob in client.list_blobs(name, prefix=run):
            blob.delete()
        client.close()


@pytest.fixture(scope="session", autouse=True)
def _live_places():
    """Kind -> places. Made before the machine's identities are hidden from the tests, which ask for this fixture."""
    made = {}
    if "live-s3" in LIVE:
        made["live-s3"] = s3_places()
    if "live-gcs" in LIVE:
        made["live-gcs"] = gcs_places()
    first = {
        kind: next(places) for kind, places in made.items()
    }  # looks the identities up, and uses the first place up
    del first
    yield made
    for places in made.values():
        places.close()


@pytest.fixture
def live_s3_bucket(_live_places):
    return next(_live_places["live-s3"])


@pytest.fixture
def live_gcs_bucket(_live_places):
    return next(_live_places["live-gcs"])
