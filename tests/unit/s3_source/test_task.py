"""The task of the S3 source: its configuration, and credentials that a subclass supplies."""

from __future__ import annotations

import boto3
import pytest

from framework.errors import ConfigError
from s3_source.task import S3SourceTask

PROPS = {
    "source": {"name": "orders"},
    "s3": {"bucket": "lake", "endpoint": "http://127.0.0.1:1"},
    "input": {"format": "jsonl"},
    "iggy": {"url": "embedded:unused", "stream": "lake", "topic": "orders"},
}


def test_configure_reports_every_mistake_at_once():
    props = {**PROPS, "s3": {"bukket": "lake"}, "iggy": {"url": "embedded:x", "stream": "lake"}}
    with pytest.raises(ConfigError) as caught:
        S3SourceTask().configure(props)
    text = str(caught.value)
    assert "bukket" in text
    assert "bucket: missing" in text
    assert "[iggy] topic" in text


def test_a_subclass_supplies_its_own_credentials_provider():
    class MySource(S3SourceTask):
        def make_session(self):
            return boto3.Session(
                aws_access_key_id="AKIAOFMYOWN", aws_secret_access_key="secret", region_name="eu-west-1"
            )

    task = MySource()
    store = task.open_store(task.configure(PROPS).s3)
    try:
        client = store._client
        assert client._request_signer._credentials.access_key == "AKIAOFMYOWN"
        assert client.meta.region_name == "eu-west-1"
        assert store._session.get_credentials().access_key == "AKIAOFMYOWN"  # what the short way signs with
    finally:
        task.close_resources()


def test_close_resources_before_anything_was_opened_is_harmless():
    task = S3SourceTask()
    task.close_resources()
    task.close_resources()
