"""Discovery mode `keys` through the whole program: lists and inventories in a second bucket and in files."""

import re

import attrs
import pytest

from framework.testing.faults import FaultProxy
from tests.integration.program_rig import (
    TASKS,
    Program,
    by_key,
    check_exactly,
    json_lines,
    jsonl,
    opened,
    wait_for_count,
)
from tests.support.inventory import Line, write_inventory

KEYS = [
    "plain.jsonl",
    "with spaces/and more.jsonl",
    "plus+plus.jsonl",
    "per%2Fcent%20.jsonl",
    "quote\"'&<>;?#=,.jsonl",
    "täg=ü/日本.jsonl",
    "emoji 🛫/🛬.jsonl",
    "\uffff\U0001d4b3.jsonl",
    "k" * 1018 + ".jsonl",
]


@pytest.fixture
def reports(moto_server):
    return moto_server.bucket()


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    made.configure(discovery={"mode": "keys"})
    yield made
    made.close()


def put_all(bucket, keys, count=7):
    expected = {key: json_lines(str(number), count + number) for number, key in enumerate(keys)}
    for key, payloads in expected.items():
        bucket.put(key, jsonl(payloads))
    return expected


def listed(bucket):
    """Key -> what a listing says, asked with boto3 itself."""
    found = {}
    for page in bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name):
        for one in page.get("Contents", ()):
            found[one["Key"]] = Line(
                key=one["Key"],
                size=one["Size"],
                etag=one["ETag"].strip('"'),
                modified_ms=round(one["LastModified"].timestamp() * 1000),
            )
    return found


def inventory_of(program, reports, some, **more):
    key = write_inventory(reports.put, some, source=program.bucket.name, destination=reports.name, **more)
    program.configure(discovery={"keys": f"s3://{reports.name}/{key}"})


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_exactly_what_an_inventory_names_is_sent(program, reports, form):
    expected = put_all(program.bucket, KEYS)
    put_all(program.bucket, ["not/named.jsonl"])
    lines = listed(program.bucket)
    inventory_of(program, reports, [lines[key] for key in KEYS], form=form)
    program.once().no_secrets()
    check_exactly(program.messages(), expected)
    # a second run asks for the manifest and its two data files, and for no object
    with FaultProxy(program.bucket.endpoint) as proxy:
        program.configure(s3={"endpoint": proxy.endpoint})
        assert "0 records of 0 objects" in program.once().err
        asked = [(one.method, one.path) for one in proxy.requests]
    assert asked
    assert all(f"/{reports.name}" in path for _, path in asked)
    # and as a listing the same objects are not sent again
    program.configure(s3={"endpoint": program.bucket.endpoint}, discovery={"mode": "list", "keys": None})
    program.once()
    assert sorted(by_key(program.messages())) == sorted([*KEYS, "not/named.jsonl"])
    assert len(program.messages()) == sum(map(len, expected.values())) + 7


@pytest.mark.parametrize("tasks", TASKS)
def test_a_text_file_of_this_machine(program, tmp_path, tasks):
    expected = put_all(program.bucket, KEYS)
    put_all(program.bucket, ["not/named.jsonl"])
    (tmp_path / "keys.txt").write_text("\r\n".join([*KEYS, "missing.jsonl", KEYS[0]]), encoding="utf-8", newline="")
    program.configure(discovery={"keys": str(tmp_path / "keys.txt")}, runner={"tasks_max": tasks})
    ended = program.start("--once").wait().no_secrets()
    assert ended.code == 0, ended.err
    check_exactly(program.messages(), expected)
    assert f"s3://{program.bucket.name}/missing.jsonl: skipped, the object does not exist" in ended.err
    assert "filtered, missing: 1 object" in ended.err
    with FaultProxy(program.bucket.endpoint) as proxy:
        program.configure(s3={"endpoint": proxy.endpoint})
        program.once()
        assert opened(proxy) == []


def test_a_csv_of_batch_operations(program, reports):
    expected = put_all(program.bucket, KEYS)
    rows = "".join(
        f"{program.bucket.name},{'%'.join(['', *(f'{byte:02X}' for byte in key.encode())])}\n" for key in KEYS
    )
    reports.put("jobs/manifest.csv", rows.encode())
    program.configure(discovery={"keys": f"s3://{reports.name}/jobs/manifest.csv"})
    program.once()
    check_exactly(program.messages(), expected)


@pytest.mark.parametrize("tasks", [1, 2])  # two: what comes back goes over the leader
def test_objects_overwritten_or_deleted_since_the_inventory(program, reports, tasks):
    expected = put_all(program.bucket, ["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"])
    lines = listed(program.bucket)
    # with a part of a second a row is believed without a look: the read must find out
    inventory_of(program, reports, [attrs.evolve(line, modified_ms=line.modified_ms + 1) for line in lines.values()])
    expected["b.jsonl"] = json_lines("new", 31)
    program.bucket.put("b.jsonl", jsonl(expected["b.jsonl"]))
    program.bucket.delete("c.jsonl")
    del expected["c.jsonl"]
    program.configure(runner={"tasks_max": tasks})
    ended = program.start("--once").wait().no_secrets()
    assert ended.code == 0, ended.err
    check_exactly(program.messages(), expected)
    assert "overwritten since it was listed" in ended.err
    assert "1 object deleted between list and read" in ended.err
    assert "0 records of 0 objects" in program.start("--once").wait().err


