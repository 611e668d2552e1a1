"""The versions that a report of a problem needs."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator

from framework.runtime.worker import own_version

_PACKAGES = ("apache-iggy", "pyspark", "pyarrow", "fastavro", "boto3", "pycurl")


def version_lines(program: str) -> Iterator[str]:
    """Yield a line for the program, for Python, and for each package that decides how it behaves."""
    yield f"{program} {own_version()}"
    yield f"Python {platform.python_version()} on {platform.platform()}"
    for package in _PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{package} is not installed"
