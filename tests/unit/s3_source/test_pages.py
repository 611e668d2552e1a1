"""One answer of a listing -> a page: every key decoded once, every time to the millisecond, nothing cut short unnoticed."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ListingError, StoreUnavailableError
from framework.model.objects import is_older_form
from framework.storage.timestamps import milliseconds
from s3_source.object_version import check_version, listed_etag
from s3_source.page_pattern import plain_items
from s3_source.pages import parse_page
from tests.support.listing import native

NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


PLAIN = "<IsTruncated>false</IsTruncated>"


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


SINGLE = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T12:34:56.000Z</LastModified><ETag>x</ETag>"
    "<Size>{size}</Size></Contents>"
)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("key", "size"),
    [
        ("k", "-5"),
        ("k", "1_0"),
        ("k", " 10 "),
        ("k", "\u0661"),
        ("k", ""),
        ("k", "9" * 19),
        ("k", "9" * 5000),
        ("", "5"),
    ],
)
def test_what_no_store_can_mean_is_an_answer_that_cannot_be_read(key, size, plain):
    item = SINGLE.format(key=key, size=size)
    item = item if plain else item.replace("<ETag>", " <ETag>")
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{item}</ListBucketResult>"
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        parse_page(body.encode(), {}, "b")


@pytest.mark.parametrize("etag", ["", "<ETag></ETag>", "<ETag>&quot;&quot;</ETag>"])
@pytest.mark.parametrize("plain", [True, False])
def test_without_an_etag_the_size_is_part_of_the_version(etag, plain):
    def listed(size):
        item = SINGLE.format(key="k", size=size).replace("<ETag>x</ETag>", etag)
        item = item if plain else item.replace("<Size>", " <Size>")
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{item}</ListBucketResult>"
        return parse_page(body.encode(), {}, "b").objects[0]

    short, long = listed(16), listed(32)
    assert short.version == f"@{short.modified_ms}-16" != long.version
    assert listed_etag(short) == ""
    assert is_older_form(f"@{short.modified_ms}", short.version)
    others = [short.version, f"@{short.modified_ms // 10}", f"e@{short.modified_ms}", "", "@"]
    assert not any(is_older_form(other, short.version) for other in others)
    assert not is_older_form("@5", "e@5")


@pytest.mark.parametrize(
    "date",
    [
        "Mon, 01 Jan 99999999999 00:00:00 GMT",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999",
        "Mon, 01 Jan 2024 99999999999999999999:00:00 GMT",
    ],
)
def test_a_date_that_is_none_is_not_told(date):
    assert parse_page(answer(["k"]), {"date": date}, "b").server_time_ms is None
    check_version(native("k"), "", {"last-modified": date, "content-length": "1"})


@pytest.mark.parametrize(
    "date", ["Fri, 31 May 2024 12:00:00 GMT", "Fri May 31 12:00:00 2024", "Fri, 31 May 2024 12:00:00 -0000"]
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_the_date_of_an_answer_is_utc_wherever_this_machine_stands(monkeypatch, date, zone):
    """RFC 9110 has forms of a date without a zone, or with one that says nothing of it."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert parse_page(answer(["k"]), {"date": date}, "b").server_time_ms == 1717156800000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_store_without_a_namespace_is_read_too():
    native = parse_page(answer(["k"], namespace=""), {}, "b").objects[0]
    assert (native.key, native.version) == ("k", f"{0:032x}@{native.modified_ms}")


@given(st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1)))  # noqa: DTZ001 - Hypothesis wants naive borders
def test_times_are_exact_to_the_millisecond(moment):
    text = moment.isoformat(timespec="milliseconds") + "Z"
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=timezone.utc)
    assert milliseconds(text) == round(whole.timestamp() * 1000)
    assert milliseconds(text[:19] + "Z") == round(whole.replace(microsecond=0).timestamp() * 1000)


