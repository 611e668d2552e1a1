"""The state at the end of a log that was cut, damaged, shared, trimmed, or written by two: what was written, or an error."""

import itertools
import random
from unittest import mock

import orjson
import pytest
from msgspec.structs import replace

from framework.engine.session import Session
from framework.errors import IggyTopicError, PositionError
from framework.iggy.embedded import batch
from framework.iggy.embedded.files import FileOps
from framework.iggy.embedded.partition import Partition
from framework.iggy.offset_log import codec, framing, json_forms, loading, record_size
from framework.iggy.offset_log.fencing import begin_epoch
from framework.iggy.offset_log.loading import load, newest_snapshot
from framework.iggy.offset_log.log import RecordGoneError
from framework.iggy.offset_log.records import (
    Claim,
    PartitionOpening,
    Progress,
    ProgressItem,
    SnapshotFooter,
    TopicIdentity,
)
from framework.model.message_ids import entry_hash64
from framework.model.objects import Anchor, TopicPartition
from framework.offsets import packed_row
from framework.offsets.position_map import position_map
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.options import source_config
from tests.support.iggy_batches import decode_batches, encode_batch
from tests.support.iggy_messages import append
from tests.support.positions import LOG, Source, as_saved, loaded, log_over, position, server_with_log

PARTITIONS = [TopicPartition("records", 0), TopicPartition("records", 1)]
COUNTS = {"a": 5, "b": 7, "c": 11, "d": 3, "e": 8, "f": 13, "g": 6, "h": 9, "i": 14}
WAY_OUT = r"another \[offsets\] topic.*offsets reset --all"


@pytest.fixture(scope="module")
def written():
    """Payloads of a log with several epochs, and parts of snapshots between everything else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("framework.iggy.offset_log.snapshots.SNAPSHOT_RECORDS", 3)
        patch.setattr("framework.iggy.offset_log.snapshots.POSITION_BYTES", 0)
        patch.setattr("framework.iggy.offset_log.snapshots.PAUSE_PARTS", 0)
        patch.setattr("framework.iggy.offset_log.record_size.MAX_ROWS", 2)
        patch.setattr("framework.iggy.offset_log.record_size.MAX_BYTES", 1200)
        patch.setattr("framework.engine.session.FOLLOW_SECONDS", 0.0)
        source = Source(COUNTS, partitions=2)
        source.live(60)
        source.live(80)
        source.live()
        return [message.payload for message in source.server.messages("kit", LOG)]


def state_of(*payloads):
    """Everything that matters of a log of these messages."""
    return everything(loaded(server_with_log(*payloads)))


def everything(state):
    return (
        as_saved(state),
        state.anchors,
        state.topics,
        state.owners,
        (state.counted, state.closed),
        state.epoch,
        state.last_epoch,
        state.positions.floor,
        [count for _, count in state.skipped],
        state.selected,
    )


# ---- snapshots


def test_what_the_log_is_written_with_here_is_what_the_other_tests_are_about(written):
    heads = [framing.decode(at, payload) for at, payload in enumerate(written)]
    kinds = "".join(head.kind[0] if head.kind != "opening" else "O" for head in heads)
    assert kinds.count("O") == 3
    assert "sps" in kinds, "other records stand between the parts of a snapshot"
    assert any(head.header.get("facts") for head in heads), "what a snapshot says beside positions is in several parts"
    whole = {(head.epoch, head.header["number"]) for head in heads if head.header.get("part", 0) > 1}
    assert len(whole) > 3
    assert any(head.header["at"] < head.offset - 3 for head in heads if head.kind == "snapshot")


def test_after_a_cut_behind_any_message_snapshots_say_the_same_as_all_records_before_them(written):
    """The oracle: the log with every snapshot made somebody else's, so that only single records are left."""
    single = [payload if b'"kind":"snapshot"' not in payload else b"foreign" for payload in written]
    states = []
    for length in range(len(written) + 1):
        states.append(state_of(*written[:length]))
        assert states[-1] == state_of(*single[:length]), length
    assert states[0][0] == {}
    assert states[-1][0] == {
        (key, 0): (f"v{number}", 1, count, count, count) for number, (key, count) in enumerate(COUNTS.items(), 1)
    }
    for earlier, later in itertools.pairwise(state[0] for state in states):
        assert all(later[key][2] >= saved for key, (_, _, saved, _, _) in earlier.items())
    assert len({str(state) for state in states}) > 15


def test_a_snapshot_is_chosen_only_when_all_its_parts_are_there(written):
    heads = [framing.decode(at, payload).head for at, payload in enumerate(written)]
    for length in range(len(heads) + 1):
        parts = newest_snapshot(heads[:length])
        complete = [head for head in heads[:length] if head.header.get("last")]
        assert [part.offset for part in parts][-1:] == [head.offset for head in complete][-1:]
        assert [part.header["part"] for part in parts] == list(range(1, len(parts) + 1))
        assert len({(part.epoch, part.header["number"]) for part in parts}) <= 1


