"""Headers and timestamps of messages."""

import attrs
import pytest

from framework.errors import ConfigError, ObjectChangedError, ObjectNotFoundError
from framework.model.header_encoding import own_headers_room
from framework.model.objects import NativeObject
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.task.context import SourceContext
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config
from tests.unit.transforms.conftest import NATIVE, applied


def headers(*entries):
    return {"type": "headers", "headers": list(entries)}


def test_headers_from_fields_keep_their_kind(apply):
    transform = headers(
        {"name": "customer", "field": "c"},
        {"name": "n", "field": "n"},
        {"name": "o", "field": "o"},
        {"name": "b", "field": "b"},
    )
    payloads = [b'{"c":"ann","n":5,"o":{"x": 1},"b":true}', b'{"c":null,"n":0.5}', b"[1]", b'{"o":[1,"\\u00e9"]}']
    found = apply(payloads, transform)
    assert found.payloads == payloads
    assert found.headers == [
        {"customer": "ann", "n": 5, "o": '{"x":1}', "b": True},
        {"n": 0.5},
        {},
        {"o": '[1,"\u00e9"]'},
    ]


def test_headers_from_the_object():
    names = ("bucket", "key", "version", "size", "last_modified", "storage_class", "content_type")
    transform = headers(
        *({"name": name, "object": name} for name in names),
        {"name": "team", "metadata": "Team"},
        {"name": "none", "metadata": "none"},
        {"name": "kind", "static": "order"},
    )
    metadata = {"content-type": "application/json", "meta:team": "blue"}
    found = applied([b"x", b"y"], transform, metadata=metadata)
    expected = {
        "bucket": "lake",
        "key": "a/b.jsonl",
        "version": "etag@1",
        "size": 77,
        "last_modified": "2023-11-14T22:13:20.123+00:00",
        "storage_class": "STANDARD",
        "content_type": "application/json",
        "team": "blue",
        "kind": "order",
    }
    assert found.headers == [expected, expected]
    assert found.run.batch.headers[0] is found.run.batch.headers[1]  # encoded once


@pytest.mark.parametrize(
    "source",
    [
        {"object": "size"},
        {"object": "last_modified"},
        {"object": "storage_class"},
        {"metadata": "team"},
        {"tag": "team"},
    ],
    ids=str,
)
def test_a_header_that_needs_an_object_which_is_gone_makes_the_record_bad(source):
    """A replay would otherwise send size 0, and say nothing of the others."""
    gone = NativeObject(bucket="lake", key="a", size=0, version="1")
    found = applied([b"{}"], headers({"name": "h", **source}), native=gone, exists=False)
    assert found.payloads == []
    assert found.reasons[1].endswith('header "h": its value is not known, because the object of the record is gone')


def test_headers_that_a_dead_letter_knows_need_no_object():
    gone = NativeObject(bucket="lake", key="a", size=0, version="1")
    known = [{"name": name, "object": name} for name in ("bucket", "key", "version")]
    transform = headers(*known, {"name": "kind", "static": "order"}, {"name": "n", "field": "n"})
    found = applied([b'{"n":1}'], transform, native=gone, exists=False)
    assert found.headers == [{"bucket": "lake", "key": "a", "version": "1", "kind": "order", "n": 1}]


def test_later_headers_add_to_earlier_ones_and_replace_them(apply):
    first = headers({"name": "a", "static": "1"}, {"name": "b", "field": "b"})
    second = headers({"name": "b", "static": "2"}, {"name": "c", "field": "b"})
    drop = {"type": "filter", "field": "b", "value_pattern": "is_null", "action": "drop"}
    found = apply([b'{"b":"x"}', b"{}", b'{"b":"y"}'], first, drop, second)
    assert found.numbers == [1, 3]
    assert found.headers == [{"a": "1", "b": "2", "c": "x"}, {"a": "1", "b": "2", "c": "y"}]


def test_a_header_that_iggy_cannot_store_makes_the_record_bad(apply):
    found = apply([b'{"f":"x"}', b'{"f":"%s"}' % (b"y" * 90_000)], headers({"name": "f", "field": "f"}))
    assert found.numbers == [1]
    assert found.reasons[2].endswith("at most 90,000 can be stored; the longest is 'f' with 90,000 bytes")


