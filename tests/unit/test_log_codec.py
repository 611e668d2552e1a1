"""What stands in the offsets topic: round trips, snapshots in parts, and messages that are not ours."""

import hashlib
import struct

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import PositionError
from framework.iggy import log_codec
from framework.iggy.log_codec import Claim, Closing, TopicIdentity
from framework.iggy.position_log import arrange
from framework.offsets import OffsetManagerEntry, OffsetManagerKey, PositionDelta, position_map
from framework.past_listing import PastListing, TailMark
from framework.records import Anchor, Lane, Mark, ObjectState

numbers = st.integers(0, 2**53)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
lanes = st.builds(Lane, st.sampled_from(["t", "other"]), st.integers(0, 9))
anchors = st.dictionaries(lanes, st.none() | st.builds(Anchor, numbers, st.integers(0, 2**128 - 1)), max_size=4)
entries = st.builds(
    OffsetManagerEntry,
    bucket=st.sampled_from(["b", "c"]),
    key=text,
    version=text,
    modified_ms=numbers,
    records_done=numbers,
    state=st.sampled_from(ObjectState),
    lane=lanes,
    mark=st.none() | st.builds(Mark, numbers, numbers),
    depends_on=st.sampled_from(["", '{"format":"jsonl"}']),
    skipped=st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
    extra=st.dictionaries(text, st.none() | st.booleans() | numbers | text, max_size=3),
)
shares = st.tuples(st.integers(1, 2**24 - 1), st.integers(1, 2**53))
entries = st.one_of(
    entries, st.builds(lambda one, cut: attrs.evolve(one, share=cut[0], split_size=cut[1]), entries, shares)
)
keys = st.dictionaries(text, text, max_size=3).map(OffsetManagerKey.of)
topics = st.dictionaries(text, st.builds(TopicIdentity, topic_id=numbers, created_at=numbers), max_size=3)

listings = st.dictionaries(
    text,
    st.builds(
        PastListing,
        of=text,
        histogram=st.lists(st.tuples(text, numbers), max_size=3),
        unordered=st.booleans(),
        tail=st.none() | st.builds(TailMark, after=text, whole_pass_ms=numbers, selection=text),
    ),
    max_size=2,
)


def one(payload, offset=0):
    message = log_codec.decode(offset, payload)
    assert message is not None
    return message


@given(st.lists(entries, max_size=6), anchors, st.lists(keys, max_size=3), listings, st.integers(0, 99))
def test_a_delta_comes_back_as_it_was(changed, ends, removed, left, left_out):
    delta = PositionDelta(entries=changed, anchors=ends, removed=removed, listings=left, left_out=left_out)
    message = one(log_codec.encode_delta("orders", 7, 4711, delta), offset=12)
    assert (message.kind, message.source, message.epoch, message.base, message.offset) == (
        "delta",
        "orders",
        7,
        4711,
        12,
    )
    assert log_codec.decode_delta(message) == delta


@given(
    st.lists(entries, max_size=9, unique_by=OffsetManagerEntry.get_manager_key),
    anchors,
    topics,
    st.dictionaries(st.integers(0, 2**64 - 1), numbers, max_size=3),
    st.integers(1, 600),
    st.none() | numbers,
    listings,
)
def test_a_snapshot_comes_back_as_it_was_in_however_many_parts(all_entries, ends, known, unclaimed, most, since, left):
    closing = Closing(anchors=ends, topics=known, unclaimed=unclaimed, listings=left)
    view = position_map(all_entries).view()
    payloads = list(log_codec.encode_snapshot("orders", 3, view, closing, since=since, part_bytes=most))
    parts = [one(payload) for payload in payloads]
    assert [(part.part, part.parts, part.since) for part in parts] == [
        (number, len(parts), since) for number in range(1, len(parts) + 1)
    ]
    assert log_codec.decode_closing(parts[-1]) == closing
    back = [entry for part in parts for entry in log_codec.decode_entries(part)]
    by_name = lambda entry: (entry.bucket, entry.key, entry.share)  # noqa: E731
    assert sorted(back, key=by_name) == sorted(all_entries, key=by_name)
    assert all(sorted(some, key=by_name) == some for some in (list(log_codec.decode_entries(part)) for part in parts))


@given(numbers, text, st.booleans(), st.lists(st.tuples(numbers, text), max_size=3).map(tuple))
def test_a_claim_comes_back_as_it_was(epoch, host, leader, clients):
    claim = Claim(epoch=epoch, host=host, process=12, leader=leader, clients=clients, token="abc")
    assert log_codec.decode_claim(one(log_codec.encode_claim("orders", claim))) == claim


