"""What a run says when there is nothing to read."""

from __future__ import annotations

import pytest

from framework.cli.run import EmptyWatch, prefix_hint
from framework.config.loading import structure
from framework.engine.progress import Progress
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
