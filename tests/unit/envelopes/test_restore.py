"""Archived records back to payloads, headers and times: golden lines of every form, and lines that are damaged."""

from __future__ import annotations

import base64
import copy
import json
import operator
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.envelopes.archive_layouts import AIVEN, CONFLUENT, IGGY_S3_SINK
from framework.envelopes.encodings import known_times
from framework.envelopes.layout import Layout, Origin
from framework.envelopes.options import EnvelopeOptions
from framework.envelopes.restore import EnvelopeTransform
from framework.errors import TransformContractError
from framework.model.objects import NativeObject, TopicPartition
from framework.model.payloads import PayloadColumn
from framework.pipeline.transforming import TransformChain
from framework.transform import Transform, TransformContext
from framework.transformer import PayloadBatch

NOWHERE = Origin()
SECOND = 1_000_000
T_2024 = 1_710_597_751 * SECOND  # 2024-03-16T14:02:31Z

IGGY_LINE = (
    b'{"offset":42,"timestamp":"2024-03-16T14:02:31Z","stream":"logs","topic":"api","partition_id":1,'
    b'"headers":{"attempt":3,"ok":true,"ratio":0.5,"trace":"abc"},"payload":{"method":"GET","status":200}}'
)


CONTEXT = TransformContext(
    native=NativeObject(bucket="b", key="k", size=1, version="v"), topic_partition=TopicPartition("t", 0), source="s"
)


@attrs.define
class Restored:
    payloads: Sequence[bytes]
    headers: Sequence[Mapping[str, object] | None] | None
    timestamps_us: Any
    wrong: dict[int, str]
    """Place of a bad record in the batch -> why it is bad."""


def restore(layout: Layout, *records: bytes, origin: Origin = NOWHERE, column: bool = False, check: bool = True):
    batch = PayloadColumn(b"".join(record + b"\n" for record in records)) if column else list(records)
    return restored(EnvelopeTransform(layout, lambda _key: origin, check_origin=check), batch)


def restored(envelope: EnvelopeTransform, batch: Sequence[bytes]) -> Restored:
    found = TransformChain([(envelope, "envelope")]).apply(
        PayloadBatch(first_record=0, payloads=batch, size_bytes=1), CONTEXT
    )
    wrong = {skipped.record_number: skipped.error.message for skipped in found.bad}
    return Restored(found.batch.payloads, found.batch.headers, found.batch.timestamps_us, wrong)


class Changing(Transform):
    """A mistake of an author: it changes the headers that it is given."""

    name = "changing"

    def __init__(self, change):
        self.change = change

    def apply(self, batch, context):
        for headers in batch.headers:
            self.change(headers)
        return batch


@pytest.mark.parametrize(
    "change",
    [
        lambda headers: operator.setitem(headers, "x", "y"),
        lambda headers: operator.delitem(headers, "trace"),
        lambda headers: operator.ior(headers, {"x": "y"}),
        lambda headers: headers.update(x="y"),
        lambda headers: headers.setdefault("x", "y"),
        lambda headers: headers.pop("trace"),
        lambda headers: headers.popitem(),
        lambda headers: headers.clear(),
    ],
)
def test_a_transform_that_changes_restored_headers_is_named(change):
    """They are encoded already, and other records share them: the change would be lost, or come to others."""
    chain = TransformChain(
        [(EnvelopeTransform(IGGY_S3_SINK, lambda _key: NOWHERE), "envelope"), (Changing(change), "2")]
    )
    with pytest.raises(
        TransformContractError, match=r"^2: headers .*never change.* \(tests\..*, line \d+, in apply\)$"
    ):
        chain.apply(PayloadBatch(first_record=0, payloads=[IGGY_LINE], size_bytes=1), CONTEXT)


def test_restored_headers_can_be_copied_and_the_copy_changed():
    (found,) = restore(IGGY_S3_SINK, IGGY_LINE).headers
    for same in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (same, same.encoded, same.error) == (found, found.encoded, None)
    assert (
        {**found, "x": "y"} == found | {"x": "y"} == {"attempt": 3, "ok": True, "ratio": 0.5, "trace": "abc", "x": "y"}
    )


