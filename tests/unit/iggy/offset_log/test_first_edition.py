"""Logs that version 0.1 wrote, recorded with that version: read once and written anew, or refused with a way out.

`orderly` holds three runs over one bucket: `a`, `b` and `c` were read, and `a` was compacted; then another `a` and the first of
the three splits of `big`, and some of its second one; then some of `aa`. `unclaimed` holds a run that was killed before it saved
anything, without headers, and the start after it, which found records and not yet their names.
"""

import base64
import collections
import itertools
import json
import pathlib
import struct

import attrs
import pytest

from framework.engine.admin import accept_changes, reset_positions
from framework.engine.session import Session
from framework.errors import PositionError
from framework.iggy.offset_log import codec, first_edition
from framework.iggy.offset_log.codec import FIRST_FORMAT_VERSION, FORMAT_VERSION
from framework.model.message_ids import object_hash64, parse_message_id
from framework.model.objects import Anchor, TopicPartition
from framework.offsets.listing_hints import ListingHints
from framework.offsets.reset import Reset
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_rig import MemoryRig
from framework.testing.fakes.memory_store import FIRST_TIME_MS, MemoryStore
from tests.support.core import lines
from tests.support.positions import LOG, Source, as_saved, loaded, records, server_with_log

FOLDER = pathlib.Path(__file__).parent / "first_edition"
OPTIONS = {"split_size": 1024, "allowed_lateness": 0.0}
WAY_OUT = r"Run version 0\.1 once more until it ends in order.*then this version"


class TimedStore(MemoryStore):
    def list_page(self, **arguments):
        page = super().list_page(**arguments)
        return attrs.evolve(page, server_time_ms=FIRST_TIME_MS + 1000 * self._changes)


def recorded(name, *, without=lambda row: False):
    """A server as that version left it."""
    rows = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    server = MemoryIggy()
    server.make_stream("kit")
    for row in sorted((row for row in rows if "created_at" in row), key=lambda row: row["id"]):
        server._numbers = itertools.count(row["id"])
        server.make_topic("kit", row["topic"], row["partitions"])
        info = server.topic_info("kit", row["topic"])
        assert (info.id, info.created_at) == (row["id"], row["created_at"])
    for row in rows:
        if "payload" in row and not without(row):
            message = int(row["id"], 16), base64.b64decode(row["payload"]), row["headers"]
            server.store("kit", row["topic"], row["partition"], [(*message, 0)])
    return server


def bucket(**counts):
    rig = MemoryRig()
    rig.store = TimedStore()
    source = Source({}, rig=rig)
    for name, count in counts.items():
        source.put(name, count)
    return source


def orderly(*, without=lambda row: False, **options):
    """The bucket and the server of `orderly`."""
    made = bucket(a=5, b=7, c=11)
    for name, count in {"a": 6, "big": 90, "aa": 16, "next": 3}.items():
        made.put(name, count)
    source = Source({}, rig=made.rig, server=recorded("orderly", without=without), **{**OPTIONS, **options})
    source.expected = made.expected
    return source


def once(source):
    return source.once() + collections.Counter(lines("a", 5))  # its first version


def test_its_positions_and_its_watermark_are_read_as_they_were():
    state = loaded(recorded("orderly"))
    assert as_saved(state) == {
        ("a", 0): ("v4", 1, 6, 6, 6),
        ("aa", 0): ("v6", 1, 6, 6, None),
        ("b", 0): ("v2", 1, 7, 7, 7),
        ("big", 1): ("v5", 1, 44, 44, 44),
        ("big", 2): ("v5", 1, 6, 6, None),
        ("c", 0): ("v3", 1, 11, 11, 11),
    }
    assert all(entry.first_ids for entry in state.positions.view())
    assert state.watermark.covers("bucket", "a", FIRST_TIME_MS + 1000)
    assert (state.watermark.objects, state.watermark.records) == (1, 5)
    assert (state.epoch, state.last_epoch) == (3, 3)
    assert state.selected.bucket == "bucket"
    assert state.anchors.keys() == {TopicPartition("records", 1), TopicPartition("records", 2)}
    assert state.first_edition == {TopicPartition("records", number) for number in range(3)}
    assert {state.topics[topic_partition].topic_id for topic_partition in state.anchors} == {3}


