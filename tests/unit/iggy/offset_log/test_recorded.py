"""A log of an earlier build, recorded with it: every later build reads it, and goes on.

`format_2` holds four runs over one bucket, in the format of November 2026. `a`, `b` and `c` were read; then came another `a`,
`big` in three splits, and `aa`. The second run was killed, the third wrote a snapshot, and the fourth was killed again.
"""

import base64
import collections
import itertools
import json
import pathlib

import attrs

from framework.model.objects import TopicPartition
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_rig import MemoryRig
from framework.testing.fakes.memory_store import FIRST_TIME_MS, MemoryStore
from tests.support.core import lines
from tests.support.positions import Source, as_saved, loaded

RECORDED = pathlib.Path(__file__).parent / "recorded" / "format_2.jsonl"


class TimedStore(MemoryStore):
    def list_page(self, **arguments):
        page = super().list_page(**arguments)
        return attrs.evolve(page, server_time_ms=FIRST_TIME_MS + 1000 * self._changes)


def recorded():
    """A server as that build left it."""
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    server = MemoryIggy()
    server.make_stream("kit")
    for row in sorted((row for row in rows if "created_at" in row), key=lambda row: row["id"]):
        server._numbers = itertools.count(row["id"])
        server.make_topic("kit", row["topic"], row["partitions"])
        info = server.topic_info("kit", row["topic"])
        assert (info.id, info.created_at) == (row["id"], row["created_at"])
    for row in rows:
        if "payload" in row:
            message = int(row["id"], 16), base64.b64decode(row["payload"]), row["headers"]
            server.store("kit", row["topic"], row["partition"], [(*message, 0)])
    return server


def source_of(server):
    """The bucket of that build, with one object more."""
    rig = MemoryRig()
    rig.store = TimedStore()
    made = Source({}, rig=rig)
    for name, count in (("a", 5), ("b", 7), ("c", 11), ("a", 6), ("big", 90), ("aa", 16), ("next", 3)):
        made.put(name, count)
    source = Source({}, rig=rig, server=server, split_size=1024, allowed_lateness=0.0)
    source.expected = made.expected
    return source


def test_its_positions_are_read_as_they_were():
    state = loaded(recorded())
    assert as_saved(state) == {
        ("a", 0): ("v4", 2, 4, 4, None),
        ("aa", 0): ("v6", 1, 16, 16, 16),
        ("b", 0): ("v2", 1, 7, 7, 7),
        ("big", 1): ("v5", 1, 0, 0, None),
        ("big", 2): ("v5", 1, 0, 0, None),
        ("big", 3): ("v5", 1, 0, 0, None),
        ("c", 0): ("v3", 1, 11, 11, 11),
    }
    assert (state.epoch, state.last_epoch) == (4, 4)
    assert state.partitions == {TopicPartition("records", number) for number in range(3)}
    assert {state.topics[topic_partition].topic_id for topic_partition in state.anchors} == {3}


def test_what_was_done_is_not_read_again_and_what_was_not_goes_on():
    server = recorded()
    source = source_of(server)
    before = source.payloads()
    source.live()
    assert before
    assert source.payloads() == source.once() + collections.Counter(lines("a", 5))  # its first version
    assert source.rig.store.count("open") < 8
