"""The options of an envelope in a configuration, and the envelope as the first transform."""

import pytest

from framework.config.envelope import make_envelope
from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.errors import ConfigError
from framework.model.objects import NativeObject, TopicPartition
from framework.pipeline.transforming import TransformChain
from framework.transform import TransformContext
from framework.transformer import PayloadBatch

BASE = {
    "source": {"name": "restore"},
    "input": {"format": "jsonl"},
    "iggy": {"url": "iggy://iggy:iggy@localhost:8090", "stream": "s", "topic": "t"},
    "runner": {"engine": "local"},
}


def config(**sections):
    made = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {**BASE, **sections}}
    return structure(made, SourceCommonConfig)


def mistakes(**sections):
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    return " ".join(caught.value.mistakes)


def apply(made, *records, key="archive/events/3-7.jsonl"):
    chain = TransformChain(make_envelope(made))
    context = TransformContext(
        native=NativeObject(bucket="b", key=key, size=1, version="v"),
        topic_partition=TopicPartition("t", 0),
        source="restore",
    )
    return chain.apply(PayloadBatch(first_record=11, payloads=list(records), size_bytes=1), context)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"envelope": "custom"}, "payload is missing"),
        ({"envelope": "custom", "envelope_fields": {"payload": "x", "body": "y"}}, "'body' is none of"),
        ({"envelope": "custom", "envelope_fields": {"payload": 'a "b"'}}, "has a quotation mark, a backslash or"),
        ({"envelope": "aiven", "envelope_fields": {"payload": "x"}}, "envelope_fields: has no effect"),
        ({"envelope": "aiven", "envelope_header_kinds": {"a": "int7"}}, "'int7' is none of"),
        ({"envelope": "iggy-s3-sink", "envelope_key_header": "key"}, "has no field with a key"),
        ({"envelope": "aiven", "envelope_key_header": "k" * 256}, "1 to 255 bytes"),
        ({"envelope": "aiven", "envelope_columns": ["value"]}, 'needs format = "csv"'),
        (
            {"envelope": "aiven", "format": "csv", "csv_header": False, "envelope_columns": ["key"]},
            "'value', the payload",
        ),
        (
            {"envelope": "aiven", "format": "csv", "csv_header": False, "envelope_columns": ["value", "x"]},
            "'x' is none",
        ),
        ({"envelope": "aiven", "format": "csv", "csv_header": False, "envelope_columns": ["value"] * 2}, "named twice"),
        ({"envelope": "confluent", "format": "csv", "csv_header": False, "envelope_columns": ["v"]}, "are no rows"),
        ({"envelope_payload": "text"}, "envelope_payload: has no effect without envelope"),
        ({"envelope_key_header": "k"}, "envelope_key_header: has no effect without envelope"),
        ({"envelope": "kafka"}, "iggy-s3-sink"),
    ],
)
def test_options_that_do_not_fit_are_named(options, message):
    assert message in mistakes(input=options)


def test_an_order_by_start_offset_needs_what_it_orders_by():
    text = mistakes(discovery={"order": "start_offset", "mode": "incremental"}, runner={"engine": "spark"})
    for part in ("needs {{start_offset}}", 'set mode = "list"', 'engine = "local"'):
        assert part in text
    named = {"template": "{{topic}}-{{partition}}-{{start_offset}}"}
    assert config(discovery={"order": "start_offset"}, naming=named).discovery.order == "start_offset"


def test_without_an_envelope_there_is_no_transform():
    assert list(make_envelope(config())) == []


def test_the_format_checks_json_only_where_no_envelope_does():
    assert config().input.options().validate
    assert not config(input={"envelope": "iggy-s3-sink"}).input.options().validate
    assert config(input={"envelope": "confluent"}).input.options().validate
    assert not config(input={"envelope": "confluent", "envelope_payload": "text"}).input.options().validate


def test_records_are_taken_out_of_their_envelopes_and_keep_their_numbers():
    made = config(
        input={"envelope": "iggy-s3-sink"},
        naming={"template": "archive/{{topic}}/{{partition}}-{{start_offset}}.jsonl"},
    )
    good = b'{"partition_id":3,"topic":"events","headers":{"a":"b"},"timestamp":"1970-01-01T00:00:07Z","payload":1}'
    found = apply(made, good, b"{}", good.replace(b":3", b":4"), good)
    assert list(found.batch.payloads) == [b"1", b"1"]
    assert list(found.batch.numbers) == [11, 14]
    assert found.batch.headers == [{"a": "b"}] * 2
    assert found.batch.timestamps_us.tolist() == [7_000_000] * 2
    assert [skipped.record_number for skipped in found.bad] == [12, 13]
    assert found.bad[0].raw == b"{}"
    assert "b/archive/events/3-7.jsonl, record 12" in str(found.bad[0].error)
    assert "partition 4" in str(found.bad[1].error)


def test_a_mismatch_is_no_mistake_when_it_is_ignored_or_the_key_says_nothing():
    record = b'{"partition_id":4,"topic":"other","payload":1}'
    named = {"template": "archive/{{topic}}/{{partition}}-{{start_offset}}.jsonl"}
    assert apply(config(input={"envelope": "iggy-s3-sink"}, naming=named), record).bad
    ignored = {"envelope": "iggy-s3-sink", "envelope_mismatch": "ignore"}
    assert not apply(config(input=ignored, naming=named), record).bad
    assert not apply(config(input={"envelope": "iggy-s3-sink"}), record).bad


def test_headers_beyond_iggys_limits_make_a_bad_record():
    made = config(input={"envelope": "iggy-s3-sink"})
    long = b'{"payload":1,"headers":{"' + b"n" * 256 + b'":1}}'
    large = b'{"payload":1,"headers":{"h":"' + b"v" * 99_000 + b'"}}'
    empty = b'{"payload":1,"headers":{"":1}}'
    found = apply(made, long, b'{"payload":2}', large, empty)
    assert list(found.batch.payloads) == [b"2"]
    assert [skipped.record_number for skipped in found.bad] == [11, 13, 14]


def test_rows_of_csv_are_read_by_the_sinks_list_of_fields():
    columns = ["value", "timestamp", "key"]
    options = {"envelope": "aiven", "format": "csv", "csv_header": False, "envelope_columns": columns}
    found = apply(config(input={**options, "envelope_key_header": "k"}), b'["aGk=","1000","azE="]')
    assert list(found.batch.payloads) == [b"hi"]
    assert found.batch.headers == [{"k": "k1"}]
    assert found.batch.timestamps_us.tolist() == [1_000_000]