CLAIM = Claim(epoch=1, host="h", process=1, leader=True, client=(1, "a:1"), token="w")
TOPIC = TopicIdentity(topic_id=3, created_at=4)


def claim(epoch=1, **values):
    return codec.encode_claim("kit", replace(CLAIM, epoch=epoch, **values))


def opening(epoch=1, fenced=0):
    return codec.encode_opening("kit", epoch, fenced=fenced)


def begin(*entries, epoch=1):
    return codec.encode_begin("kit", epoch, entries)


def opened(*topic_partitions, epoch=1, writer="w", counts=(), anchor=None, counted=None):
    openings = [
        PartitionOpening(
            topic_partition=topic_partition, topic=TOPIC, anchor=anchor, counts=dict(counts), counted=counted
        )
        for topic_partition in topic_partitions
    ]
    return codec.encode_open("kit", epoch, writer, openings)


def progress(*entries, epoch=1, writer="w", **values):
    items = [
        ProgressItem(
            object_hash=entry_hash64("kit", entry),
            split_number=entry.split_number,
            saved=entry.records_saved,
            sent=entry.records_done,
            total=entry.total,
        )
        for entry in entries
    ]
    return codec.encode_progress("kit", epoch, writer, Progress(items=items, **values))


def snapshot(*entries, epoch=1, number=1, at=0, **footer):
    """A part for each position, and the last one."""
    view = position_map(entries).view()
    with mock.patch.object(record_size, "MAX_ROWS", 1):
        return list(codec.encode_snapshot("kit", epoch, view, SnapshotFooter(**footer), number=number, at=at))


LEFT_AT = {"counted": dict.fromkeys(PARTITIONS, Anchor(7, 8, 9)), "closed": dict.fromkeys(PARTITIONS, 7)}
START = [claim(), opening(), opened(*PARTITIONS)]


def counts_of(*payloads):
    """Key -> records sent."""
    return {key: sent for (key, _), (_, _, _, sent, _) in state_of(*payloads)[0].items()}


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_snapshot_without_all_its_parts_does_not_exist(missing):
    parts = snapshot(position("x"), position("y"), position("z"), at=4)
    assert len(parts) == 4
    kept = [part for number, part in enumerate(parts) if number != missing]
    assert counts_of(*START, begin(position("a")), *kept) == {"a": 0}
    assert counts_of(*START, begin(position("a")), *parts) == {"x": 0, "y": 0, "z": 0}


def test_parts_of_two_snapshots_between_each_other_are_told_apart():
    one = snapshot(position("a"), position("b"), number=1, at=3)
    two = snapshot(position("c"), position("d"), number=2, at=3)
    assert counts_of(*START, one[0], two[0], *one[1:], *two[1:]) == {"c": 0, "d": 0}
    assert counts_of(*START, one[0], two[0], *one[1:]) == {"a": 0, "b": 0}
    assert counts_of(*START, one[0], *two, *one[1:]) == {"c": 0, "d": 0}, "the later one that became whole"
    assert counts_of(*START, one[0], *two[1:], begin(position("x"))) == {"x": 0}


def test_of_a_part_that_stands_twice_one_counts():
    one, *others = snapshot(position("a"), position("b"), at=3)
    assert counts_of(*START, one, one, *others) == {"a": 0, "b": 0}


def test_parts_that_a_zombie_wrote_behind_the_next_opening_do_not_count():
    late = snapshot(position("x"), position("y"), epoch=1, at=3)
    fresh = snapshot(position("a"), position("b"), epoch=2, at=6)
    start = [*START, claim(2), opening(2), late[0]]
    assert counts_of(*start, *late[1:], begin(position("c"), epoch=2)) == {"c": 0}
    assert counts_of(*start, *fresh, *late[1:]) == {"a": 0, "b": 0}
    assert counts_of(*start, fresh[0], *late[1:], *fresh[1:]) == {"a": 0, "b": 0}
    assert counts_of(*START, late[0], claim(2), opening(2), *late[1:]) == {}


def test_a_snapshot_that_was_whole_before_the_next_opening_counts():
    old = snapshot(position("a"), position("b"), epoch=1, at=3)
    assert counts_of(*START, *old, claim(2), opening(2), begin(position("c"), epoch=2)) == {"a": 0, "b": 0, "c": 0}


