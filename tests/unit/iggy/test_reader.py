"""Where the messages of a time begin in a partition."""

import pytest

from framework.iggy.reader import offset_since
from framework.testing.fakes.memory_iggy import MemoryIggy


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