@pytest.mark.parametrize(
    ("part", "milliseconds_of_it"), [("", 0), (".0", 0), (".5", 500), (".05", 50), (".123456", 123), (".000999", 0)]
)
@pytest.mark.parametrize("zone", ["Z", "+00:00"])
def test_a_second_has_as_many_digits_as_the_store_likes(part, milliseconds_of_it, zone):
    assert milliseconds(f"1970-01-01T00:00:01{part}{zone}") == 1000 + milliseconds_of_it


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01T00:00:00+02:00",
        "2026-01-01 00:00:00.000Z",
        "2026-01-01T00:00:00,5Z",
        "2026-02-30T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "+026-01-01T00:00:00Z",
        "2026-1-001T00:00:00Z",
        "2026-01-01T00:00:00.-12Z",
        "2026-01-01T00:00:00.1_2Z",
        "2026-01-01T00:00:00. 2Z",
        "2026-01-01T00:00:00.\u0665Z",
    ],
)
def test_another_form_of_time_is_refused(text):
    with pytest.raises(ValueError, match="UTC"):
        milliseconds(text)


def test_a_page_cut_anywhere_is_an_error_and_never_a_shorter_page():
    whole = answer([f"key-{number}" for number in range(5)])
    for cut in range(len(whole)):
        with pytest.raises(StoreUnavailableError, match=r"s3://b: .* check s3\.endpoint and s3\.proxy"):
            parse_page(whole[:cut], {}, "b")


def test_more_promised_but_no_way_to_it():
    with pytest.raises(ListingError, match="more follows"):
        parse_page(answer(["k"], truncated=True), {}, "b")
    assert parse_page(answer(["k"], truncated=True, token="t"), {}, "b").continuation == "t"
    assert parse_page(answer(["k"], token="t"), {}, "b").continuation is None


@pytest.mark.parametrize(
    ("root", "item", "prefix"),
    [
        (NAMESPACE, ' xmlns=""', ""),
        ("", NAMESPACE, ""),
        (' xmlns="urn:one"', ' xmlns="urn:two"', ""),
        (' xmlns:ns2="urn:one"', "", "ns2:"),
    ],
)
def test_elements_are_told_by_their_local_names(root, item, prefix):
    body = (
        f"<{prefix}ListBucketResult{root}><{prefix}IsTruncated>true</{prefix}IsTruncated>"
        f"<NextContinuationToken{item}>t</NextContinuationToken><{prefix}KeyCount>2</{prefix}KeyCount>"
        + "".join(ITEM.replace("<Contents>", f"<Contents{item}>").replace("<Key>k", f"<Key>{key}") for key in "ab")
        + f"</{prefix}ListBucketResult>"
    )
    page = parse_page(body.encode(), {}, "b")
    assert [native.key for native in page.objects] == ["a", "b"]
    assert page.continuation == "t"


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("", "no IsTruncated"),
        ("<IsTruncated></IsTruncated>", "IsTruncated is ''"),
        ("<IsTruncated>perhaps</IsTruncated>", "IsTruncated is 'perhaps'"),
        (f"{PLAIN}<KeyCount>2</KeyCount>", "KeyCount says 2, 1 objects are shown"),
        (f"{PLAIN}<KeyCount>0</KeyCount>", "KeyCount says 0"),
    ],
)
def test_a_page_that_does_not_say_that_it_is_whole_is_none(rest, said):
    with pytest.raises(StoreUnavailableError, match=said):
        parse_page(f"<ListBucketResult>{rest}{ITEM}</ListBucketResult>".encode(), {}, "b")


@pytest.mark.parametrize("body", ["<Error><Code>X</Code></Error>", "<html/>", f"<Other>{PLAIN}</Other>"])
def test_another_document_is_no_page(body):
    with pytest.raises(StoreUnavailableError, match="it is a "):
        parse_page(body.encode(), {}, "b")