def test_what_stands_between_the_moment_of_a_snapshot_and_its_parts_counts_once():
    a, b = position("a", total=9), position("b", total=9)
    parts = snapshot(
        a.changed(records_done=3, records_saved=3),
        b,
        at=5,
        topics={PARTITIONS[0]: TOPIC},
        owners={PARTITIONS[0]: "w"},
    )
    log = [
        *START,
        begin(a, b),
        progress(a.changed(records_done=3, records_saved=3), skipped=2),
        progress(b.changed(records_done=4, records_saved=4), skipped=5),
        parts[0],
        progress(a.changed(records_done=5, records_saved=5)),
        *parts[1:],
        progress(b.changed(records_done=6, records_saved=6)),
    ]
    state = loaded(server_with_log(*log))
    assert {key: sent for (key, _), (_, _, _, sent, _) in as_saved(state).items()} == {"a": 5, "b": 6}
    assert [count for _, count in state.skipped] == [5]
    assert state.snapshot_at == 5


def test_the_last_snapshot_is_where_the_next_one_counts_from():
    assert loaded(server_with_log(*START)).snapshot_at == 0
    assert loaded(server_with_log(*START, *snapshot(at=2))).snapshot_at == 2


# ---- whose records count


def test_a_log_that_ends_with_a_snapshot_is_as_old_as_it():
    server = server_with_log(*START, *snapshot(position("a"), at=3, skipped=[(1, 5)]))
    state = loaded(server)
    stored_us = server.messages("kit", LOG)[-1].timestamp_us
    assert stored_us > 3600 * 1e6
    assert (state.now_us, state.saved_us) == (stored_us, stored_us)
    assert state.skipped_lately() == [], "what was skipped in 1970 is no limit today"


def test_a_claim_alone_ends_nothing_and_an_opening_ends_all_before_it():
    a = position("a")
    sent = progress(a.changed(records_done=2))
    assert counts_of(*START, begin(a), claim(2, token="next"), sent) == {"a": 2}
    assert counts_of(*START, begin(a), opening(), sent) == {"a": 2}, "an opening that stands twice ends nothing"
    assert counts_of(*START, begin(a), claim(2, token="next"), opening(2), sent) == {"a": 0}
    assert counts_of(*START, begin(a), claim(2, token="next"), opening(2), begin(position("b"))) == {"a": 0}
    assert counts_of(*START, begin(a), claim(2), opening(2), opening(1), begin(position("b"), epoch=2)) == {
        "a": 0,
        "b": 0,
    }


def test_progress_counts_of_whoever_took_the_partition_over_last():
    a, b = position("a"), position("b", partition=1)
    anchor = Anchor(7, 8, 9)
    start = [*START, begin(a, b), opened(PARTITIONS[1], writer="other")]
    mine = progress(a.changed(records_done=2), b.changed(records_done=3), anchors=dict.fromkeys(PARTITIONS, anchor))
    theirs = progress(a.changed(records_done=4), b.changed(records_done=5), writer="other", **LEFT_AT)
    state = loaded(server_with_log(*start, mine))
    assert ({key: row[3] for (key, _), row in as_saved(state).items()}, state.anchors) == (
        {"a": 2, "b": 0},
        {PARTITIONS[0]: anchor},
    )
    state = loaded(server_with_log(*start, mine, theirs))
    assert {key: row[3] for (key, _), row in as_saved(state).items()} == {"a": 2, "b": 5}
    assert (state.counted, state.closed) == ({PARTITIONS[1]: Anchor(7, 8, 9)}, {PARTITIONS[1]: 7})
    again = opened(PARTITIONS[1], writer="other", counted=Anchor(4, 5, 6))
    state = loaded(server_with_log(*start, mine, theirs, again))
    assert (state.counted, state.closed) == ({PARTITIONS[1]: Anchor(4, 5, 6)}, {})
    state = loaded(server_with_log(*start, mine, theirs, opened(PARTITIONS[1])))
    assert (state.counted, state.closed) == ({}, {}), "of a version that did not say"


def test_who_takes_a_partition_over_says_what_it_holds_of_each_position():
    a, b, other = position("a", 2), position("b", 1), position("other", 0, partition=1)
    counts = {(entry_hash64("kit", a), 0): 5}
    ahead = [entry.changed(records_done=9) for entry in (a, b, other)]
    log = [
        *START,
        begin(a, b, other),
        progress(*ahead),
        opened(PARTITIONS[0], writer="next", counts=counts, anchor=Anchor(4, 4, 4)),
    ]
    state = loaded(server_with_log(*log))
    assert {key: row[2:4] for (key, _), row in as_saved(state).items()} == {"a": (2, 5), "b": (1, 1), "other": (0, 9)}
    assert state.anchors == {PARTITIONS[0]: Anchor(4, 4, 4)}
    assert state.owners == {PARTITIONS[0]: "next", PARTITIONS[1]: "w"}
    assert loaded(server_with_log(*log, opened(PARTITIONS[0]))).anchors == {}


def test_progress_of_an_earlier_generation_says_nothing_of_the_next_one():
    first = position("a", 3)
    second = position("a", version="v2", generation=2)
    log = [*START, begin(first), progress(first), begin(second), progress(first.changed(records_done=9))]
    assert state_of(*log)[0] == {("a", 0): ("v2", 2, 0, 0, None)}
    again = [begin(first.changed(records_done=0, generation=3)), progress(first.changed(records_done=9))]
    assert state_of(*log, *again)[0] == {("a", 0): ("v1", 3, 3, 0, None)}


