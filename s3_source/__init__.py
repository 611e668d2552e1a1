"""The S3 source: reads a bucket of Amazon S3, or of any store that speaks its protocol, and writes Apache Iggy.

    config      section `[s3]`: every option, and what is wrong with their combinations
    client      the one door to boto3: `S3Store`, pages of a listing and ranged streams
    signing     the GETs of objects: the request that boto3 would make, and Signature Version 4
    pages       one page of a listing -> values of the framework
    errors_map  every error of the AWS libraries and of S3 -> the errors of `framework.errors`

As a program: `python -m s3_source --config s3.toml`. Importing this package loads no boto3.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as `typing` has it, whose import takes milliseconds before `__main__` takes care of Ctrl-C
if TYPE_CHECKING:
    from s3_source.client import S3Store
    from s3_source.config import S3Config

__all__ = ["S3Config", "S3Store"]

_HOMES = {"S3Config": "s3_source.config", "S3Store": "s3_source.client"}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first access."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
