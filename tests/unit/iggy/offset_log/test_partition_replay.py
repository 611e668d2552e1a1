"""What a partition holds beyond its anchor: the anchor's message is told from any other, and what stands behind it is counted."""

import collections

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.engine.session import Session
from framework.errors import IggyUnavailableError, PositionError
from framework.iggy import reader
from framework.iggy.offset_log.partition_replay import (
    PartitionGoneError,
    PartitionReader,
    hold_back_of,
)
from framework.iggy.offset_log.records import TopicIdentity
from framework.iggy.offset_log.state import LogState
from framework.iggy.topics import PartitionDamagedError
from framework.model.message_ids import message_id
from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerKey
from framework.model.text import counted
from framework.offsets.partition_counts import UnsavedCount
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import CrashPoint
from tests.support.core import lines
from tests.support.examples import examples
from tests.support.iggy_messages import append
from tests.support.positions import LOG, Source, kinds, loaded, message_id_of, position

WAYS_OUT = r"offsets accept-data-loss.*offsets reset --all"
PARTITION = TopicPartition("records", 0)
FOREIGN = b"of somebody else"


class Rig:
    """Two partitions, and what a log says of them."""

    def __init__(self, source="kit"):
        self.server = MemoryIggy()
        self.connection = self.server.connect()
        self.connection.ensure_stream("kit")
        self.connection.create_topic("kit", "records", 2)
        self.state = LogState(source=source)

    @property
    def info(self):
        return self.server.topic_info("kit", "records")

    def known(self, anchor=None):
        """Partition 0 was opened before, and everything up to the anchor is accounted for."""
        self.state.topics[PARTITION] = TopicIdentity(topic_id=self.info.id, created_at=self.info.created_at)
        if anchor is not None:
            self.state.anchors[PARTITION] = anchor
        return self

    def begin(self, *entries):
        self.state.begin(entries)

    def send(self, entry, *records, partition=0, headers=None, origin_us=0):
        """Stores records of a position; the anchor of the last one."""
        for number in records:
            new = (message_id_of(entry, number, self.state.source), b"x", headers or {})
            self.server.store("kit", "records", partition, [(*new, origin_us)])
        return self.end(partition)

    def others(self, count=1, partition=0, headers=None):
        for _ in range(count):
            append(self.connection, "kit", "records", partition, FOREIGN, headers=headers)
        return self.end(partition)

    def end(self, partition=0):
        last = self.server.messages("kit", "records", partition)[-1]
        return Anchor(last.offset, last.message_id, last.origin_us)

    def keep(self, count):
        """So many of the newest messages stay."""
        held = len(self.server.messages("kit", "records", 0))
        self.server.drop_head("kit", "records", 0, held - count)

    def safe_behind(self, count):
        self.server.set_option("kit", "records", "messages_required_to_save", count)

    def read(self, partition=0):
        return PartitionReader(self.connection, "kit", self.state).read(TopicPartition("records", partition), self.info)

    def counts(self, found):
        """Position's key -> records in the partition."""
        counts = found.opening.counts
        return {self.state.find(*identity).get_manager_key(): count for identity, count in counts.items()}


def named(found):
    """Position's key -> count."""
    return {key.canonical(): count for key, count in found.items()}


def key(name, split_number=0):
    return OffsetManagerKey.of_object("bucket", name).of_split(split_number)


# ---- a partition that the log does not know


def test_a_new_and_empty_partition_holds_nothing():
    rig = Rig()
    found = rig.read()
    assert (found.anchor, found.messages, rig.counts(found), found.saved) == (None, 0, {}, {})
    assert found.opening.topic_partition == PARTITION
    assert found.opening.topic == TopicIdentity(topic_id=rig.info.id, created_at=rig.info.created_at)
    assert (found.opening.anchor, found.opening.counts) == (None, {})
    assert (found.state.hold_back, found.state.last, list(found.state.unsaved)) == (0, None, [])


def test_what_others_have_in_a_new_partition_is_not_read():
    rig = Rig()
    last = rig.others(40)
    found = rig.read()
    assert (found.messages, found.anchor, found.opening.anchor, found.state.last) == (0, last, last, last)
    assert found.anchor.offset == 39


