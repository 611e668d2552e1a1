"""The lines of the command `check`: what was tried, whether it works, and what to do when not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from framework.errors import ObjectError, SourceError

if TYPE_CHECKING:
    from framework.records import NativeObject
    from framework.store import ObjectStore


@attrs.frozen
class CheckResult:
    """The outcome of one step.

    Attributes:
        step: what was tried, in a word or two: `credentials`, `bucket`, `list`, `read`.
        ok: whether it works.
        detail: one sentence: what was found, or what is wrong and what to do.
    """

    step: str
    ok: bool
    detail: str


def check_store(
    store: ObjectStore, *, prefix: str = "", after: str = "", named: Iterator[NativeObject] | None = None
) -> Iterator[CheckResult]:
    """What must work of a bucket before a run, step by step: credentials, bucket (or list of keys), read.

    Stops after the first step that fails. Each step is one request at most, without retries.

    Args:
        store: the bucket.
        prefix: what will be listed.
        after: behind which key.
        named: the objects of a supplied list, which is looked at then in place of a listing.
    """
    try:
        yield CheckResult("credentials", ok=True, detail=store.identity())
    except SourceError as error:
        yield CheckResult("credentials", ok=False, detail=str(error))
        return
    step, found = ("bucket", "can be listed") if named is None else ("keys", "the list of keys can be read")
    try:
        if named is None:
            page = store.list_page(prefix=prefix, after=after, page_size=10)
            native = next((one for one in page.objects if one.size), None)
            found = f"{store.scheme}://{store.bucket}/{prefix} {found}"
        else:
            native = next((one for one in named if one.size), None)
    except SourceError as error:
        yield CheckResult(step, ok=False, detail=str(error))
        return
    yield CheckResult(step, ok=True, detail=found)
    if native is None:
        where = "in the first page" if named is None else "in the list"
        yield CheckResult("read", ok=True, detail=f"nothing to read yet: no object with content {where}")
        return
    try:
        stream = store.open(native, 0, 1)
        try:
            stream.read(1)
        finally:
            stream.close()
    except ObjectError as error:
        yield CheckResult("read", ok=True, detail=f"an object was tried: {error}")
    except SourceError as error:
        yield CheckResult("read", ok=False, detail=str(error))
    else:
        yield CheckResult("read", ok=True, detail=f"{native.location} can be read")
