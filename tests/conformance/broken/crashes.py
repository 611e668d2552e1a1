"""What splits, several tasks and bad records can break: rigs for the laws D6 and T4, and mistakes for the sweep to find.

The mistakes, functions, are of the framework, not of a source: each takes a pytest `monkeypatch` and puts itself in place.
"""

import itertools
import threading

import attrs
import numpy as np

from framework.engine import task_run
from framework.engine.process_group import ProcessGroup
from framework.iggy.dead_letters.writer import IggyDeadLetters
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.batches import SkippedRecord
from framework.model.objects import TopicPartition
from framework.offsets.offset_store import PositionDelta
from framework.pipeline import keyed_reader, object_reader, transforming
from framework.pipeline.sender import Sender
from framework.testing.kit import crash
from tests.conformance.broken.rigs import WithTransformer, Wrapping


class SwallowsBadRecords(WithTransformer):
    """D6: a bad record is left out, and nobody hears of it."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, *arguments, **options):
            return self.good(super().read(*arguments, **options))

        def read_split(self, *arguments, **options):
            return self.good(super().read_split(*arguments, **options))

        @staticmethod
        def good(runs):
            bad = 0
            for run in runs:
                if isinstance(run, SkippedRecord):
                    bad += 1
                else:
                    yield attrs.evolve(run, first_record=run.first_record - bad, mark=None)


class SplitFromItsBeginning(WithTransformer):
    """T4: a split that was half read is read again from its first record, under the numbers of the rest."""

    class wrapping(Wrapping):  # noqa: N801
        def read_split(self, source, split, *, skip=0, mark=None, limits=None):
            for run in self.inner.read_split(source, split, limits=limits):
                yield attrs.evolve(run, first_record=run.first_record + skip, mark=None)


def split_elsewhere(monkeypatch):
    """The later batches of a split go to the next partition."""
    next_batch = StoreRecordIterator.next_batch

    def next_batch_elsewhere(self):
        batch = next_batch(self)
        if batch is not None and batch.entry.split_number and batch.first_record > 3:
            topic_partition = batch.topic_partition
            partition = (topic_partition.partition + 1) % self.config.iggy.partitions
            batch = attrs.evolve(batch, topic_partition=TopicPartition(topic_partition.topic, partition))
        return batch

    monkeypatch.setattr(StoreRecordIterator, "next_batch", next_batch_elsewhere)


def hands_out_before_it_begins(monkeypatch):
    """Workers get objects, and their positions begin in the log once something of them was sent."""
    sent = threading.Event()

    class Sends(Sender):
        def _confirm_first(self):
            super()._confirm_first()
            sent.set()

    class HandsOutFirst(ProcessGroup):
        def run(self, *arguments):
            offsets = self._session.offsets
            self.begin, offsets.store_begun = offsets.store_begun, lambda: None
            offsets.tracker._store_begun = offsets.store_begun
            self.given, take = False, offsets.table.take_begun
            offsets.table.take_begun = lambda: take() if self.given else PositionDelta()
            super().run(*arguments)

        def _assign(self, taken):
            sent.clear()
            super()._assign(taken)
            while self._failure is None and not sent.wait(0.01):
                pass
            self.given = True
            self.begin()
            self.given = False

    monkeypatch.setattr(crash, "ProcessGroup", HandsOutFirst)
    monkeypatch.setattr(task_run, "Sender", Sends)


def letters_behind_positions(monkeypatch):
    """A dead letter is stored when the position behind its record is saved."""

    class Late(Sender):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.late = []

        def _send_dead_letters(self, dead_letters):
            self.late += dead_letters

        def _flush(self, **options):
            super()._flush(**options)
            late, self.late = self.late, []
            super()._send_dead_letters(late)

    monkeypatch.setattr(crash, "Sender", Late)
    monkeypatch.setattr(task_run, "Sender", Late)


def changing(name, change):
    """A dead letter whose segment is changed so, given a number that is new in each process."""

    def put(monkeypatch):
        numbers, begin, segment = itertools.count(1), IggyDeadLetters.__init__, IggyDeadLetters._segment

        def init(self, *arguments, **options):
            begin(self, *arguments, **options)
            self.number = next(numbers)

        monkeypatch.setattr(IggyDeadLetters, "__init__", init)
        monkeypatch.setattr(
            IggyDeadLetters, "_segment", lambda self, dead_letter: change(segment(self, dead_letter), self.number)
        )

    put.__name__ = name
    return put


letters_under_new_ids = changing(
    "letters_under_new_ids", lambda segment, number: attrs.evolve(segment, id_high=segment.id_high ^ number)
)
"""The id of a dead letter depends on the process that stores it."""

letters_without_splits = changing("letters_without_splits", lambda segment, _: attrs.evolve(segment, split_number=0))
"""The id of a dead letter does not say in which split the record is."""


def numbers_anew(monkeypatch):
    """The records that a transform leaves are numbered one after the other."""
    real = transforming.TransformedRun.number_array

    def number_array(self):
        numbers = real(self)
        return np.arange(len(numbers)) + numbers[0] if len(numbers) else numbers

    monkeypatch.setattr(transforming.TransformedRun, "number_array", number_array)


def forgets_what_it_filtered(monkeypatch):
    """An object ends at its last record that was sent, whatever was filtered behind it."""
    real = object_reader.ObjectRead._transformed_batch

    def transformed_batch(self, run, entry, state):
        numbers = run.number_array()
        return real(
            self, attrs.evolve(run, last_record=int(numbers[-1]) if len(numbers) else entry.records_done), entry, state
        )

    monkeypatch.setattr(object_reader.ObjectRead, "_transformed_batch", transformed_batch)


def parts_drop_what_another_has(monkeypatch):
    """Of an object divided by key every part drops what the furthest has."""
    real = keyed_reader.KeyedRead.__init__

    def init(self, owner, assignments, source):
        real(self, owner, assignments, source)
        done = max(entry.records_done for entry in self._parts.values())
        self._parts = {number: entry.changed(records_done=done) for number, entry in self._parts.items()}

    monkeypatch.setattr(keyed_reader.KeyedRead, "__init__", init)


def reads_from_the_furthest_part(monkeypatch):
    """The read begins at the part that has come furthest."""
    monkeypatch.setattr(keyed_reader, "min", max, raising=False)


def bad_records_of_two_parts(monkeypatch):
    """Two parts send the dead letter of a bad record."""
    monkeypatch.setattr(
        keyed_reader.KeyedRead, "_skipped_of", lambda self, number, skipped: skipped if number <= 2 else ()
    )


def keys_of_another_partition(monkeypatch):
    """The partition follows from the number of the record."""
    real = keyed_reader.KeyedRead._batch

    def batch(self, run, state, failure=None):
        made = real(self, run, state, failure)
        if self._records.key_hashes is not None:
            hashes = np.asarray(made.record_numbers, dtype=np.uint32)
            self._records = attrs.evolve(self._records, key_hashes=hashes)
        return made

    monkeypatch.setattr(keyed_reader.KeyedRead, "_batch", batch)
