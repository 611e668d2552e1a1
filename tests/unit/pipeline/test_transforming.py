"""Records between the format and the queue: numbers with gaps, bad records, and contracts that are broken."""

import contextlib
import json

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config import plugins
from framework.errors import ConfigError, ReaderFailedError, RecordTransformError, TransformContractError
from framework.model.header_encoding import encode_headers
from framework.model.objects import TopicPartition
from framework.model.payloads import PayloadColumn
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.pipeline import transforming
from framework.pipeline.transforming import TransformChain
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.kit.transforms import CONTEXT
from framework.testing.options import source_config
from framework.transform import TransformBatch
from framework.transformer import PayloadBatch, Transformer
from framework.transforms import documents, schemas
from tests.support import transforms as own
from tests.support.memory_producer import MemoryProducer

CLASSES = {
    cls.name: cls
    for cls in (
        own.DropMarked,
        own.FailOnMarked,
        own.Tag,
        own.Shout,
        own.Empty,
        own.BadHeader,
        own.Twice,
        own.Backwards,
        own.Stranger,
        own.Short,
        own.Nothing,
    )
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    own.register(monkeypatch, **CLASSES)


def read(text, *transforms, **options):
    """Batches of one object, read with a batch length that does not divide its records."""
    store = MemoryStore()
    store.put("a.txt", text)
    given = {"format": "text", "batch_length": 4, "transforms": [{"type": name} for name in transforms], **options}
    config = source_config(**given)
    task = MemorySourceTask(store)
    offsets = OffsetManager(MemoryOffsetStore())
    task.start(config, offsets=offsets, once=True)
    batches = []
    failure = None
    try:
        while not task.finished:
            batches += task.poll(timeout_seconds=5.0)
    except ReaderFailedError as error:
        failure = error.__cause__
    statistics = task.iterator.statistics
    task.stop()
    return batches, statistics, failure


def lines(marks):
    """Lines with their number, and a mark where one stands: `.` for none."""
    return b"".join(
        b"line %d%s\n" % (number, b"" if mark == "." else mark.encode()) for number, mark in enumerate(marks, 1)
    )


def found(batches):
    return [
        (number, payload)
        for batch in batches
        for number, payload in zip(batch.record_numbers, batch.payloads, strict=True)
    ]


def covered(batches):
    """Every number that the batches account for, in order, with none twice."""
    done = 0
    for batch in batches:
        assert batch.records_before == done
        done = batch.entry.records_done
    return done


@pytest.mark.parametrize(
    "marks", ["..!..!!...!", "!!!!!!!!!", "!....", "....!", ".........", "!", ".!", "....!!!!....", "!!!!....!!!!"]
)
def test_filtered_records_keep_their_numbers(marks):
    batches, statistics, failure = read(lines(marks), "drop")
    assert failure is None
    assert [number for number, _ in found(batches)] == [n for n, mark in enumerate(marks, 1) if mark != "!"]
    assert all(payload == b"line %d" % number for number, payload in found(batches))
    assert covered(batches) == len(marks)
    assert batches[-1].entry.finished
    assert batches[-1].entry.total == len(marks)
    assert statistics.records_filtered == marks.count("!")
    assert statistics.records_read == len(marks) - marks.count("!")
    assert (statistics.skipped, batches[-1].entry.skipped) == (0, 0)


@pytest.mark.parametrize(("passing", "warnings"), [((), 1), ((3,), 1), ((5, 14, 23), 0)])
def test_a_filter_that_drops_everything_of_many_objects_is_said_once(caplog, passing, warnings):
    store = MemoryStore()
    for number in range(30):
        store.put(f"{number:02}", lines("!.!" if number in passing else "!!!"))
    task = MemorySourceTask(store)
    config = source_config(format="text", transforms=[{"type": "drop"}])
    with contextlib.closing(task.get_iterator(_context(config))) as iterator:
        assert len(list(iterator)) == len(passing)
    said = [record.message for record in caplog.records if "left no record" in record.message]
    assert [one.partition(", the last one ")[0] for one in said] == [
        "the transforms left no record of 10 objects in a row"
    ] * warnings


def test_a_run_that_is_kept_whole_stays_without_numbers():
    batches, _, _ = read(lines("....!....."), "drop")
    assert [batch.numbers is None for batch in batches] == [True, False, True]


def test_transforms_apply_in_order():
    batches, _, _ = read(lines(".!."), "shout", "drop", "tag")
    assert [payload for _, payload in found(batches)] == [b"LINE 1", b"LINE 3"]
    records = [record for batch in batches for record in batch.records()]
    assert [dict(record.headers) for record in records] == [{"tag": 1}, {"tag": 3}]
    assert [record.timestamp_us for record in records] == [1_000_000, 3_000_000]


def test_a_switched_off_transform_is_not_applied():
    batches, _, _ = read(lines("!!"), transforms=[{"type": "drop", "enabled": False}])
    assert len(found(batches)) == 2


def test_record_by_record_gives_numbers_headers_and_timestamps():
    store = MemoryStore()
    store.put("a.txt", lines(".!."))
    task = MemorySourceTask(store)
    config = source_config(format="text", transforms=[{"type": "drop"}, {"type": "tag", "tag": "n"}])
    with contextlib.closing(task.get_iterator(_context(config))) as iterator:
        records = list(iterator)
    assert [(one.record_number, dict(one.headers), one.timestamp_us) for one in records] == [
        (1, {"n": 1}, 1_000_000),
        (3, {"n": 3}, 3_000_000),
    ]


def _context(config):
    from framework.task.context import SourceContext

    return SourceContext(config=config, offsets=OffsetManager(MemoryOffsetStore()), once=True)


@pytest.mark.parametrize("marks", ["..?..??...?", "?", "?....", "....?", "????.....", "!?!?.", ".?!"])
@pytest.mark.parametrize("bad", ["fail", "empty", "bad_header"])
def test_bad_records_are_found_one_by_one(marks, bad):
    batches, statistics, failure = read(lines(marks), "drop", "shout", bad, tolerance="skip_record")
    assert failure is None
    assert [number for number, _ in found(batches)] == [n for n, mark in enumerate(marks, 1) if mark == "."]
    skipped = [skip for batch in batches for skip in batch.skipped]
    assert [skip.record_number for skip in skipped] == [n for n, mark in enumerate(marks, 1) if mark == "?"]
    for skip in skipped:
        assert skip.raw == b"line %d?" % skip.record_number  # as the format gave it, not in capitals
        assert skip.length == len(skip.raw)
        assert isinstance(skip.error, RecordTransformError)
        assert "secret" not in str(skip.error)
        assert str(skip.error).startswith(f"memory://bucket/a.txt, record {skip.record_number}: ")
    assert covered(batches) == len(marks)
    assert statistics.skipped == marks.count("?") == batches[-1].entry.skipped
    assert statistics.records_filtered == marks.count("!")


@pytest.mark.parametrize("tolerance", ["none", "skip_object"])
@pytest.mark.parametrize("marks", ["..?...", "?..", "....?.", "!!!?..", "!.!.?"])
def test_a_bad_record_ends_the_object_behind_what_is_before_it(marks, tolerance):
    batches, statistics, failure = read(lines(marks), "drop", "fail", tolerance=tolerance)
    bad = marks.index("?") + 1
    assert [number for number, _ in found(batches)] == [n for n, m in enumerate(marks, 1) if m == "." and n < bad]
    assert covered(batches) == bad - 1
    assert statistics.records_filtered == marks[: bad - 1].count("!")
    if tolerance == "none":
        assert isinstance(failure, RecordTransformError)
        assert failure.record_number == bad
        assert "transforms[1] (fail) failed with ValueError (tests.support.transforms, line " in str(failure)
    else:
        assert batches[-1].failure.record_number == bad
        assert batches[-1].entry.finished


def test_bad_records_of_the_format_and_of_a_transform_in_one_batch():
    text = b'{"n":1}\nbad\n{"n":"?"}\n{"n":4}\n'
    batches, _, _ = read(text, "fail", format="jsonl", tolerance="skip_record")
    assert [number for number, _ in found(batches)] == [1, 4]
    assert [(skip.record_number, skip.raw) for batch in batches for skip in batch.skipped] == [
        (2, b"bad"),
        (3, b'{"n":"?"}'),
    ]
    assert covered(batches) == 4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("twice", "may only change or drop"),
        ("backwards", "another order"),
        ("stranger", "not given to it"),
        ("short", "returned 1 payloads"),
        ("nothing", "returned NoneType"),
    ],
)
def test_a_broken_contract_ends_the_run_and_names_the_transform(name, reason):
    _, _, failure = read(lines("....."), "shout", name, tolerance="skip_record")
    assert isinstance(failure, TransformContractError)
    assert f"transforms[1] ({name})" in str(failure)
    assert reason in str(failure)


