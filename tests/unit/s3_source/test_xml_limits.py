"""What would take a parser of XML much more than its length is refused before any parser sees it."""

from __future__ import annotations

import tracemalloc
from xml.etree.ElementTree import fromstring

import pytest

from framework.storage.http.errors import HttpError
from s3_source.xml_limits import MAX_BYTES, MAX_TAGS, check_document

DOCTYPE = '<?xml version="1.0"?><!DOCTYPE r [<!ENTITY e "text">]><r>&e;</r>'
KEY = "k" * 3 * 1024
SIGNS = '="' * 512


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (DOCTYPE.encode(), "DOCTYPE"),
        (b"<!-- - --><!DOCTYPE r><r/>", "DOCTYPE"),
        (b"<r><!-- --><![CDATA[x]]><!ENTITY e 'x'></r>", "DOCTYPE"),
        (DOCTYPE.encode("utf-16"), "UTF-16"),
        (DOCTYPE.encode("utf-16-be"), "UTF-16"),
        (b"<r>" + b"<a/>" * MAX_TAGS + b"</r>", "tags"),
        (b"<r " + b" ".join(b'a%x=""' % number for number in range(10_000)) + b"/>", "attributes"),
        (b"<r b='>' " + b" ".join(b"a%x = ''" % number for number in range(10_000)) + b"/>", "attributes"),
    ],
)
def test_a_document_that_unfolds_is_refused(document, reason):
    with pytest.raises(HttpError, match=reason):
        check_document(document)


def names(address: int, count: int) -> bytes:
    """Names in a namespace with a long address: the parser makes a text of address and name for each."""
    tags = b"".join(b"<a%x/>" % number for number in range(count))
    return b'<r xmlns="' + b"u" * address + b'">' + tags + b"</r>"


def test_what_names_unfold_to_is_limited():
    tracemalloc.start()
    fromstring(names(10_000, 1_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak > 10_000 * 1_000  # from a document of 16 kB
    check_document(names(10_000, 1_000))
    with pytest.raises(HttpError, match="tags"):
        check_document(names(10_000, 7_000))


@pytest.mark.parametrize(
    "item",
    [
        f"<Contents><Key>{KEY}</Key><Owner><ID>{'f' * 64}</ID></Owner></Contents>",
        f"<Contents><Key>{'=' * 1024}</Key><ETag>&quot;e&quot;</ETag></Contents>",
        f"<Contents><Key>{SIGNS}!</Key><ETag>&quot;e&quot;</ETag></Contents>",
        "<Contents><Key><![CDATA[k]]></Key><!-- key --></Contents>",
        '<Contents><Owner xmlns:x="http://www.w3.org/2001/XMLSchema-instance" x:type="CanonicalUser"/></Contents>',
        f"<Contents>{'<A>b</A>' * 20}</Contents>",
    ],
)
def test_a_page_of_a_thousand_keys_of_any_form_is_not(item):
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    page = (
        f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="{namespace}">{item * 1000}</ListBucketResult>'
    )
    check_document(page.encode())
    assert len(page) < MAX_BYTES


@pytest.mark.parametrize("document", [b"", b"=", b">=<", b"no=document", b"<a b=", b"!<!--"])
def test_what_is_no_document_is_left_to_the_parser(document):
    check_document(document)
