"""The proxies break what they say they break: a fault that never strikes proves nothing."""

import random
from types import SimpleNamespace

import pytest

from framework.errors import ObjectChangedError, StoreUnavailableError, ThrottledError
from framework.testing.faults import Fault
from gcs_source.client import GcsStore
from gcs_source.config import GcsConfig
from s3_source.client import S3Store
from tests.faults.chain import nothing_outside
from tests.faults.stores import PROXIES

KEYS = ["in/a/1.txt", "in/b c/2.txt", "in/d%2F/3.txt", "in/ä +%2F/4.txt"]


@pytest.fixture(autouse=True)
def _nothing_outside():
    with nothing_outside():
        yield


@pytest.fixture(params=["s3", "gcs"])
def between(request, tmp_path):
    """(bucket, proxy, a store that reads through it)."""
    bucket = request.getfixturevalue("moto_bucket" if request.param == "s3" else "gcs_bucket")
    with PROXIES[request.param](bucket.endpoint) as proxy:
        options = bucket.section()[request.param] | proxy.options(tmp_path)
        store = S3Store(bucket.config(**options)) if request.param == "s3" else GcsStore(GcsConfig(**options))
        yield bucket, proxy, store
        store.close()


def read(store, native):
    stream = store.open(native)
    data = stream.read(100)
    stream.close()
    return data


@pytest.mark.parametrize("key", KEYS)
def test_requests_are_told_apart(between, key):
    bucket, proxy, store = between
    for one in KEYS:
        bucket.put(one, one.encode())
    natives = {one.key: one for one in store.list_all()}
    hits = []
    proxy.hook(proxy.reading_of(key), hits.append)
    assert [read(store, natives[one]) for one in KEYS] == [one.encode() for one in KEYS]
    assert len(hits) == 1
    proxy.add(Fault(path=proxy.listing, **proxy.refusal(503)))
    assert read(store, natives[key]) == key.encode()
    with pytest.raises((ThrottledError, StoreUnavailableError)):
        store.list_page()
    assert proxy.struck == 1
    assert proxy.calm()
    assert not proxy.calm()
    assert len(store.list_page().objects) == len(KEYS)


@pytest.mark.parametrize(
    ("status", "kind"), [(429, ThrottledError), (500, StoreUnavailableError), (503, ThrottledError)]
)
def test_refusals_are_those_of_the_store(between, status, kind):
    bucket, proxy, store = between
    bucket.put("in/1.txt", b"x")
    (native,) = store.list_all()
    proxy.add(Fault(path=proxy.reading, **proxy.refusal(status)))
    with pytest.raises((kind, StoreUnavailableError)):
        read(store, native)


def test_a_fault_of_two_parts_has_struck_when_both_have(between):
    bucket, proxy, store = between
    chain = SimpleNamespace(dice=random.Random(7), ledger=SimpleNamespace(split_size=None))
    changes = []
    proxy.arm(chain, "overwritten amid", KEYS[0], changes.append, size=100)
    bucket.put(KEYS[0], bytes(100))
    (native,) = store.list_all()
    assert len(read(store, native)) < 100
    assert (proxy.struck, proxy.struck_all, changes) == (1, False, [])
    assert len(read(store, native)) == 100
    assert (proxy.struck, proxy.struck_all, changes) == (2, True, ["put"])
    assert proxy.calm()


def test_a_turned_page_holds_the_same_in_the_opposite_order(between):
    bucket, proxy, store = between
    for key in KEYS:
        bucket.put(key)
    found = [one.key for one in store.list_page().objects]
    proxy.add(Fault(path=proxy.listing, change=proxy.turned, drop_request=("accept-encoding",)))
    assert [one.key for one in store.list_page().objects] == found[::-1]


@pytest.fixture
def gcs(gcs_bucket, tmp_path):
    """The same, of GCS."""
    gcs_bucket.put("in/1.txt", b"x")
    with PROXIES["gcs"](gcs_bucket.endpoint) as proxy:
        store = GcsStore(GcsConfig(**gcs_bucket.section()["gcs"] | proxy.options(tmp_path)))
        yield gcs_bucket, proxy, store
        store.close()


def tokens(proxy):
    """Which tokens came, in turn; "/token" where one was asked for."""
    return [one.headers.get("authorization", one.path) for one in proxy.requests]


def test_a_token_that_was_revoked_is_refused_until_a_new_one_is_asked_for(gcs):
    _, proxy, store = gcs
    (native,) = store.list_all()
    proxy.revoke()
    assert read(store, native) == b"x"
    assert tokens(proxy) == ["/token", "Bearer t1", "Bearer t1", "/token", "Bearer t2"]


@pytest.mark.parametrize("status", [404, 412, 416])
def test_what_a_range_is_refused_with(gcs, status):
    _, proxy, store = gcs
    (native,) = store.list_all()
    proxy.add(Fault(path=proxy.reading, **proxy.refusal(status)))
    with pytest.raises(StoreUnavailableError):  # it is there: the read goes on where it was
        read(store, native)


def test_the_description_is_asked_for_when_a_generation_is_gone(gcs):
    bucket, proxy, store = gcs
    (native,) = store.list_all()
    bucket.put("in/1.txt", b"y")
    described = []
    proxy.hook(proxy.description_of(native.key), described.append)
    with pytest.raises(ObjectChangedError):
        read(store, native)
    assert len(described) == 1
