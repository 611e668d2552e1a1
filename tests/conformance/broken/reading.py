"""Broken iterators and formats: the laws I1 to I7 and T1 to T4."""

import attrs

from framework.errors import SourceError, TruncatedObjectError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.batches import SkippedRecord
from framework.model.splits import Split
from framework.testing.fakes.memory_rig import MemoryRig
from framework.testing.fakes.memory_store import FIRST_TIME_MS, MemoryStore
from framework.testing.rig import Capability
from framework.transformer import PayloadBatch, ReadStream
from tests.conformance.broken.rigs import WithIterator, WithTransformer, Wrapping
from transformers import BytesInput


class OneDoneIsNotBegun(WithIterator):
    """I1: one record done is taken for none, so the first record comes again."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            resumed = self._ahead.resumed

            def again(assignment):
                known = resumed(assignment)
                if known.entry.records_done != 1:
                    return known
                return attrs.evolve(known, entry=known.entry.changed(records_done=0, mark=None))

            self._ahead.resumed = again


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


class LossyText(WithTransformer):
    """T1: text goes through a narrower character set."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, source, **arguments):
            for run in super().read(source, **arguments):
                if isinstance(run, PayloadBatch):
                    run = attrs.evolve(  # noqa: PLW2901
                        run,
                        payloads=[
                            one.decode().encode("latin-1", "replace").decode("latin-1").encode() for one in run.payloads
                        ],
                    )
                yield run


class CountsRecordsForBytes(WithTransformer):
    """T1: a batch says how many records it has in place of their bytes, so that no bound of bytes holds."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, source, **arguments):
            for run in super().read(source, **arguments):
                yield attrs.evolve(run, size_bytes=len(run.payloads)) if isinstance(run, PayloadBatch) else run


class SwallowsTheEnd(WithTransformer):
    """T2: an object that ends too early is logged and taken for finished."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, source, **arguments):
            try:
                yield from super().read(source, **arguments)
            except TruncatedObjectError:
                return


class SkipCountsBlankLines(WithTransformer):
    """T3: skipping counts the lines of the object, blank ones too."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, source, *, skip=0, mark=None, limits=None):
            if not skip:
                yield from super().read(source, limits=limits)
                return
            stream = source.open()
            data = bytearray()
            while piece := stream.read(1 << 16):
                data += piece
            stream.close()
            lines = data.split(b"\n")
            wanted = sum(bool(line.strip()) for line in lines[:skip])
            yield from super().read(source, skip=wanted, limits=limits)


class SkipForgetsBadRecords(WithTransformer):
    """T3: skipping does not count bad records, so good ones behind them are lost."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, source, *, skip=0, mark=None, limits=None):
            left, number = skip, skip
            for run in super().read(source, limits=limits):
                if isinstance(run, SkippedRecord):
                    if not left:
                        number += 1
                        yield attrs.evolve(run, record_number=number)
                    continue
                payloads = [bytes(payload) for payload in run.payloads]
                left, payloads = max(0, left - len(payloads)), payloads[left:]
                if payloads:
                    size = sum(map(len, payloads))
                    yield PayloadBatch(first_record=number + 1, payloads=payloads, size_bytes=size)
                    number += len(payloads)


class TakesTheNextSharesLine(WithTransformer):
    """T4: a line that begins exactly where the next share does is taken by both."""

    class wrapping(Wrapping):  # noqa: N801
        def read_split(self, source, split, **arguments):
            yield from super().read_split(source, GreedySplit(split.number, split.split_size), **arguments)


class GreedySplit(Split):
    @property
    def end(self):
        return super().end + 1


class ResumeSkipsOne(WithIterator):
    """I1: a count is taken for the index of the last record, and the one after it is left out."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            resumed = self._ahead.resumed

            def behind(assignment):
                known = resumed(assignment)
                if not known.entry.records_done:
                    return known
                done = known.entry.records_done + 1
                return attrs.evolve(known, entry=known.entry.changed(records_done=done, mark=None))

            self._ahead.resumed = behind


class MarkBehindABadRecord(WithTransformer):
    """I1: the mark of a batch that a bad record ends is behind that record, which it does not count."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, source, **arguments):
            before = None
            for run in super().read(source, **arguments):
                if before is not None:
                    bad = isinstance(run, SkippedRecord) and before.mark is not None
                    yield (
                        attrs.evolve(before, mark=attrs.evolve(before.mark, byte=before.mark.byte + run.length + 1))
                        if bad
                        else before
                    )
                before = None if isinstance(run, SkippedRecord) else run
                if before is None:
                    yield run
            if before is not None:
                yield before