@pytest.mark.parametrize("encoding", ["x-foo", "rot13", "utf-16", "big5", "hex"])
def test_a_page_in_an_encoding_that_no_parser_reads_is_tried_again(encoding):
    with pytest.raises(StoreUnavailableError, match="a page of the listing cannot be read"):
        parse_page(f'<?xml version="1.0" encoding="{encoding}"?>{PLAIN}'.encode(), {}, "b")


@pytest.mark.parametrize(("encoded", "exact"), [(True, True), (False, False)])
def test_a_key_that_may_not_be_what_is_shown_is_told(encoded, exact):
    # a server that ignores encoding-type=url writes U+FFFD where XML takes no character
    assert parse_page(answer(["a", "b\ufffdc"], encoded=encoded), {}, "b").exact is exact
    assert parse_page(answer(["a"], encoded=encoded), {}, "b").exact


@pytest.mark.parametrize("gap", ["", "\n"], ids=["plain", "by-the-xml-parser"])
def test_a_key_that_is_not_utf8_is_not_shown_as_it_is(gap):
    # a gateway over files: their names may be Latin-1
    def page(key):
        item = ITEM.replace("<Key>k</Key>", f"<Key>{key}</Key>{gap}")
        body = f"<ListBucketResult>{PLAIN}<EncodingType>url</EncodingType>{item}</ListBucketResult>"
        parsed = parse_page(body.encode(), {}, "b")
        return [native.key for native in parsed.objects], parsed.exact

    assert page("caf%C3%A9+%2B") == (["caf\u00e9 +"], True)
    assert page("caf%EF%BF%BD") == (["caf\ufffd"], True)
    assert page("caf%E9") == (["caf\ufffd"], False)


@pytest.mark.parametrize("tag", ["StartAfter", "ns2:StartAfter", "Prefix"])
def test_a_key_that_is_repeated_unencoded_does_not_break_the_page(tag):
    declared = " xmlns:ns2='urn:x'"
    body = f"<ListBucketResult{declared}><{tag}>a\x01&b</{tag}>{PLAIN}<EncodingType>url</EncodingType>{ITEM}</ListBucketResult>"
    assert [native.key for native in parse_page(body.encode(), {}, "b").objects] == ["k"]
    with pytest.raises(StoreUnavailableError):
        parse_page(f"<ListBucketResult><Name>\x01</Name>{PLAIN}</ListBucketResult>".encode(), {}, "b")


# ---------------------------------------------------------------- many ways to write the same page

ELEMENTS = ("Key", "LastModified", "ETag", "Size", "StorageClass")
EXTRAS = {
    "ChecksumAlgorithm": "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm>",
    "ChecksumType": "<ChecksumType>FULL_OBJECT</ChecksumType>",
    "Owner": "<Owner><ID>75aa57f0</ID><DisplayName/></Owner>",
    "Empty owner": "<Owner></Owner>",
    "RestoreStatus": "<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress></RestoreStatus>",
    "Empty": "<StorageTier/>",
    "Key of another": '<Parent note="1"><Key>not this one</Key></Parent>',
}
QUOTES = ("&quot;", "&#34;", '"', "")


@st.composite
def items(draw):
    """An item: what it says, and which elements stand in it, in which order."""
    order = draw(st.permutations(ELEMENTS))
    order = [name for name in order if name not in {"ETag", "StorageClass"} or draw(st.integers(0, 4))]
    return order, (
        draw(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), min_size=1, max_size=8)),
        draw(st.integers(0, 10**13)),
        draw(st.from_regex(r"[0-9a-f]{0,6}(-[0-9]{1,2})?", fullmatch=True)),
        draw(st.sampled_from(["STANDARD", "GLACIER_IR", "", "Eis & Schnee"])),
    )