def test_a_transform_may_use_its_list_and_its_buffer_again(monkeypatch):
    buffer, payloads = bytearray(20), []

    def apply(self, batch, context):
        payloads.clear()
        for place, payload in enumerate(batch.payloads):
            buffer[2 * place : 2 * place + 2] = payload[-2:]
            payloads.append(memoryview(buffer)[2 * place : 2 * place + 2])
        return batch.with_payloads(payloads)

    monkeypatch.setattr(own.Shout, "apply", apply)
    batches, _, failure = read(lines("." * 9), "shout")
    assert failure is None
    assert found(batches) == [(number, b" %d" % number) for number in range(1, 10)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_transform_may_use_its_arrays_and_headers_again(monkeypatch, fails):
    """Also when it is applied to smaller and smaller parts, to find a bad record."""
    numbers, times, hashes = np.zeros(20, np.int64), np.zeros(20, np.int64), np.zeros(20, np.uint32)
    headers, rows = [{} for _ in range(20)], []

    def apply(self, batch, context):
        if fails and len(batch) > 2:
            raise ValueError("a smaller part, please")
        count = len(batch)
        numbers[:count] = batch.numbers
        times[:count] = hashes[:count] = numbers[:count] * 10
        rows[:] = headers[:count]
        for row, number in zip(rows, batch.numbers, strict=True):
            row["number"] = int(number)
        return attrs.evolve(
            batch, numbers=numbers[:count], timestamps_us=times[:count], key_hashes=hashes[:count], headers=rows
        )

    monkeypatch.setattr(own.Shout, "apply", apply)
    monkeypatch.setattr(own.Shout, "chooses_partition", True)
    chain = TransformChain([(own.Shout(None), "transforms[0] (shout)")])
    payloads = [b"%d" % number for number in range(1, 10)]
    runs = [
        chain.apply(PayloadBatch(first_record=at + 1, payloads=payloads[at : at + 3], size_bytes=3), CONTEXT)
        for at in (0, 3, 6)
    ]
    assert [run.number_array().tolist() for run in runs] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [run.batch.timestamps_us.tolist() for run in runs] == [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    assert [run.batch.key_hashes.tolist() for run in runs] == [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    assert [[row["number"] for row in run.batch.headers] for run in runs] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_transform_may_take_away_what_an_earlier_one_has_set(monkeypatch):
    monkeypatch.setattr(
        own.Shout, "apply", lambda self, batch, context: attrs.evolve(batch, timestamps_us=None, headers=None)
    )
    batches, _, failure = read(lines("..."), transforms=[{"type": "tag", "tag": "n"}, {"type": "shout"}])
    assert failure is None
    assert len(found(batches)) == 3
    assert {(batch.timestamps_us, batch.headers) for batch in batches} == {(None, None)}


def test_what_iggy_cannot_store_is_bad_behind_the_transforms(monkeypatch):
    fits, is_longer = {"n": "abc"}, {"n": "abcd"}
    monkeypatch.setattr(transforming, "MAX_MESSAGE_BYTES", 10)
    monkeypatch.setattr(transforming, "own_headers_room", lambda native: len(encode_headers(fits)))

    def apply(self, batch, context):
        return attrs.evolve(
            batch.with_payloads([b"x" * size for size in (1, 10, 11, 0, 10, 10)]),
            timestamps_us=np.asarray([0, 1, 1, 1, -1, 1]),
            headers=[None, fits, None, None, None, is_longer],
        )

    monkeypatch.setattr(own.Shout, "apply", apply)
    batches, _, _ = read(lines("." * 6), "shout", tolerance="skip_record", batch_length=6)
    assert found(batches) == [(1, b"x"), (2, b"x" * 10)]
    assert {skip.record_number: skip.error.message for batch in batches for skip in batch.skipped} == {
        3: "it has 11 bytes after the transforms, Iggy stores at most 64,000,000",
        4: "it is empty after the transforms, and Iggy stores no empty messages",
        5: "its origin timestamp is before 1970",
        6: "its headers take 15 bytes, at most 14 can be stored; the longest is 'n' with 4 bytes",
    }


def test_a_transform_that_chooses_partitions_and_gives_no_hashes_ends_the_run(monkeypatch):
    monkeypatch.setattr(own.Shout, "chooses_partition", True)
    chain = TransformChain([(own.Shout(None), "transforms[0] (shout)")])
    run = PayloadBatch(first_record=1, payloads=[b"a"], size_bytes=1)
    with pytest.raises(
        TransformContractError, match=r"^transforms\[0\] \(shout\) returned records without the hashes of"
    ):
        chain.apply(run, CONTEXT)


CAREFREE = {
    "payloads alone": (lambda batch: list(batch.payloads), "returned list, not a TransformBatch"),
    "headers": (
        lambda batch: attrs.evolve(batch, headers=[None, *([("name", "value")],) * (len(batch) - 1)]),
        "returned headers of a record that are list, not a mapping",
    ),
    "a header behind": (
        lambda batch: attrs.evolve(batch, headers=[{"a": 1}] * (len(batch) - 1) + [5]),
        "returned headers of a record that are int, not a mapping",
    ),
    "one header": (
        lambda batch: attrs.evolve(batch, headers=dict.fromkeys(map(str, range(len(batch))), 1)),
        "returned headers of a record that are str, not a mapping",
    ),
    "mask": (
        lambda batch: batch.keep([True] * len(batch)),
        "keep takes the places of records, and was given bool: numpy.flat",
    ),
    "text": (lambda batch: batch.keep(["0"]), "keep takes the places of records, and was given <U1"),
    "behind": (lambda batch: batch.keep([len(batch)]), "keep takes rising places from 0 to"),
    "below": (lambda batch: batch.keep([-1]), "keep takes rising places from 0 to"),
    "again": (lambda batch: batch.keep([0] * len(batch)), "keep takes rising places from 0 to"),
    "falling": (lambda batch: batch.keep(range(len(batch))[::-1]), "keep takes rising places from 0 to"),
    "stranger": (lambda batch: batch.reject({len(batch): "bad"}), "reject takes places from 0 to"),
    "no reason": (lambda batch: batch.reject({0: None}), "reject takes the reason of each place as text"),
    "str": (lambda batch: batch.with_payloads(["a"] * len(batch)), "returned a payload that is str, not bytes"),
    "an int behind": (
        lambda batch: batch.with_payloads([b"a"] * (len(batch) - 1) + [5]),
        "returned a payload that is int, not bytes",
    ),
    "none": (lambda batch: batch.with_payloads([None] * len(batch)), "returned a payload that is NoneType, not bytes"),
    "lazy": (lambda batch: batch.with_payloads(iter(batch.payloads)), "payloads that are list_iterator, not a list"),
    "times": (
        lambda batch: attrs.evolve(batch, timestamps_us=[1] * len(batch)),
        "timestamps_us that are list, not an array of int64",
    ),
    "a table of times": (
        lambda batch: attrs.evolve(batch, timestamps_us=np.ones((len(batch), 1), np.int64)),
        "timestamps_us that are ndarray, not an array of int64",
    ),
    "hashes": (
        lambda batch: attrs.evolve(batch, key_hashes=[1] * len(batch)),
        "key_hashes that are list, not an array of uint32",
    ),
    "fractions": (
        lambda batch: attrs.evolve(batch, key_hashes=np.ones(len(batch))),
        "key_hashes that are ndarray, not an array of uint32",
    ),
}
"""Mistakes of an author, each with what the error says."""


@pytest.mark.parametrize(
    ("mistake", "records"),
    [*((mistake, ".....") for mistake in CAREFREE), ("mask", "."), ("text", "."), ("behind", ".")],
)
def test_a_wrong_use_of_a_batch_ends_the_run_and_names_the_transform(monkeypatch, mistake, records):
    wrong, message = CAREFREE[mistake]
    monkeypatch.setattr(own.Shout, "apply", lambda self, batch, context: wrong(batch))
    batches, _, failure = read(lines(records), "shout", tolerance="skip_record")
    assert isinstance(failure, TransformContractError)
    assert str(failure).startswith(f"transforms[0] (shout){':' if 'takes' in message else ''} ")
    assert message in str(failure)
    assert not batches


def test_batches_with_gaps_are_sent_and_committed():
    batches, _, _ = read(lines("!.!....!!!!!..!"), "drop")
    offsets = OffsetManager(MemoryOffsetStore())
    producer = MemoryProducer()
    place = TopicPartition("records", batches[0].topic_partition.partition)
    for batch in batches:
        offsets.add_entry(batch.entry) if batch is batches[0] else None
        offsets.commit(producer.send(place, [batch]).result())
    assert [record.record_number for record in producer.stored[place]] == [2, 4, 5, 6, 7, 13, 14]
    (entry,) = offsets.table.entries()
    assert (entry.records_done, entry.finished) == (15, True)


def test_configuration_mistakes_name_their_place():
    with pytest.raises(ConfigError) as caught:
        source_config(
            transforms=[
                {"type": "drob"},
                {"type": "tag", "tga": "x"},
                {"type": "tag", "tag": 5},
                {},
                {"type": "tag", "enabled": "yes"},
                "tag",
                {"type": "json", "indent": 2},
                {"type": "flatbuffer_convert"},
            ]
        )
    text = str(caught.value)
    assert 'transforms[0].type = "drob": unknown transform; did you mean "drop"?' in text
    assert "transforms[1].tga: unknown option; did you mean tag?" in text
    assert "transforms[2].tag = 5: must be text in quotes" in text
    assert "transforms[3].type: missing; known are" in text
    assert "transforms[4].enabled: must be true or false" in text
    assert "transforms[5]: must be a table" in text
    assert 'transforms[7].type = "flatbuffer_convert": unknown transform; only Iggy\'s connector runtime has it' in text
    assert "transforms[6].indent: unknown option; there are none here" in text


def test_a_shipped_transform_is_known_without_a_look_at_what_is_installed(monkeypatch):
    monkeypatch.setattr(plugins, "registered", lambda _: pytest.fail("looked"))
    config = source_config(transforms=[{"type": "delete_fields", "fields": ["a"]}, {"type": "json"}])
    assert [one.type for one in config.transforms] == ["delete_fields", "json"]


def test_a_table_of_transforms_is_no_list():
    with pytest.raises(ConfigError, match=r"write \[\[transforms\]\]"):
        source_config(transforms={"tag": {"enabled": True}})


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=12), st.data())
def test_records_are_kept_alike_in_a_column_and_in_a_list(texts, data):
    lines = [text.encode() for text in texts]
    cut = data.draw(st.integers(0, len(lines) - 1))
    places = sorted(data.draw(st.sets(st.integers(0, len(lines) - cut - 1))))
    column = PayloadColumn(b"".join(line + b"\n" for line in lines))[cut:]
    numbers = range(cut + 1, len(lines) + 1)
    kept = TransformBatch(payloads=column, numbers=numbers).keep(places)
    assert list(kept.payloads) == [lines[cut + place] for place in places]
    assert list(kept.numbers) == [numbers[place] for place in places]
    assert list(PayloadColumn(bytes(kept.payloads.data)).ends) == list(kept.payloads.ends - kept.payloads.base)


ROWS = [b'{"n":%d,"payload":{"n":%d,"text":"%s"}}' % (n, n, b"x" * (n % 90)) for n in range(1, 3001)]
ROWS[1234] = b'{"n":1235,"payload":{"n":1e400,"text":"the filter cannot read it"}}'
ROWS[2345] = b'{"n":2346,"payload":{"n":'


@pytest.mark.parametrize(
    "transforms",
    [
        [{"type": "unwrap_envelope", "field": "payload"}],
        [{"type": "filter", "field": "n", "value_pattern": {"less_than": 2500}}],
        [{"type": "filter", "field": "payload", "value_pattern": "is_object"}],
        [{"type": "headers", "headers": [{"name": "n", "field": "n"}]}],
        [
            {"type": "unwrap_envelope", "field": "payload"},
            {"type": "filter", "field": "n", "value_pattern": {"greater_than": 7}},
        ],
    ],
)
def test_a_format_that_parses_for_the_first_transform_changes_nothing(monkeypatch, transforms):
    """Neither a record nor an error; and no row is held with what waits to be sent."""
    text = b"".join(row + b"\n" for row in ROWS)
    options = {"format": "jsonl", "batch_length": 700, "tolerance": "skip_record", "max_bad_records": 10}
    made = []
    for decoder in (True, False):
        if not decoder:
            monkeypatch.setattr(Transformer, "row_decoder", property(lambda _: None, lambda _, __: None))
        batches, statistics, failure = read(text, transforms=transforms, **options)
        assert not any(getattr(batch.payloads, "parsed", None) for batch in batches)
        assert failure is None
        skipped = [(skip.record_number, str(skip.error), skip.raw) for batch in batches for skip in batch.skipped]
        headers = [batch.headers_of(place) for batch in batches for place in range(len(batch.payloads))]
        made.append((found(batches), skipped, headers, statistics.records_filtered))
    assert made[0] == made[1]
    assert [number for number, _, _ in made[0][1]][-1] == 2346


@pytest.mark.parametrize("tolerance", ["skip_record", "none"])
@pytest.mark.parametrize("bad", [None, 1, 2, 4, 9])
def test_a_batch_that_grows_is_sent_in_parts(monkeypatch, tolerance, bad):
    records = [b"\x01" * (1 + number % 3) for number in range(11)]
    if bad is not None:
        records[bad] = b"\xff"
    text = b"\n".join(records)
    options = {"transforms": [{"type": "json"}], "tolerance": tolerance}
    usual, _, usual_failure = read(text, **options)
    monkeypatch.setattr(schemas, "GROWN_BYTES", 30)
    parts, _, failure = read(text, **options)
    assert str(failure) == str(usual_failure)
    assert found(parts) == found(usual)
    assert covered(parts) == covered(usual)
    assert [skip.record_number for batch in parts for skip in batch.skipped] == [
        skip.record_number for batch in usual for skip in batch.skipped
    ]
    assert parts[-1].entry == usual[-1].entry
    assert len(parts) > len(usual) or bad in {1, 2}
    assert all(len(batch.payloads) == 1 or batch.size_bytes <= 30 for batch in parts)


@pytest.mark.parametrize("more", [[], [{"type": "delete_fields", "fields": ["none"]}]])
def test_a_large_value_that_each_record_gets_divides_the_batch(monkeypatch, more):
    """5,000 records with a value of 100 KB are 500 MB: as one batch they would be in memory twice."""
    monkeypatch.setattr(documents, "GROWN_BYTES", 2000)
    text = b"".join(b'{"n":%d}\n' % number for number in range(50))
    field = {"key": "large", "value": {"static": "x" * 300}}
    batches, _, failure = read(text, transforms=[{"type": "add_fields", "fields": [field]}, *more])
    assert failure is None
    assert [json.loads(payload)["n"] for batch in batches for payload in batch.payloads] == list(range(50))
    assert {len(json.loads(payload)["large"]) for batch in batches for payload in batch.payloads} == {300}
    assert max(batch.size_bytes for batch in batches) <= 2100


@pytest.mark.parametrize("error", [MemoryError(), ImportError("no module"), RuntimeError("can't start new thread")])
def test_what_this_machine_lacks_makes_no_bad_record(error, monkeypatch):
    def failing(*_):
        raise error

    monkeypatch.setattr(own.DropMarked, "apply", failing)
    _, statistics, failure = read(lines("..."), "drop", tolerance="skip_record")
    assert type(failure) is type(error)
    assert statistics.skipped == 0
