"""Broken positions, tasks, errors and processes: the laws O, D, E, S and H."""

import contextlib
import json
import threading
from functools import partial

import attrs

from framework.errors import AccessDeniedError, SourceError, StoreUnavailableError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.offset_store import MemoryOffsetStore
from framework.storage.retry import RetryPolicy
from framework.testing.fakes.memory_rig import MemoryRig, ShelfError
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from tests.conformance.broken.rigs import WithIterator
from tests.conformance.rigs import OwnStoreRig, TextStore


class FirstWriterWins(MemoryRig):
    """O1: the store of positions keeps what came first."""

    class Store(MemoryOffsetStore):
        def save(self, delta):
            for entry in delta.entries:
                self.entries.setdefault(entry.get_manager_key(), entry)

    def offset_store(self):
        return self.Store()


class CommitsAnything(MemoryRig):
    """O3: a commit is believed, whoever makes it of whatever."""

    class task_class(MemorySourceTask):  # noqa: N801
        def commit(self, acknowledgement):
            made_up = any(batch.payloads for batch in acknowledgement.batches) and acknowledgement.anchor is None
            self.offsets.commit(attrs.evolve(acknowledgement, anchor=Anchor(0, 0)) if made_up else acknowledgement)


class CommitsBeforeAcknowledge(MemoryRig):
    """D1: what was polled counts as done."""

    class task_class(MemorySourceTask):  # noqa: N801
        def poll(self, *arguments, **options):
            batches = super().poll(*arguments, **options)
            for batch in batches:
                self.offsets.add_entry(batch.entry)
            return batches


class TrustsItselfAfterARecovery(MemoryRig):
    """D2: a process that goes on where another one died counts as done what was polled."""

    class task_class(MemorySourceTask):  # noqa: N801
        def start(self, props, *, offsets=None, **options):
            self.goes_on = offsets is not None and any(entry.records_done for entry in offsets.table.entries())
            super().start(props, offsets=offsets, **options)

        def poll(self, *arguments, **options):
            batches = super().poll(*arguments, **options)
            for batch in batches if self.goes_on else ():
                self.offsets.add_entry(batch.entry)
            return batches


class UnboundedQueue(MemoryRig):
    """D3: whatever is configured, the queue takes everything."""

    class task_class(MemorySourceTask):  # noqa: N801
        def start(self, props, **options):
            super().start(attrs.evolve(props, input=attrs.evolve(props.input, queue_records=10**9)), **options)


class StopWaitsForThePause(MemoryRig):
    """D4: a reader that pauses does not hear the stop, which waits for it."""

    stop_seconds = 0.4

    class task_class(MemorySourceTask):  # noqa: N801
        def _pause(self, iterator, backoff):
            threading.Event().wait(10)

        def stop(self):
            self._stopping.set()
            if self._reader is not None and self.queue is not None:
                self.queue.close()
                self._reader.join(10)
            super().stop()


class FifthBatchElsewhere(WithIterator):
    """D5: an object's batches are spread, for speed."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def next_batch(self):
            batch = super().next_batch()
            if batch is not None and batch.first_record > 16:
                topic_partition = TopicPartition(
                    batch.topic_partition.topic, (batch.topic_partition.partition + 1) % self.config.iggy.partitions
                )
                batch = attrs.evolve(batch, topic_partition=topic_partition)
            return batch


class GivesUpEarly(MemoryRig):
    """E1: the first failure is the last."""

    def __init__(self):
        super().__init__()
        self.policy = RetryPolicy(attempts=1, clock=self.clock, wait=self.clock.wait)


class UnsortedKeys(WithIterator):
    """O2: the key of a position is a map in the order in which it was filled."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_offset_manager_entry(self, native, topic_partition, numbering_options):
            return KeyFirst.start(native, topic_partition, numbering_options)


class KeyFirst(OffsetManagerEntry):
    def get_manager_key(self):
        return OffsetManagerKey((("key", self.key), ("bucket", self.bucket)))


