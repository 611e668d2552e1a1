"""Bad and odd objects through the whole program, with each tolerance: what is in the topic, what is said, what is counted."""

import gzip
import io
import json
import re

import attrs
import fastavro
import pytest

from tests.integration.program_rig import (
    LONG,
    ROWS,
    TASKS,
    Program,
    by_key,
    chance,
    check_exactly,
    encoded,
    json_lines,
    jsonl,
    rows,
)

GOOD = {"0-good.jsonl": json_lines("first", 131), "2-good.jsonl": json_lines("last", 77)}
LINES = json_lines("mixed", 50)
VALUES = rows("v", 1200)


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name, input={"format": "auto"}, iggy={"partitions": 1})
    made.configure(iggy={"batch_length": 37})
    for key, payloads in GOOD.items():
        moto_bucket.put(key, jsonl(payloads))
    yield made
    made.close()


# ---- odd, and good


@pytest.mark.parametrize(
    ("key", "data", "records"),
    [
        ("empty.jsonl", b"", []),
        ("blank.jsonl", b"\n\r\n  \n\t\n", []),
        ("no-end.jsonl", b'{"a":1}\n{"a":2}', [b'{"a":1}', b'{"a":2}']),
        ("crlf.jsonl", b'{"a":1}\r\n\r\n{"a":2}\r\n', [b'{"a":1}', b'{"a":2}']),
        ("bom.jsonl", b'\xef\xbb\xbf{"a":1}\n{"a":2}\n', [b'{"a":1}', b'{"a":2}']),
        ("empty.jsonl.gz", gzip.compress(b""), []),
        ("members.jsonl.gz", gzip.compress(b'{"a":') + gzip.compress(b"1}\n"), [b'{"a":1}']),
        ("not-packed.jsonl.gz", b'{"a":1}\n', [b'{"a":1}']),
        ("empty.json", b"[]", []),
        ("bom.csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n", [b'{"a":"1","b":"2"}']),
        ("header-only.csv", b"a,b\n", []),
        ("lines.txt", b"one\n\ntwo\r\nthree", [b"one", b"two", b"three"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_odd_but_right(program, moto_bucket, key, data, records):
    moto_bucket.put(f"1-{key}", data)
    ended = program.once().no_secrets()
    assert " WARNING " not in ended.err
    check_exactly(program.messages(), GOOD | {f"1-{key}": records})
    assert "0 records of 0 objects" in program.once().err


def test_a_line_over_64_mb_is_a_bad_record_and_one_of_exactly_that_is_sent(program, moto_bucket):
    most = 64_000_000
    fits = b'"' + b"x" * (most - 2) + b'"' if LONG else b"{}"
    moto_bucket.put("1-long.jsonl", b'{"a":1}\n' + b'"' + b"y" * (most - 1) + b'"\n{"a":3}\n' + fits + b"\n")
    program.configure(errors={"tolerance": "skip_record"})
    ended = program.once()
    assert "record 2" in ended.err
    assert "1 bad record" in ended.err
    check_exactly(program.messages(), GOOD | {"1-long.jsonl": {1: b'{"a":1}', 3: b'{"a":3}', 4: fits}})


DIFFICULT = [
    "plain.jsonl",
    "with spaces/and more.jsonl",
    "plus+plus.jsonl",
    "per%2Fcent%20.jsonl",
    "double//slash.jsonl",
    "täg=ü/日本.jsonl",
    "emoji 🛫/🛬.jsonl",
    "quote\"'&<>;?#=.jsonl",
    "k" * 1018 + ".jsonl",
    "é" * 509 + ".jsonl",
    "🛫" * 254 + "x.jsonl",
]


@pytest.mark.parametrize("tasks", TASKS)
def test_difficult_keys(tmp_path, moto_bucket, iggy_url, stream_name, tasks):
    program = Program(tmp_path, moto_bucket, iggy_url, stream_name, runner={"tasks_max": tasks})
    expected = {key: json_lines(str(number), 3 + number) for number, key in enumerate(DIFFICULT)}
    for key, payloads in expected.items():
        assert len(key.encode()) <= 1024
        moto_bucket.put(key, jsonl(payloads))
    ended = program.start("--once").wait().no_secrets()
    assert ended.code == 0, ended.err
    messages = program.messages()
    check_exactly(messages, expected)
    for message in messages:
        assert message.headers["bucket"] == moto_bucket.name
        assert all(1 <= len(value.encode()) <= 255 for value in message.headers.values())
        assert "@" in message.headers["version"]
        assert message.split_number == 0
    program.configure(runner={"tasks_max": 1})
    assert "0 records of 0 objects" in program.once().err
    lines = program.run("read").lines
    assert {line["key"] for line in lines} == set(DIFFICULT)


def test_marks_of_writers_and_folders_are_left_alone_and_counted(program, moto_bucket):
    for key in ("_SUCCESS", "_temporary/0/part.jsonl", ".hidden.jsonl", "folder/", "a/.part.crc"):
        moto_bucket.put(key, b"" if key.endswith(("/", "SS")) else b"no json\n")
    ended = program.once()
    assert "filtered, hidden: 3 objects" in ended.err, ended.err
    check_exactly(program.messages(), GOOD)


@pytest.mark.parametrize("sign", ["table/_delta_log/00000000000000000000.json", "table/metadata/v1.metadata.json"])
def test_the_files_of_a_table_are_refused_with_a_reason(program, moto_bucket, sign):
    moto_bucket.put(sign, b'{"format-version":2,"commitInfo":{}}\n')
    moto_bucket.put("table/data/part-0.parquet", encoded("parquet", VALUES[:10]))
    program.configure(s3={"prefix": "table/"}, input={"format": "parquet"})
    ended = program.run("--once").no_secrets()
    assert ended.code == 2, ended.err
    assert f"s3://{moto_bucket.name}/table/" in ended.said
    assert "allow_table_folders" in ended.said
    assert program.count() == 0


# ---- bad


@attrs.frozen
class Bad:
    """An object with a fault.

    Attributes:
        key: names the format.
        data: its bytes.
        whole: the records that a whole one would hold, as they come out of the topic.
        record: number of the one bad record; None when the rest of the object cannot be read.
        good: how many records come before the fault, when that is certain.
    """

    key: str
    data: bytes = attrs.field(repr=False)
    whole: list = attrs.field(repr=False)
    record: int | None = None
    good: int | None = None
    options: dict = attrs.field(factory=dict)


def with_line(line, at=20):
    return jsonl([*LINES[: at - 1], line, *LINES[at:]])


def avro(values=None, **options):
    out = io.BytesIO()
    fastavro.writer(out, ROWS, VALUES if values is None else values, sync_interval=1777, **options)
    return out.getvalue()


def broken_sync():
    """The marker behind the third block is another one."""
    data = bytearray(avro(sync_marker=b"0123456789abcdef"))
    places = [found.start() for found in re.finditer(b"0123456789abcdef", data)]
    data[places[3]] ^= 1
    return bytes(data)


def cuts():
    data, dice = avro(codec="deflate"), chance("cuts")
    header = data.index(b"avro.schema")
    places = [2, header + 5, len(data) - 1, len(data) - 16, *(dice.randrange(header, len(data)) for _ in range(4))]
    return [Bad(f"cut-{at}.avro", data[:at], VALUES) for at in places]


PACKED = gzip.compress(encoded("jsonl", VALUES), 1)
ARRAY = json.dumps(VALUES).encode()
PARQUET = encoded("parquet", VALUES)
CSV_WHOLE = [{"a": str(n), "b": "x"} for n in range(1, 41)]
CSV_LINES = [b"a,b", *(b"%d,x" % n for n in range(1, 41))]

BAD = [
    Bad("no-json.jsonl", with_line(b"{no json"), LINES, 20),
    Bad("two-on-a-line.jsonl", with_line(b"{} {}"), LINES, 20),
    Bad("first-line.jsonl", with_line(b"no json", 1), LINES, 1),
    Bad("last-line.jsonl", with_line(b"[", 50)[:-1], LINES, 50),
    Bad("no-utf8.jsonl", with_line(b'{"a":"\xff\xfe"}'), LINES, 20),
    Bad("latin-1.jsonl", with_line('{"a":"é"}'.encode("latin-1")), LINES, 20),
    Bad("too-long.jsonl", with_line(b'"' + b"x" * 5000 + b'"'), LINES, 20, options={"max_record_bytes": 5000}),
    Bad("too-many.csv", b"\n".join([*CSV_LINES[:20], b"20,x,y", *CSV_LINES[21:]]), CSV_WHOLE, 20),
    Bad("array.json", ARRAY[: len(ARRAY) // 2], VALUES),
    Bad("no-bracket.json", ARRAY[:-1], VALUES, good=1199),
    Bad("cut.jsonl.gz", PACKED[: len(PACKED) // 2], VALUES),
    Bad("no-trailer.jsonl.gz", PACKED[:-8], VALUES, good=1200),
    Bad("rubbish.jsonl.gz", PACKED + b"rubbish behind it", VALUES, good=1200),
    Bad("sync.avro", broken_sync(), VALUES),
    Bad("magic.avro", b"Obj\x02" + avro()[4:], VALUES, good=0),
    Bad("text.avro", jsonl(LINES), [], good=0),
    Bad("text.parquet", jsonl(LINES), [], good=0),
    Bad("rubbish-only.jsonl.gz", PACKED[:10] + b"no deflate stream " * 50, VALUES, good=0),
    Bad("lines.json", jsonl(LINES), [], good=0),
    Bad("no-footer.parquet", PARQUET[: len(PARQUET) * 2 // 3], VALUES, good=0),
    Bad("no-end.parquet", PARQUET[:-1], VALUES, good=0),
    *cuts(),
]


def same(payload):
    """JSON as its value; text of another kind as it is."""
    try:
        return json.loads(payload)
    except ValueError:
        return payload


def plain(records):
    return [same(record) if isinstance(record, bytes) else record for record in records]


def numbered(bad, found):
    """The records before the fault and those behind it, by number; `found` tells where the fault is when only that can."""
    whole = dict(enumerate(plain(bad.whole), 1))
    if bad.record is not None:
        good = bad.record - 1
    elif bad.good is not None:
        good = bad.good
    else:
        good = len(found)
        assert good < len(whole)
    before = {number: whole[number] for number in range(1, good + 1)}
    return before, {number: value for number, value in whole.items() if bad.record and number > bad.record}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.key)
def test_without_tolerance_the_run_ends_at_the_fault_and_what_stands_before_it_is_in_the_topic(
    program, moto_bucket, bad
):
    key = f"1-{bad.key}"
    moto_bucket.put(key, bad.data)
    program.configure(input=bad.options)
    ended = program.run("--once").no_secrets()
    messages = program.messages()
    before, _ = numbered(bad, by_key(messages).get(key, ()))
    assert ended.code == 3
    assert f"s3://{moto_bucket.name}/{key}" in ended.said
    assert f"record {len(before) + 1}" in ended.said, ended.said
    check_exactly(messages, {"0-good.jsonl": plain(GOOD["0-good.jsonl"]), key: before}, same=same)
    again = program.run("--once")
    assert again.code == 3
    assert again.said == ended.said, "it must be the same place again"
    assert len(program.messages()) == len(messages)


@pytest.mark.parametrize("tolerance", ["skip_record", "skip_object"])
def test_with_tolerance_all_the_rest_goes_on_and_what_is_left_out_is_said_and_counted(program, moto_bucket, tolerance):
    for bad in BAD:
        moto_bucket.put(f"1-{bad.key}", bad.data)
        program.configure(input=bad.options)
    ended = program.configure(errors={"tolerance": tolerance}).once().no_secrets()
    messages = program.messages()
    found = by_key(messages)
    expected = {key: plain(payloads) for key, payloads in GOOD.items()}
    warnings = [line for line in ended.err.splitlines() if " WARNING " in line]
    records = 0
    for bad in BAD:
        key = f"1-{bad.key}"
        before, after = numbered(bad, found.get(key, ()))
        record_only = tolerance == "skip_record" and bad.record is not None
        records += record_only
        expected[key] = before | after if record_only else before
        (line,) = [line for line in warnings if f"s3://{moto_bucket.name}/{key}" in line]
        assert f"record {len(before) + 1}" in line or f"after record {len(before)}" in line, line
    check_exactly(messages, expected, same=same)
    bad_records = f"{records} bad records, " if records else ""
    assert f"skipped: {bad_records}the rest of {len(BAD) - records} objects" in ended.err
    again = program.once()
    assert "0 records of 0 objects" in again.err
    assert len(program.messages()) == len(messages)


def test_one_bad_line_in_each_of_many_with_several_tasks(tmp_path, moto_bucket, iggy_url, stream_name):
    """What is skipped is counted over all processes, and left out again after a new start."""
    program = Program(tmp_path, moto_bucket, iggy_url, stream_name, runner={"tasks_max": 2})
    program.configure(errors={"tolerance": "skip_record"}, iggy={"batch_length": 11})
    expected = {}
    for number in range(9):
        payloads = json_lines(str(number), 40 + number)
        bad = 1 + number * 5
        moto_bucket.put(f"{number}.jsonl", jsonl([*payloads[: bad - 1], b"{", *payloads[bad:]]))
        expected[f"{number}.jsonl"] = {n: one for n, one in enumerate(payloads, 1) if n != bad}
    ended = program.start("--once").wait().no_secrets()
    assert ended.code == 0, ended.err
    assert "skipped: 9 bad records" in ended.err
    check_exactly(program.messages(), expected)
    program.configure(runner={"tasks_max": 1})
    assert "0 records of 0 objects" in program.once().err


def test_after_a_mistake_is_put_right_it_goes_on_behind_what_is_sent(program, moto_bucket):
    moto_bucket.put("1-bad.jsonl", with_line(b"no json"))
    assert program.run("--once").code == 3
    ended = program.configure(errors={"tolerance": "skip_record"}).once()
    assert "skipped: 1 bad record" in ended.err
    mixed = {number: line for number, line in enumerate(LINES, 1) if number != 20}
    check_exactly(program.messages(), GOOD | {"1-bad.jsonl": mixed})


def test_what_no_tolerance_stopped_at_is_read_when_it_is_put_again(program, moto_bucket):
    moto_bucket.put("1-bad.jsonl", with_line(b"no json"))
    assert program.run("--once").code == 3
    moto_bucket.put("1-bad.jsonl", jsonl(LINES))
    program.once()
    found = by_key(program.messages())["1-bad.jsonl"]
    assert [one.payload for one in found] == [*LINES[:19], *LINES]
