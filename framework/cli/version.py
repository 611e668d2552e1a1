"""The versions that a report of a problem needs."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterator

from framework.config.format_registry import DISTRIBUTION
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


def outdated_packages() -> str:
    """Return which required packages are older than the installed program needs, and the way out; empty if none is."""
    outdated, wanted = [], []
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return ""
    for requirement in required:
        package, least = re.match(r"[\w.-]+", requirement), re.search(r">=([\d.]+)", requirement)
        if package is None or least is None or "extra ==" in requirement:
            continue
        try:
            found = importlib.metadata.version(package[0])
        except importlib.metadata.PackageNotFoundError:  # its import says so
            continue
        if found and _numbers(found) < _numbers(least[1]):  # of a half removed package there is no version
            outdated.append(f"{package[0]} {found} is older than {least[1]}")
            wanted.append(f'"{package[0]}>={least[1]}"')
    return f"{', '.join(outdated)}: pip install {' '.join(wanted)}" if outdated else ""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