def written(item, order, quote, extras, *, encoded):
    key, size, etag, storage_class = item
    texts = {
        "Key": quote_plus(key, safe="/") if encoded else escape(key),
        "LastModified": f"2026-01-02T12:34:56.{size % 1000:03d}Z",
        "ETag": f"{quote}{etag}{quote}",
        "Size": str(size),
        "StorageClass": escape(storage_class),
    }
    parts = [f"<{name}>{texts[name]}</{name}>" for name in order]
    for at, name in extras:
        parts.insert(at % (len(parts) + 1), EXTRAS[name])
    return f"<Contents>{''.join(parts)}</Contents>"


def shown(native):
    etag, _, modified_ms = native.version.rpartition("@")
    assert modified_ms == (str(native.modified_ms) if etag else f"{native.modified_ms}-{native.size}")
    return native.key, native.size, etag, native.storage_class, native.modified_ms


@given(
    st.lists(items(), max_size=6),
    st.booleans(),
    st.booleans(),
    st.sampled_from(QUOTES),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(sorted(EXTRAS))), max_size=3),
    st.sampled_from(
        ["", "", "", "\n  ", "<!-- <Contents/> -->", "<?note <Contents></Contents>?>", "<CommonPrefixes/>"]
    ),
    st.sampled_from([NAMESPACE, ""]),
    st.integers(0, 6),
)
@settings(deadline=None)
def test_a_page_says_the_same_however_it_is_written(
    found, same_order, encoded, quote, extras, between, namespace, head
):
    """The oracle is what was written down: items in any order, without what may be missing, with what nobody reads."""
    contents = [
        written(item, found[0][0] if same_order else order, quote, extras, encoded=encoded) for order, item in found
    ]
    rest = [
        "<Name>b</Name>",
        "<IsTruncated>true</IsTruncated>",
        "<NextContinuationToken>t&amp;t</NextContinuationToken>",
    ]
    rest += ["<EncodingType>url</EncodingType>"] if encoded else []
    run = between.join(contents)
    root = f"<ListBucketResult{namespace}>{''.join(rest[:head])}{run}{''.join(rest[head:])}</ListBucketResult>"
    page = parse_page(root.encode(), {}, "b")
    assert page.continuation == "t&t"
    expected = []
    for own, (key, size, etag, storage_class) in found:
        order = found[0][0] if same_order else own
        kept = (etag if "ETag" in order else "", storage_class if "StorageClass" in order else "")
        expected.append((key, size, *kept, 1767357296000 + size % 1000))
    assert [shown(native) for native in page.objects] == expected


USUAL = {
    "AWS": "<Key>{key}</Key><LastModified>2026-01-02T12:34:56.000Z</LastModified><ETag>&quot;0a-2&quot;</ETag>"
    "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
    "<Size>{size}</Size><StorageClass>STANDARD</StorageClass>",
    "AWS, written before there were checksums": "<Key>{key}</Key><LastModified>2026-01-02T12:34:56.000Z</LastModified>"
    "<ETag>&quot;0a-2&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass>",
    "MinIO": "<Key>{key}</Key><LastModified>2026-01-02T12:34:56.000Z</LastModified><ETag>&#34;0a-2&#34;</ETag>"
    "<Size>{size}</Size><Owner><ID></ID><DisplayName></DisplayName></Owner><StorageClass>STANDARD</StorageClass>",
    "SeaweedFS": "<Key>{key}</Key><ETag>&#34;0a-2&#34;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass>"
    "<LastModified>2026-01-02T12:34:56Z</LastModified>",
}


@pytest.mark.parametrize("form", [*USUAL, "both of AWS"])
def test_what_stores_write_is_read_the_quick_way(form):
    forms = [USUAL[form]] if form in USUAL else list(USUAL.values())[:2]
    run = "".join(
        f"<Contents>{forms[size % len(forms)].format(key=f'a/%C3%A9+{size}', size=size)}</Contents>"
        for size in range(5)
    )
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>{run}</ListBucketResult>"
    ).encode()
    quick = plain_items(body)
    assert quick is not None
    assert quick.rest == body.replace(run.encode(), b"<Contents/>")
    expected = [(f"a/é {size}", size, "0a-2", "STANDARD", 1767357296000) for size in range(5)]
    assert [shown(native) for native in parse_page(body, {}, "b").objects] == expected


