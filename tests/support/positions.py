"""A source over an Iggy in memory whose processes die at chosen events, and its offsets log as tests look at it and write it."""

import collections

from framework.engine.session import Session
from framework.iggy.offset_log import framing
from framework.iggy.offset_log.fencing import begin_epoch
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.log import OffsetLog
from framework.model.message_ids import entry_hash64, message_id
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import Bench, CrashPoint
from framework.testing.options import source_config
from tests.conformance.rigs import MemoryRig
from tests.support.core import lines, put_lines
from tests.support.iggy_messages import append

LOG = "kit-offsets"
OPTIONS = {"batch_length": 4, "queue_records": 13, "linger_time": 0.0, "prefetch_objects": 2}


class Source:
    """Objects in a store, and processes over one server."""

    def __init__(self, counts=None, *, rig=None, server=None, **options):
        self.rig = rig or MemoryRig()
        self.expected = {}
        for name, count in ({"a": 5, "b": 7, "c": 11} if counts is None else counts).items():
            self.put(name, count)
        self.bench = Bench(self.rig, server=server, **{**OPTIONS, **options})

    @property
    def server(self):
        return self.bench.server

    def put(self, name, count):
        put_lines(self.rig.store, name, count)
        self.expected[name] = lines(name, count)

    def live(self, at=None):
        crash = CrashPoint(at)
        self.entries = {entry.key: entry for entry in self.bench.live(crash)}
        return crash

    def messages(self, partition=0):
        return self.server.messages("kit", "records", partition)

    def payloads(self):
        """Every payload in the data topic, with how often it is there."""
        info = self.server.topic_info("kit", "records")
        parts = info.partitions if info is not None else ()
        return collections.Counter(message.payload for part in parts for message in self.messages(part.id))

    def once(self):
        return collections.Counter(line for some in self.expected.values() for line in some)

    def check(self):
        assert self.payloads() == self.once()
        assert all(entry.finished for entry in self.entries.values())
        assert set(self.entries) == set(self.expected)


def log_over(connection, source="kit", topic=LOG):
    return OffsetLog(connection, stream="kit", topic=topic, source=source)


def server_with_log(*payloads, topic=LOG):
    """A server whose offsets topic holds these messages."""
    server = MemoryIggy()
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", topic, 1)
    for payload in payloads:
        append(connection, "kit", topic, 0, payload)
    connection.close()
    return server


def loaded(server, source="kit", topic=LOG):
    """What a start would find in the log."""
    connection = server.connect()
    try:
        return load(log_over(connection, source, topic))
    finally:
        connection.close()


def records(server, source="kit", topic=LOG):
    """Every record of a source in the log."""
    found = (
        framing.decode(stored.offset, stored.payload, stored.timestamp_us) for stored in server.messages("kit", topic)
    )
    return [record for record in found if record is not None and record.source == source]


def kinds(server):
    return [record.kind for record in records(server)]


def session_of(server, **options):
    """A leader that has opened its epoch."""
    return Session.begin(server.connect(), source_config(**options))


def epoch_of(server, source="kit", **how):
    """An epoch that is open, and its log, without a session."""
    log = log_over(server.connect(), source)
    epoch = begin_epoch(log, **how)
    epoch.open(log)
    return log, epoch


def position(key="a", records_done=0, *, partition=0, **values):
    """One of the source `kit`; `saved` and `total` as given."""
    values.setdefault("records_saved", records_done)
    return OffsetManagerEntry(
        **{
            "bucket": "bucket",
            "key": key,
            "version": "v1",
            "modified_ms": 1000,
            "topic_partition": TopicPartition("records", partition),
            "records_done": records_done,
            **values,
        }
    )


def message_id_of(entry, record, source="kit"):
    return message_id(entry_hash64(source, entry), entry.split_number, record)


def as_saved(state):
    """Key (and split) -> version, generation, counts: what matters of positions."""
    return {
        (entry.key, entry.split_number): (
            entry.version,
            entry.generation,
            entry.records_saved,
            entry.records_done,
            entry.total,
        )
        for entry in state.positions.view()
    }
