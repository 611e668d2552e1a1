"""Parses the items of a page in the usual form with one pattern, into columns of text.

An XML parser creates an element for each of the five to eight values of a key, which costs more than all
other work for that key. So a pattern reads the usual form, and only that form: no attributes, no spaces
between elements, plain ASCII, no entity but a quote around an ETag, and the same order of elements in
every item. The pattern must match every byte from the first `<Contents>` to the last `</Contents>`. The
rest goes through the XML parser, with one empty item in their place. Any other page goes to that parser
as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import attrs

_OPEN, _CLOSE, _MARK = b"<Contents>", b"</Contents>", b"<Contents/>"

_TEXT = "[ -%'-;=?-~]"
"""A literal character: printable ASCII without `&`, `<` and `>`."""

_QUOTE = '(?:&quot;|&#34;|")?'

_READ = {
    "Key": f"<Key>({_TEXT}+)</Key>",
    "LastModified": f"<LastModified>({_TEXT}+)</LastModified>",
    "ETag": f"(?:<ETag>{_QUOTE}([0-9A-Za-z-]*){_QUOTE}</ETag>)?",
    "Size": "<Size>([0-9]{1,18})</Size>",
    "StorageClass": f"(?:<StorageClass>({_TEXT}*)</StorageClass>)?",
}
"""Elements of an item that are read, and their form. ETags and storage classes may be missing."""

_NEEDED = ("Key", "LastModified", "Size")

_SKIPPED = (
    f"(?:<ChecksumAlgorithm>{_TEXT}*</ChecksumAlgorithm>|<ChecksumType>{_TEXT}*</ChecksumType>|<Type>{_TEXT}*</Type>"
    f"|<Generation>{_TEXT}*</Generation>|<MetaGeneration>{_TEXT}*</MetaGeneration>"
    f"|<Owner>(?:<ID>{_TEXT}*</ID>|<DisplayName>{_TEXT}*</DisplayName>|<ID/>|<DisplayName/>)*</Owner>)*"
)
"""Other elements of an item; they may occur in some items of a page only, as checksums do for newer objects."""

_NAMES = re.compile(rf"<({'|'.join(_READ)})>".encode())


@attrs.frozen(kw_only=True, slots=True)
class PlainItems:
    """The items of one page, a column for each element, and the page without them.

    Attributes:
        rest: the page with one empty `Contents` in their place. They count only if the XML parser finds
            it there.
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
    """Return the items of a page; None without items, or when any of them has another form."""
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
    """Return the pattern of an item with elements in that order; a group for each of them."""
    return re.compile(f"<Contents>{_SKIPPED}{''.join(_READ[name] + _SKIPPED for name in order)}</Contents>")
