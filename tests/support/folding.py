"""A bucket with a clock, and a leader that lists, sends and folds by hand: for tests of the watermark."""

import attrs

from framework.engine.session import Session
from framework.records import Acknowledgement, ObjectState, RecordBatch
from framework.store import ListPage
from framework.testing.memory import MemoryStore
from framework.testing.memory_iggy import MemoryIggy
from framework.testing.memory_source import MemorySourceTask
from framework.testing.options import source_config

BEGIN_MS = 1_800_000_000_000
RECORDS = 2


class ClockStore(MemoryStore):
    """A store that tells its time, as S3 does: answers and last-modified in whole seconds.

    `order` gives the place of a key.
    """

    def __init__(self, *, documented=True, order=str.encode, step_ms=1000):
        super().__init__()
        self.order_is_documented = documented
        self.order = order
        self.step_ms = step_ms
        self.now_ms = BEGIN_MS

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        border = after if continuation is None else continuation
        everything = super().list_page(page_size=10**9).objects
        chosen = sorted((one for one in everything if one.key.startswith(prefix)), key=lambda one: self.order(one.key))
        chosen = [one for one in chosen if not border or self.order(one.key) > self.order(border)]
        more = chosen[page_size - 1].key if len(chosen) > page_size else None
        told = self.now_ms // 1000 * 1000
        return ListPage(objects=chosen[:page_size], continuation=more, server_time_ms=told)

    def put_now(self, key, *, late_ms=0):
        """An upload that ends now and began so long ago."""
        when = (self.now_ms - late_ms) // self.step_ms * self.step_ms
        return self.put(key, b"x", modified_ms=when)


class Leader:
    """A process that is killed and started again over one Iggy and one bucket; every object has `RECORDS` records."""

    def __init__(self, store, *, window="forever", prefixes=("",), page_size=3, **options):
        self.server = MemoryIggy()
        self.store = store
        self.prefixes = prefixes
        self.page_size = page_size
        self.options = {"partitions": 2, "list_concurrency": 1, "late_arrival_window": window, **options}
        self.config = source_config(**self.options)
        self.session = None
        self.start()

    def start(self):
        if self.session is not None:
            self.iterator.close()
            self.session.close()
        task = MemorySourceTask(self.store, page_size=self.page_size, prefixes=self.prefixes)
        self.session = Session(self.server.connect(), self.config)
        task.config, task.offsets = self.config, self.session.offsets
        self.iterator = task.get_iterator(task.backoff_config)
        self.producer = self.session.producer()
        self.in_hand = []

    @property
    def feed(self):
        return self.iterator.feed

    @property
    def offsets(self):
        return self.session.offsets

    def take(self):
        """One more object of the pass under way; None at its end. Begins one when there is none."""
        self.feed._due = 0
        assignment = self.feed.take()
        if assignment is not None:
            self.in_hand.append(assignment)
        return assignment

    def send(self, at):
        """The next record of one of the objects in hand; with its last one it is done."""
        at %= len(self.in_hand)
        assignment = self.in_hand[at]
        native, entry = assignment.native, assignment.entry
        first = entry.records_done + 1
        payloads = (
            (f"{native.key}@{native.version}#{first}".encode(),) if first <= RECORDS else ()
        )  # else it is its end
        state = ObjectState.DONE if first >= RECORDS else ObjectState.READING
        entry = attrs.evolve(entry, records_done=min(first, RECORDS), state=state)
        batch = RecordBatch(
            native=native, lane=entry.lane, first_record=first, payloads=payloads, size_bytes=1, entry=entry
        )
        self.session.lanes.open_lane(entry.lane)
        if payloads:
            self.offsets.commit(self.producer.send(entry.lane, [batch]).result())
        else:
            self.offsets.commit(Acknowledgement(lane=entry.lane, batches=(batch,), anchor=None))
        if state is ObjectState.DONE:
            del self.in_hand[at]
        else:
            self.in_hand[at] = attrs.evolve(assignment, entry=entry)

    def give_back(self, at):
        self.feed.release(self.in_hand.pop(at % len(self.in_hand)))

    def save(self):
        if self.offsets.dirty:
            self.session.saved(self.offsets.flush())

    def fold(self):
        """A snapshot now, whatever is due."""
        self.save()
        positions, closing = self.session._state()
        self.session.log.append_snapshot(self.session.recovered.epoch, positions, closing)

    def finish_all(self):
        while self.in_hand:
            self.send(0)

    def whole_pass(self):
        """The rest of the pass under way, or a new one; everything is sent."""
        while self.take() is not None:
            self.finish_all()

    def quiet(self):
        """Passes until nothing is left to do."""
        self.finish_all()
        self.whole_pass()
        for _ in range(3):
            self.whole_pass()

    def stored(self):
        """Every payload in the data topic."""
        info = self.server.topic_info("kit", "records")
        return [m.payload.decode() for part in info.partitions for m in self.server.messages("kit", "records", part.id)]


def wanted(store):
    """What has to be there of what is in the bucket now."""
    natives = MemoryStore.list_page(store, page_size=10**9).objects
    return {f"{one.key}@{one.version}#{number}" for one in natives for number in range(1, RECORDS + 1)}
