"""The GCS source: reads a bucket of Google Cloud Storage, and writes Apache Iggy.

    config      section `[gcs]`: every option, and what is wrong with their combinations
    client      the one door to google-cloud-storage: `GcsStore`, pages of a listing and ranged streams
    pages       one page of a listing -> values of the framework
    errors_map  every error of the Google libraries and of GCS -> the errors of `framework.errors`

As a program: `python -m gcs_source --config gcs.toml`. Importing this package loads nothing of Google's.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as `typing` has it, whose import takes milliseconds before `__main__` takes care of Ctrl-C
if TYPE_CHECKING:
    from gcs_source.client import GcsStore
    from gcs_source.config import GcsConfig

__all__ = ["GcsConfig", "GcsStore"]

_HOMES = {"GcsConfig": "gcs_source.config", "GcsStore": "gcs_source.client"}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first access."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