# ---- the anchor


def anchored(behind=0, **options):
    """An anchor at offset 2 with three messages of ours up to it."""
    rig = Rig()
    entry = position("a", 3)
    rig.begin(entry)
    rig.send(entry, 1, 2)
    rig.known(rig.send(entry, 3, **options))
    rig.others(behind)
    return rig


def test_a_partition_with_an_anchor_whose_topic_was_not_noted_goes_on_from_it():
    rig = Rig()
    rig.state.anchors[PARTITION] = rig.others(2)
    rig.others(3)
    assert rig.read().messages == 3


def test_an_anchor_that_is_there_is_where_the_replay_begins():
    rig = anchored(2)
    found = rig.read()
    assert (found.messages, found.opening.anchor.offset, found.anchor) == (2, 2, rig.end())
    assert (rig.counts(found), found.saved) == ({}, {})


@pytest.mark.parametrize(("saved", "there", "same"), [(5, 5, True), (5, 6, False), (0, 6, True), (5, 0, True)])
def test_a_message_with_the_id_of_the_anchor_and_another_time_is_another_one(saved, there, same):
    """Restored from elsewhere, or sent again into a topic that was purged. A server may keep no time."""
    rig = anchored(origin_us=there)
    rig.state.anchors[PARTITION] = attrs.evolve(rig.state.anchors[PARTITION], origin_us=saved)
    if same:
        assert rig.read().messages == 0
    else:
        with pytest.raises(PartitionGoneError, match="another message stands"):
            rig.read()


def test_another_message_in_the_place_of_the_anchor_is_a_persons_hand():
    rig = anchored()
    rig.server.purge_topic("kit", "records")
    rig.others(3)
    said = rf'"records", partition 0, of stream "kit".* another message stands where source "kit" had saved its own.*{WAYS_OUT}'
    with pytest.raises(PartitionGoneError, match=said) as error:
        rig.read()
    assert error.value.topic_partition == PARTITION


@pytest.mark.parametrize(("left", "said"), [(0, "is empty"), (1, "ends at 0"), (2, "ends at 1")])
def test_a_partition_that_ends_before_the_anchor_is_a_persons_hand(left, said):
    rig = anchored()
    rig.server.lose_tail("kit", "records", 0, 3 - left)
    with pytest.raises(
        PartitionGoneError, match=rf"positions up to offset 2, and the partition {said}: it was.*{WAYS_OUT}"
    ) as error:
        rig.read()
    assert error.value.topic_partition == PARTITION


def test_a_topic_made_again_is_a_persons_hand():
    for change in ({"topic_id": 99}, {"created_at": 99}):
        rig = anchored()
        rig.state.topics[PARTITION] = rig.state.topics[PARTITION]._replace(**change)
        with pytest.raises(
            PartitionGoneError, match=rf'topic "records" of stream "kit" was recreated.*{WAYS_OUT}'
        ) as error:
            rig.read()
        assert error.value.topic_partition == PARTITION


