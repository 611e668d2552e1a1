"""What a run says when there is nothing to read, and without the pyspark that it needs."""

from __future__ import annotations

import sys

import attrs
import pytest

from framework import BucketConfig, SourceCommonConfig
from framework.cli.run import EmptyWatch, _summary, empty_advice, place_of, require_pyspark
from framework.config.discovery_section import DiscoverySection
from framework.config.loading import structure
from framework.engine.run_statistics import RunStatistics
from framework.errors import FatalError
from s3_source.task import S3SourceConfig


def config(sections=(), **store):
    return structure(
        {
            "source": {"name": "orders"},
            "s3": {"bucket": "lake", **store},
            "input": {"format": "text"},
            "iggy": {"url": "embedded:x", "stream": "lake", "topic": "orders"},
            **dict(sections),
        },
        S3SourceConfig,
    )


@pytest.mark.parametrize(
    ("store", "advice"),
    [
        (
            {"prefix": "events/*.jsonl"},
            "check the prefix, which is plain text: a pattern belongs into [discovery] include",
        ),
        (
            {"prefixes": ["a/", "b/[0-9]"]},
            "check the prefix, which is plain text: a pattern belongs into [discovery] include",
        ),
        ({"prefix": "/events/"}, "check the prefix: keys rarely begin with /"),
        ({"prefix": "evnts/"}, "check the prefix"),
        ({}, "check the bucket"),
    ],
)
def test_a_place_without_objects_is_told_its_probable_mistake(store, advice, caplog):
    made = config(**store)
    assert empty_advice(made) == advice
    EmptyWatch(made).observe(RunStatistics(state="waiting", listings=1))
    (record,) = caplog.records
    assert record.getMessage().endswith(f"contains no object; {advice}")


def test_a_list_of_keys_that_names_nothing_is_named_and_not_the_bucket(caplog):
    made = attrs.evolve(config(prefix="a/"), discovery=DiscoverySection(mode="keys", keys="keys.csv"))
    EmptyWatch(made).observe(RunStatistics(state="done", listings=1, filtered={"outside the prefix": 2}))
    (said,) = caplog.messages
    assert said.startswith("nothing to read: keys.csv names no object that exists below s3://lake/a/ ")
    assert said.endswith("(outside the prefix: 2); check the list, and the prefix")


@pytest.mark.parametrize(
    ("filtered", "said"),
    [
        ({"empty": 1}, "the only object below s3://lake/a/ is empty"),
        ({"empty": 2}, "all of the 2 objects below s3://lake/a/ are empty"),
        (
            {"hidden": 1},
            "the only object below s3://lake/a/ is filtered (hidden: 1); check [naming] template and [discovery]",
        ),
    ],
)
def test_empty_objects_are_no_mistake_of_a_filter(filtered, said, caplog):
    listed = sum(filtered.values())
    EmptyWatch(config(prefix="a/")).observe(RunStatistics(state="done", listings=1, listed=listed, filtered=filtered))
    assert caplog.messages == [f"nothing to read: {said}"]


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


@attrs.frozen(kw_only=True)
class ShelfConfig(SourceCommonConfig):
    shelf: BucketConfig


@pytest.mark.parametrize(
    ("shelf", "place"),
    [({}, "[shelf]"), ({"prefixes": ["a/", "b/"]}, "[shelf] a/, [shelf] b/")],
    ids=["all", "prefixes"],
)
def test_the_place_of_a_source_without_addresses_is_its_section(shelf, place):
    common = {
        "source": {"name": "orders"},
        "input": {"format": "text"},
        "iggy": {"url": "embedded:x", "stream": "lake", "topic": "orders"},
    }
    assert place_of(structure({**common, "shelf": shelf}, ShelfConfig)) == place


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (
            {"objects": 1, "delivered": 1},
            ["sent 0 records of 1 object", "there was no record in 1 object: check [input] format"],
        ),
        ({"objects": 2, "delivered": 2, "records": 5, "objects_with_records": 1}, ["sent 5 records of 2 objects"]),
        # sent before a kill
        ({"objects": 2, "delivered": 2, "objects_with_records": 2}, ["sent 0 records of 2 objects"]),
        # of an object that failed or was stopped inside, or of a lost job, which positions tell
        ({"objects": 1, "delivered": 1, "records": 5}, ["sent 5 records of 1 object"]),
        ({"objects": 0, "delivered": 0}, ["sent 0 records of 0 objects"]),
    ],
)
def test_objects_without_a_record_are_said_to_be_so(progress, said, caplog):
    """A page of HTML is a file of CSV with a header and no row."""
    with caplog.at_level("INFO"):
        _summary(RunStatistics(state="done", **progress), config())
    assert caplog.messages == said


def test_splits_are_not_called_objects(caplog):
    split = {"input": {"format": "text", "split_size": "2MiB"}}
    with caplog.at_level("INFO"):
        _summary(
            RunStatistics(state="done", objects=13, delivered=13, records=5, objects_with_records=5), config(split)
        )
    assert caplog.messages == ["sent 5 records of 13 splits"]


def test_a_topic_of_dead_letters_may_stay_when_nothing_is_skipped_any_more():
    """`dead-letter show` reads what is there."""
    assert config({"errors": {"dead_letter_topic": "bad"}}).errors.dead_letter_topic == "bad"