def test_what_is_final_is_not_changed_by_late_progress():
    done = position("a", 3, total=3)
    log = [
        *START,
        begin(position("a")),
        progress(done),
        progress(done.changed(records_done=1, records_saved=1, total=None)),
    ]
    assert state_of(*log)[0] == {("a", 0): ("v1", 1, 3, 3, 3)}


def test_whatever_a_writer_of_an_older_epoch_writes_changes_nothing(written):
    """At every place behind the opening of the newest epoch."""
    expected = state_of(*written)
    heads = [framing.decode(at, payload) for at, payload in enumerate(written)]
    newest = max(head.epoch for head in heads)
    begun = next(at for at, head in enumerate(heads) if (head.epoch, head.kind) == (newest, "opening"))
    old = newest - 1
    writer = next(head.writer for head in heads if (head.epoch, head.kind) == (newest, "open"))
    lie = position("a", 99, version="v9", generation=7, total=99)
    lies = [
        begin(lie, epoch=old),
        progress(
            lie,
            epoch=old,
            writer=writer,
            removed=[lie.get_manager_key()],
            skipped=7,
            counted=dict.fromkeys(PARTITIONS, Anchor(7, 7, 7)),
            closed=dict.fromkeys(PARTITIONS, 7),
        ),
        opened(*PARTITIONS, epoch=old, writer="zombie"),
        opening(old),
        *snapshot(lie, position("b"), epoch=old),
    ]
    for at in range(begun + 1, len(written) + 1):
        assert state_of(*written[:at], *lies, *written[at:])[:6] == expected[:6]


def test_two_writers_of_one_epoch_give_the_same_in_any_order_of_their_records():
    entries = [position("one"), position("other", partition=1)]
    records = [
        [progress(entry.changed(records_done=count), writer=writer) for count in range(1, 5)]
        for entry, writer in zip(entries, ("w", "x"), strict=True)
    ]
    start = [*START, opened(PARTITIONS[1], writer="x"), begin(*entries)]
    for chosen in itertools.combinations(range(8), 4):
        first, second = iter(records[0]), iter(records[1])
        order = [next(first) if at in chosen else next(second) for at in range(8)]
        assert counts_of(*start, *order) == {"one": 4, "other": 4}


def test_claims_stay_until_an_opening_says_that_their_connections_are_gone():
    claims = [claim(), claim(1, leader=False, token="worker"), claim(2, token="next")]
    state = loaded(server_with_log(*claims))
    assert {offset: found.token for offset, found in state.claims.items()} == {0: "w", 1: "worker", 2: "next"}
    assert all(found.at_us for found in state.claims.values())
    assert (state.epoch, state.last_epoch) == (0, 2)
    state = loaded(server_with_log(*claims, opening(2, fenced=2)))
    assert list(state.claims) == [2]
    assert (state.epoch, state.last_epoch) == (2, 2)
    kept = snapshot(epoch=2, at=4, claims=state.claims)
    assert loaded(server_with_log(*claims, opening(2, fenced=2), *kept)).claims == state.claims


# ---- damage, and others


def test_a_message_cut_at_any_byte_is_no_message_of_ours_or_an_error_with_a_way_out(written):
    expected = state_of(*written)
    epoch, at = framing.decode(0, written[-1]).epoch, len(written)
    a = position("a")
    for payload in (
        claim(epoch),
        opening(epoch + 1),
        begin(a, epoch=epoch),
        opened(*PARTITIONS, epoch=epoch),
        progress(a, epoch=epoch),
        *snapshot(a, epoch=epoch, number=999, at=at),
    ):
        for cut in range(1, 4):
            assert state_of(*written, payload[:cut]) == expected
        for cut in range(4, len(payload), 3):
            with pytest.raises(PositionError, match=rf"message {len(written)}: .*{WAY_OUT}"):
                state_of(*written, payload[:cut])


def test_a_record_of_a_kind_that_this_version_does_not_know_is_an_error(written):
    payload = written[-1].replace(b'"progress"', b'"progrezz"')
    assert payload != written[-1]
    with pytest.raises(
        PositionError, match=rf"message {len(written)}: a record of kind 'progrezz'.*version that wrote it"
    ):
        state_of(*written, payload)


