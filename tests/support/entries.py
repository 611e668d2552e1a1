"""Positions, batches and confirmations of one small object, and a store that fails as often as told."""

from framework.errors import StoreUnavailableError
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import Anchor, NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.offset_store import MemoryOffsetStore

PARTITION = TopicPartition("t", 0)

KEY = OffsetManagerKey.of_object("b", "k")

NATIVE = NativeObject(scheme="memory", bucket="b", key="k", size=9, version="v1", modified_ms=5)


def entry(records=0, *, version="v1", modified_ms=5, key="k", topic_partition=PARTITION, **more):
    return OffsetManagerEntry(
        bucket="b",
        key=key,
        version=version,
        modified_ms=modified_ms,
        records_done=records,
        topic_partition=topic_partition,
        **more,
    )


def ended(records, **more):
    return entry(records, total=records, **more)


def final(records, **more):
    return ended(records, records_saved=records, **more)


def batch(position, count=1, native=NATIVE):
    return RecordBatch(
        native=native,
        topic_partition=position.topic_partition,
        first_record=position.records_done - count + 1,
        payloads=[b"x"] * count,
        size_bytes=count,
        entry=position,
    )


def anchor_at(offset):
    return Anchor(offset, offset + 1000, offset + 5)


def acknowledge(*batches, offset=0, topic_partition=PARTITION):
    return Acknowledgement(topic_partition=topic_partition, batches=batches, anchor=anchor_at(offset))


# ---- one position in place of another


def splits_of(count, **more):
    return [entry(split_number=split_number, split_size=8, **more) for split_number in range(1, count + 1)]


# ---- the manager


class BrokenStore(MemoryOffsetStore):
    """Fails as often as told; `during` runs while a save is under way."""

    def __init__(self):
        super().__init__()
        self.failures = 0
        self.during = lambda: None
        self.saved = []

    def save(self, delta):
        self.during()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("away")
        self.saved.append(delta)
        super().save(delta)
