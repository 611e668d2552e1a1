"""Calls of an author's store or iterator: what they raise names the place, and the way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from framework.errors import SourceError, StoreContractError, is_low_memory, raised_at
from framework.storage.error_messages import redact


@contextlib.contextmanager
def author_code(doing: str) -> Iterator[None]:
    """Raise a `StoreContractError` for whatever else than an error of the framework an author's code raises.

    Args:
        doing: the place and the call: `s3://bucket/key: reading it`.
    """
    try:
        yield
    except Exception as failure:
        if isinstance(failure, SourceError | ImportError) or is_low_memory(failure):
            raise
        text = redact(str(failure))
        raise StoreContractError(
            f"{doing} failed with {type(failure).__name__}{text and f': {text}'} ({raised_at(failure)}); mend that line, or, if "
            "the store failed, raise an error of framework.errors in its place, such as StoreUnavailableError"
        ) from failure