@pytest.mark.parametrize(
    "header",
    [
        {"kind": ["claim"]},
        {"epoch": "x"},
        {"kind": "opening", "epoch": "x"},
        {"kind": "snapshot", "number": 9, "at": 3, "part": 1, "last": True, "epoch": None},
        {"kind": "snapshot", "number": "x", "at": 3, "part": 1, "last": True},
        {"kind": "snapshot"},
    ],
    ids=repr,
)
def test_a_header_with_a_value_of_another_type_is_an_error_unless_it_is_of_another_source(written, header):
    def forged(source):
        head = orjson.dumps({"kind": "claim", "source": source, "epoch": 9, **header})
        return framing._PREFIX.pack(framing.MAGIC, 2, 0, len(head)) + head + b"{}"

    with pytest.raises(PositionError, match=rf"message {len(written)}: positions that cannot be read.*{WAY_OUT}"):
        state_of(*written, forged("kit"))
    for source in ("other", ["kit"]):
        assert state_of(*written, forged(source)) == state_of(*written)


@pytest.mark.parametrize("stored", ["begin", "snapshot"])
def test_a_position_whose_key_is_no_text_is_an_error_with_its_place_and_a_way_out(stored):
    odd = position("a").changed(key=5)
    payloads = [claim(), opening(), begin(position("a"))]
    table = json_forms.entries_out([odd])
    if stored == "begin":
        payloads.append(
            framing.encode({"kind": "begin", "source": "kit", "epoch": 1}, framing.dumps({"entries": table}))
        )
    else:
        header = {"kind": "snapshot", "source": "kit", "epoch": 1, "number": 1, "at": 0, "part": 1, "last": True}
        footer = json_forms.footer_out(SnapshotFooter())
        payloads.append(framing.encode(header, framing.dumps({"entries": table, "footer": footer})))
    with pytest.raises(PositionError, match=rf"message 3: a record {stored} of a shape.*{WAY_OUT}"):
        state_of(*payloads)


def test_a_snapshot_with_a_row_that_no_source_wrote_is_an_error_with_its_place_and_a_way_out():
    finished = position("a").changed(records_done=1, records_saved=1, total=1)
    rows, last = snapshot(finished)
    body = framing.decode(0, rows).unpacked()
    flags_at = len(body) - len(finished.version) - packed_row._BODY.size
    assert body[flags_at] == 0
    pickled = body[:flags_at] + b"\x08" + body[flags_at + 1 :]
    header = {"kind": "snapshot", "source": "kit", "epoch": 1, "number": 1, "at": 0, "part": 1, "rows": True}
    assert state_of(claim(), opening(), framing.encode(header, body), last)[0].keys() == {("a", 0)}
    with pytest.raises(PositionError, match=rf"message 2: a record snapshot of a shape.*{WAY_OUT}"):
        state_of(claim(), opening(), framing.encode(header, pickled), last)


def test_a_later_format_is_an_error_and_is_never_passed_over(written):
    at = next(number for number, payload in enumerate(written) if b'"kind":"progress"' in payload)
    later = written[at][:4] + b"\x03" + written[at][5:]
    place = f'^source "kit", offsets topic "{LOG}" of stream "kit", message {at}: '
    with pytest.raises(PositionError, match=f"{place}positions in format 3"):
        state_of(*written[:at], later, *written[at + 1 :])


FOREIGN = [
    b"\0",
    b"garbage",
    b"ICS",
    b"ICSQ" + bytes(100),
    bytes(random.Random(1).randrange(256) for _ in range(3000)),
    codec.encode_claim("other", replace(CLAIM, epoch=999)),
    b"ICSP\1" + codec.encode_claim("other", replace(CLAIM, epoch=999))[5:],
    b"ICSP\3" + codec.encode_claim("other", replace(CLAIM, epoch=999))[5:],
    codec.encode_opening("other", 999, fenced=999),
    codec.encode_begin("other", 999, [position("a", version="v9", generation=9)]),
    next(codec.encode_snapshot("other", 999, position_map().view(), SnapshotFooter(), number=1, at=0)),
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda payload: payload[:12].hex())
def test_messages_of_others_anywhere_change_nothing_once_the_moments_of_snapshots_follow(written, foreign):
    expected = state_of(*written)
    for at in range(0, len(written) + 1, 3):
        shifted = [*written[:at], foreign, *map(moved(at), written[at:])]
        assert state_of(*shifted) == expected


def moved(at):
    """What a writer had written had a message more stood before that offset."""

    def move(payload):
        message = framing.decode(0, payload)
        if message.kind != "snapshot" or message.header["at"] <= at:
            return payload
        old, new = (b'"at":%d,' % (message.header["at"] + more) for more in (0, 1))
        header = payload[10 : len(payload) - len(message.body)].replace(old, new)
        return payload[:6] + len(header).to_bytes(4, "little") + header + message.body

    return move


# ---- the front


def test_whatever_was_deleted_before_the_moment_of_the_newest_snapshot_is_not_needed(written):
    expected = state_of(*written)
    heads = [framing.decode(at, payload) for at, payload in enumerate(written)]
    at = newest_snapshot(heads)[0].header["at"]
    assert at > 5
    server = server_with_log(*written)
    for _ in range(at):
        server.drop_head("kit", LOG, 0, 1)
        assert everything(loaded(server)) == expected
    server.drop_head("kit", LOG, 0, len(written) - at - 1)
    with pytest.raises(
        PositionError,
        match=rf'"{LOG}" of stream "kit": the first records of source "kit" are gone.*purged.*message_expiry.*{WAY_OUT}',
    ):
        loaded(server)


