"""What a run says when there is nothing to read, and without the pyspark that it needs."""

from __future__ import annotations

import sys

import pytest

from framework.cli.run import EmptyWatch, prefix_hint, require_pyspark
from framework.config.loading import structure
from framework.engine.progress import Progress
from framework.errors import FatalError
from s3_source.task import S3SourceConfig


def config(**store):
    return structure(
        {
            "source": {"name": "orders"},
            "s3": {"bucket": "lake", **store},
            "input": {"format": "text"},
            "iggy": {"url": "embedded:x", "stream": "lake", "topic": "orders"},
        },
        S3SourceConfig,
    )


@pytest.mark.parametrize(
    ("store", "hint"),
    [
        ({"prefix": "events/*.jsonl"}, ", which is plain text: a pattern belongs into [discovery] include"),
        ({"prefixes": ["a/", "b/[0-9]"]}, ", which is plain text: a pattern belongs into [discovery] include"),
        ({"prefix": "/events/"}, ": keys rarely begin with /"),
        ({"prefix": "evnts/"}, ""),
        ({}, ""),
    ],
)
def test_a_prefix_without_objects_is_told_its_probable_mistake(store, hint, caplog):
    made = config(**store)
    assert prefix_hint(made) == hint
    EmptyWatch(made).observe(Progress(state="waiting", listings=1))
    (record,) = caplog.records
    assert record.getMessage().endswith(f"contains no object; check the prefix{hint}")


def test_the_installed_pyspark_is_accepted():
    require_pyspark()


def test_a_pyspark_of_an_earlier_version_is_named_with_its_place(monkeypatch, tmp_path):
    """As `spark-submit` and clusters put it on PYTHONPATH."""
    folder = tmp_path / "pyspark"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('not loaded by a check')")
    (folder / "version.py").write_text('__version__: str = "3.5.1"\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    with pytest.raises(FatalError, match=rf"needs pyspark 4 or newer, and the one in {folder} is 3\.5\.1: take it out"):
        require_pyspark()
