"""The archive of Spark's classes: when it is made, and that a JVM without it is as before."""

import os

import pytest

from tests.support import spark_classes
from tests.support.spark_classes import QUICK_JAVA, QUIET, is_current, java_options


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A Java and a Spark of ten seconds after the beginning of time."""
    java, package = tmp_path / "java", tmp_path / "pyspark"
    (package / "jars").mkdir(parents=True)
    java.touch()
    for part in (java, package / "jars"):
        os.utime(part, (10, 10))
    found = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(spark_classes.shutil, "which", lambda name: str(java))
    monkeypatch.setattr(spark_classes, "find_spec", lambda name: found)
    return java, package / "jars"


def test_it_is_made_once_and_again_for_another_java_or_spark(tmp_path, installed):
    archive = tmp_path / "classes.jsa"
    assert not is_current(archive)
    archive.touch()
    os.utime(archive, (20, 20))
    assert is_current(archive)
    for part in installed:
        os.utime(part, (30, 30))
        assert not is_current(archive)
        os.utime(part, (10, 10))


def test_without_java_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(spark_classes.shutil, "which", lambda name: None)
    assert is_current(tmp_path / "classes.jsa")


def test_a_path_with_a_blank_is_no_option(tmp_path):
    assert java_options(tmp_path / "a.jsa") == f"{QUICK_JAVA} {QUIET} -XX:SharedArchiveFile={tmp_path}/a.jsa"
    assert java_options(tmp_path / "b c.jsa") == QUICK_JAVA