def test_a_load_beside_an_instance_that_writes_a_snapshot_and_deletes_what_is_before_it(written, monkeypatch, caplog):
    """Of a standby, of `status`, of a second start: they must not call the log damaged."""
    decoded = [framing.decode(offset, payload) for offset, payload in enumerate(written)]
    ends = [message.offset + 1 for message in decoded if message.header.get("last")]
    server = server_with_log(*written[: ends[-2]])
    newest = [message for message in decoded if message.kind == "snapshot" and message.offset < ends[-1]][-1]
    restore = loading._restore
    restored = []

    def meanwhile(offset_log, parts):
        if not restored:
            connection = server.connect()
            for payload in written[ends[-2] :]:
                append(connection, "kit", LOG, 0, payload)
            server.drop_head("kit", LOG, 0, int(newest.header["at"]))
        restored.append([part.offset for part in parts])
        return restore(offset_log, parts)

    monkeypatch.setattr(loading, "_restore", meanwhile)
    with caplog.at_level("DEBUG", logger="framework.iggy.offset_log.loading"):
        state = loaded(server)
    monkeypatch.undo()
    assert everything(state) == state_of(*written)
    assert len(restored) == 2, "the first snapshot was gone when it was to be read"
    assert [text.partition(" offsets topic, message ")[0] for text in caplog.messages] == ["attempt 1 to load the log:"]


def test_a_log_that_loses_records_in_each_of_five_loads_is_an_error(written, monkeypatch):
    loads = []

    def gone(offset_log, parts):
        loads.append(offset_log.messages)
        raise RecordGoneError("it was there a moment ago")

    monkeypatch.setattr(loading, "_restore", gone)
    with pytest.raises(PositionError, match="a moment ago"):
        loaded(server_with_log(*written))
    assert loads == [len(written)] * 5


def test_a_load_keeps_nothing_of_what_its_newest_snapshot_stands_for(written, monkeypatch):
    """A log that others share is never truncated: its records before the newest snapshot may be millions."""
    kept = []
    chosen = loading.newest_snapshot

    def seen(heads):
        kept.append([head.offset for head in heads])
        return chosen(heads)

    monkeypatch.setattr(loading, "newest_snapshot", seen)
    state = loaded(server_with_log(*written))
    monkeypatch.undo()
    ends = [at for at, payload in enumerate(written) if framing.decode(at, payload).header.get("last")]
    assert len(ends) > 1
    parts = [head.offset for head in newest_snapshot([framing.decode(*each) for each in enumerate(written)])]
    assert kept[-1] == sorted({*parts, *range(state.snapshot_at, len(written))})
    assert state.snapshot_bytes == sum(map(len, written[: parts[-1] + 1]))


def test_a_load_that_begins_again_counts_its_messages_once(written):
    offset_log = log_over(server_with_log(*written).connect())
    counts = []
    for _ in range(2):
        load(offset_log)
        counts.append(offset_log.messages)
    assert counts == [len(written)] * 2


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_log_without_its_front_and_without_a_snapshot_is_an_error(gone):
    server = server_with_log(*START, begin(position("a")))
    server.drop_head("kit", LOG, 0, gone)
    with pytest.raises(PositionError, match=rf'first records of source "kit" are gone.*{WAY_OUT}'):
        loaded(server)


def test_a_source_that_came_to_a_log_whose_front_another_one_had_deleted_has_lost_nothing():
    server = server_with_log(*FOREIGN, *START, begin(position("a", 0)))
    server.drop_head("kit", LOG, 0, 3)
    assert as_saved(loaded(server)) == {("a", 0): ("v1", 1, 0, 0, None)}


LATE = [claim(3, leader=False, token="x"), claim(4, token="y")]
"""Claims that were on their way while the topic was deleted and created again."""


@pytest.mark.parametrize("late", [LATE, LATE[:1], LATE[1:], LATE[::-1]])
def test_late_claims_do_not_make_a_new_log_one_without_its_front(late):
    server = server_with_log(*late)
    state = loaded(server)
    newest = max(framing.decode(0, payload).epoch for payload in late)
    assert (len(state.positions), state.epoch, state.last_epoch, len(state.claims)) == (0, 0, newest, len(late))
    connection = server.connect()
    for payload in (claim(newest + 1), opening(newest + 1, fenced=len(late)), begin(position("a"), epoch=newest + 1)):
        append(connection, "kit", LOG, 0, payload)
    assert as_saved(loaded(server)) == {("a", 0): ("v1", 1, 0, 0, None)}


