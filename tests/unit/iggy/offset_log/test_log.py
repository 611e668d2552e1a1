"""One source's log over one connection: what is read, in how many requests, what is its own, and how large it is."""

import itertools

import pytest

from framework.errors import IggyTopicError, IggyUnavailableError, PositionError
from framework.iggy.offset_log import codec, log
from framework.iggy.offset_log.log import DuePolls
from framework.testing.clock import FakeClock
from tests.support.iggy_messages import append
from tests.support.positions import LOG, log_over, server_with_log

FOREIGN = b"of somebody else"


def record(epoch, source="kit"):
    return codec.encode_opening(source, epoch, fenced=0)


class Rig:
    """A log over a connection whose polls are counted, and another writer's."""

    def __init__(self, monkeypatch, *payloads):
        self.server = server_with_log(*payloads)
        connection = self.server.connect()
        self.log = log_over(connection)
        self.other = log_over(self.server.connect())
        self.polls = []
        poll = connection.poll

        def counted(stream, topic, partition, *, offset, count):
            assert (stream, topic, partition) == ("kit", LOG, 0)
            self.polls.append((offset, count))
            return poll(stream, topic, partition, offset=offset, count=count)

        monkeypatch.setattr(connection, "poll", counted)

    def follow(self):
        return [message.epoch for message in self.log.follow()]


def test_records_of_others_are_followed_and_neither_ones_own_nor_those_of_another_source(monkeypatch):
    rig = Rig(monkeypatch, record(1), FOREIGN, record(7, "another"), record(2))
    assert rig.follow() == [1, 2]
    assert (rig.log.next_offset, rig.log.messages, rig.log.foreign) == (4, 2, 2)
    assert rig.log.append(record(3)) == 4
    assert rig.follow() == []
    rig.other.append(record(4))
    rig.log.append(record(5))
    rig.other.append(record(6))
    assert rig.follow() == [4, 6]
    assert (rig.log.next_offset, rig.log.messages, rig.log.foreign) == (8, 4, 2)


def test_what_is_followed_while_another_follows_comes_once(monkeypatch):
    rig = Rig(monkeypatch, record(1), record(2), record(3))
    followed = rig.log.follow()
    assert next(followed).epoch == 1
    assert rig.follow() == [2, 3]
    assert list(followed) == []
    assert (rig.log.next_offset, rig.log.messages) == (3, 3)


def test_a_follower_that_reads_an_own_record_before_its_append_returns_takes_it_for_its_own(monkeypatch):
    """Under load the answers to the append and to another thread's poll may come before the append returns to its caller."""
    rig = Rig(monkeypatch, record(1))
    submit = rig.log.connection.submit_append
    followed = []

    def answered_at_once(*place, **options):
        future = submit(*place, **options)
        followed.extend(rig.follow())
        return future

    monkeypatch.setattr(rig.log.connection, "submit_append", answered_at_once)
    assert rig.log.append(record(2)) == 1
    rig.other.append(record(3))
    assert rig.follow() == [3]
    assert followed == [1]


def test_after_a_rewind_everything_is_read_again_with_what_was_appended_here(monkeypatch):
    rig = Rig(monkeypatch, record(1), FOREIGN)
    rig.log.append(record(2))
    assert rig.follow() == [1]
    size = rig.log.total_bytes
    for _ in range(2):
        rig.log.rewind()
        assert (rig.log.next_offset, rig.log.foreign, rig.log.total_bytes) == (0, 0, 0)
        assert rig.follow() == [1, 2]
        assert (rig.log.next_offset, rig.log.foreign, rig.log.total_bytes) == (3, 1, size)


def test_sizes_are_of_all_messages_whoever_wrote_them(monkeypatch):
    payloads = [record(1), FOREIGN * 9, record(2, "another")]
    rig = Rig(monkeypatch, *payloads)
    rig.log.append(record(3))
    assert rig.follow() == [1]
    rig.log.append(record(4))
    assert rig.follow() == []
    sizes = [*map(len, payloads), len(record(3)), len(record(4))]
    assert (rig.log.total_bytes, rig.log.largest_bytes) == (sum(sizes), len(FOREIGN) * 9)


def test_an_empty_log_ends_at_its_first_message(monkeypatch):
    rig = Rig(monkeypatch)
    assert (rig.follow(), rig.log.next_offset) == ([], 0)


def test_small_messages_are_asked_for_in_growing_numbers_and_large_ones_in_few(monkeypatch):
    rig = Rig(monkeypatch, *[record(epoch) for epoch in range(1, 701)])
    assert rig.follow() == list(range(1, 701))
    assert rig.polls == [(0, 8), (8, 16), (24, 32), (56, 64), *((at, 100) for at in range(120, 700, 100)), (700, 100)]
    monkeypatch.setattr(log, "READ_BYTES", 16 * len(record(100)))
    rig = Rig(monkeypatch, *[record(epoch) for epoch in range(100, 196)])
    assert len(rig.follow()) == 96
    assert rig.polls == [(0, 8), *((at, 16) for at in range(8, 89, 16)), (96, 16)]


def test_after_a_large_message_a_poll_asks_for_few_until_it_is_long_past(monkeypatch):
    payloads = [record(epoch) for epoch in range(100, 200)]
    monkeypatch.setattr(log, "READ_BYTES", 16 * len(payloads[0]))
    rig = Rig(monkeypatch, *payloads[:4], b"x" * 8 * len(payloads[0]), *payloads[4:])
    assert len(rig.follow()) == 100
    counts = [count for _, count in rig.polls]
    assert counts[:2] == [8, 2]
    assert counts[1:] == sorted(counts[1:])
    assert counts[-1] == 16


