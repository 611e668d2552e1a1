"""The museum: for each law a source that breaks it, and nothing else that is near.

Each is the reference with one mistake that was really made somewhere: in another project, or here while this was built.
"""

import threading

import attrs

from framework.errors import TruncatedObjectError
from framework.feed import Assignment, ListingFeed
from framework.offsets import MemoryOffsetStore
from framework.records import Lane
from framework.retry import RetryPolicy
from framework.shares import Share
from framework.store import ListPage
from framework.store_iterator import StoreRecordIterator
from framework.testing.memory import MemoryStore
from framework.testing.memory_source import MemorySourceTask
from framework.testing.rig import SourceRig
from framework.transformer import PayloadRun, Transformer
from tests.conformance.rigs import MemoryRig
from transformers import BytesInput


class WithIterator(MemoryRig):
    """A rig whose task uses another iterator."""

    iterator_class = StoreRecordIterator

    def __init__(self):
        super().__init__()
        self.task_class = type("Task", (MemorySourceTask,), {"iterator_class": self.iterator_class})


class FirstPageOnly(MemoryRig):
    """L1: a listing from the start asks for the first page and never follows it."""

    class Store(MemoryStore):
        def list_page(self, **arguments):
            page = super().list_page(**arguments)
            return page if arguments.get("after") else ListPage(objects=page.objects)

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class GreaterOrEqual(WithIterator):
    """L2: a listing after k shows k again."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_native_item_stream(self, offset):
            for native in super().get_native_item_stream(None):
                if offset is None or native.key.encode() >= offset.encode():
                    yield native


class LaneByPlaceInListing(WithIterator):
    """L6: the lanes are dealt out in the order of the listing, so an object changes lanes when another one goes."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_feed(self):
            feed = super().create_feed()
            selection, partitions = feed._selection, self.config.iggy.partitions

            class Dealing:
                def begin_pass(self):
                    self.dealt = -1
                    selection.begin_pass()

                def lane_for(self, native, *, started=False):
                    lane = selection.lane_for(native, started=started)
                    self.dealt += 1
                    return None if lane is None else Lane(lane.topic, self.dealt % partitions)

                def left_out(self):
                    return selection.left_out()

            feed._selection = Dealing()
            return feed


class OneDoneIsNotBegun(WithIterator):
    """I1: one record done is taken for none, so the first record comes again."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_feed(self):
            feed = super().create_feed()
            take = feed.take

            def forgetful():
                assignment = take()
                if assignment is None or assignment.entry.records_done != 1:
                    return assignment
                return Assignment(
                    native=assignment.native, entry=attrs.evolve(assignment.entry, records_done=0, mark=None)
                )

            feed.take = forgetful
            assert isinstance(feed, ListingFeed)
            return feed


class ReprReads(WithIterator):
    """I2: to describe itself the iterator looks at its next record, and drops it."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def __repr__(self):
            next(self, None)
            return "an iterator"


