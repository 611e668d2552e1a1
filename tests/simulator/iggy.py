"""An Iggy server: partitions that may forget their unsaved tails, clients that it lists until it notices their end.

What was measured of the real one and counts here: a killed server loses at most the last `messages_required_to_save` - 1 messages
of a partition; a request of a dead client may still be stored until that client is out of the list; a silent client stays there
unless it is a member of a consumer group, then for a minute; client numbers begin again after a restart; a purge keeps the topic's
number, and offsets begin again at 0; consumer groups survive whatever happens but the end of their topic.
"""

from collections import deque

from tests.simulator.runtime import EPOCH

EVICTION_SECONDS = 61.0

LATE_SECONDS = 0.2
"""A request that takes longer to arrive is late."""


class NoConnectionError(Exception):
    """Nobody answers."""


class BrokenError(Exception):
    """The connection broke; `unknown`: while a request was under way."""

    def __init__(self, text, *, unknown):
        super().__init__(text)
        self.unknown = unknown


class RefusedError(Exception):
    """The server's answer is an error."""


class Message:
    __slots__ = ("headers", "id", "offset", "origin_us", "payload", "serial", "timestamp_us", "writer")

    def __init__(self, serial, offset, message_id, payload, headers, timestamp_us, origin_us, writer):
        self.serial, self.offset, self.id, self.payload = serial, offset, message_id, payload
        self.headers, self.timestamp_us, self.origin_us, self.writer = headers, timestamp_us, origin_us, writer


class Partition:
    def __init__(self):
        self.messages = []
        self.end = 0
        self.saved_end = 0
        self.expired = []


class Topic:
    def __init__(self, number, name, created_at, partitions, options):
        self.number, self.name, self.created_at, self.options = number, name, created_at, options
        self.partitions = [Partition() for _ in range(partitions)]
        self.segment_bytes = options.get("segment_size")
        self.groups = set()

    @property
    def required_to_save(self):
        return self.options["messages_required_to_save"]

    def segments(self, part):
        """Messages in each segment; the last one is being written."""
        if not self.segment_bytes:
            return [len(part.messages)]
        counts, size = [0], 0
        for message in part.messages:
            if size >= self.segment_bytes:
                counts.append(0)
                size = 0
            counts[-1] += 1
            size += len(message.payload)
        return counts


class Request:
    """What a client asks for. Whoever asks says what becomes of it: `answer(result)`, `fail(error)`."""

    __slots__ = ("op", "stored", "what")

    def __init__(self, what, op):
        self.what, self.op, self.stored = what, op, False


class Link:
    """One client's connection: requests go out one by one, in order."""

    def __init__(self, server, process, number, address):
        self.server, self.process, self.number, self.address = server, process, number, address
        self.queue = deque()
        self.under_way = None
        self.listed = True  # the server has it in its list
        self.over = None  # why the client can use it no more
        self.groups = set()
        self.silent = False  # its host has no power: nobody tells the server
        self.since = self.heard_at = server.world.now
        self.on_end = None

    # ---- the client's side

    def submit(self, request):
        if self.over is not None:
            request.fail(BrokenError(self.over, unknown=False))
            return
        self.queue.append(request)
        self._next()

    def close(self):
        """The client is done with it, or dead: what is under way may still be stored until the server notices."""
        if self.silent:
            return
        self._end("it was closed", quietly=True)
        self.server.world.at(self.server.notice(), self.server_notices)

    def cut(self, text="the connection broke", *, silently=False):
        """The connection breaks for the client; `silently`: the server goes on listing it for long."""
        self._end(text)
        if not silently:
            self.server.world.at(self.server.notice(), self.server_notices)
        else:
            self.server.world.at(EVICTION_SECONDS if self.groups else 900.0, self.server_notices)

    def server_notices(self):
        self.listed = False
        self.server.clients.pop(self.number, None) if self.server.clients.get(self.number) is self else None

    def _end(self, text, *, quietly=False):
        if self.over is not None:
            return
        self.over = text
        failed, self.queue = list(self.queue), deque()
        under_way, self.under_way = self.under_way, None
        if quietly and not self.process.alive:
            return
        self.process.extra["unanswered"] = under_way is not None
        if under_way is not None:
            under_way.fail(BrokenError(text, unknown=True))
        for request in failed:
            request.fail(BrokenError(text, unknown=False))
        if self.on_end is not None:
            self.on_end()

    def _next(self):
        if self.under_way is not None or not self.queue or self.over is not None:
            return
        request = self.under_way = self.queue.popleft()
        server = self.server
        world = server.world
        self.heard_at = world.now
        seconds = server.latency(self)
        if server.late is not None and request.what.startswith(server.late):
            seconds, server.late = server.rng.uniform(LATE_SECONDS, 3.5), None
        if seconds >= LATE_SECONDS and request.what.startswith(("send ", "append ")):
            world.event(f"{request.what.partition(' ')[0]} late", self.process, seconds)
        world.at(seconds, self._arrive, request)
        if server.time_limit is not None:
            world.at(server.time_limit, self._timed_out, request)

    def _timed_out(self, request):
        if self.under_way is not request or self.over is not None:
            return
        stands_still = self.process.paused_until - self.server.world.now
        if stands_still >= 0:  # its clock is looked at when it goes on; an answer that lies there is taken first
            self.server.world.at(stands_still + 0.01, self._timed_out, request)
            return
        self.cut("no answer in time")

    def _arrive(self, request):
        if not self.listed or request.stored:
            return
        try:
            result, error = request.op(), None
        except RefusedError as refusal:
            result, error = None, refusal
        request.stored = True
        server = self.server
        server.world.happened("stored", request.what, self)
        server.world.at(server.latency(self), self._answered, request, result, error)

    def _answered(self, request, result, error):
        if self.under_way is not request or self.over is not None:
            return
        world = self.server.world
        if self.process.paused_until > world.now:
            world.at(self.process.paused_until - world.now, self._answered, request, result, error)
            return
        self.under_way = None
        world.happened("answered", request.what, self)
        if error is not None:
            request.fail(error)
        else:
            request.answer(result)
        self._next()