@pytest.mark.parametrize(
    "left",
    [
        [claim(2)],  # of a start that was killed before its opening
        [claim(2), claim(3), opening(3, fenced=100)],
        [claim(1, leader=False, token="x"), claim(2), opening(2, fenced=100)],  # of a worker that connected again
        [claim(1, leader=False, token="x"), begin(position("b"))],
    ],
)
def test_claims_that_are_left_of_a_log_without_its_front_are_no_beginning(left):
    server = server_with_log(*START, begin(position("a")), *FOREIGN, *left)
    server.drop_head("kit", LOG, 0, len(START) + 1)
    with pytest.raises(PositionError, match=rf'first records of source "kit" are gone.*{WAY_OUT}'):
        loaded(server)


def test_a_late_claim_of_a_worker_in_the_first_epoch_is_no_loss_of_the_front():
    late = claim(1, leader=False, token="x")
    server = server_with_log(late, claim(2), opening(2, fenced=1), begin(position("a"), epoch=2))
    assert as_saved(loaded(server)) == {("a", 0): ("v1", 1, 0, 0, None)}


def test_after_late_claims_everything_can_be_read_again():
    server = server_with_log(*LATE)
    log = log_over(server.connect())
    epoch = begin_epoch(log)
    epoch.open(log)
    assert epoch.number == 5
    assert loaded(server).epoch == 5


@pytest.mark.parametrize("epoch", [2, 5])
def test_a_log_that_begins_with_the_claim_of_a_later_epoch_has_lost_its_front(epoch):
    server = server_with_log(claim(epoch), opening(epoch), begin(position("a"), epoch=epoch))
    with pytest.raises(PositionError, match=rf'first records of source "kit" are gone.*{WAY_OUT}'):
        loaded(server)


def test_a_log_that_begins_with_an_opening_has_lost_its_front():
    with pytest.raises(PositionError, match=rf'first records of source "kit" are gone.*{WAY_OUT}'):
        loaded(server_with_log(*START[1:], begin(position("a"))))


@pytest.mark.parametrize("record", [begin(position("a"), epoch=3), opening(3)])
def test_claims_before_another_record_of_their_epoch_are_no_beginning(record):
    server = server_with_log(*LATE[:1], record)
    with pytest.raises(PositionError, match=rf'first records of source "kit" are gone.*{WAY_OUT}'):
        loaded(server)


def test_a_snapshot_of_a_source_that_ran_while_its_log_was_purged_is_no_beginning():
    """Records behind it have offsets below that of its state: they would be taken for part of it."""
    late = snapshot(position("a", 3), at=50)
    server = server_with_log(*late, claim(2), opening(2), begin(position("b"), epoch=2))
    with pytest.raises(PositionError, match=rf'first records of source "kit" are gone.*{WAY_OUT}'):
        loaded(server)
    began_before = server_with_log(claim(), *late, opening(), begin(position("b")))
    assert as_saved(loaded(began_before)) == {("b", 0): ("v1", 1, 0, 0, None)}


def test_an_empty_log_is_an_empty_state():
    for payloads in ((), FOREIGN):
        state = loaded(server_with_log(*payloads))
        assert (len(state.positions), state.epoch, state.last_epoch, state.claims) == (0, 0, 0, {})


# ---- reading


def test_a_load_begins_at_the_first_message_however_far_the_log_was_read(written):
    log = log_over(server_with_log(*FOREIGN, *written).connect())
    states = [everything(load(log)) for _ in range(3)]
    assert states[0] == states[1] == states[2]
    assert log.foreign == len(FOREIGN)
    assert log.next_offset == len(FOREIGN) + len(written)


def test_messages_are_read_again_with_their_bodies_some_at_a_time(written):
    log = log_over(server_with_log(*written).connect())
    whole = list(log.follow())
    assert [message.offset for message in whole] == list(range(len(written)))
    heads = [message.head for message in whole]
    assert list(log.read(heads, ahead=3)) == whole
    assert list(log.read(heads[::-5])) == whole[::-5]
    assert list(log.follow()) == []


def test_of_several_snapshots_only_the_parts_of_the_newest_whole_one_are_read(monkeypatch):
    snapshots = [snapshot(position(key), position("z"), number=number, at=3) for number, key in enumerate("abc", 1)]
    log = log_over(server_with_log(*START, *snapshots[0], *snapshots[1], snapshots[2][0]).connect())
    read, asked = log.read, []

    def noted(heads, **options):
        heads = list(heads)
        asked.extend(head.header["number"] for head in heads if head.kind == "snapshot")
        return read(heads, **options)

    monkeypatch.setattr(log, "read", noted)
    assert sorted(entry.key for entry in load(log).positions.view()) == ["b", "z"]
    assert len(asked) > 1
    assert set(asked) == {2}