def test_bodies_are_read_again_by_the_batch(monkeypatch):
    rig = Rig(monkeypatch, *[record(epoch) for epoch in range(1, 21)])
    heads = [message.head for message in rig.log.follow()]
    wanted = [heads[at] for at in (0, 1, 4, 5, 6, 19)]
    rig.polls.clear()
    assert [codec.decode_opening(message) for message in rig.log.read(wanted, ahead=5)] == [0] * 6
    assert rig.polls == [(0, 5), (5, 5), (19, 5)]
    rig.polls.clear()
    assert len(list(rig.log.read(heads))) == 20
    assert rig.polls == [(0, 8), (8, 8), (16, 8)]


def test_a_record_that_went_since_it_was_followed_is_an_error(monkeypatch):
    rig = Rig(monkeypatch, record(1), record(2))
    heads = [message.head for message in rig.log.follow()]
    rig.server.rewrite("kit", LOG, 0, lambda payload: record(9) if payload == record(2) else payload)
    read = rig.log.read(heads)
    assert next(read).epoch == 1
    with pytest.raises(
        PositionError, match=r"message 1: a opening that was there a moment ago is gone\. It is damaged"
    ):
        next(read)


def test_the_time_of_a_record_is_the_servers(monkeypatch):
    rig = Rig(monkeypatch)
    at = rig.log.append(record(1))
    assert rig.log.stored_us(at) == rig.server.messages("kit", LOG)[at].timestamp_us > 0
    assert rig.polls == [(0, 1)]
    with pytest.raises(PositionError, match=r"reports a message at offset 1, and does not return it"):
        rig.log.stored_us(1)


def test_a_record_is_not_gone_while_the_server_cannot_look(monkeypatch):
    rig = Rig(monkeypatch, record(1), record(2))
    heads = [message.head for message in rig.log.follow()]
    rig.server.unreadable.add((LOG, 0))
    for look in (
        lambda: list(rig.log.read(heads)),
        lambda: rig.log.stored_us(1),
        lambda: list(rig.log.follow_to_end()),
    ):
        rig.log.next_offset = 0
        with pytest.raises(
            IggyUnavailableError, match=rf'topic "{LOG}", .* reports 1 as its last message, and answers as if'
        ):
            look()
    rig.server.unreadable.clear()
    assert len(list(rig.log.read(heads))) == 2


def test_a_log_that_the_server_does_not_return_whole_is_damaged_and_one_that_grows_is_not(monkeypatch):
    monkeypatch.setattr(log, "DAMAGE_PAUSES_SECONDS", (0.0,))
    rig = Rig(monkeypatch, record(1), record(2), record(3))
    poll, left = rig.log.connection.poll, [1]
    monkeypatch.setattr(
        rig.log.connection,
        "poll",
        lambda *place, offset, count: [] if offset >= 2 else poll(*place, offset=offset, count=2),
    )
    with pytest.raises(PositionError, match=r"offsets topic .* reports a message at offset 2, and does not return it"):
        list(rig.log.follow_to_end())

    def late(*place, offset, count):
        if offset >= 2 and left[0]:
            left[0] -= 1
            append(rig.log.connection, "kit", LOG, 0, record(4))
            return []
        return poll(*place, offset=offset, count=count)

    rig.log.rewind()
    monkeypatch.setattr(rig.log.connection, "poll", late)
    assert [message.epoch for message in rig.log.follow_to_end()] == [1, 2, 3, 4]


def test_a_topic_that_the_server_no_longer_describes_has_no_end_to_reach(monkeypatch):
    rig = Rig(monkeypatch, record(1))
    monkeypatch.setattr(rig.log.connection, "get_topic", lambda stream, topic: None)
    assert [message.epoch for message in rig.log.follow_to_end()] == [1]


def test_an_append_below_an_own_one_shows_that_the_topic_was_purged(monkeypatch):
    rig = Rig(monkeypatch, record(1))
    for epoch in (2, 3, 4):
        rig.log.append(record(epoch))
    rig.server.delete_topic("kit", LOG)
    rig.log.connection.create_topic("kit", LOG, 1)
    append(rig.log.connection, "kit", LOG, 0, b"of another source")
    with pytest.raises(
        PositionError, match=rf'"{LOG}" of stream "kit" was purged, .* at offset 1, and had confirmed that'
    ):
        rig.log.append(record(5))


def test_a_topic_that_was_deleted_while_it_was_followed_is_named_with_the_ways_out(monkeypatch):
    rig = Rig(monkeypatch, record(1))
    rig.server.delete_topic("kit", LOG)
    with pytest.raises(IggyTopicError):
        rig.follow()
    rig = Rig(monkeypatch, record(1))
    assert rig.follow() == [1]
    rig.server.delete_topic("kit", LOG)
    ways_out = r"Bring it back; or name another \[offsets\] topic .*offsets reset --all"
    with pytest.raises(PositionError, match=rf'"{LOG}" of stream "kit" was purged, deleted, .*{ways_out}'):
        rig.follow()


def test_an_idle_log_is_polled_once_an_interval():
    clock = FakeClock()
    due = DuePolls(5.0, clock=clock)
    taken = []
    for _ in range(14):
        taken.append(due.take())
        clock.advance(1)
    assert list(itertools.compress(range(14), taken)) == [5, 10]
    clock.advance(100)
    assert [due.take(), due.take()] == [True, False], "what was missed is not made up for"