@pytest.mark.parametrize(("others", "kept", "before"), [(0, 0, None), (2, 2, None), (5, 3, 1), (5, 0, 4)])
def test_of_a_partition_whose_loss_is_accepted_all_that_is_left_is_counted(others, kept, before):
    rig = anchored()
    rig.state.topics[PARTITION] = rig.state.topics[PARTITION]._replace(created_at=99)
    rig.state.counted = {PARTITION: rig.end()}
    rig.server.purge_topic("kit", "records")
    if others:
        rig.others(others)
    rig.keep(kept)
    PartitionReader(rig.connection, "kit", rig.state).count_from_first(PARTITION, rig.info)
    assert rig.state.topics == {PARTITION: TopicIdentity(topic_id=rig.info.id, created_at=rig.info.created_at)}
    assert (rig.state.anchors.get(PARTITION), rig.state.counted) == (before and Anchor(before, 0), {})
    assert rig.read().messages == kept


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("behind", "keep", "gap"), [(3, 4, False), (3, 3, False), (3, 2, True), (3, 0, True), (0, 0, False)]
)
def test_what_retention_took_is_no_matter_unless_something_of_ours_may_be_among_it(behind, keep, gap, closed):
    rig = anchored(behind)
    rig.keep(keep)
    rig.state.closed = {PARTITION if closed else TopicPartition("records", 1): 2}
    if gap and not closed:
        first = 6 - keep
        with pytest.raises(
            PartitionGoneError, match=rf"messages 3 to {first - 1} expired before.*`offsets accept-data-loss`"
        ) as raised:
            rig.read()
        assert raised.value.topic_partition == PARTITION, "what accepts the loss goes by it"
        return
    found = rig.read()
    assert found.messages == min(keep, behind)
    assert found.opening.anchor.offset == 2


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("keep", [0, 1])
def test_what_expired_before_anything_was_saved_is_noticed_too(keep, closed):
    rig = Rig()
    entry = position()
    rig.begin(entry)
    rig.known()
    rig.send(entry, 1, 2, 3)
    rig.keep(keep)
    if closed:
        rig.state.closed = {PARTITION: 2}
        assert rig.read().messages == keep
        return
    with pytest.raises(PartitionGoneError, match=rf"messages 0 to {2 - keep} expired before"):
        rig.read()


def counted_and_expired(keep, *, counted=2):
    """Three messages of ours and three of others in a topic that saves late; the newest `keep` are left."""
    rig = Rig()
    entry = position("a", 3, records_saved=0)
    rig.begin(entry)
    rig.known()
    rig.safe_behind(1024)
    rig.send(entry, 1, 2, 3)
    rig.others(3)
    messages = rig.server.messages("kit", "records", 0)
    rig.state.counted = {PARTITION: Anchor(counted, messages[counted].message_id, messages[counted].origin_us)}
    rig.keep(keep)
    return rig


@pytest.mark.parametrize(("keep", "saved"), [(5, 1), (4, 2), (3, 3)])
def test_records_whose_messages_expired_are_saved_if_they_were_counted(keep, saved):
    rig = counted_and_expired(keep)
    found = rig.read()
    a = key("a").canonical()
    assert (found.messages, named(rig.counts(found)), named(found.saved)) == (keep, {a: 3}, {a: saved})
    assert (found.opening.anchor, found.anchor) == (None, Anchor(5 - keep, 0)), (
        "saved counts and anchor change together"
    )
    assert found.opening.counted == found.state.last


@pytest.mark.parametrize(
    ("hold_back", "saved", "held"),
    [(0, (4, 1), []), (2, (3, 0), [4, 1]), (3, (2, 0), [3, 4, 1]), (1024, (1, 0), [2, 3, 4, 1])],
)
def test_of_what_is_left_behind_expired_messages_a_crash_takes_the_last_ones_alone(hold_back, saved, held):
    """One message expired, and four are left: what the server holds back of them is all that may go."""
    rig = Rig()
    a, b = position("a", 4, records_saved=0), position("b", 1, records_saved=0)
    rig.begin(a, b)
    rig.known()
    rig.safe_behind(hold_back)
    rig.send(a, 1, 2, 3, 4)
    rig.state.counted = {PARTITION: rig.send(b, 1)}
    rig.keep(4)
    found = rig.read()
    assert (rig.counts(found), found.saved) == (
        {key("a"): 4, key("b"): 1},
        dict(zip((key("a"), key("b")), saved, strict=True)),
    )
    assert [item.records for item in found.state.unsaved] == held
    assert (found.messages, found.found) == (4, 0), "positions count them all, whatever a crash may still take"


@pytest.mark.parametrize(("hold_back", "saved", "held"), [(0, 7, []), (2, 7, []), (3, 2, [7]), (1024, 1, [2, 7])])
def test_records_without_messages_are_saved_with_the_last_message_before_them(hold_back, saved, held):
    """Records 4 to 7 were skipped; a position that never counted them would never be final."""
    rig = Rig()
    a, b = position("a", 7, records_saved=0), position("b", 5, records_saved=2)
    rig.begin(a, b)
    rig.known()
    rig.safe_behind(hold_back)
    rig.send(a, 1, 2, 3)
    rig.others(1)
    rig.state.counted = {PARTITION: rig.others(1)}
    rig.keep(4)
    found = rig.read()
    assert (rig.counts(found), found.saved) == ({key("a"): 7, key("b"): 5}, {key("a"): saved, key("b"): 5})
    assert [(item.key, item.records) for item in found.state.unsaved] == [(key("a"), count) for count in held]


