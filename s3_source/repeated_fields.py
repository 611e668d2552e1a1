"""What an answer to ListObjectsV2 repeats of its request, and whether it is the answer to this one.

A proxy that sends one answer too often shifts all later ones of a connection: a page of another request, perhaps a last one,
would be taken for this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, unquote_plus

from framework.errors import StoreUnavailableError

_UNSHOWN = "\ufffd"


class Repeats:
    """Compares the pages of a bucket with their requests. Thread-safe.

    Stores write what they repeat as it is, or encoded as keys are; some leave it out, or empty: that proves nothing.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._shows_name = False  # behind an access point, and a gateway, a bucket may have another one

    def check(self, fields: Mapping[str, str], *, prefix: str, after: str, continuation: str | None) -> None:
        """Compare a page's fields with its request.

        Raises:
            StoreUnavailableError: they are those of another request.
        """
        name = fields.get("Name", "").strip()
        if name == self._bucket:
            self._shows_name = True
        elif name and self._shows_name:
            raise self._foreign("Name", name, self._bucket)
        shown = fields.get("Prefix", "")
        if shown and not _is_same(shown, prefix):
            raise self._foreign("Prefix", shown, prefix)
        place = continuation or after
        shown = fields.get("ContinuationToken", "")
        if shown and not _is_same(shown, place):
            raise self._foreign("ContinuationToken", shown, place)
        start = fields.get("StartAfter", "")
        # behind a token that it repeats, a store may show the key that it stands for
        if start and not shown and not _is_same(start, place):
            raise self._foreign("StartAfter", start, place)

    def _foreign(self, field: str, shown: str, asked: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"s3://{self._bucket}: a page of the listing answers another request, with {field} {shown[:200]!r} in place of "
            f"{asked[:200]!r}; when that stays so, check s3.endpoint and s3.proxy"
        )


def _is_same(shown: str, asked: str) -> bool:
    if _UNSHOWN in shown:  # stands for what XML cannot show
        return True
    wanted = _plain(asked)
    return any(_plain(form) == wanted for form in (shown, unquote(shown), unquote_plus(shown)))


def _plain(text: str) -> str:
    """Return the text without what parsers of XML, and stores that list paths, change in it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip().lstrip("/")