def test_an_inventory_that_names_only_missing_objects_ends_well(program, reports):
    inventory_of(
        program, reports, [Line(key="missing-1"), Line(key="missing-2", size=3, etag="x", modified_ms=1717113600123)]
    )
    ended = program.once().no_secrets()
    assert "filtered, missing: 1 object" in ended.err
    assert "1 object deleted between list and read" in ended.err


def refused(program, said, code=3):
    ended = program.run("--once").no_secrets()
    assert ended.code == code, ended.err
    assert re.search(said, ended.said), ended.said
    return ended


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_an_inventory_of_another_bucket_is_refused(program, reports, form):
    put_all(program.bucket, ["a.jsonl"])
    ours = program.bucket.name
    inventory_of(program, reports, [Line(key="a.jsonl")], form=form, sourceBucket="pond")
    refused(
        program,
        f"manifest.json, sourceBucket: is about the bucket pond, but this source reads {ours}; supply a list of",
        code=2,
    )
    inventory_of(program, reports, [Line(key="a.jsonl"), Line(key="b", bucket="pond")], form=form, parts=1)
    refused(program, f"part-0.*, row 2: is about the bucket pond, but this source reads {ours}", code=2)


def test_what_is_cut_short_is_refused_and_read_whole_later(program, reports):
    expected = put_all(program.bucket, [f"{number:02d}.jsonl" for number in range(20)])
    inventory_of(program, reports, list(listed(program.bucket).values()))
    names = [one["Key"] for one in reports.client.list_objects_v2(Bucket=reports.name)["Contents"]]
    whole = {name: reports.client.get_object(Bucket=reports.name, Key=name)["Body"].read() for name in names}
    (data,) = [name for name in names if "part-1" in name]
    (manifest,) = [name for name in names if "manifest" in name]
    reports.put(manifest, whole[manifest][:-3])
    refused(program, f"s3://{reports.name}/{manifest}: no JSON .*cut short: supply the whole inventory again")
    reports.put(manifest, whole[manifest])
    reports.put(data, whole[data][:-3])
    refused(
        program,
        f"s3://{reports.name}/{data}: {len(whole[data]) - 3} bytes, but the manifest says {len(whole[data])}; none",
    )
    reports.put(data, whole[data][:-1] + b"!")
    refused(program, f"s3://{reports.name}/{data}: its MD5 is not that of the manifest; none of it was used: supply")
    reports.delete(data)
    refused(
        program, f"s3://{reports.name}/{data}: there is no such data file, but s3://{reports.name}/{manifest} names it"
    )
    reports.put(data, whole[data])
    program.once()
    check_exactly(program.messages(), expected)


def test_orc_no_list_and_no_bucket_are_refused(program, reports):
    inventory_of(program, reports, [], fileFormat="ORC")
    refused(program, "its data files are ORC, which cannot be read here; have the inventory written as CSV or Parquet")
    program.configure(discovery={"keys": f"s3://{reports.name}/nothing.txt"})
    refused(program, f"s3://{reports.name}/nothing.txt: there is no such list of keys")
    program.configure(discovery={"keys": "s3://no-such-bucket-here/keys.txt"})
    refused(program, "s3://no-such-bucket-here: there is no such bucket")
    program.configure(discovery={"keys": "nowhere/keys.txt"})
    refused(program, r"nowhere/keys\.txt: the list of keys cannot be read \(No such file or directory\)")


def test_mistakes_of_the_options_are_told_together(program):
    program.configure(discovery={"keys": None, "keys_format": "tsv"})
    ended = program.run("--once")
    assert ended.code == 2
    assert 'keys: missing; mode = "keys" needs' in ended.err
    assert "keys_format" in ended.err
    program.configure(discovery={"mode": "list", "keys": "keys.txt", "keys_format": None})
    assert 'keys: has no effect with mode = "list"' in program.run("--once").err
    program.configure(discovery={"mode": "keys", "keys": "gs://bucket/keys.txt"})
    ended = program.run("--once")
    assert ended.code == 2
    assert "as s3://bucket/key" in ended.err


def test_check_looks_at_the_list_and_not_at_a_listing(program, reports):
    put_all(program.bucket, ["a.jsonl"])
    inventory_of(program, reports, list(listed(program.bucket).values()))
    ended = program.run("check")
    assert ended.code == 0, ended.out
    assert "ok   keys           the list of keys can be read" in ended.out
    assert f"s3://{program.bucket.name}/a.jsonl can be read" in ended.out
    program.configure(discovery={"keys": f"s3://{reports.name}/nothing.txt"})
    ended = program.run("check")
    assert ended.code == 3
    assert re.search(r"FAIL keys +s3://.*there is no such list of keys", ended.out)


def test_a_list_that_is_rewritten_while_the_program_runs(program, reports):
    expected = put_all(program.bucket, ["a.jsonl", "b.jsonl", "c.jsonl"])
    reports.put("keys.txt", b"a.jsonl\n")
    program.configure(discovery={"keys": f"s3://{reports.name}/keys.txt", "poll_interval": 0.05})
    running = program.start()
    running.wait_for("reading the list of keys")
    wait_for_count(program, len(expected["a.jsonl"]))
    reports.put("keys.txt", b"a.jsonl\nc.jsonl\n")
    wait_for_count(program, len(expected["a.jsonl"]) + len(expected["c.jsonl"]))
    assert running.stop().code == 0
    del expected["b.jsonl"]
    check_exactly(program.messages(), expected)