def test_parts_of_a_snapshot_are_in_memory_one_at_a_time(written, monkeypatch):
    """A part unpacks to megabytes; the rest of the log is small, and is asked for by the poll."""
    log = log_over(server_with_log(*written).connect())
    followed = list(log.follow())
    parts = {part.offset for part in newest_snapshot(followed)}
    poll, asked = log.connection.poll, {}

    def noted(*place, offset, count):
        asked[offset] = count
        return poll(*place, offset=offset, count=count)

    monkeypatch.setattr(log, "follow_to_end", lambda: iter(followed))
    monkeypatch.setattr(log.connection, "poll", noted)
    load(log)
    assert [count for offset, count in asked.items() if offset in parts] == [1] * len(parts)
    assert len(parts) > 1


def test_a_message_that_is_larger_than_a_poll_should_be_ends_no_log(monkeypatch):
    monkeypatch.setattr("framework.iggy.offset_log.log.READ_BYTES", 1000)
    server = server_with_log(b"foreign" * 1000, *map(claim, range(1, 20)))
    assert [message.epoch for message in log_over(server.connect()).follow()] == list(range(1, 20))


def test_a_message_that_is_gone_when_it_is_needed_is_an_error(written):
    server = server_with_log(*written)
    log = log_over(server.connect())
    heads = [message.head for message in log.follow()]
    server.drop_head("kit", LOG, 0, 2)
    with pytest.raises(PositionError, match=rf"message 1: .* gone.*{WAY_OUT}"):
        list(log.read(heads[1:]))


def test_what_was_appended_here_is_not_followed_and_what_others_append_is():
    server = server_with_log()
    one, other = log_over(server.connect()), log_over(server.connect())
    assert [one.append(claim(number)) for number in (1, 2)] == [0, 1]
    other.append(claim(3))
    one.append(claim(4))
    assert [message.epoch for message in one.follow()] == [3]
    assert [message.epoch for message in other.follow()] == [1, 2, 4]
    assert (one.next_offset, other.next_offset) == (4, 4)
    assert one.total_bytes == other.total_bytes == sum(len(stored.payload) for stored in server.messages("kit", LOG))
    assert (one.messages, other.messages) == (1, 3)


def test_a_log_that_may_forget_what_it_confirmed_is_refused():
    server = server_with_log()
    server.set_option("kit", LOG, "messages_required_to_save", 2)
    with pytest.raises(
        IggyTopicError, match=r'"kit-offsets".*saves only every 2 messages.*messages_required_to_save=1'
    ):
        Session.begin(server.connect(), source_config())
    assert server.messages("kit", LOG) == []


@pytest.mark.parametrize("option", ["message_expiry", "max_topic_size"])
def test_a_log_that_drops_old_messages_is_refused(option):
    """A source that stands still for as long, or shares the topic, would lose all its positions."""
    server = server_with_log()
    server.set_option("kit", LOG, option, 3_000_000_000)
    with pytest.raises(IggyTopicError, match=r'"kit-offsets".* drops old messages .*never expire.*\[offsets\] topic'):
        Session.begin(server.connect(), source_config())
    assert server.messages("kit", LOG) == []
    server.set_option("kit", LOG, option, 2**64 - 1)
    Session.begin(server.connect(), source_config())


# ---- the embedded server's own file


def test_the_file_of_the_log_cut_at_every_byte_of_its_last_segment_loads_what_is_whole(written, tmp_path):
    """What it serves after the cut is a whole beginning of the log."""
    folder = tmp_path / "whole"
    ticks = itertools.count(10_000, 10)
    partition = Partition(0, folder, 4000, NO_SYNC, created_at=1, clock=lambda: next(ticks))
    partition.open()
    for payload in written:
        data = memoryview(encode_batch([payload]))
        partition.append(data, *batch.verify(data))
    partition.close()
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 1
    last = segments[-1]
    whole = last.read_bytes()
    kept = set()
    for cut in (*range(0, len(whole), 5), len(whole)):  # the last segment may hold a single record
        last.write_bytes(whole[:cut])
        payloads = served(folder)
        assert payloads == written[: len(payloads)]
        kept.add(len(payloads))
    assert kept == set(range(min(kept), max(kept) + 1))
    assert len(kept) > 1
    for length in kept:
        state_of(*written[:length])


NO_SYNC = FileOps(sync=False)


def served(folder):
    partition = Partition(0, folder, 4000, NO_SYNC, created_at=1)
    try:
        partition.open()
        parts, _, _ = partition.read(0, 10**9)
        return [payload for _, payload in decode_batches(b"".join(parts))]
    finally:
        partition.close()


def test_a_session_over_foreign_messages_begins_and_says_nothing_of_them(caplog):
    server = MemoryIggy()
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", LOG, 1)
    append(connection, "kit", LOG, 0, b"garbage")
    session = Session.begin(server.connect(), source_config())
    assert (session.epoch.number, len(session.offsets.table)) == (1, 0)
    assert caplog.text == ""