# ---- Iggy's S3 sink


@pytest.mark.parametrize("column", [False, True])
def test_a_line_of_iggys_sink_gives_payload_headers_and_time(column):
    found = restore(IGGY_S3_SINK, IGGY_LINE, column=column, origin=Origin(topic="api", partition=1))
    assert list(found.payloads) == [b'{"method":"GET","status":200}']
    assert found.headers == [{"attempt": 3, "ok": True, "ratio": 0.5, "trace": "abc"}]
    assert found.headers[0]["ok"] is True
    assert found.timestamps_us.tolist() == [T_2024]
    assert found.wrong == {}


def test_a_line_without_metadata_and_headers_gives_the_payload_alone():
    found = restore(IGGY_S3_SINK, b'{"payload":[1,2.50,"\\u00e9"]}', origin=Origin(topic="api", partition=1))
    assert list(found.payloads) == [b'[1,2.50,"\\u00e9"]']  # byte for byte
    assert found.headers is None
    assert found.timestamps_us is None


def test_text_is_restored_without_its_quotes():
    layout = attrs.evolve(IGGY_S3_SINK, payload_encoding="text")
    assert list(restore(layout, b'{"payload":"a\\nb \\u00e9"}').payloads) == ["a\nb é".encode()]


@pytest.mark.parametrize(
    ("archived", "payload"),
    [
        (b'{"a":1}', b'{"a":1}'),
        (b"12", b"12"),
        (json.dumps(base64.b64encode(b"\0\xff").decode()).encode(), b"\0\xff"),
        (json.dumps(base64.b64encode(b"a,b").decode()).encode(), b"a,b"),
        (b'"no base64!"', b'"no base64!"'),  # so it was a JSON string
        (
            json.dumps(base64.b64encode(b"12").decode()).encode(),
            b'"MTI="',
        ),  # the bytes 12 would have been archived as JSON
        (b'""', b'""'),
    ],
)
def test_a_stream_with_the_schema_raw_is_restored_from_json_or_base64(archived, payload):
    layout = attrs.evolve(IGGY_S3_SINK, payload_encoding="raw")
    assert list(restore(layout, b'{"payload":' + archived + b"}").payloads) == [payload]


@given(st.binary(min_size=1, max_size=40))
def test_bytes_that_are_not_json_survive_the_schema_raw(data):
    try:
        json.loads(data)
    except ValueError:
        line = json.dumps({"payload": base64.b64encode(data).decode()}).encode()
        layout = attrs.evolve(IGGY_S3_SINK, payload_encoding="raw")
        assert list(restore(layout, line).payloads) == [data]


def test_a_record_of_another_partition_than_its_objects_is_bad():
    found = restore(IGGY_S3_SINK, IGGY_LINE, IGGY_LINE.replace(b'_id":1', b'_id":2'), origin=Origin(partition=2))
    assert list(found.wrong) == [0]
    assert "partition 1" in found.wrong[0]
    assert "envelope_mismatch" in found.wrong[0]
    assert len(found.payloads) == 1


def test_a_record_of_another_topic_than_its_objects_is_bad():
    found = restore(IGGY_S3_SINK, IGGY_LINE, origin=Origin(topic="orders"))
    assert (
        'another topic than "orders", which the name of its object says; check where {{topic}} stands' in found.wrong[0]
    )
    assert list(found.payloads) == []


def test_a_topic_is_the_objects_when_its_name_in_the_key_has_underscores_for_other_characters():
    line = IGGY_LINE.replace(b'"api"', b'"api calls/eu"')
    assert restore(IGGY_S3_SINK, line, origin=Origin(topic="api_calls_eu")).wrong == {}


def test_a_mismatch_may_be_ignored():
    found = restore(IGGY_S3_SINK, IGGY_LINE, origin=Origin(topic="orders", partition=7), check=False)
    assert found.wrong == {}
    assert len(found.payloads) == 1


