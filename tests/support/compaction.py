"""A bucket with a clock, and a leader that lists, sends and compacts by hand: for tests of the watermark."""

import attrs

from framework.engine.session import Session
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import ObjectState
from framework.store import ListPage
from framework.task import SourceContext
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config

BEGIN_MS = 1_700_000_000_000
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

    def __init__(self, store, *, window="forever", prefixes=("",), page_size=3, hold_back=1, **options):
        self.server = MemoryIggy()
        self.store = store
        self.prefixes = prefixes
        self.page_size = page_size
        self.hold_back = hold_back
        self.options = {"partitions": 2, "list_concurrency": 1, "allowed_lateness": window, **options}
        self.config = source_config(**self.options)
        self.session = None
        self.start()

    def start(self):
        if self.session is not None:
            self.iterator.close()
            self.session.close()
        task = MemorySourceTask(self.store, page_size=self.page_size, prefixes=self.prefixes)
        self.make_forgetful()
        self.session = Session.begin(self.server.connect(), self.config)
        self.session.open_partitions()
        self.iterator = task.get_iterator(SourceContext(config=self.config, offsets=self.session.offsets))
        self.producer = self.session.producer()
        self.in_flight = []

    def make_forgetful(self):
        """The server may forget the last `hold_back - 1` messages of a partition when it is killed."""
        if self.hold_back > 1:
            if self.server.topic_info("kit", "records") is None:
                self.server.make_stream("kit")
                self.server.make_topic("kit", "records", self.options["partitions"])
                self.on_disk = [0] * self.options["partitions"]
            self.server.set_option("kit", "records", "messages_required_to_save", self.hold_back)

    def lose(self, number):
        """The server is killed, and with it the source. Of what it began with it loses nothing: that is on disk."""
        for partition, on_disk in enumerate(self.on_disk):
            held = len(self.server.messages("kit", "records", partition))
            lost = min(self.hold_back - 1, number, held - on_disk)
            self.server.lose_tail("kit", "records", partition, lost)
            self.on_disk[partition] = held - lost
        self.start()

    @property
    def feed(self):
        return self.iterator.feed

    @property
    def offsets(self):
        return self.session.offsets

    @property
    def watermark(self):
        return self.session.offsets.table.watermark

    def take(self):
        """One more object of the listing under way; None at its end. Begins one when there is none."""
        self.feed._due = 0
        assignment = self.feed.take()
        if assignment is not None:
            self.in_flight.append(assignment)
        return assignment

    def send(self, at, *, failed=False):
        """The next record of one of the objects in hand; with its last one it is done."""
        at %= len(self.in_flight)
        assignment = self.in_flight[at]
        native, entry = assignment.native, assignment.entry
        first = entry.records_done + 1
        payloads = (f"{native.key}@{native.version}#{first}".encode(),) if first <= RECORDS and not failed else ()
        over = failed or first >= RECORDS
        state = ObjectState.FAILED if failed else ObjectState.DONE if over else ObjectState.READING
        entry = entry.advanced(entry.records_done + len(payloads), state=state)
        batch = RecordBatch(
            native=native,
            topic_partition=entry.topic_partition,
            first_record=first,
            payloads=payloads,
            size_bytes=1,
            entry=entry,
        )
        self.session.partitions.open_one(entry.topic_partition)
        self.offsets.store_begun()
        if payloads:
            self.offsets.commit(self.producer.send(entry.topic_partition, [batch]).result())
        else:
            self.offsets.commit(Acknowledgement(topic_partition=entry.topic_partition, batches=(batch,), anchor=None))
        if over:
            del self.in_flight[at]
        else:
            self.in_flight[at] = attrs.evolve(assignment, entry=entry)

    def give_back(self, at, **how):
        self.feed.release(self.in_flight.pop(at % len(self.in_flight)), **how)

    def save(self):
        self.session.save()

    def compact(self):
        """A snapshot now, whatever is due."""
        self.save()
        self.session.write_snapshot()

    def finish_all(self):
        while self.in_flight:
            self.send(0)

    def whole_listing(self):
        """The rest of the listing under way, or a new one; everything is sent."""
        while self.take() is not None:
            self.finish_all()

    def quiet(self):
        """Listings until nothing is left to do."""
        self.finish_all()
        for _ in range(4):
            self.whole_listing()

    def stored(self):
        """Every payload in the data topic."""
        info = self.server.topic_info("kit", "records")
        return [m.payload.decode() for part in info.partitions for m in self.server.messages("kit", "records", part.id)]


def wanted(store):
    """What has to be there of what is in the bucket now."""
    natives = MemoryStore.list_page(store, page_size=10**9).objects
    return {f"{one.key}@{one.version}#{number}" for one in natives for number in range(1, RECORDS + 1)}