def test_what_expired_behind_the_last_counted_message_is_unknown():
    with pytest.raises(PartitionGoneError, match="messages 0 to 3 expired before"):
        counted_and_expired(2).read()


@pytest.mark.parametrize("counted", [Anchor(4, 99, 0), Anchor(5, 99, 0), Anchor(6, 99, 0)])
def test_what_expired_is_unknown_if_a_crash_took_the_last_counted_message(counted):
    """Another message stands in its place, or none."""
    rig = counted_and_expired(4)
    rig.state.counted = {PARTITION: counted}
    with pytest.raises(PartitionGoneError, match="messages 0 to 1 expired before"):
        rig.read()


@pytest.mark.parametrize("hold_back", [1, 3, 1024])
@pytest.mark.parametrize("keep", [0, 2])
def test_a_source_that_first_writes_behind_expired_messages_knows_that_nothing_of_it_was_there(keep, hold_back):
    rig = Rig()
    rig.safe_behind(hold_back)
    rig.others(5)
    rig.keep(keep)
    opening = rig.read().opening
    expected = rig.end() if keep and hold_back == 1 else Anchor(4 - keep, 0)
    assert opening.anchor == expected
    rig.state.open([opening], "w")
    entry = position()
    rig.begin(entry)
    rig.send(entry, 1, 2)
    assert named(rig.counts(rig.read())) == {key("a").canonical(): 2}, "after a kill"


def test_the_first_message_of_a_partition_is_its_safe_end_if_no_crash_takes_it():
    rig = Rig()
    rig.safe_behind(3)
    first = rig.others()
    rig.others(3)
    opening = rig.read().opening
    assert opening.anchor == first
    rig.state.open([opening], "w")
    rig.keep(0)
    assert rig.read().messages == 0, "nothing of the source was among what expired"


def test_a_partition_that_was_opened_empty_is_read_from_its_first_message():
    rig = Rig().known()
    assert rig.read().anchor is None
    entry = position()
    rig.begin(entry)
    rig.send(entry, 1, 2)
    found = rig.read()
    assert (named(rig.counts(found)), found.opening.anchor, found.anchor) == (
        {key("a").canonical(): 2},
        None,
        rig.end(),
    )


# ---- the replay


@pytest.mark.parametrize(
    ("done", "record", "counted", "purged"),
    [(1, 2, 2, True), (2, 3, 2, True), (1, 3, 3, True), (1, 2, 1, False), (2, 2, 2, False), (0, 1, 2, False)],
)
def test_a_record_that_was_not_counted_up_to_the_last_counted_message_was_sent_after_a_purge(
    done, record, counted, purged
):
    """A source beside sent it into the purged topic: what this source had counted is gone."""
    rig = Rig()
    entry = position("a", done, records_saved=0)
    rig.begin(entry)
    rig.known()
    rig.others(2)
    rig.send(entry, record)
    rig.state.counted = {PARTITION: Anchor(counted, 99)}
    if not purged:
        assert named(rig.counts(rig.read())) == {key("a").canonical(): record}
        return
    said = rf'record {record} of bucket/a is at offset 2, and source "kit" had counted {done} records .*{WAYS_OUT}'
    with pytest.raises(PartitionGoneError, match=said) as error:
        rig.read()
    assert error.value.topic_partition == PARTITION


