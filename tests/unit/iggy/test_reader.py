"""How many messages a poll asks for, and where the messages of a time begin in a partition."""

import pytest

from framework.iggy import reader
from framework.iggy.reader import offset_since, read_partition
from framework.testing.fakes.memory_iggy import MemoryIggy


def polls_of(monkeypatch, sizes):
    """Read a partition with messages of these sizes; return how many messages each poll asked for, and got in bytes."""
    server = MemoryIggy()
    server.make_stream("s")
    server.make_topic("s", "t", 1)
    server.store("s", "t", 0, [(number, b"x" * size, {}, 0) for number, size in enumerate(sizes)])
    polls = []
    with server.connect() as connection:
        poll = connection.poll

        def counted(*place, offset, count):
            found = poll(*place, offset=offset, count=count)
            polls.append((count, sum(len(message.payload) for message in found)))
            return found

        monkeypatch.setattr(connection, "poll", counted)
        assert [message.offset for message in read_partition(connection, "s", "t", 0)] == list(range(len(sizes)))
    return polls


def test_small_messages_are_asked_for_in_growing_numbers_up_to_a_limit(monkeypatch):
    counts = [count for count, _ in polls_of(monkeypatch, [1] * 2000)]
    assert counts[:4] == [8, 32, 128, 256]
    assert set(counts[4:]) == {reader.MAX_MESSAGES}


def test_large_messages_behind_small_ones_come_in_one_large_answer_and_no_second(monkeypatch):
    monkeypatch.setattr(reader, "TARGET_BYTES", 1000)
    polls = polls_of(monkeypatch, [1] * 600 + [100] * 1000)
    large = [length for _, length in polls if length > 1000]
    assert len(large) == 1
    assert large[0] <= 100 * reader.MAX_MESSAGES


def test_after_one_large_message_few_are_asked_for_until_it_is_long_past(monkeypatch):
    monkeypatch.setattr(reader, "TARGET_BYTES", 1000)
    counts = [count for count, _ in polls_of(monkeypatch, [1] * 3 + [900] + [1] * 100)]
    assert counts[:3] == [8, 1, 1]
    assert counts[1:] == sorted(counts[1:])
    assert counts[-1] > 8


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
@pytest.mark.parametrize("dropped", [0, 1, 3])
def test_the_first_message_since_a_time_is_found_whatever_retention_has_left(count, dropped):
    server = MemoryIggy()
    server.make_stream("s")
    server.make_topic("s", "t", 1)
    for number in range(count):
        server.store("s", "t", 0, [(number, b"x", {}, 0)] * (1 + number % 3))
    messages = server.messages("s", "t")
    server.drop_head("s", "t", 0, dropped)
    left = messages[dropped:]
    (partition,) = server.topic_info("s", "t").partitions
    times = {message.timestamp_us + step for message in messages for step in (-1, 0, 1)} or {5}
    with server.connect() as connection:
        for time_us in times:
            found = offset_since(connection, "s", "t", partition, time_us)
            assert [m for m in left if m.offset >= found] == [m for m in left if m.timestamp_us >= time_us]