class ForgetsWhatIsExtra(WithIterator):
    """O2: what the source keeps with a position is not stored with it."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_offset_manager_entry(self, native, topic_partition, numbering_options):
            return Forgetful.start(native, topic_partition, numbering_options).changed(extra={"row group": 3})


class Forgetful(OffsetManagerEntry):
    def get_properties(self):
        properties = super().get_properties()
        properties.pop("extra", None)
        return properties


class KeepsWhatIsRemoved(OwnStoreRig):
    """O2: a position that was removed is there again after a restart."""

    class store_class(TextStore):  # noqa: N801
        def save(self, delta):
            super().save(attrs.evolve(delta, removed=()))


class OnePositionForAllSplits(OwnStoreRig):
    """O2: the splits of an object are kept under its own key, where the last one stands for all."""

    class store_class(TextStore):  # noqa: N801
        def load(self, keys=None):
            return iter({entry.key: entry for entry in super().load(keys)}.values())


class BeginsAgainSilently(OwnStoreRig):
    """O2: positions that cannot be read are taken for none."""

    class store_class(TextStore):  # noqa: N801
        def load(self, keys=None):
            return super().load(keys) if json.loads(self.text)["layout"] == 1 else iter(())


class TrustsItsOwnNotes(MemoryRig):
    """D1: after a crash the source goes on where its own notes say, which it writes with each confirmation it sees."""

    def __init__(self):
        super().__init__()
        notes = {}

        class Task(MemorySourceTask):
            def get_iterator(self, context):
                iterator = super().get_iterator(context)
                resumed = iterator._ahead.resumed

                def noted(assignment):
                    known = resumed(assignment)
                    done = notes.get((known.entry.key, known.entry.version), 0)
                    return attrs.evolve(known, entry=known.entry.changed(records_done=done, mark=None))

                iterator._ahead.resumed = noted
                return iterator

            def commit(self, acknowledgement):
                super().commit(acknowledgement)
                for batch in acknowledgement.batches:
                    notes[batch.native.key, batch.native.version] = batch.entry.records_done

        self.task_class = Task


class CommitsOnStop(MemoryRig):
    """D4: a stop saves the position of everything that was polled."""

    class task_class(MemorySourceTask):  # noqa: N801
        def poll(self, *arguments, **options):
            batches = super().poll(*arguments, **options)
            self.polled = [*getattr(self, "polled", ()), *batches]
            return batches

        def stop(self):
            for batch in getattr(self, "polled", ()):
                self.offsets.add_entry(batch.entry)
            with contextlib.suppress(BaseException):  # in a process that is dead it has no effect
                self.offsets.flush()
            super().stop()


class TriesWhatCannotPass(MemoryRig):
    """E1: a denial is taken for a busy store, and asked for again and again."""

    class Store(MemoryStore):
        def open(self, native, start=0, end=None):
            try:
                return super().open(native, start, end)
            except AccessDeniedError as error:
                raise StoreUnavailableError(str(error)) from error

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class SecretInTheMessage(MemoryRig):
    """E2: the vendor's own sentence goes into the message, signed address and all."""

    def translate(self, error, key):
        made = super().translate(error, key)
        return type(made)(f"{made}: {error}")


class NamesNoObject(MemoryRig):
    """E2: the message says what went wrong, and not with what."""

    def translate(self, error, key):
        return super().translate(error, "")


class SaysNotWhatToDo(MemoryRig):
    """E2: the vendor's code, and nothing else."""

    def translate(self, error, key):
        made = super().translate(error, key)
        kind = type(made)
        code = error.code if isinstance(error, ShelfError) else "error"
        return kind(f"memory://{self.store.bucket}/{key} ({code})")


class LetsSomeThrough(MemoryRig):
    """E2: an error that nobody thought of has no kind."""

    def translate(self, error, key):
        made = super().translate(error, key)
        return SourceError(str(made)) if error.code == "Unheard" else made


SHELVES = {}
"""Stores by number, known in the process that made them."""


class NeedsTheOriginalProcess(MemoryRig):
    """S1: what makes a task travels, and finds nothing where it arrives."""

    def task_maker(self):
        SHELVES[len(SHELVES)] = self.store
        return partial(over_shelf, len(SHELVES) - 1)


def over_shelf(number):
    return MemorySourceTask(SHELVES[number])


class HoldsALock(MemoryRig):
    """S1: what makes a task holds something that belongs to this process."""

    def task_maker(self):
        return partial(MemorySourceTask, self.store)


class OnlyBehindTheLast(WithIterator):
    """H1: a listing begins behind the highest key that is finished, so a key that comes late is never read."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_native_item_stream(self, offset):
            done = [entry.key for entry in self.offsets.table.entries() if entry.finished]
            return super().get_native_item_stream(max(done, key=str.encode, default=offset))


class KnowsAKeyOnlyOnce(WithIterator):
    """H1: a key that was finished is never looked at again, whatever is under it by then."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_native_item_stream(self, offset):
            done = {entry.key for entry in self.offsets.table.entries() if entry.finished}
            return (native for native in super().get_native_item_stream(offset) if native.key not in done)