class Server:
    """The whole server. `world` gives clock, randomness and events."""

    def __init__(self, world, *, default_required=1):
        self.world = world
        self.rng = world.rng
        self.default_required = default_required
        self.size_required = 1 << 20
        self.streams = {}
        self.clients = {}
        self.serial = 0
        self.numbers = 0
        self.client_numbers = 0
        self.ports = 40_000
        self.up = True
        self.time_limit = 3.0
        self.slow = 0.0  # how often an answer takes long
        self.slowest = 0.5
        self.late = None  # how the next request begins that is late
        self.notices_late = 0.2  # how often it goes on listing a client that is gone for a while
        self.saves_early = 0.02  # how often a partition is saved before it must be
        self.record_of_all = []  # every message that was ever stored: (stream, topic number, topic, partition, message)

    def now_us(self):
        return int((EPOCH + self.world.now) * 1e6)

    def latency(self, link):
        rng = self.rng
        if self.slow and rng.random() < self.slow:
            return rng.uniform(0.01, self.slowest)
        return 0.0002 + 0.0028 * rng.random()

    def notice(self):
        late = self.rng.random() < self.notices_late
        return (
            self.rng.uniform(0.05, 2.0 if self.notices_late < 0.5 else 6.0) if late else self.rng.uniform(0.001, 0.05)
        )

    # ---- clients

    def connect(self, process):
        if not self.up:
            raise NoConnectionError("nobody answers")
        self.client_numbers += 1
        self.ports += 1
        link = Link(
            self, process, self.client_numbers, f"10.0.0.{1 + sum(map(ord, process.host.name)) % 250}:{self.ports}"
        )
        self.clients[link.number] = link
        process.at_exit.append(link.close)
        return link

    def evict_silent(self):
        """Members of groups that said nothing for a minute go."""
        for link in list(self.clients.values()):
            if link.process.alive and link.process.paused_until <= self.world.now:
                link.heard_at = self.world.now  # clients ping by themselves
            if link.groups and self.world.now - link.heard_at > EVICTION_SECONDS:
                link.cut("evicted after a minute of silence")
                link.server_notices()

    # ---- what happens to it

    def kill(self, down_seconds):
        """It dies: unsaved tails go, more or less of them, and every connection breaks."""
        for link in list(self.clients.values()):
            request = link.under_way
            if request is not None and not request.stored and self.rng.random() < 0.3:
                link._arrive(request)
        lost = []
        for stream in self.streams.values():
            for topic in stream.values():
                for number, part in enumerate(topic.partitions):
                    keep = self.rng.randint(part.saved_end, part.end) if part.end > part.saved_end else part.end
                    if keep < part.end:
                        lost.append((topic.name, number, part.end - keep))
                        part.messages = [one for one in part.messages if one.offset < keep]
                        part.end = keep
                    part.saved_end = part.end
        self._drop_all(down_seconds)
        return lost

    def stop(self, down_seconds):
        """It ends in order: nothing is lost."""
        for stream in self.streams.values():
            for topic in stream.values():
                for part in topic.partitions:
                    part.saved_end = part.end
        self._drop_all(down_seconds)

    def _drop_all(self, down_seconds):
        links = list(self.clients.values())
        self.clients.clear()
        for link in links:
            link.listed = False
            link._end("the server went away")
        self.client_numbers = 0
        self.up = False
        self.world.at(down_seconds, self._start)

    def _start(self):
        self.up = True

    def forget(self):
        self.streams, self.clients, self.record_of_all = {}, {}, []

    # ---- streams and topics (operations run in the hub, at the moment when they arrive)

    def copy(self, stream, topics=None):
        """Copies of the stream's topics, or of these, as they lie on the disk: name -> topic."""
        return {name: self._copy(topic) for name, topic in (topics or self.streams.get(stream, {})).items()}

    def _copy(self, topic):
        made = Topic(topic.number, topic.name, topic.created_at, 0, topic.options)
        made.groups = set(topic.groups)
        for part in topic.partitions:
            copy = Partition()
            copy.end = copy.saved_end = self.rng.randint(part.saved_end, part.end)
            copy.messages = [one for one in part.messages if one.offset < copy.end]
            copy.expired = list(part.expired)
            made.partitions.append(copy)
        return made

    def find(self, stream, topic):
        return self.streams.get(stream, {}).get(topic)

    def make_stream(self, stream):
        self.streams.setdefault(stream, {})

    def make_topic(self, stream, name, partitions, *, required=None, segment_bytes=None):
        topics = self.streams.get(stream)
        if topics is None:
            raise RefusedError(f"no stream {stream}")
        if name in topics:
            return
        self.numbers += 1
        options = {
            "durability": "persisted",
            "messages_required_to_save": self.default_required if required is None else required,
            "size_of_messages_required_to_save": self.size_required,
        }
        if segment_bytes is not None:
            options["segment_size"] = segment_bytes
        topics[name] = Topic(self.numbers, name, self.now_us() + self.numbers, partitions, options)

    def purge(self, stream, name):
        for part in self.find(stream, name).partitions:
            part.messages.clear()
            part.end = part.saved_end = 0

    def delete_topic(self, stream, name):
        del self.streams[stream][name]

    def partition(self, stream, topic, number):
        found = self.find(stream, topic)
        if found is None or number >= len(found.partitions):
            raise RefusedError(f'there is no partition {number} of topic "{topic}" in stream "{stream}"')
        return found, found.partitions[number]

    # ---- messages

    def store(self, stream, topic, number, new, writer=""):
        """`(id, payload, headers, origin time)` each; gives topic number and the offset of the first."""
        found, part = self.partition(stream, topic, number)
        base, now = part.end, self.now_us()
        for at, (message_id, payload, headers, origin_us) in enumerate(new):
            self.serial += 1
            message = Message(self.serial, base + at, message_id, payload, headers, now, origin_us, writer)
            part.messages.append(message)
            self.record_of_all.append((stream, found.number, topic, number, message))
        part.end = base + len(new)
        required = found.required_to_save
        unsaved = part.messages[part.saved_end - part.end :] if part.saved_end < part.end else []
        too_large = (
            sum(len(message.payload) for message in unsaved) >= found.options["size_of_messages_required_to_save"]
        )
        if part.end - part.saved_end >= required or too_large or self.rng.random() < self.saves_early:
            part.saved_end = part.end
        return found.number, base

    def read(self, stream, topic, number, offset, count):
        _, part = self.partition(stream, topic, number)
        messages = part.messages
        if not messages:
            return []
        if offset == "last":
            return messages[max(0, len(messages) - count) :]
        at = max(0, int(offset) - messages[0].offset)
        return messages[at : at + count]

    def polled_end(self, stream, topic, number):
        return max(self.partition(stream, topic, number)[1].end - 1, 0)

    def expire(self, topic, number, count):
        """Retention deletes the oldest messages, of those that are on disk; gives them.

        It deletes whole segments behind which another one begins: the first message of a partition never goes alone.
        """
        part = topic.partitions[number]
        gone = [message for message in part.messages[:count] if message.offset < part.saved_end]
        if [message.offset for message in gone] == [0]:
            return []
        del part.messages[: len(gone)]
        part.expired += gone
        return gone

    def delete_segments(self, stream, topic, number, count):
        found, part = self.partition(stream, topic, number)
        sealed = found.segments(part)[:-1]
        gone = sum(sealed[:count])
        del part.messages[:gone]

    def groups(self, stream, topic):
        found = self.find(stream, topic)
        if found is None:
            raise RefusedError(f'there is no topic "{topic}" in stream "{stream}"')
        return found.groups

    def make_group(self, stream, topic, group):
        self.groups(stream, topic).add(group)