ITEM = "<Contents><Key>k</Key><LastModified>2026-01-02T12:34:56Z</LastModified><ETag>e</ETag><Size>1</Size></Contents>"


@pytest.mark.parametrize(
    "body",
    [
        f"<{'x' * 5000}/>",
        f"<ListBucketResult><IsTruncated>{'x' * 5000}</IsTruncated></ListBucketResult>",
        *(
            f"<ListBucketResult>{PLAIN}{ITEM.replace(*part)}</ListBucketResult>"
            for part in [("2026-01-02T12:34:56Z", "2" * 5000), (">1<", f">{'1' * 4000}<"), (">1<", f">{'x' * 4000}<")]
        ),
    ],
)
def test_what_cannot_be_read_is_not_repeated_at_length(body):
    with pytest.raises(StoreUnavailableError) as caught:
        parse_page(body.encode(), {}, "b")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "body",
    [
        f"<ListBucketResult><!-- {ITEM} -->{PLAIN}</ListBucketResult>",
        f"<ListBucketResult><Name><![CDATA[{ITEM}]]></Name>{PLAIN}</ListBucketResult>",
        f"<ListBucketResult><?note {ITEM}?>{PLAIN}</ListBucketResult>",
        f"<ListBucketResult><Deeper>{ITEM}</Deeper>{PLAIN}</ListBucketResult>",
        f"<ListBucketResult><Other xmlns='urn:other'>{ITEM}</Other>{PLAIN}</ListBucketResult>",
        f'<!DOCTYPE l [<!ENTITY e "{ITEM}">]><ListBucketResult>{PLAIN}</ListBucketResult>',
    ],
)
def test_what_only_looks_like_an_item_is_none(body):
    assert parse_page(body.encode(), {}, "b").objects == []


@pytest.mark.parametrize(
    "item",
    [
        ITEM.replace("<Size>1</Size>", ""),
        ITEM.replace("<Size>", "<Key>l</Key><Size>"),
        ITEM.replace("<Key>", "<Key >"),
        ITEM.replace("<Key>k", "<Key>\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ITEM.replace("<Key>k", "<Key>&#107;"),
        f"{ITEM}\n{ITEM}",
        "",
    ],
)
def test_what_is_written_in_another_way_is_left_to_the_xml_parser(item):
    assert plain_items(f"<ListBucketResult>{ITEM}</ListBucketResult>".encode()) is not None
    assert plain_items(f"<ListBucketResult>{item}</ListBucketResult>".encode()) is None


def test_an_entity_that_is_no_xml_breaks_the_page_although_an_item_lies_in_it():
    entity = ITEM.replace("<ETag>e", '<ETag>"e"')  # a quote ends it
    body = f'<!DOCTYPE l [<!ENTITY e "{entity}">]><ListBucketResult>&e;</ListBucketResult>'
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        parse_page(body.encode(), {}, "b")


@pytest.mark.parametrize(
    "item",
    [
        ITEM.replace("<Key>k</Key>", ""),
        ITEM.replace("<Size>1</Size>", ""),
        ITEM.replace("<Size>1", "<Size>x"),
        ITEM.replace("12:34", "25:34"),
        ITEM.replace("</Size>", "</Seize>"),
        ITEM.replace("<Key>k", "<Key>k&nosuch;"),
        ITEM.replace("<Key>k", "<Key>k]]>"),
        ITEM.replace("<Key>k", "<Key>k\x01"),
    ],
)
def test_an_item_that_is_broken_breaks_the_page(item):
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        parse_page(f"<ListBucketResult>{ITEM}{item}{ITEM}</ListBucketResult>".encode(), {}, "b")