def test_what_was_done_is_not_read_again_and_what_was_not_goes_on():
    source = orderly()
    before = source.payloads()
    source.live()
    assert source.payloads() == once(source)
    assert source.rig.store.count("open") < 8
    assert before - source.payloads() == collections.Counter()
    source.live()
    assert source.payloads() == once(source)


def test_what_was_begun_keeps_its_old_ids_and_what_begins_has_new_ones():
    source = orderly()
    before = sum(source.payloads().values())
    source.live()
    found = collections.defaultdict(list)
    for partition in range(3):
        for message in source.messages(partition):
            found[message.headers["key"], message.headers["version"]].append(parse_message_id(message.message_id))
    assert sum(map(len, found.values())) > before
    for (key, version), split_size, records_of in (
        (("aa", "v6"), 0, {0: range(1, 17)}),
        (("big", "v5"), 1024, {1: range(1, 45), 2: None, 3: None}),
    ):
        old = object_hash64("kit", "bucket", key, version, split_size, generation=None)
        assert {one.object_hash for one in found[key, version]} == {old}
        for split_number, numbers in records_of.items():
            mine = [one.record for one in found[key, version] if one.split_number == split_number]
            assert mine == list(numbers or range(1, len(mine) + 1))
            assert mine
    new = object_hash64("kit", "bucket", "next", "v7")
    assert [(one.object_hash, one.record) for one in found["next", "v7"]] == [(new, 1), (new, 2), (new, 3)]


def test_the_first_start_writes_one_snapshot_and_nothing_of_0_1_is_needed_any_more():
    source = orderly()
    connection = source.server.connect()
    Session.begin(connection, source.rig.make_task({})[1]).close()
    written = [record for record in records(source.server) if record.version == FORMAT_VERSION]
    assert [record.kind for record in written] == ["claim", "opening", "snapshot", "snapshot"]
    before = as_saved(loaded(source.server))
    source.server.drop_head("kit", LOG, 0, written[0].offset)
    again = loaded(source.server)
    assert as_saved(again) == before
    assert all(entry.first_ids for entry in again.positions.view())
    source.live()
    assert source.payloads() == once(source)


def test_a_kill_at_any_moment_of_the_first_start_loses_and_repeats_nothing():
    for at in range(1, 60):
        source = orderly()
        source.live(at)
        source.live()
        assert source.payloads() == once(source), at


def test_a_version_that_replaces_an_unfinished_one_of_0_1_begins_with_new_ids():
    source = orderly()
    source.put("aa", 2)
    source.live()
    assert source.payloads() == once(source) + collections.Counter(lines("aa", 6))


def last_delta(row):
    return row.get("payload") == LAST_DELTA


LAST_DELTA = json.loads((FOLDER / "orderly.jsonl").read_text().splitlines()[-1])["payload"]


@pytest.mark.parametrize("by_hand", [None, "accept", "key"])
def test_records_that_the_last_run_did_not_save_stop_the_start_before_it_writes_anything(by_hand):
    """The way out is a run of version 0.1: it could not read the log once a record of this version stood in it."""
    source = orderly(without=last_delta)
    before = source.server.messages("kit", LOG)
    with pytest.raises(PositionError, match=rf'"records", partition 1, .* had sent and not saved.*{WAY_OUT}'):
        change(source, by_hand) if by_hand else source.live()
    assert source.server.messages("kit", LOG) == before


def change(source, by_hand):
    connection = source.server.connect()
    config = source.rig.make_task({})[1]
    try:
        if by_hand == "accept":
            accept_changes(connection, config)
        else:
            reset_positions(connection, config, Reset(key="b") if by_hand == "key" else Reset())
    finally:
        connection.close()


def test_records_whose_objects_were_not_known_stop_the_start_before_it_writes_anything():
    server = recorded("unclaimed")
    before = server.messages("kit", LOG)
    made = bucket(a=5, b=7)
    source = Source({}, rig=made.rig, server=server, headers="none")
    with pytest.raises(PositionError, match=rf'source "kit" were written by version 0\.1, whose last run.*{WAY_OUT}'):
        source.live()
    assert server.messages("kit", LOG) == before


def test_a_reset_of_everything_needs_no_run_of_0_1():
    source = orderly(without=last_delta)
    before = source.payloads()
    change(source, "all")
    source.live()
    assert source.payloads() == before + source.once()