def test_messages_of_positions_are_counted_and_those_of_nobody_are_not():
    rig = Rig().known()
    a, split = position("a", 2), position("b", 1, split_number=3, split_size=1024)
    later, elsewhere = position("c", version="v2", generation=2), position("d", partition=1)
    done = position("e", 4, total=4)
    rig.begin(a, split, later, elsewhere, done)
    rig.state.positions[done.get_manager_key()] = done
    for entry, numbers in (
        (a, (2, 3, 4)),
        (split, (1,)),
        (split.changed(split_number=2), (7,)),
        (position("c"), (1, 2)),  # of an earlier generation
        (later, (1,)),
        (elsewhere, (1,)),
        (done, (4, 5)),
        (position("a", generation=2), (9,)),
        (a, (5, 3)),
    ):
        rig.send(entry, *numbers)
    rig.others(2)
    found = rig.read()
    assert rig.counts(found) == {key("a"): 5, key("b", 3): 1, key("c"): 1}
    assert found.saved == rig.counts(found)
    assert found.messages == len(rig.server.messages("kit", "records", 0))
    assert found.found == 5, "records 3 to 5 of a, and one of each of the others"
    identity = rig.state.identity
    assert found.opening.counts == {identity(a): 5, identity(split): 1, identity(later): 1}


def test_a_count_is_never_below_what_is_saved():
    rig = Rig().known()
    rig.begin(position("a", 5))
    rig.send(position("a"), 2, 3)
    assert rig.counts(rig.read()) == {key("a"): 5}


steps = st.lists(st.sampled_from(["a", "b", "other"]), max_size=14)


@settings(max_examples=examples(150))
@given(before=steps, behind=steps, hold_back=st.integers(1, 6))
def test_what_a_crash_could_take_is_held_back_and_the_rest_is_saved(before, behind, hold_back):
    """The oracle: by the offsets alone. A killed server forgets at most the last `hold_back - 1` messages."""
    rig = Rig().known()
    entries = {name: position(name) for name in "ab"}
    sent = collections.Counter()
    placed = []  # (offset, name, number)

    def store(names):
        for name in names:
            if name == "other":
                rig.others()
            else:
                sent[name] += 1
                rig.send(entries[name], sent[name])
            placed.append((len(placed), name, sent[name]))

    store(before)
    if before:
        rig.state.anchors[PARTITION] = rig.end()
    rig.begin(*(entry.changed(records_saved=sent[name]) for name, entry in entries.items()))
    saved_before = dict(sent)
    store(behind)
    rig.safe_behind(hold_back)
    found = rig.read()

    end = len(placed)
    held = hold_back if hold_back > 1 else 0
    mine = [(at, name, number) for at, name, number in placed[len(before) :] if name != "other"]
    safe = [item for item in mine if item[0] <= end - 1 - held]
    assert rig.counts(found) == {key(name): number for _, name, number in mine}
    assert found.saved == {key(name): number for _, name, number in safe}
    if not held:
        assert found.anchor == (rig.end() if placed else None)
    else:
        assert (found.anchor.offset if found.anchor else None) == (
            safe[-1][0] if safe else len(before) - 1 if before else None
        )
    assert [(item.anchor.offset, item.key, item.records, item.generation) for item in found.state.unsaved] == [
        (at, key(name), number, 1) for at, name, number in mine[len(safe) :]
    ]
    assert found.state.hold_back == held
    assert found.state.last == (rig.end() if placed else None)
    assert all(number > saved_before.get(name, 0) for _, name, number in mine)
    assert all(isinstance(item, UnsavedCount) for item in found.state.unsaved)


@pytest.mark.parametrize(("required", "held"), [(0, 0), (1, 0), (2, 2), (1024, 1024), (None, 1024)])
def test_a_topic_that_saves_each_message_holds_nothing_back_and_one_that_does_not_tell_the_usual(required, held):
    rig = Rig()
    rig.safe_behind(required)
    assert hold_back_of(rig.info) == held


@pytest.mark.parametrize(("size", "most"), [(1_000_000, 9_000_000), (100, 500_000)])
def test_polls_of_a_replay_are_bounded_in_bytes(size, most, monkeypatch):
    rig = Rig().known()
    new = [(message_id(7, 0, number), bytes(size), {}) for number in range(1, 60)]
    rig.server.store("kit", "records", 0, [(*one, 0) for one in new])
    asked, poll = [], rig.connection.poll

    def watched(*place, **how):
        messages = poll(*place, **how)
        asked.append(sum(len(message.payload) for message in messages))
        return messages

    monkeypatch.setattr(rig.connection, "poll", watched)
    assert rig.read().messages == 59
    assert max(asked) <= most
    assert sum(asked) >= 59 * size