def entry(key="k", records=1):
    return OffsetManagerEntry(bucket="b", key=key, version="v", records_done=records, lane=Lane("t", 0))


def snapshot_of(*all_entries, source="orders", epoch=1, part=1 << 20, since=None):
    view = position_map(all_entries).view()
    return list(log_codec.encode_snapshot(source, epoch, view, Closing(), since=since, part_bytes=part))


def keys_of(checkpoint):
    return [entry.key for part in checkpoint.parts for entry in log_codec.decode_entries(part)]


def delta_of(*changed, source="orders", epoch=1, base=0):
    return log_codec.encode_delta(source, epoch, base, PositionDelta(entries=changed))


def claim_of(epoch, token, leader=True):
    claim = Claim(epoch=epoch, host="h", process=1, leader=leader, clients=(), token=token)
    return log_codec.encode_claim("orders", claim)


def arranged(*payloads, source="orders"):
    return arrange([log_codec.decode(offset, payload) for offset, payload in enumerate(payloads)], source)


@given(st.binary(min_size=1, max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_a_file_name_that_is_no_valid_unicode_comes_back_as_it_was(name):
    odd = attrs.evolve(entry(name), version=name)
    assert log_codec.decode_delta(one(delta_of(odd))).entries == [odd]
    other = f"{name}k"
    (part,) = snapshot_of(odd, entry(other))
    assert sorted(found.key for found in log_codec.decode_entries(one(part))) == sorted([name, other])


def test_what_was_written_before_listings_were_kept_still_loads():
    payloads = [*snapshot_of(entry()), delta_of(entry())]
    older = []
    for payload in payloads:
        body = orjson.loads(one(payload).body)
        assert body.pop("listings") == {}
        older.append(attrs.evolve(one(payload), body=orjson.dumps(body)))
    assert log_codec.decode_closing(older[0]).listings == {}
    assert log_codec.decode_delta(older[1]).listings == {}


def test_a_large_snapshot_is_packed():
    entries_of_one_kind = [entry(f"folder/{number:06}") for number in range(5000)]
    assert sum(map(len, snapshot_of(*entries_of_one_kind))) < 20 * 5000


# ---- which messages count


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_snapshot_without_all_its_parts_does_not_exist(missing):
    whole = snapshot_of(entry("old"))
    parts = snapshot_of(entry("a"), entry("b"), entry("c"), epoch=2, part=1)
    assert len(parts) == 3
    view = arranged(*whole, *[part for number, part in enumerate(parts) if number != missing])
    (checkpoint,) = view.checkpoints
    assert keys_of(checkpoint) == ["old"]
    assert view.last_epoch == 2


def test_what_a_delta_will_take_in_the_log_is_about_known():
    for count in (1, 30, 3000):
        changed = [
            attrs.evolve(
                entry(f"folder/{hashlib.md5(b'%d' % number).hexdigest()}"),
                version=hashlib.md5(b"%d" % -number).hexdigest(),
            )
            for number in range(count)
        ]
        delta = PositionDelta(entries=changed, anchors={Lane("orders", 0): Anchor(count, count << 100)})
        actual = len(log_codec.encode_delta("orders", 1, 0, delta))
        assert 0.5 * actual < log_codec.delta_bytes(delta) < 2 * actual


def test_parts_of_two_snapshots_are_not_mixed():
    first = snapshot_of(entry("a"), entry("b"), epoch=1, part=1)
    second = snapshot_of(entry("c"), entry("d"), epoch=2, part=1)
    assert arranged(first[0], second[1]).checkpoints == []
    (checkpoint,) = arranged(first[0], *second).checkpoints
    assert keys_of(checkpoint) == ["c", "d"]
    assert checkpoint.offset == 2


def test_a_delta_counts_in_the_epoch_of_the_snapshot_before_it_only():
    view = arranged(
        delta_of(entry("before")),
        *snapshot_of(epoch=1),
        delta_of(entry("counts"), epoch=1),
        *snapshot_of(epoch=2),
        delta_of(entry("late"), epoch=1),
        delta_of(entry("counts too"), epoch=2),
    )
    found = [[log_codec.decode_delta(delta).entries[0].key for delta in one.deltas] for one in view.checkpoints]
    assert found == [["counts"], ["counts too"]]


def written(*messages):
    """A log of these messages, read; and the deltas' keys, by checkpoint."""
    view = arranged(*messages)
    return [[log_codec.decode_delta(delta).entries[0].key for delta in one.deltas] for one in view.checkpoints]


def test_a_snapshot_written_between_deltas_keeps_those_from_its_moment_on():
    parts = snapshot_of(entry("a"), entry("b"), entry("c"), part=1, since=3)
    first = [*snapshot_of(), delta_of(entry("1")), delta_of(entry("2"))]
    rest = [delta_of(entry("3")), parts[0], delta_of(entry("4")), parts[1], parts[2], delta_of(entry("5"))]
    assert written(*first, *rest) == [["1", "2"], ["3", "4", "5"]]
    assert written(*first, *rest[:4]) == [["1", "2", "3", "4"]]  # not whole


def test_one_that_says_nothing_of_its_moment_keeps_what_follows_it():
    parts = snapshot_of(entry("a"), entry("b"), part=1)
    assert written(*snapshot_of(), delta_of(entry("1")), parts[0], delta_of(entry("2")), parts[1]) == [["1", "2"], []]


def test_a_moment_in_the_epoch_before_takes_nothing_from_it():
    assert written(*snapshot_of(), delta_of(entry("1")), *snapshot_of(epoch=2, since=0)) == [["1"], []]


def test_a_snapshot_of_a_writer_that_outlived_its_epoch_does_not_exist():
    late = snapshot_of(entry("a"), entry("b"), epoch=1, part=1)
    fresh = snapshot_of(entry("c"), entry("d"), epoch=2, part=1)
    view = arranged(*snapshot_of(epoch=2), late[0], fresh[0], late[1], fresh[1], delta_of(entry("1"), epoch=2))
    assert [keys_of(one) for one in view.checkpoints] == [[], ["c", "d"]]
    assert len(view.checkpoints[1].deltas) == 1


def test_messages_of_others_are_counted_and_left_alone():
    view = arranged(b"hello", *snapshot_of(source="theirs", epoch=9), delta_of(entry(), source="theirs", epoch=9))
    assert (view.foreign, view.checkpoints, view.last_epoch) == (3, [], 0)


def test_the_first_claim_of_an_epoch_wins_it():
    view = arranged(claim_of(1, "a"), claim_of(2, "w", leader=False), claim_of(2, "b"), claim_of(2, "c"))
    assert (view.winner(1).token, view.winner(2).token, view.winner(3)) == ("a", "b", None)
    own = {claim.token: claim for _, claim in view.claims}
    assert [claim.token for claim in view.claims_before(own["c"], 2)] == ["w", "b"]
    assert [claim.token for claim in view.claims_before(own["c"], 1)] == ["a", "w", "b"]
    assert view.claims_before(own["a"], 0) == []
    assert view.last_epoch == 2


# ---- damage


def test_a_later_format_is_an_error_that_names_the_way_out():
    payload = bytearray(delta_of(entry()))
    payload[4] += 1
    with pytest.raises(PositionError, match=r"message 5.*format 2.*version that wrote them"):
        log_codec.decode(5, bytes(payload))


@given(st.integers(4, 400))
@settings(max_examples=200)
def test_a_message_of_ours_that_is_cut_is_an_error_and_never_less_state(at):
    payload = snapshot_of(*[entry(f"key {number}") for number in range(40)])[0]
    cut = payload[: min(at, len(payload) - 1)]

    def read():
        return list(log_codec.decode_entries(one(cut)))

    with pytest.raises(PositionError):
        read()


@pytest.mark.parametrize("payload", [b"", b"ICS", b"hello", struct.pack("<I", 7), b"icsp" + bytes(20)])
def test_what_does_not_begin_like_ours_is_none_of_ours(payload):
    assert log_codec.decode(0, payload) is None


@pytest.mark.parametrize("kind", ["claim", "delta", "snapshot"])
def test_a_body_of_another_shape_is_one_sentence_with_a_way_out(kind):
    message = log_codec.LogMessage(offset=7, kind=kind, source="s", epoch=1, body=b'{"entries": {}}')
    decode = {"claim": log_codec.decode_claim, "delta": log_codec.decode_delta, "snapshot": log_codec.decode_closing}[
        kind
    ]
    with pytest.raises(PositionError, match=r"message 7: a .* does not know.*another \[offsets\] topic"):
        decode(message)


def test_a_log_from_before_objects_were_split_can_be_read():
    payload = delta_of(entry("a"), entry("b"))
    header_end = struct.unpack_from("<4sBBI", payload)[3] + struct.calcsize("<4sBBI")
    body = orjson.loads(payload[header_end:])
    assert body["entries"]["columns"].pop("share") == {}
    older = one(payload[:header_end] + orjson.dumps(body))
    assert log_codec.decode_delta(older).entries == [entry("a"), entry("b")]