def test_a_log_of_0_1_that_had_sent_nothing_is_taken_over():
    """Its snapshot names the partitions, without a message in them."""
    anchors = [["records", number] for number in range(3)]
    server = server_with_log(
        record_of_0_1("claim", **FIRST_CLAIM), record_of_0_1("snapshot", part=(1, 1), anchors=anchors)
    )
    server.make_topic("kit", "records", 3)
    source = Source({"a": 5, "b": 3}, server=server, partitions=3)
    source.live()
    assert source.payloads() == source.once()


FIRST_CLAIM = {
    "host": "h",
    "process": 1,
    "leader": True,
    "clients": [[99, "10.0.0.9:1"]],
    "token": "t",
}


def test_a_reset_of_one_object_reads_it_once_more_and_keeps_the_rest():
    source = orderly()
    change(source, "key")
    source.live()
    assert source.payloads() == once(source) + collections.Counter(lines("b", 7))


def test_version_0_1_refuses_a_log_that_this_version_has_written():
    """Its check, as it stood in that version: any other format than its own."""
    source = orderly()
    source.live()
    first = next(
        stored.payload for stored in source.server.messages("kit", LOG) if stored.payload[4] != FIRST_FORMAT_VERSION
    )
    assert codec.decode(0, first).kind == "claim", "so it refuses before it takes anything in"
    assert first[:4] == codec.MAGIC
    assert first[4] == 2


def test_a_log_of_0_1_without_its_front_is_an_error():
    server = recorded("orderly")
    messages = server.messages("kit", LOG)
    snapshot = max(record.offset for record in records(server) if record.kind == "snapshot")
    server.drop_head("kit", LOG, 0, snapshot + 1)
    assert len(server.messages("kit", LOG)) < len(messages)
    with pytest.raises(PositionError, match=r"first records.*are gone.*offsets reset --all"):
        loaded(server)


def test_a_damaged_body_of_0_1_is_one_sentence_with_a_way_out():
    server = recorded("orderly")
    server.rewrite(
        "kit", LOG, 0, lambda payload: payload if b'"kind":"claim"' in payload else payload[:-20] + b"x" * 20
    )
    with pytest.raises(PositionError, match=r"offsets topic, message \d+: .*offsets reset --all"):
        loaded(server)


def test_messages_without_headers_behind_what_is_saved_are_somebody_elses_when_a_person_says_so():
    source = orderly()
    connection = source.server.connect()
    connection.append("kit", "records", 0, b"of somebody else")
    connection.close()
    before = source.server.messages("kit", LOG)
    with pytest.raises(
        PositionError, match=rf"without headers.*{WAY_OUT}.*another program sent them: `offsets accept-data-loss`"
    ):
        source.live()
    assert source.server.messages("kit", LOG) == before
    change(source, "accept")
    source.live()
    assert source.payloads() == once(source) + collections.Counter([b"of somebody else"])


def test_messages_with_headers_of_another_source_are_none_of_ours():
    source = orderly()
    connection = source.server.connect()
    for headers in ({"bucket": "bucket", "key": "aa", "version": "v6"}, {"key": "aa"}):
        connection.append("kit", "records", 0, b"of another source", message_id=7, headers=headers)
    connection.close()
    source.live()
    assert source.payloads() == once(source) + collections.Counter({b"of another source": 2})


def test_a_partition_in_which_nothing_was_saved_may_hold_nothing_either():
    source = orderly()
    name = object_hash64("kit", "bucket", "next", "v7", generation=None)
    connection = source.server.connect()
    headers = {"bucket": "bucket", "key": "next", "version": "v7"}
    connection.append("kit", "records", 0, b"sent, not saved", message_id=name << 64 | 1, headers=headers)
    connection.close()
    with pytest.raises(PositionError, match=rf'"records", partition 0, .* had sent and not saved.*{WAY_OUT}'):
        source.live()


def record_of_0_1(kind, *rows, epoch=1, part=(), states=(), reopened=(), **body):
    """A record of that version: (key, version, generation, share, records) of objects in splits of 1,024 bytes, and the rest."""
    columns = {
        "bucket": [0 for _ in rows],
        "key": [key for key, *_ in rows],
        "version": [version for _, version, *_ in rows],
        "modified": [1 for _ in rows],
        "records": [records_done for *_, records_done in rows],
        "state": list(states) or [0 for _ in rows],
        "lane": [0 for _ in rows],
        "depends_on": [0 for _ in rows],
        "generation": {str(at): row[2] for at, row in enumerate(rows)},
        "share": {str(at): [row[3], 1024] for at, row in enumerate(rows) if row[3]},
        "reopened": {str(at): 1 for at in reopened},
    }
    table = {"columns": columns, "buckets": ["bucket"], "lanes": [["records", 0]], "options": [""]}
    header = {"kind": kind, "source": "kit", "epoch": epoch, **dict(zip(("part", "parts"), part, strict=False))}
    packed = json.dumps(header).encode()
    return (
        struct.pack("<4sBBI", b"ICSP", 1, 0, len(packed))
        + packed
        + json.dumps({"entries": table, "epoch": epoch, **body}).encode()
    )