class SharesItsPlace(WithIterator):
    """I4: how far the listing is stands in the class, so that two of them move one place."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        place = 0

        def get_native_item_stream(self, offset):
            natives = list(super().get_native_item_stream(offset))
            kind = type(self)
            kind.place = 0
            while kind.place < len(natives):
                kind.place += 1
                yield natives[kind.place - 1]


class ClosesEverybodys(WithIterator):
    """I4: closing one iterator closes the store that others read from."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        alive = 0

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            type(self).alive += 1

        def close(self):
            if not self._closed:
                type(self).alive -= 1
                if type(self).alive:
                    self.store.close()
            super().close()


class ClosesNothing(MemoryRig):
    """I5: a stream that is closed stays open."""

    class Store(MemoryStore):
        def stream_closed(self):
            """Nobody knows."""

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class ClosesOnlyOnce(MemoryRig):
    """I5: a store forgets its session when it is closed, and looks for it when it is closed again."""

    class Store(MemoryStore):
        def close(self):
            super().close()
            del self.session

    def __init__(self):
        super().__init__()
        self.store = self.Store()
        self.store.session = "its own"


class OpenAfterErrors(WithIterator):
    """I5: a stream is closed when it was read to its end, and forgotten when the reading fails."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def get_input_stream(self, native):
            source = super().get_input_stream(native)
            opened = source.open
            source.open = lambda start=0, end=None: ClosedAtItsEnd(opened(start, end))
            return source


class ClosedAtItsEnd(ReadStream):
    def __init__(self, inner):
        self.inner = inner
        self.over = False

    def read(self, size, /):
        data = self.inner.read(size)
        self.over = self.over or not data
        return data

    def close(self):
        if self.over:
            self.inner.close()


class QuietAfterClose(WithIterator):
    """I5: who reads on after a close is told that there is nothing more."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def next_batch(self):
            return None if self._closed else super().next_batch()

        def __next__(self):
            if self._closed:
                raise StopIteration
            return super().__next__()


class IgnoresTheVersion(MemoryRig):
    """I6: what is read is whatever lies under the key by now."""

    class Store(MemoryStore):
        def open(self, native, start=0, end=None):
            now = self.stat(native.key)
            return super().open(attrs.evolve(native, version=now.version), start, end)

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class IgnoresTheEnd(MemoryRig):
    """I7: a stream gives all that is behind its start."""

    capabilities = MemoryRig.capabilities - {Capability.SPLITS}

    class Store(MemoryStore):
        def open(self, native, start=0, end=None):
            return super().open(native, start)

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class EndIsInclusive(IgnoresTheEnd):
    """I7: the end is that of an HTTP range, one byte too many."""

    class Store(MemoryStore):
        def open(self, native, start=0, end=None):
            return super().open(native, start, None if end is None else end + 1)


class ReadsMoreThanAsked(MemoryRig):
    """I7: a read gives all there is, however little was asked for."""

    class Store(MemoryStore):
        def open(self, native, start=0, end=None):
            stream = super().open(native, start, end)
            whole = stream.read
            stream.read = lambda size: whole(1 << 30)
            return stream

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class TimesGoBack(MemoryRig):
    """I6: an object that was overwritten is listed as older than before."""

    class Store(MemoryStore):
        def put(self, key, data, **arguments):
            return super().put(key, data, modified_ms=FIRST_TIME_MS - 1000 * self._changes)

    def __init__(self):
        super().__init__()
        self.store = self.Store()


class PositionsOutliveVersions(WithIterator):
    """I6: a position is one of a key, so that it goes on inside new content."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_feed(self):
            feed, offsets = super().create_feed(), self.offsets
            get_entry, listed = offsets.get_entry, offsets.table.listed

            def any_version(key):
                return of_listed(get_entry(key), key)

            def listed_any_version(key, version):
                final, entry = listed(key, version)
                return final, of_listed(entry, key)

            def of_listed(entry, key):
                native = self.listed.get(key)
                return entry if entry is None or native is None else entry.changed(version=native.version)

            offsets.get_entry, offsets.table.listed = any_version, listed_any_version
            return feed

        def get_native_item_stream(self, offset):
            self.listed = {}
            for native in super().get_native_item_stream(offset):
                self.listed[self.get_native_key(native)] = native
                yield native


class ForgetsWhatFailed(WithIterator):
    """I6: an object that could not be read as it was listed is left out until the next start."""

    class iterator_class(StoreRecordIterator):  # noqa: N801
        def create_feed(self):
            feed = super().create_feed()
            feed.release = lambda assignment, *, gone=False: None
            return feed


class FinishedOnAReadError(WithTransformer):
    """T2: any error while reading is logged, and the object counts as finished."""

    class wrapping(Wrapping):  # noqa: N801
        def read(self, source, **arguments):
            try:
                yield from super().read(source, **arguments)
            except SourceError:
                return