# ---- damage


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{}", "missing required field `payload`"),
        (b'{"offset":1,"payload":', "truncated"),
        (b'{"payload":1}}', "malformed"),
        (b"[1]", "Expected `object`"),
        (b'{"payload":1,"timestamp":"yesterday"}', "neither RFC 3339 nor a number"),
        (b'{"payload":1,"timestamp":"2024-03-16T14:02:31"}', "without a zone"),
        (b'{"payload":1,"timestamp":"1969-12-31T23:59:59Z"}', "before 1970"),
        (b'{"payload":1,"timestamp":true}', "Expected `int | float | str | null`"),
        (b'{"payload":1,"partition_id":0.5}', "partition_id"),
        (b'{"payload":1,"headers":5}', "neither an object nor a list"),
        (b'{"payload":1,"headers":{"a":\xff}}', "UTF-8"),
        (b'{"payload":"\xff"}', "UTF-8"),
    ],
)
@pytest.mark.parametrize("column", [False, True])
def test_a_damaged_record_is_bad_and_the_others_are_restored(line, reason, column):
    found = restore(IGGY_S3_SINK, IGGY_LINE, line, IGGY_LINE, column=column)
    assert list(found.wrong) == [1]
    assert reason in found.wrong[1]
    assert list(found.payloads) == [b'{"method":"GET","status":200}'] * 2
    assert found.headers[1]["trace"] == "abc"
    assert found.timestamps_us.tolist() == [T_2024, T_2024]


@pytest.mark.parametrize(
    "line",
    [
        b'{"payload":"s3cret","timestamp":"s3cret"}',
        b'{"payload":"s3cret","headers":"s3cret"}',
        b'{"payload":"s3cret","partition_id":"s3cret"}',
        b'{"payload":1,"s3cret":s3cret}',
        b'{"payload":1,"topic":"s3cret"}',
    ],
)
def test_a_reason_never_holds_the_records_content(line):
    found = restore(IGGY_S3_SINK, line, origin=Origin(topic="other", partition=0))
    assert list(found.wrong) == [0]
    assert "s3cret" not in found.wrong[0]


def test_an_empty_payload_is_bad():
    layout = attrs.evolve(IGGY_S3_SINK, payload_encoding="text")
    found = restore(layout, b'{"payload":""}', b'{"payload":"x"}')
    assert list(found.wrong) == [0]
    assert "empty" in found.wrong[0]
    assert list(found.payloads) == [b"x"]


def test_deep_nesting_is_a_bad_record_and_no_crash():
    deep = b'{"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert list(restore(IGGY_S3_SINK, deep).wrong) == [0]


def test_lines_in_which_two_records_stand_are_bad():
    found = restore(IGGY_S3_SINK, b'{"payload":1}{"payload":2}', b'{"payload":3}', column=True)
    assert list(found.wrong) == [0]
    assert list(found.payloads) == [b"3"]


