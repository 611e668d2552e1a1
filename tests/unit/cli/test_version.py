"""`--version`: what a report of a problem needs."""

import errno
import importlib.metadata
import platform
import re
from pathlib import Path

import pytest
from packaging.version import Version

from framework.cli.app import run
from framework.cli.error_reporter import ErrorReporter
from framework.cli.version import outdated_packages, version_lines
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


def test_packages_that_are_too_old_are_named_with_the_way_out(monkeypatch):
    assert outdated_packages() == ""
    found = {"apache-iggy": "0.8.0", "pyarrow": "24.0.0.dev1", "regex": "2024.11.6", "polars": "0.20.31"}
    required = [
        "apache-iggy<0.10,>=0.9",
        "pyarrow>=24",
        "regex>=2024.9",
        "polars>=1",
        "tomli>=2.0; python_version < '3'",
    ]
    required.append("anycrc>=2.1; extra == 'checksums'")

    def version(name):
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: required)
    assert outdated_packages() == (
        'apache-iggy 0.8.0 is older than 0.9, polars 0.20.31 is older than 1: pip install "apache-iggy>=0.9" "polars>=1"'
    )


def test_an_unexpected_error_names_packages_that_are_too_old(monkeypatch, capsys):
    monkeypatch.setattr(
        "framework.cli.version.outdated_packages", lambda: "apache-iggy 0.8.0 is older than 0.9: upgrade"
    )
    assert ErrorReporter().failed(AttributeError("no attribute 'AutoLogin'")) == 1
    assert (
        "error: unexpected AttributeError: no attribute 'AutoLogin'; apache-iggy 0.8.0 is older"
        in capsys.readouterr().err
    )


def test_an_error_of_the_system_opens_no_file_to_look_at_packages(monkeypatch, capsys):
    monkeypatch.setattr("framework.cli.version.outdated_packages", lambda: pytest.fail("looked"))
    assert ErrorReporter().failed(OSError(errno.EMFILE, "Too many open files")) == 1
    assert "; raise the limit of open files" in capsys.readouterr().err


def test_a_build_with_unreleased_changes_does_not_call_itself_by_the_last_release():
    """It refuses positions of that release: "run the version that wrote them"."""
    root = Path(__file__).resolve().parents[3]
    changes = (root / "CHANGELOG.md").read_text()
    released = max(map(Version, re.findall(r"^## \[(\d[^]]*)\]", changes, re.MULTILINE)))
    version = re.search(r'^version = "(.+)"', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    unreleased = changes.partition("## [Unreleased]")[2].partition("\n## [")[0]
    assert Version(version[1]) > released if unreleased.strip() else Version(version[1]) == released
