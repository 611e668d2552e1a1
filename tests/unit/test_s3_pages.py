"""One answer of a listing -> a page: every key decoded once, every time to the millisecond, nothing cut short unnoticed."""

from __future__ import annotations

from datetime import datetime, timezone
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ListingError, StoreUnavailableError
from framework.store_time import milliseconds
from s3_source.pages import parse_page

NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def answer(keys, *, encoded=True, namespace=NAMESPACE, truncated=False, token=None):
    items = "".join(
        f"<Contents><Key>{quote_plus(key, safe='/') if encoded else escape(key)}</Key>"
        f"<LastModified>2026-01-0{number % 9 + 1}T12:34:56.{number % 1000:03d}Z</LastModified>"
        f"<ETag>&quot;{number:032x}&quot;</ETag><Size>{number * 7}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for number, key in enumerate(keys)
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult{namespace}><Name>b</Name>'
        f"{'<EncodingType>url</EncodingType>' if encoded else ''}<IsTruncated>{str(truncated).lower()}</IsTruncated>"
        f"{f'<NextContinuationToken>{token}</NextContinuationToken>' if token else ''}{items}</ListBucketResult>"
    ).encode()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), max_size=12))
def test_every_key_comes_back_as_it_is(keys):
    page = parse_page(answer(keys), {}, "b")
    assert [native.key for native in page.objects] == keys
    assert [native.size for native in page.objects] == [number * 7 for number in range(len(keys))]


@pytest.mark.parametrize("key", ["a+b", "100%", "a%2Fb", "a b"])
def test_keys_that_are_not_encoded_are_left_as_they_are(key):
    assert parse_page(answer([key], encoded=False), {}, "b").objects[0].key == key


def test_a_store_without_a_namespace_is_read_too():
    native = parse_page(answer(["k"], namespace=""), {}, "b").objects[0]
    assert (native.key, native.version) == ("k", f"{0:032x}@{native.modified_ms}")


@given(st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1)))  # noqa: DTZ001 - Hypothesis wants naive borders
def test_times_are_exact_to_the_millisecond(moment):
    text = moment.isoformat(timespec="milliseconds") + "Z"
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=timezone.utc)
    assert milliseconds(text) == round(whole.timestamp() * 1000)
    assert milliseconds(text[:19] + "Z") == round(whole.replace(microsecond=0).timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "2026-01-01", "2026-01-01T00:00:00+02:00", "2026-01-01 00:00:00.000Z"])
def test_another_form_of_time_is_refused(text):
    with pytest.raises(ValueError, match="UTC"):
        milliseconds(text)


def test_a_page_cut_anywhere_is_an_error_and_never_a_shorter_page():
    whole = answer([f"key-{number}" for number in range(5)])
    for cut in range(len(whole)):
        with pytest.raises(StoreUnavailableError, match="s3://b"):
            parse_page(whole[:cut], {}, "b")


def test_more_promised_but_no_way_to_it():
    with pytest.raises(ListingError, match="more follows"):
        parse_page(answer(["k"], truncated=True), {}, "b")
    assert parse_page(answer(["k"], truncated=True, token="t"), {}, "b").continuation == "t"
    assert parse_page(answer(["k"], token="t"), {}, "b").continuation is None