def blind_behind(rig, monkeypatch, offset, times=None):
    """The server gives nothing behind an offset, as a segment with a torn batch does; after so many polls it does."""
    poll, left = rig.connection.poll, [times]

    def torn(stream, topic, partition, *, offset, count):
        found = poll(stream, topic, partition, offset=offset, count=count)
        if left[0] is not None:
            left[0] -= any(one.offset > last for one in found)
            if left[0] < 0:
                return found
        return [one for one in found if one.offset <= last]

    last = offset
    monkeypatch.setattr(rig.connection, "poll", torn)


@pytest.mark.parametrize(("known", "last"), [(True, 12), (False, 12), (True, -1)])
def test_messages_that_the_server_has_and_does_not_give_are_told(known, last, monkeypatch):
    """A real server that was killed while it wrote: a segment with a torn batch takes messages, and gives none of them."""
    monkeypatch.setattr(reader, "DAMAGE_PAUSES_SECONDS", (0.0,))
    rig = Rig()
    rig.safe_behind(1024)
    rig.others(20)
    if known:
        rig.known()
    blind_behind(rig, monkeypatch, last)
    said = rf'topic "records", partition 0, .* reports 19 as its last message but does not return message {last + 1}\. .* damaged'
    with pytest.raises(PartitionDamagedError, match=said):
        rig.read()


def test_messages_that_come_a_moment_later_are_no_damage(monkeypatch):
    monkeypatch.setattr(reader, "DAMAGE_PAUSES_SECONDS", (0.0,))
    rig = Rig().known()
    last = rig.others(20)
    blind_behind(rig, monkeypatch, 12, times=1)
    assert rig.read().state.last == last


@pytest.mark.parametrize("saved", [0, 3])
def test_a_server_that_cannot_look_into_a_partition_is_away_and_nothing_of_it_is_gone(saved):
    """The real server then answers polls as if the partition were empty: neither purged, nor expired, nor damaged."""
    rig = Rig()
    entry = position()
    rig.begin(entry)
    rig.known(rig.send(entry, 1, 2, 3) if saved else None)
    rig.send(entry, 4, 5)
    rig.server.unreadable.add(("records", 0))
    check = PartitionReader(rig.connection, "kit", rig.state).check
    for look in (rig.read, lambda: check(PARTITION, rig.info)):
        with pytest.raises(
            IggyUnavailableError,
            match=r'"records", partition 0, of stream "kit".* reports \d as its last.*restart the server',
        ):
            look()
    rig.server.unreadable.clear()
    assert rig.read().state.last is not None


def test_an_anchor_that_the_server_does_not_return_is_damage_and_not_expiry(monkeypatch):
    rig = Rig()
    entry = position()
    rig.begin(entry)
    rig.known(rig.send(entry, 1, 2, 3))
    rig.send(entry, 4, 5)
    blind_behind(rig, monkeypatch, 1)
    with pytest.raises(
        PartitionDamagedError, match=r"reports 4 as its last message but does not return message 2\. See the server's"
    ):
        rig.read()


# ---- a source over all of it


def test_what_is_already_in_the_topic_is_neither_read_nor_touched_at_the_first_start():
    source = Source({"a": 3}, partitions=1)
    connection = source.server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", 1)
    append(connection, "kit", "records", 0, FOREIGN)
    connection.close()
    source.live()
    assert [m.payload for m in source.messages()] == [FOREIGN, *lines("a", 3)]


def test_messages_of_others_between_ours_do_not_matter():
    for at in range(8, len(Source(partitions=1).live().events) + 1, 5):
        source = Source(partitions=1)
        source.live(at)
        others = bool(source.server.topic_info("kit", "records"))
        if others:
            connection = source.server.connect()
            append(connection, "kit", "records", 0, FOREIGN)
            append(connection, "kit", LOG, 0, b"of somebody else, in the log")
            connection.close()
        source.live()
        assert source.payloads() == source.once() + collections.Counter([FOREIGN] * others), at