def test_of_headers_that_are_too_long_together_the_longest_is_named(apply):
    line = b'{"f":"%s","g":"%s","h":1}' % (b"y" * 50_000, "ü".encode() * 60_000)
    found = apply([line], headers(*({"name": name.upper(), "field": name} for name in "hfg")))
    assert found.reasons[1] == (
        "its headers take more than 100,000 bytes, at most 90,000 can be stored; the longest is 'G' with 120,000 bytes"
    )


def test_a_name_of_255_bytes_is_fine(apply):
    assert apply([b'{"f":1}'], headers({"name": "é" * 127 + "n", "field": "f"})).headers == [{"é" * 127 + "n": 1}]


def test_headers_that_do_not_fit_beside_a_very_long_key_make_the_record_bad(apply):
    """A key of a store of one's own may have 10,000 characters. The server ends the connection at 100,000 bytes."""
    native = attrs.evolve(NATIVE, key="k" * 10_000)
    found = apply(
        [b'{"f":"%s"}' % (b"y" * size) for size in (84_000, 89_500)],
        headers({"name": "f", "field": "f"}),
        native=native,
    )
    assert found.numbers == [1]
    assert f"at most {own_headers_room(native):,} can be stored" in found.reasons[2]
    assert own_headers_room(native) < 90_000


@pytest.mark.parametrize(
    ("entry", "mistake"),
    [
        ({"name": "a"}, "transforms[0].headers[0].field: missing; give one of"),
        ({"name": "a", "field": "x", "static": "y"}, "headers[0].static: field is there too"),
        ({"field": "x"}, "headers[0].name: missing"),
        ({"name": "", "field": "x"}, "headers[0].name"),
        ({"name": "a", "object": "etag"}, "headers[0].object"),
        ({"name": "é" * 128, "field": "x"}, "headers[0].name: a header's name holds 1 to 255 bytes"),
        (
            {"name": "n" * 254, "static": "x" * 300},
            "headers[0].name: a header's name holds 1 to 255 bytes, with the number",
        ),
        ({"name": "a", "static": "x" * 90_000}, "headers[0].name: its headers take"),
        ({"name": "letter", "field": "x"}, 'headers[0].name: "letter" marks dead letters'),
        ({"name": "replay", "static": "x"}, 'headers[0].name: "replay" marks dead letters'),
    ],
)
def test_mistakes_of_headers(entry, mistake):
    with pytest.raises(ConfigError) as caught:
        applied([b"{}"], headers(entry))
    assert mistake in str(caught.value)


TIMES = [
    ("iso8601", b'"2024-05-31T12:00:00Z"', 1_717_156_800_000_000),
    ("iso8601", b'"2024-05-31T12:00:00.123456+02:00"', 1_717_149_600_123_456),
    ("iso8601", b'"2024-05-31T12:00:00"', 1_717_156_800_000_000),
    ("iso8601", b'"2024-05-31 12:00:00.5"', 1_717_156_800_500_000),
    ("iso8601", b'"2024-05-31"', 1_717_113_600_000_000),
    ("seconds", b"1717156800", 1_717_156_800_000_000),
    ("seconds", b"1717156800.25", 1_717_156_800_250_000),
    ("millis", b"1717156800123", 1_717_156_800_123_000),
    ("micros", b"1717156800123456", 1_717_156_800_123_456),
    ("nanos", b"1717156800123456789", 1_717_156_800_123_456),
]


@pytest.mark.parametrize(("form", "value", "microseconds"), TIMES)
def test_a_field_becomes_the_time_of_origin(apply, form, value, microseconds):
    payload = b'{"other":[],"at":%s}' % value
    found = apply([payload, payload], {"type": "timestamp", "field": "at", "format": form})
    assert (found.times, found.payloads) == ([microseconds] * 2, [payload] * 2)


NO_TIMES = [
    ("iso8601", b"1717156800"),
    ("iso8601", b'"yesterday"'),
    ("iso8601", b'""'),
    ("iso8601", b'"1969-12-31T23:59:59Z"'),
    ("iso8601", b"true"),
    ("iso8601", b"{}"),
    ("seconds", b'"1717156800"'),
    ("seconds", b"-5"),
    ("seconds", b"0"),
    ("seconds", b"1e300"),
    ("seconds", b"true"),
    ("millis", b"[1]"),
    ("nanos", b"99999999999999999999999"),
]


