"""The items of a page as stores write them -> columns of text, by one pattern over the whole run of them.

An XML parser makes an element for each of the five to eight values of a key, which costs more than all else that is done
for that key. So the usual page is read by a pattern, and only the usual one: no attributes, no spaces between elements, plain
ASCII, no entity but a quote around an ETag, and in every item the same order of elements as in the first. The pattern has to
match every byte from the first `<Contents>` to the last `</Contents>`; what is around them goes through the XML parser, with
one empty item in their place. Any other page is left to that parser whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import attrs

_OPEN, _CLOSE, _MARK = b"<Contents>", b"</Contents>", b"<Contents/>"

_TEXT = "[ -%'-;=?-~]"
"""A character that stands for itself: printable ASCII without `&`, `<` and `>`."""

_QUOTE = '(?:&quot;|&#34;|")?'

_READ = {
    "Key": f"<Key>({_TEXT}+)</Key>",
    "LastModified": f"<LastModified>({_TEXT}+)</LastModified>",
    "ETag": f"(?:<ETag>{_QUOTE}([0-9A-Za-z-]*){_QUOTE}</ETag>)?",
    "Size": "<Size>([0-9]+)</Size>",
    "StorageClass": f"(?:<StorageClass>({_TEXT}*)</StorageClass>)?",
}
"""What is read of an item, and how it is written. ETags and storage classes may be missing."""

_NEEDED = ("Key", "LastModified", "Size")

_SKIPPED = (
    f"(?:<ChecksumAlgorithm>{_TEXT}*</ChecksumAlgorithm>|<ChecksumType>{_TEXT}*</ChecksumType>|<Type>{_TEXT}*</Type>"
    f"|<Generation>{_TEXT}*</Generation>|<MetaGeneration>{_TEXT}*</MetaGeneration>"
    f"|<Owner>(?:<ID>{_TEXT}*</ID>|<DisplayName>{_TEXT}*</DisplayName>|<ID/>|<DisplayName/>)*</Owner>)*"
)
"""What else stores put into an item; in some and not in others of one page, as the checksums are of newer objects only."""

_NAMES = re.compile(rf"<({'|'.join(_READ)})>".encode())


@attrs.frozen(kw_only=True, slots=True)
class PlainItems:
    """The items of one page, a column for each element, and the page without them.

    Attributes:
        rest: the page with one empty `Contents` where they were. They count only if the XML parser finds it there.
        keys: as written, encoded or not.
        times: last-modified, as written.
        sizes: digits.
        etags: without quotes; empty where the element is missing.
        storage_classes: empty where the element is missing.
    """

    rest: bytes
    keys: Sequence[str]
    times: Sequence[str]
    sizes: Sequence[str]
    etags: Sequence[str]
    storage_classes: Sequence[str]


def plain_items(body: bytes) -> PlainItems | None:
    """The items of a page; None when there is none, or when any of it is written in another way."""
    first, last = body.find(_OPEN), body.rfind(_CLOSE) + len(_CLOSE)
    if not 0 <= first < last or b"<!" in body[:first]:  # a DOCTYPE may give texts another meaning
        return None
    order = tuple(name.decode() for name in _NAMES.findall(body, first, body.find(_CLOSE)))
    if len(set(order)) != len(order) or not set(order).issuperset(_NEEDED):
        return None
    try:
        run = body[first:last].decode("ascii")
    except UnicodeDecodeError:
        return None
    parts = _pattern(order).split(run)
    width = 1 + len(order)
    if any(parts[::width]):  # what lies between two matches
        return None
    columns = {name: parts[at::width] for at, name in enumerate(order, 1)}
    missing = [""] * len(columns["Key"])
    return PlainItems(
        rest=body[:first] + _MARK + body[last:],
        keys=columns["Key"],
        times=columns["LastModified"],
        sizes=columns["Size"],
        etags=[etag or "" for etag in columns.get("ETag", missing)],
        storage_classes=[name or "" for name in columns.get("StorageClass", missing)],
    )


@lru_cache(maxsize=256)  # there are no more orders than that
def _pattern(order: tuple[str, ...]) -> re.Pattern[str]:
    """An item whose elements come in that order; a group for each of them."""
    return re.compile(f"<Contents>{_SKIPPED}{''.join(_READ[name] + _SKIPPED for name in order)}</Contents>")
