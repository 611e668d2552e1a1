"""A page of a GCS listing: what is read from it, and how the next one is asked for."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ConfigError, ListingError, ObjectChangedError, StoreUnavailableError
from framework.model.objects import NativeObject
from gcs_source.client import _redirected
from gcs_source.errors_map import Failed, from_answer
from gcs_source.pages import FIELDS, offsets, parse_metadata, parse_object, parse_page, resume

TIME = "2024-05-31T12:00:00.123Z"


def item(name, **changed):
    return {"name": name, "size": "7", "generation": "1717156800123456", "timeCreated": TIME, **changed}


def page(*items, token=None, **more):
    body = {"kind": "storage#objects", "items": list(items), **({"nextPageToken": token} if token else {}), **more}
    return json.dumps(body).encode()


def test_an_object_is_what_the_store_says():
    (native,) = parse_page(page(item("a b/é", storageClass="NEARLINE", metageneration="9")), {}, "lake").objects
    assert (native.scheme, native.bucket, native.key, native.size) == ("gs", "lake", "a b/é", 7)
    assert (native.version, native.storage_class) == ("1717156800123456", "NEARLINE")
    assert native.modified_ms == 1717156800123
    assert native.location == "gs://lake/a b/é"
    assert parse_object(json.dumps(item("k")).encode(), "lake", "k").key == "k"


def test_objects_of_zonal_buckets_are_refused_and_not_read_in_part():
    with pytest.raises(ListingError, match=r"gs://lake/k: .*zonal buckets.*not supported"):
        parse_page(page(item("a"), item("k", storageClass="RAPID")), {}, "lake")
    with pytest.raises(ListingError):
        parse_object(json.dumps(item("k", storageClass="RAPID")).encode(), "lake", "k")


@pytest.mark.parametrize(
    "body",
    [
        b'{"more":' + b"[" * 100_000,
        page(item("k", size="-5")),
        page(item("k", size="9" * 19)),
        page(item("k", size="9" * 5000)),
        page(item("")),
        page(item("k", generation="")),
        page(item("k", generation="0")),
        page(item("k", generation="-7")),
        page(item("k", generation="\u0661")),
        page(item("k", size="")),
        page(item("k", size="1_0")),
        page(item("k", size=" 10 ")),
        page(item("k", size="+1")),
        page(item("k", size="\u0661")),
    ],
)
def test_what_no_store_can_mean_is_an_answer_that_cannot_be_read(body):
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        parse_page(body, {}, "lake")


def test_an_item_without_a_size_is_no_empty_object():
    bare = item("a/k")
    del bare["size"]
    with pytest.raises(StoreUnavailableError, match=r"gs://lake: .* cannot be read \(an object 'a/k' of no size"):
        parse_page(page(item("k"), bare), {}, "lake")


def test_a_refusal_that_is_nested_without_end_is_no_document_of_the_store():
    failed = Failed(operation="objects.list", bucket="lake")
    error = from_answer(503, b'{"error":{"errors":[{"more":' + b"[" * 60_000, {}, failed)
    assert isinstance(error, StoreUnavailableError)
    assert "no document of the store" in str(error)


@pytest.mark.parametrize("location", ["http://[", "https://[::1/x", "https://h:x/"])
def test_a_redirect_to_no_address_is_an_error_of_the_store(location):
    with pytest.raises(ConfigError, match="redirects the request to no address"):
        _redirected("https://h/a", location, Failed(operation="objects.list", bucket="lake"))


def test_every_field_that_is_read_is_asked_for():
    for field in ("kind", "name", "size", "generation", "timeCreated", "storageClass", "nextPageToken"):
        assert field in FIELDS


def test_the_clock_of_the_store():
    date = {"date": "Fri, 31 May 2024 12:00:00 GMT"}
    assert parse_page(page(), date, "lake").server_time_ms == 1717156800000
    assert parse_page(page(), {}, "lake").server_time_ms is None


KEY = st.text(st.characters(codec="utf-8"), max_size=3)


@given(st.lists(KEY, unique=True), KEY, st.none() | KEY)
@settings(deadline=None)
def test_a_range_is_asked_for_with_both_ends_and_hardly_more(keys, after, until):
    asked = offsets(after, until)
    shown = [
        key
        for key in keys
        if asked.get("startOffset", "") <= key and ("endOffset" not in asked or key < asked["endOffset"])
    ]
    assert {key for key in keys if key >= after and (until is None or key <= until)} <= set(shown)
    if until is not None:
        assert all(key <= until or (key.startswith(until) and key[len(until)] < " ") for key in shown)


def test_an_end_longer_than_a_key_can_be_is_not_sent():
    assert offsets("", "k" * 1023) == {"endOffset": "k" * 1023 + " "}
    assert offsets("a", "k" * 1024) == {"startOffset": "a"}
    assert offsets("", "é" * 512) == {}


def test_an_empty_answer_is_the_end():
    empty = parse_page(b'{"kind": "storage#objects"}', {}, "lake")
    assert (empty.objects, empty.continuation) == ([], None)


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=3), unique=True),
    st.integers(1, 4),
    st.text(st.characters(codec="utf-8"), max_size=2),
    st.integers(1, 5),
)
@settings(deadline=None)
def test_a_chain_of_pages_gives_every_key_after_strictly_and_once(keys, page_size, after, token_every):
    """The oracle is a sorted list; the store is one that may give fewer than asked for, or none, with a token."""
    keys = sorted(keys, key=str.encode)
    begin, calls, seen = after, 0, []
    continuation = None
    while True:
        key, token = resume(continuation, begin)
        if token:
            offset, most = int(token), page_size
        else:
            offset = next((n for n, one in enumerate(keys) if one.encode() >= key.encode()), len(keys))
            most = page_size + (1 if key else 0)
        calls += 1
        hidden = calls % token_every == 0 and not token  # an empty page with a token, as GCS may give
        shown = [] if hidden else keys[offset : offset + most]
        reached = offset + len(shown)
        body = page(*map(item, shown), token=str(reached) if reached < len(keys) else None)
        answer = parse_page(body, {}, "lake", after=key, most=page_size)
        assert len(answer.objects) <= page_size
        seen += [one.key for one in answer.objects]
        continuation = answer.continuation
        if continuation is None:
            break
        assert calls < 3 * len(keys) + 10
    assert [one for one in seen if one.encode() > after.encode()] == [
        one for one in keys if one.encode() > after.encode()
    ]


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_a_chain_of_pages_from_the_start_follows_the_stores_own_order(page_size):
    """What speaks GCS may list as it likes: `startOffset` leaves out what it lists later and sorts before."""
    keys, seen, continuation = ["a/1", "a/2", "a 1", "a 2", "b", "B", "c"], [], None
    while continuation is not None or not seen:
        after, token = resume(continuation, "")
        begin = int(token or 0)
        shown = [key for key in keys[begin:] if key >= after][:page_size]
        more = str(begin + page_size) if begin + page_size < len(keys) else None
        answer = parse_page(page(*map(item, shown), token=more), {}, "lake", after=after, most=page_size)
        seen += [native.key for native in answer.objects]
        continuation = answer.continuation
    assert seen == keys


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        page(item("k"))[:-9],
        page({"name": "k"}),
        b"{}",
        b'{"status": "up"}',
        b'{"error": {"code": 503, "message": "backend"}}',
        page(item("k", size="x")),
        page(item("k", timeCreated="now")),
    ],
)
def test_what_is_no_page_is_tried_again(body):
    with pytest.raises(
        StoreUnavailableError, match=r"gs://lake: a page of the listing cannot be read .* check gcs\.endpoint"
    ):
        parse_page(body, {}, "lake")


def test_what_is_no_description_is_tried_again():
    with pytest.raises(StoreUnavailableError, match=r"gs://lake: the description of an object .* check gcs\.endpoint"):
        parse_object(b"{}", "lake", "k")


def test_the_description_of_another_object_is_none():
    with pytest.raises(StoreUnavailableError, match=r"gs://lake: .*asked was for 'k', described is 'other'"):
        parse_object(json.dumps(item("other")).encode(), "lake", "k")


def test_a_description_without_a_generation_says_nothing_of_the_metadata():
    """So answers a health check; the object is not overwritten."""
    listed = NativeObject(scheme="gs", bucket="lake", key="k", size=1, version="7")
    with pytest.raises(StoreUnavailableError, match=r"gs://lake/k: its description .*generation.* check gcs\.endpoint"):
        parse_metadata(b'{"status":"ok"}', listed)
    with pytest.raises(ObjectChangedError, match="generation 8, listed 7"):
        parse_metadata(b'{"generation":"8"}', listed)
    assert parse_metadata(b'{"generation":"7","metadata":{"A":"b"}}', listed) == {"content-type": "", "meta:a": "b"}