@pytest.mark.parametrize(("form", "value"), NO_TIMES)
def test_a_field_of_another_type_makes_the_record_bad(apply, form, value):
    good = {"iso8601": TIMES[0][1], "seconds": b"1717156800"}.get(form, b"1717156800000")
    payloads = [b'{"at":%s}' % one for one in (good, value, good)]
    found = apply(payloads, {"type": "timestamp", "field": "at", "format": form})
    assert found.numbers == [1, 3]
    assert found.bad[2].raw == payloads[1]
    assert 'field "at" is no' in found.reasons[2]


def test_a_missing_time_is_bad_or_the_time_of_sending(apply):
    payloads = [b'{"at":"2024-05-31T12:00:00Z"}', b"{}", b'{"at":null}', b"no json"]
    strict = apply(payloads, {"type": "timestamp", "field": "at"})
    said = [f'transforms[0] (timestamp): field "at" is {what}' for what in ("missing", "null", "missing")]
    assert (strict.numbers, list(strict.reasons.values())) == ([1], said)
    lenient = apply(payloads, {"type": "timestamp", "field": "at", "missing": "ignore"})
    assert lenient.times == [1_717_156_800_000_000, 0, 0, 0]


def records(store, *transforms):
    task = MemorySourceTask(store)
    config = source_config(format="text", transforms=list(transforms))
    context = SourceContext(config=config, offsets=OffsetManager(MemoryOffsetStore()), once=True)
    return list(task.get_iterator(context))


def test_metadata_costs_a_request_for_each_object_and_none_when_nobody_asks():
    store = MemoryStore()
    for key in "ab":
        store.put(key, b"1\n2\n3\n", metadata={"content-type": "text/plain", "meta:team": key})
    found = records(store, headers({"name": "team", "metadata": "team"}, {"name": "type", "object": "content_type"}))
    assert [dict(one.headers) for one in found] == [
        {"team": key, "type": "text/plain"} for key in "ab" for _ in range(3)
    ]
    assert [call.key for call in store.calls if call.name == "metadata"] == ["a", "b"]
    store.calls.clear()
    records(store, headers({"name": "key", "object": "key"}))
    assert [call for call in store.calls if call.name == "metadata"] == []


def test_tags_cost_a_request_for_each_object_and_none_when_nobody_asks():
    store = MemoryStore()
    for key in "ab":
        store.put(key, b"1\n2\n3\n")
    store.object_tags["a"] = {"team": "blue"}
    found = records(store, headers({"name": "team", "tag": "team"}))
    assert [dict(one.headers) for one in found] == [{"team": "blue"}] * 3 + [{}] * 3
    assert [(call.name, call.key) for call in store.calls if call.name in {"tags", "metadata"}] == [
        ("tags", "a"),
        ("tags", "b"),
    ]
    store.calls.clear()
    records(store, headers({"name": "key", "object": "key"}), headers({"name": "key", "metadata": "key"}))
    assert [call for call in store.calls if call.name == "tags"] == []


def test_a_store_without_tags_says_so():
    class Plain(MemoryStore):
        def tags(self, native):
            return super(MemoryStore, self).tags(native)

    with pytest.raises(ConfigError, match="have no tags"):
        Plain().tags(NativeObject(bucket="bucket", key="a", size=1, version="1"))


def test_metadata_of_a_version_that_is_gone():
    store = MemoryStore()
    listed = store.put("a", b"1\n")
    store.put("a", b"2\n")
    with pytest.raises(ObjectChangedError):
        store.metadata(listed)
    store.delete("a")
    with pytest.raises(ObjectNotFoundError):
        store.metadata(listed)


def test_a_store_without_metadata_says_so():
    class Plain(MemoryStore):
        def metadata(self, native):
            return super(MemoryStore, self).metadata(native)

    with pytest.raises(ConfigError, match="gives no metadata"):
        Plain().metadata(NativeObject(bucket="bucket", key="a", size=1, version="1"))