def entries_of_0_1(*rows):
    """A log of that version with one snapshot."""
    return server_with_log(record_of_0_1("snapshot", *rows, part=(1, 1)))


def test_of_two_anchors_of_a_partition_the_later_message_counts_in_whatever_order_they_were_written():
    server = server_with_log(
        record_of_0_1("snapshot", anchors=[["records", 0, 5, "1f"]], part=(1, 1)),
        record_of_0_1("delta", anchors=[["records", 0, 3, "a"], ["records", 1, 2, "b"]]),
        record_of_0_1("delta", anchors=[["records", 1, 4, "c"]]),
    )
    assert loaded(server).anchors == {
        TopicPartition("records", 0): Anchor(5, 0x1F),
        TopicPartition("records", 1): Anchor(4, 0xC),
    }


def test_a_split_that_was_begun_before_the_first_one_keeps_its_records():
    found = as_saved(loaded(entries_of_0_1(("a", "v1", 0, 3, 7))))
    assert found == {
        ("a", 1): ("v1", 1, 0, 0, None),
        ("a", 2): ("v1", 1, 0, 0, None),
        ("a", 3): ("v1", 1, 7, 7, None),
    }


def test_of_an_older_generation_no_split_is_left():
    found = as_saved(loaded(entries_of_0_1(("a", "v1", 0, 1, 4), ("a", "v2", 1, 2, 7), ("a", "v1", 0, 3, 9))))
    assert found == {("a", 1): ("v2", 2, 0, 0, None), ("a", 2): ("v2", 2, 7, 7, None)}


def test_hints_of_each_prefix_are_those_written_last():
    def hints(count):
        return {"of": "s3://bucket", "keys": ["a/b"], "counts": [count], "unordered": False}

    server = server_with_log(
        record_of_0_1("snapshot", listings={"a/": hints(1), "b/": hints(2)}, part=(1, 1)),
        record_of_0_1("delta", listings={"a/": hints(3)}),
    )
    assert loaded(server).listings == {
        prefix: ListingHints(of="s3://bucket", histogram=[("a/b", count)]) for prefix, count in (("a/", 3), ("b/", 2))
    }


def test_an_object_that_was_opened_again_goes_on_in_whatever_order_that_was_written():
    """Two processes wrote: the failure may stand behind what undid it."""
    failed = {"states": [2]}
    again = {"reopened": [0]}
    for first, second in ((failed, again), (again, failed)):
        server = server_with_log(
            record_of_0_1("snapshot", ("a", "v1", 0, 0, 5), part=(1, 1), **first),
            record_of_0_1("delta", ("a", "v1", 0, 0, 5), **second),
        )
        assert as_saved(loaded(server)) == {("a", 0): ("v1", 1, 5, 5, None)}


@pytest.mark.parametrize(
    ("parts", "newest"),
    [
        ([], []),
        ([(1, 1, 1)], [0]),
        ([(1, 1, 2)], []),
        ([(1, 2, 2)], []),
        ([(1, 1, 2), (1, 2, 2)], [0, 1]),
        ([(1, 1, 3), (1, 3, 3)], []),
        ([(1, 1, 2), (1, 1, 2), (1, 2, 2)], [1, 2]),
        ([(1, 1, 2), (1, 2, 2), (1, 1, 2)], [0, 1]),
        ([(1, 1, 1), (2, 1, 1)], [1]),
        ([(2, 1, 1), (1, 1, 1)], [0]),
        ([(2, 1, 1), (2, 1, 1)], [1]),
    ],
)
def test_a_snapshot_counts_when_all_its_parts_are_there_and_no_later_epoch_wrote_another(parts, newest):
    heads = [
        codec.decode(at, record_of_0_1("snapshot", epoch=epoch, part=part)).head
        for at, (epoch, *part) in enumerate(parts)
    ]
    assert [head.offset for head in first_edition.newest_snapshot(heads)] == newest