class ReadsWholeObjects(WithIterator):
    """I3: an object is read as a whole before its first record is given."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_input_stream(self, native):
            source = super().get_input_stream(native)
            opened = source.open

            def whole(start=0, end=None):
                stream = opened(start, end)
                data = bytearray()
                while piece := stream.read(1 << 20):
                    data += piece
                stream.close()
                return BytesInput(bytes(data), native.key).open()

            source.open = whole
            return source


class Wrapping(Transformer):
    """A format around another one."""

    name = "wrapping"

    def __init__(self, inner):
        self.inner = inner

    def depends_on(self):
        return self.inner.depends_on()

    def runs(self, source, *, skip=0, mark=None, limits=None):
        yield from self.inner.runs(source, skip=skip, mark=mark, limits=limits)

    def can_split(self, key):
        return self.inner.can_split(key)

    def share_runs(self, source, share, *, skip=0, mark=None, limits=None):
        yield from self.inner.share_runs(source, share, skip=skip, mark=mark, limits=limits)


class WithTransformer(MemoryRig):
    """A rig whose task uses another format."""

    wrapping = Wrapping

    def __init__(self):
        super().__init__()
        wrapping = self.wrapping

        class Task(MemorySourceTask):
            def make_transformer(self):
                return wrapping(super().make_transformer())

        self.task_class = Task


class LossyText(WithTransformer):
    """T1: text goes through a narrower character set."""

    class wrapping(Wrapping):  # noqa: N801
        def runs(self, source, **arguments):
            for run in super().runs(source, **arguments):
                if isinstance(run, PayloadRun):
                    run = attrs.evolve(  # noqa: PLW2901
                        run,
                        payloads=[
                            one.decode().encode("latin-1", "replace").decode("latin-1").encode() for one in run.payloads
                        ],
                    )
                yield run


class SwallowsTheEnd(WithTransformer):
    """T2: an object that ends too early is logged and taken for finished."""

    class wrapping(Wrapping):  # noqa: N801
        def runs(self, source, **arguments):
            try:
                yield from super().runs(source, **arguments)
            except TruncatedObjectError:
                return


class SkipCountsBlankLines(WithTransformer):
    """T3: skipping counts the lines of the object, blank ones too."""

    class wrapping(Wrapping):  # noqa: N801
        def runs(self, source, *, skip=0, mark=None, limits=None):
            if not skip:
                yield from super().runs(source, limits=limits)
                return
            stream = source.open()
            data = bytearray()
            while piece := stream.read(1 << 16):
                data += piece
            stream.close()
            lines = data.split(b"\n")
            wanted = sum(bool(line.strip()) for line in lines[:skip])
            yield from super().runs(source, skip=wanted, limits=limits)


class TakesTheNextSharesLine(WithTransformer):
    """T4: a line that begins exactly where the next share does is taken by both."""

    class wrapping(Wrapping):  # noqa: N801
        def share_runs(self, source, share, **arguments):
            yield from super().share_runs(source, GreedyShare(share.number, share.split_size), **arguments)


class GreedyShare(Share):
    @property
    def end(self):
        return super().end + 1


class LastWriterWins(MemoryRig):
    """O1: the store of positions keeps what came last."""

    class Store(MemoryOffsetStore):
        def save(self, delta):
            for entry in delta.entries:
                self.entries[entry.get_manager_key()] = entry

    def offset_store(self):
        return self.Store()


class CommitsAnything(MemoryRig):
    """O3: a commit is believed, whoever makes it of whatever."""

    class task_class(MemorySourceTask):  # noqa: N801
        def commit(self, acknowledgement):
            for batch in acknowledgement.batches:
                self.offsets.add_entry(batch.entry)
            if acknowledgement.anchor is not None:
                self.offsets.set_anchor(acknowledgement.lane, acknowledgement.anchor, save=True)


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
            self.goes_on = offsets is not None and any(entry.records_done for entry in offsets.entries())
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
            threading.Event().wait(1.2)

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
                lane = Lane(batch.lane.topic, (batch.lane.partition + 1) % self.config.iggy.partitions)
                batch = attrs.evolve(batch, lane=lane)
            return batch


class GivesUpEarly(MemoryRig):
    """E1: the first failure is the last."""

    def __init__(self):
        super().__init__()
        self.policy = RetryPolicy(attempts=1, clock=self.clock, wait=self.clock.wait)


EXHIBITS: dict[type[SourceRig], str] = {
    FirstPageOnly: "L1",
    GreaterOrEqual: "L2",
    LaneByPlaceInListing: "L6",
    OneDoneIsNotBegun: "I1",
    ReprReads: "I2",
    ReadsWholeObjects: "I3",
    LossyText: "T1",
    SwallowsTheEnd: "T2",
    SkipCountsBlankLines: "T3",
    TakesTheNextSharesLine: "T4",
    LastWriterWins: "O1",
    CommitsAnything: "O3",
    CommitsBeforeAcknowledge: "D1",
    TrustsItselfAfterARecovery: "D2",
    UnboundedQueue: "D3",
    StopWaitsForThePause: "D4",
    FifthBatchElsewhere: "D5",
    GivesUpEarly: "E1",
}
"""Exhibit -> the law that it breaks."""

NO_LESS = {
    "T3": {"I1", "D1", "D2"},  # who skips wrongly resumes wrongly
    "D1": {"D2"},  # two crashes hold one
}
"""Law -> the laws that cannot hold where it is broken."""
