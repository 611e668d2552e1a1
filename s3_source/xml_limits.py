"""Limits what a document of S3 may take in an XML parser, before any parser sees it.

expat limits what entities unfold to, but to a hundred times the document, and not at all what attributes and the
addresses of namespaces take. Both this package and botocore parse documents, so their bytes are checked where they come in.
`defusedxml` would refuse a DOCTYPE only, and botocore could not be made to use it.
"""

from __future__ import annotations

import re

from framework.storage.http.errors import HttpError

MAX_BYTES = 8_000_000
"""Limit of a document: 8 KB for each of a thousand keys. A key has up to 3 KB, URL-encoded."""
MAX_TAGS = 200_000
"""A parser takes some 90 bytes for each. A page of a thousand keys has some 20,000."""
MAX_NAME_BYTES = 64_000_000
"""Limit of tags and attributes times the longest tag that has attributes. A usual page has 1.5 million.

A parser makes a text of each name and the address of its namespace, which is an attribute: a document that has a long
address and many names takes their product. Attributes themselves take some 300 bytes, and are in a long tag, or in many.
"""

_DECLARATION = re.compile(rb"<!(?!--|\[CDATA\[)")


def check_document(document: bytes) -> None:
    """Refuse a document that would take much more memory or time than its length, once parsed.

    Raises:
        HttpError: it has a DOCTYPE, too many tags or attributes, or is not in an encoding that extends ASCII.
    """
    if b"\0" in document:  # in UTF-16 and UTF-32 every tag has one; expat takes no other encoding that hides ASCII
        raise HttpError("the answer is a document with NUL characters, as in UTF-16")
    if b"!" in document and _DECLARATION.search(document):  # the first of them takes a thirtieth of the time
        raise HttpError("the answer is a document with a DOCTYPE, as web pages have")
    tags = document.count(b"<")
    if tags > MAX_TAGS:
        raise HttpError(f"the answer is a document of {tags:,} tags")
    longest, attributes = _attributes_in(document)
    if longest * (tags + attributes) > MAX_NAME_BYTES:
        raise HttpError(
            f"the answer is a document of {tags:,} tags and up to {attributes:,} attributes, in tags of up to {longest:,} bytes"
        )


def _attributes_in(document: bytes) -> tuple[int, int]:
    """Return the length of the longest tag that has attributes, with the text behind it, and how many there are at most."""
    longest, count, at = 0, 0, document.find(b"=")
    while at >= 0:
        begin = document.rfind(b"<", 0, at)
        end = document.find(b"<", at)  # a value has none
        if end < 0:
            end = len(document)
        if begin >= 0 and document.find(b">", begin, at) < 0:
            longest = max(longest, end - begin)
            count += document.count(b"=", begin, end)
        at = document.find(b"=", end)
    return longest, count