def test_without_headers_a_replay_finds_the_records_by_their_ids():
    for at in range(1, len(Source(headers="none").live().events) + 1):
        source = Source(headers="none")
        source.live(at)
        source.live()
        source.check()


def with_bad_lines(**options):
    """Objects whose second, third and last line are bad, and one that is all bad."""
    source = Source({"a": 3}, tolerance="skip_record", **options)
    good = lines("bad", 9)
    source.rig.store.put("bad", b"\n".join([good[0], b"-", b"-", *good[1:], b"-"]))
    source.rig.store.put("worse", b"-\n-\n-\n")
    source.expected |= {"bad": good, "worse": []}
    return source


@pytest.mark.parametrize("batch_length", [2, 4])
def test_skipped_records_are_neither_lost_nor_sent(batch_length):
    for at in range(1, len(with_bad_lines(batch_length=batch_length).live().events) + 1):
        source = with_bad_lines(batch_length=batch_length)
        source.live(at)
        source.live()
        source.check()
        assert source.entries["bad"].records_done == 12
        assert source.entries["bad"].skipped <= 3


@pytest.mark.parametrize("hold_back", [2, 5, 1024])
def test_a_server_that_is_killed_with_the_source_and_forgets_what_it_may_gets_it_again(hold_back):
    """What it has forgotten nothing of at its start it has on disk: so each kill takes of what was stored since."""
    for at in range(5, len(Source(partitions=2).live().events) + 1, 2):
        source = Source(partitions=2)
        on_disk = [0, 0]
        for crash in (at, at // 2, None):
            make_forgetful(source, hold_back)
            source.live(crash)
            for partition in range(2):
                held = len(source.messages(partition))
                lost = min(hold_back - 1, held - on_disk[partition], (at + partition) % hold_back)
                source.server.lose_tail("kit", "records", partition, lost)
                on_disk[partition] = held - lost
        make_forgetful(source, hold_back)
        source.live()
        source.check()


def make_forgetful(source, hold_back):
    """The server may forget the last `hold_back - 1` messages of a partition."""
    if source.server.topic_info("kit", "records") is None:
        connection = source.server.connect()
        connection.ensure_stream("kit")
        connection.create_topic("kit", "records", 2)
        connection.close()
    source.server.set_option("kit", "records", "messages_required_to_save", hold_back)


def test_a_loss_that_no_crash_explains_stops_the_source():
    source = Source({"a": 30}, partitions=1)
    make_forgetful_of_one(source)
    source.live()
    assert loaded(source.server).anchors == {PARTITION: anchor_at(source, 23)}, (
        "the last batch that ends before offset 26"
    )
    source.server.lose_tail("kit", "records", 0, 7)
    with pytest.raises(PositionError, match="ends at 22"):
        source.live()


def make_forgetful_of_one(source):
    connection = source.server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", 1)
    connection.close()
    source.server.set_option("kit", "records", "messages_required_to_save", 4)


def anchor_at(source, offset):
    message = source.messages()[offset]
    return Anchor(message.offset, message.message_id, message.origin_us)


def test_after_every_connection_broke_a_new_one_recovers():
    source = Source()

    class Breaking(CrashPoint):
        def __call__(self, name):
            if name == "ack":
                source.server.on_event = None
                source.server.break_connections()

    with pytest.raises(IggyUnavailableError):
        source.bench.live(Breaking())
    source.live()
    source.check()


def test_a_second_run_reads_nothing_and_sends_nothing():
    source = Source()
    source.live()
    source.rig.store.calls.clear()
    before = len(source.server.messages("kit", LOG))
    source.live()
    source.check()
    assert source.rig.store.count("open") == 0
    assert set(kinds(source.server)[before:]) <= {"claim", "opening", "open", "progress"}


@pytest.mark.parametrize("headers", ["none", "provenance"])
@pytest.mark.parametrize("others", [0, 100])
@pytest.mark.parametrize("topic", ["records", "{{topic}}"])
def test_a_lost_or_renamed_log_is_noticed_before_anything_is_sent(headers, others, topic):
    """Also with topics named by keys, and behind any number of messages of others."""
    naming = {"topic": topic} if topic == "records" else {"topic": topic, "template": "{{topic}}-{{key}}"}
    source = Source({"orders-1": 3, "orders-2": 40}, partitions=2, headers=headers, **naming)
    source.live()
    stored = "records" if topic == "records" else "orders"
    held = [source.server.messages("kit", stored, partition) for partition in range(2)]
    connection = source.server.connect()
    for partition in range(2):
        for _ in range(others):
            append(connection, "kit", stored, partition, FOREIGN)
    source.server.delete_topic("kit", LOG)
    with pytest.raises(PartitionGoneError, match=r'was written by source "kit", and its offsets topic knows nothing'):
        source.live()
    assert [len(messages) + others for messages in held] == [
        len(source.server.messages("kit", stored, partition)) for partition in range(2)
    ]


def test_messages_of_others_alone_keep_no_new_source_from_its_work():
    source = Source({"a": 5}, partitions=2, headers="none")
    connection = source.server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", 2)
    for number in range(1, 41):
        append(connection, "kit", "records", number % 2, FOREIGN, message_id=number)
    connection.close()
    source.live()
    assert source.payloads() == source.once() + collections.Counter({FOREIGN: 40})


def test_an_orderly_end_lets_everything_expire_and_a_kill_does_not():
    source = Source(partitions=1)
    source.live()
    connection = source.server.connect()
    for _ in range(5):
        append(connection, "kit", "records", 0, FOREIGN)
    connection.close()
    source.server.drop_head("kit", "records", 0, len(source.messages()) - 2)
    source.live()
    assert [message.payload for message in source.messages()] == [FOREIGN] * 2


def test_what_a_server_forgets_after_older_messages_expired_is_sent_again():
    source = Source({"a": 30}, partitions=1)
    make_forgetful_of_one(source)
    source.live()
    source.server.drop_head("kit", "records", 0, 25)
    source.live()
    assert [message.payload for message in source.messages()] == source.expected["a"][25:]
    source.server.lose_tail("kit", "records", 0, 3)
    source.live()
    assert [message.payload for message in source.messages()] == source.expected["a"][25:]


def remove_partition(source):
    """What no server does, but a person who makes the topic anew with its data, or an administrator of a later version."""
    source.server._streams["kit"]["records"].partitions.pop()


def test_a_partition_that_is_gone_with_everything_in_it_finished_is_told_and_done_without(caplog):
    source = Source(partitions=2)
    source.live()
    held = source.payloads() - collections.Counter(message.payload for message in source.messages(1))
    remove_partition(source)
    fewer = Source({}, rig=source.rig, server=source.server, partitions=1)
    fewer.live()
    assert "records/1: the partition is gone" in caplog.text
    assert fewer.payloads() == held
    fewer.live()
    assert fewer.payloads() == held


def test_a_partition_that_is_gone_with_objects_half_read_stops_the_start():
    source = Source({"a": 40, "b": 40, "c": 40, "d": 40}, partitions=2)
    for at in range(40, 200, 3):
        source.live(at)
        half = [
            entry
            for entry in loaded(source.server).positions.view()
            if entry.topic_partition.partition == 1 and not entry.final
        ]
        if half:
            break
    assert half
    remove_partition(source)
    fewer = Source({}, rig=source.rig, server=source.server, partitions=1)
    before = kinds(source.server)
    lost = counted(len(half), "half-read object")
    with pytest.raises(
        PositionError, match=rf'partition 1 of topic "records".* is gone, with {lost}\..*offsets accept-data-loss'
    ):
        fewer.live()
    assert kinds(source.server) == before, "nothing was written"


def test_a_topic_that_was_deleted_stops_the_start_before_anything_is_written():
    source = Source(partitions=1)
    source.live()
    source.server.delete_topic("kit", "records")
    before = kinds(source.server)
    with pytest.raises(
        PositionError, match=rf'topic "records" of stream "kit" was deleted or renamed since .*{WAYS_OUT}'
    ):
        Session.begin(source.server.connect(), source.bench.config)
    assert kinds(source.server) == before
