"""Results of the command `check`: each step, whether it works, and the remedy if not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from framework.errors import EXIT_PERSON, ObjectError, SourceError

if TYPE_CHECKING:
    from framework.model.objects import NativeObject
    from framework.store import ObjectStore


@attrs.frozen
class CheckResult:
    """The outcome of one step.

    Attributes:
        step: name of the step: `credentials`, `bucket`, `list`, `read`.
        ok: whether it works.
        detail: one sentence: the finding, or the problem and its remedy.
        warning: it works, but is probably unintended.
        exit_code: exit code of a run that fails for this reason.
    """

    step: str
    ok: bool
    detail: str
    warning: bool = False
    exit_code: int = EXIT_PERSON

    @classmethod
    def failed(cls, step: str, error: SourceError) -> CheckResult:
        """Return the result of a step that ended with an error."""
        return cls(step, ok=False, detail=str(error), exit_code=error.exit_code)


def check_store(
    store: ObjectStore, *, prefix: str = "", after: str = "", named: Iterator[NativeObject] | None = None
) -> Iterator[CheckResult]:
    """Yield the results of the checks before a run: credentials, bucket (or list of keys), read.

    Stops after the first step that fails. Each step is at most one request, without retries.

    Args:
        store: the bucket.
        prefix: prefix to list.
        after: key after which to list.
        named: the objects of a supplied list, which is checked in place of a listing.
    """
    try:
        yield CheckResult("credentials", ok=True, detail=store.identity())
    except SourceError as error:
        yield CheckResult.failed("credentials", error)
        return
    step, found = ("bucket", "can be listed") if named is None else ("keys", "the list of keys can be read")
    try:
        if named is None:
            page = store.list_page(prefix=prefix, after=after, page_size=10)
            native = next((native for native in page.objects if native.size), None)
            found = f"{store.scheme}://{store.bucket}/{prefix} {found}"
        else:
            native = next((native for native in named if native.size), None)
    except SourceError as error:
        yield CheckResult.failed(step, error)
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
        yield CheckResult.failed("read", error)
    else:
        yield CheckResult("read", ok=True, detail=f"{native.location} can be read")
