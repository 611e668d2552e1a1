"""`--version`: what a report of a problem needs."""

import importlib.metadata
import platform
import re
from pathlib import Path

from packaging.version import Version

from framework.cli.app import run
from framework.cli.version import version_lines
from framework.runtime.worker import own_version
from s3_source.task import S3SourceTask


def test_it_shows_the_program_python_and_the_packages_and_needs_no_configuration(capsys):
    assert run("s3_source", S3SourceTask, ["--version"]) == 0
    program, python, *packages = capsys.readouterr().out.splitlines()
    assert program.endswith("s3_source " + own_version())
    assert platform.python_version() in python
    assert f"apache-iggy {importlib.metadata.version('apache-iggy')}" in packages
    assert f"pyspark {importlib.metadata.version('pyspark')}" in packages


def test_a_missing_package_is_said(monkeypatch):
    known = importlib.metadata.version

    def version(name):
        if name == "pyspark":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert "pyspark is not installed" in list(version_lines("s3_source"))


def test_a_build_with_unreleased_changes_does_not_call_itself_by_the_last_release():
    """It refuses positions of that release: "run the version that wrote them"."""
    root = Path(__file__).resolve().parents[3]
    changes = (root / "CHANGELOG.md").read_text()
    released = max(map(Version, re.findall(r"^## \[(\d[^]]*)\]", changes, re.MULTILINE)))
    version = re.search(r'^version = "(.+)"', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    unreleased = changes.partition("## [Unreleased]")[2].partition("\n## [")[0]
    assert Version(version[1]) > released if unreleased.strip() else Version(version[1]) == released
