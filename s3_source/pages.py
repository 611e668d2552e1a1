"""One answer of ListObjectsV2 -> a `ListPage`. All that is read from a listing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote_plus

from framework.errors import ListingError
from framework.records import NativeObject
from framework.store import ListPage
from s3_source.stream import bare_etag


def parse_page(answer: Mapping[str, Any], bucket: str) -> ListPage:
    """The page of an answer as botocore gives it, asked for with `EncodingType=url`.

    Keys are decoded once, and only when the answer says that they are encoded. The plus sign stands for a space, as in
    botocore: S3 sends `+` for a space and `%2B` for a plus.

    Raises:
        ListingError: more is promised but not how to get there.
    """
    encoded = answer.get("EncodingType") == "url"
    objects = []
    for item in answer.get("Contents", ()):
        key = item["Key"]
        modified_ms = round(item["LastModified"].timestamp() * 1000)
        objects.append(
            NativeObject(
                scheme="s3",
                bucket=bucket,
                key=unquote_plus(key) if encoded else key,
                size=item["Size"],
                version=f"{bare_etag(item.get('ETag', ''))}@{modified_ms}",
                modified_ms=modified_ms,
                storage_class=item.get("StorageClass", ""),
            )
        )
    continuation = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
    if answer.get("IsTruncated") and not continuation:
        raise ListingError(f"s3://{bucket}: a page says that more follows but not how to get it; stopped")
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return ListPage(objects=objects, continuation=continuation, server_time_ms=server_time_ms(headers.get("date")))


def server_time_ms(date: str | None) -> int | None:
    """The header `Date` in milliseconds since 1970 UTC; None when it is absent or no date."""
    if not date:
        return None
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError):
        return None