@given(
    st.lists(
        st.one_of(
            st.builds(lambda n: b'{"partition_id":0,"payload":{"n":%d}}' % n, st.integers(0, 9)),
            st.just(b'{"headers":{"a":"b"},"payload":7}'),
            st.just(b'{"timestamp":"2024-03-16T14:02:31Z","payload":[1]}'),
            st.sampled_from([b"{}", b'{"payload":}', b"x", b'{"payload":1,"partition_id":1}']),
        ),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_a_record_is_restored_the_same_whatever_stands_around_it(records, column):
    origin = Origin(partition=0)
    whole = restore(IGGY_S3_SINK, *records, origin=origin, column=column)
    alone = [restore(IGGY_S3_SINK, record, origin=origin) for record in records]
    assert set(whole.wrong) == {place for place, found in enumerate(alone) if found.wrong}
    good = [found for found in alone if not found.wrong]
    assert list(whole.payloads) == [found.payloads[0] for found in good]
    headers = [found.headers[0] if found.headers else None for found in good]
    assert (whole.headers or [None] * len(good)) == headers
    times = [0 if found.timestamps_us is None else int(found.timestamps_us[0]) for found in good]
    assert ([0] * len(good) if whole.timestamps_us is None else whole.timestamps_us.tolist()) == times


# ---- Aiven


def test_a_line_of_aivens_sink_gives_value_headers_and_time():
    line = (
        b'{"headers":[{"key":"a","value":"b"},{"key":"n","value":7},{"key":"o","value":{"x":1}},{"key":"z","value":null}],'
        b'"offset":1232155,"value":{"name":"John"},"key":"user1","timestamp":"2020-01-01T00:00:01.250Z"}'
    )
    found = restore(AIVEN, line)
    assert list(found.payloads) == [b'{"name":"John"}']
    assert found.headers == [{"a": "b", "n": 7, "o": '{"x":1}'}]
    assert found.timestamps_us.tolist() == [1_577_836_801_250_000]


def test_a_row_of_avro_or_parquet_has_milliseconds_and_a_map_of_headers():
    found = restore(AIVEN, b'{"timestamp":1577836801250,"headers":{"a":"b"},"value":"dj0x"}')
    assert found.headers == [{"a": "b"}]
    assert found.timestamps_us.tolist() == [1_577_836_801_250_000]


def test_a_key_becomes_a_header_when_a_name_is_set():
    layout = attrs.evolve(AIVEN, key_header="kafka_key")
    lines = [
        b'{"key":"k1","value":1}',
        b'{"key":null,"value":1}',
        b'{"value":1}',
        b'{"key":{"id":5},"value":1,"headers":[{"key":"a","value":"b"}]}',
    ]
    found = restore(layout, *lines)
    assert found.headers == [{"kafka_key": "k1"}, None, None, {"a": "b", "kafka_key": '{"id":5}'}]


def test_of_several_headers_with_one_name_the_last_counts():
    line = b'{"value":1,"headers":[{"key":"a","value":"1"},{"key":"b","value":"2"},{"key":"a","value":"3"}]}'
    assert restore(AIVEN, line).headers == [{"b": "2", "a": "3"}]


def test_headers_in_base64_become_text_or_bytes():
    layout = attrs.evolve(AIVEN, header_encoding="base64")
    line = b'{"value":1,"headers":[{"key":"t","value":"aGk="},{"key":"r","value":"AP8="},{"key":"n","value":5}]}'
    assert restore(layout, line).headers == [{"t": "hi", "r": b"\0\xff", "n": 5}]
    assert "base64" in restore(layout, line.replace(b"aGk=", b"aGk")).wrong[0]


def test_a_row_of_csv_is_read_by_its_columns():
    layout = attrs.evolve(
        AIVEN,
        columns=("key", "value", "offset", "timestamp", "headers"),
        payload_encoding="base64",
        header_encoding="base64",
        key_header="kafka_key",
    )
    found = restore(
        layout, b'["azE=","TG9yZW0=","1232155","1554210895000","YQ==:Yg==;cg==:AP8=;"]', b'["","eA==","1","",""]'
    )
    assert list(found.payloads) == [b"Lorem", b"x"]
    assert found.headers == [{"a": "b", "r": b"\0\xff", "kafka_key": "k1"}, None]
    assert found.timestamps_us.tolist() == [1_554_210_895_000_000, 0]


def test_a_row_of_csv_with_a_column_less_is_bad():
    layout = attrs.evolve(AIVEN, columns=("key", "value"), payload_encoding="base64")
    assert "length" in restore(layout, b'["eA=="]').wrong[0]


def test_a_row_of_csv_with_a_column_more_is_bad():
    """Aiven's sink writes a value without an encoding as it is: its commas made fields, and its first part was restored."""
    options = EnvelopeOptions(envelope="aiven", columns=("value", "offset", "timestamp"), payload="text")
    found = restore(options.layout(), b'["{\\"a\\":1","\\"b\\":2}","5","1554210895000"]', b'["{}","5","1554210895000"]')
    assert list(found.payloads) == [b"{}"]
    assert "Expected `array` of at most length 3" in found.wrong[0]


def test_a_tombstone_is_null_as_json_and_bad_as_text():
    line = b'{"key":"k","value":null}'
    assert list(restore(AIVEN, line).payloads) == [b"null"]
    assert list(restore(attrs.evolve(AIVEN, payload_encoding="text"), line).wrong) == [0]


# ---- Confluent, custom


def test_confluents_value_passes_unchanged():
    batch = PayloadColumn(b'{"name": "John"}\nnot json\n')
    found = restored(EnvelopeTransform(CONFLUENT, lambda _key: NOWHERE), batch)
    assert found.payloads is batch
    assert found.headers is None
    assert found.timestamps_us is None


def test_a_value_that_is_a_string_may_be_text_or_base64():
    assert list(restore(attrs.evolve(CONFLUENT, payload_encoding="text"), b'"hi"').payloads) == [b"hi"]
    found = restore(attrs.evolve(CONFLUENT, payload_encoding="base64"), b'"AP8="', b'"?"', column=True)
    assert list(found.payloads) == [b"\0\xff"]
    assert list(found.wrong) == [1]


@pytest.mark.parametrize(
    ("unit", "time", "time_us"),
    [
        ("seconds", b"1710597751", T_2024),
        ("seconds", b"1710597751.25", T_2024 + 250_000),
        ("milliseconds", b"1710597751001", T_2024 + 1000),
        ("microseconds", b"1710597751000001", T_2024 + 1),
        ("nanoseconds", b"1710597751000001999", T_2024 + 1),
        ("nanoseconds", b'"2024-03-16T16:02:31+02:00"', T_2024),
    ],
)
def test_custom_fields_and_units(unit, time, time_us):
    layout = EnvelopeOptions(
        envelope="custom", fields={"payload": "body", "headers": "meta", "timestamp": "at"}
    ).layout()
    layout = attrs.evolve(layout, time_unit=unit)
    found = restore(layout, b'{"at": ' + time + b', "meta": {"a": "b"}, "body": {"x": 1} }')
    assert list(found.payloads) == [b'{"x": 1}']
    assert found.headers == [{"a": "b"}]
    assert found.timestamps_us.tolist() == [time_us]


@pytest.mark.parametrize("times", [(b"1500", b"1500.0"), (b"1500.0", b"1500")])
def test_equal_times_are_read_alike_in_any_order(times):
    layout = attrs.evolve(
        EnvelopeOptions(envelope="custom", fields={"payload": "body", "timestamp": "at"}).layout(),
        time_unit="nanoseconds",
    )
    found = restore(layout, *(b'{"at":%b,"body":1}' % time for time in times))
    assert found.timestamps_us.tolist() == [1, 1]


@pytest.mark.parametrize("columns", [(), ("id", "partition", "body")])
def test_the_partition_of_a_row_of_csv_is_text(columns):
    """With a header a row is an object, without one a list; its fields are texts."""
    options = EnvelopeOptions(
        envelope="custom", payload="text", columns=columns, fields={"payload": "body", "partition": "partition"}
    )
    assert list(options.validate_options()) == []
    form = b'["1","%b","x"]' if columns else b'{"id":"1","partition":"%b","body":"x"}'
    texts = [b"3", b"03", b"", b"4", b"x", b"\xc2\xb2", b"-3", b"9" * 5000]
    found = restore(options.layout(), *(form % text for text in texts), origin=Origin(partition=3))
    assert list(found.payloads) == [b"x"] * 3
    assert list(found.wrong) == [3, 4, 5, 6, 7]
    assert "was archived from partition 4, and the name of its object says 3" in found.wrong[3]
    assert all("has a partition that is no number" in found.wrong[bad] for bad in (4, 5, 6, 7))
    unchecked = restore(options.layout(), form % b"x", form % b"4", origin=Origin(partition=3), check=False)
    assert unchecked.wrong == {}


def test_custom_fields_are_checked():
    assert (
        list(EnvelopeOptions(envelope="custom", fields={"payload": "body", "headers": "meta"}).validate_options()) == []
    )
    errors = " ".join(
        EnvelopeOptions(
            envelope="custom", fields={"body": "x", "headers": "y", "topic": "y", "key": ""}
        ).validate_options()
    )
    for part in ("'body' is none of payload", "payload is missing", "'y' is named twice", "key has no name"):
        assert part in errors


def test_kinds_of_headers_can_be_set():
    layout = attrs.evolve(IGGY_S3_SINK, header_kinds={"attempt": "uint32", "blob": "raw", "ratio": "float32"})
    headers = restore(layout, b'{"payload":1,"headers":{"attempt":3,"blob":"AP8=","ratio":0.5,"other":3}}').headers
    assert headers == [{"attempt": (11, b"\3\0\0\0"), "blob": b"\0\xff", "ratio": (14, b"\0\0\0?"), "other": 3}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint8", b"256"),
        ("uint8", b"-1"),
        ("int8", b"1.5"),
        ("int16", b"true"),
        ("raw", b'"?"'),
        ("float32", b'"x"'),
        ("int64", b"[]"),
        ("raw", b"5"),
    ],
)
def test_a_header_that_is_not_of_its_kind_is_bad(kind, value):
    layout = attrs.evolve(IGGY_S3_SINK, header_kinds={"h": kind})
    assert f"no {kind}" in restore(layout, b'{"payload":1,"headers":{"h":' + value + b"}}").wrong[0]


@pytest.mark.parametrize("layout", [IGGY_S3_SINK, attrs.evolve(AIVEN, key_header="key")])
def test_headers_and_a_key_with_more_values_than_may_be_decoded_are_bad(layout):
    many = b"[" + b"[]," * 500_000 + b"[]]"
    part = b"key" if layout.key_header else b"headers"
    payload = layout.named_fields()["payload"].encode()
    found = restore(layout, b'{"%s":1,"%s":%s}' % (payload, part, many), b'{"%s":%s}' % (payload, many))
    assert list(found.payloads) == [many]
    assert "more than 1,000,000 commas and brackets" in found.wrong[0]


def test_numbers_of_128_bits_are_archived_as_text():
    layout = attrs.evolve(IGGY_S3_SINK, header_kinds={"h": "uint128"})
    headers = restore(layout, b'{"payload":1,"headers":{"h":"340282366920938463463374607431768211455"}}').headers
    assert headers == [{"h": (13, b"\xff" * 16)}]


def test_many_different_headers_and_times_do_not_stay_in_memory():
    envelope = EnvelopeTransform(IGGY_S3_SINK, lambda _key: NOWHERE)
    for start in range(0, 25_000, 5000):
        restored(
            envelope, [b'{"payload":1,"timestamp":%d,"headers":{"n":%d}}' % (n, n) for n in range(start, start + 5000)]
        )
    restored(envelope, [b'{"payload":1,"headers":{"n":"%s"}}' % (b"x" * 600)])
    assert all(len(text) < 600 for text in envelope._headers)
    assert len(envelope._headers) <= envelope._headers.MAX_KEPT
    assert len(envelope._times) <= envelope._times.MAX_KEPT


@pytest.mark.parametrize("record", [b'{"value": 1}', b"[1]", b"\xff", b'{"payload"'])
def test_a_record_outside_of_its_envelope_names_the_option(record):
    (reason,) = restore(IGGY_S3_SINK, record).wrong.values()
    assert reason.startswith("envelope: the record is not in its envelope: ")
    assert reason.endswith("; see [input] envelope and its options")


def test_long_times_are_not_kept():
    """The digits of a second may go on for as long as a record."""
    times = known_times("milliseconds")
    time = "2020-01-01T00:00:00.25Z"
    assert times[time] == times[f"{time[:-1]}{'0' * 100_000}Z"] == 1_577_836_800_250_000
    assert list(times) == [time]
