"""What version 0.1 left behind: topics and a log in its own form, orderly or as a kill leaves them.

It lived before the history begins: who reads its log finds no client of it. Beside `adapter` the only module that knows
the framework: its message ids.
"""

import json
import struct

from framework.model.message_ids import message_id, object_hash64
from tests.simulator.bucket import tell

OPTIONS = '{"compression":"auto","format":"jsonl"}'
ENDS = ("in order", "sent and not saved", "unclaimed", "others behind it")
"""How its last run ended; `others behind it`: in order, and then another program wrote to the topic."""


class FirstEdition:
    """A source of version 0.1: its positions, and what it has sent."""

    def __init__(self, world, *, source="src", stream="lake", width):
        self.world, self.server, self.rng = world, world.server, world.rng
        self.source, self.stream, self.width = source, stream, width
        settings = world.settings
        self.topic, self.log, self.partitions = settings.topic, settings.offsets, settings.partitions
        self.headers, self.split_size = settings.headers != "none", settings.split_size
        self.epoch = 0
        self.counts = {}  # (version, split) -> [partition, sent, total]
        self.saved = {}
        self.anchors = {}

    # ---- what it does

    def live(self, end):
        """A life over what is in the bucket, which ends so."""
        server, rng = self.server, self.rng
        server.make_stream(self.stream)
        server.make_topic(self.stream, self.topic, self.partitions, required=self.world.plan.required)
        server.make_topic(self.stream, self.log, 1, required=1, segment_bytes=4096)
        self.begin_epoch()
        for version in list(self.world.bucket.objects.values()):
            if rng.random() < 0.8:
                self.read(version)
        if end == "in order" and rng.random() < 0.5:
            self.write_snapshot()
        elif end in {"sent and not saved", "unclaimed"} and not self.send_unsaved():
            end = "in order"
        if end == "unclaimed":
            self.begin_epoch(unclaimed=True)
        for part in server.find(self.stream, self.topic).partitions:
            part.saved_end = part.end
        return end

    def read(self, version):
        """Sends some of an object, of one split after the other, and saves its counts now and then."""
        for split, records in self.splits_of(version):
            stop = self.rng.choice((len(records), len(records), self.rng.randint(0, len(records))))
            place = [self.rng.randrange(self.partitions), 0, len(records)]
            self.counts[version, split] = place
            for number in range(1, stop + 1):
                self.send(version, split, number, records[number - 1])
                if self.rng.random() < 0.3:
                    self.write_delta()
            self.write_delta()
            if stop < len(records):
                break

    def send_unsaved(self):
        """Some more, of what is half read or of what no record of the log names; whether there was anything."""
        found = False
        for version in list(self.world.bucket.objects.values()):
            for split, records in self.splits_of(version):
                place = self.counts.setdefault((version, split), [self.rng.randrange(self.partitions), 0, len(records)])
                for number in range(place[1] + 1, min(place[1] + 1 + self.rng.randint(0, 2), len(records)) + 1):
                    self.send(version, split, number, records[number - 1])
                    found = True
                if place[1] < len(records):
                    break
        return found

    def finish(self):
        """Another run of it, which ends in order: what it had sent is saved now."""
        self.begin_epoch()

    def splits_of(self, version):
        """(split or 0, the numbers of its records in the object) each."""
        if not self.split_size or len(version.data) <= self.split_size:
            return [(0, version.good)]
        found = {}
        for number in version.good:
            found.setdefault((number - 1) * self.width // self.split_size + 1, []).append(number)
        return sorted(found.items())

    def send(self, version, split, number, record):
        place = self.counts[version, split]
        name = self.hash_of(version, split)
        line = version.data.split(b"\n")[record - 1]
        headers = {}
        if self.headers:
            headers = {"bucket": version_bucket(self.world), "key": version.key, "version": f"v{version.tag}"}
            if split:
                headers["share"] = f"{split}/{self.split_size}"
        new = [(message_id(name, split, number), line, headers, self.server.now_us())]
        _, offset = self.server.store(self.stream, self.topic, place[0], new, "first")
        place[1] = number
        self.anchors[place[0]] = offset, f"{new[0][0]:032x}"
        assert tell(line) == [(version.key, version.tag, record)]

    def hash_of(self, version, split):
        return object_hash64(
            self.source,
            version_bucket(self.world),
            version.key,
            f"v{version.tag}",
            self.split_size if split else 0,
            generation=None,
        )

    # ---- its log

    def begin_epoch(self, *, unclaimed=False):
        self.epoch += 1
        claim = {"epoch": self.epoch, "host": "old", "process": 7, "leader": True, "clients": [[9, "10.9.9.9:9"]]}
        self.append("claim", {**claim, "token": f"first{self.epoch}"})
        self.base = self.server.find(self.stream, self.log).partitions[0].end
        if unclaimed:
            missing = [
                [self.hash_of(version, split), place[1]]
                for (version, split), place in self.counts.items()
                if self.saved.get((version, split), 0) < place[1]
            ]
            self.write_snapshot(saved=True, unclaimed=missing)
        else:
            self.write_snapshot()

    def write_delta(self):
        before, self.saved = self.saved, {one: place[1] for one, place in self.counts.items()}
        rows = [one for one, count in self.saved.items() if before.get(one) != count]
        self.append("delta", {**self.state(rows), "removed": [], "topics": {}, "listings": {}}, base=self.base)

    def write_snapshot(self, *, saved=False, unclaimed=()):
        if not saved:
            self.saved = {one: place[1] for one, place in self.counts.items()}
        found = self.server.find(self.stream, self.topic)
        state = self.state(list(self.saved))
        known = {partition for _, partition, *_ in state["anchors"]}
        state["anchors"] += [[self.topic, number] for number in range(self.partitions) if number not in known]
        state |= {"topics": {self.topic: [found.number, found.created_at]}, "unclaimed": list(unclaimed)}
        self.append("snapshot", {**state, "listings": {}, "watermark": {}}, part=1, parts=1)

    def state(self, rows):
        columns = {
            "bucket": [0 for _ in rows],
            "key": [version.key for version, _ in rows],
            "version": [f"v{version.tag}" for version, _ in rows],
            "modified": [version.modified_ms for version, _ in rows],
            "records": [self.saved[row] for row in rows],
            "state": [int(self.saved[row] == self.counts[row][2]) for row in rows],
            "lane": [self.counts[row][0] for row in rows],
            "depends_on": [0 for _ in rows],
            "share": {str(at): [split, self.split_size] for at, (_, split) in enumerate(rows) if split},
        }
        return {
            "entries": {
                "columns": columns,
                "buckets": [version_bucket(self.world)],
                "lanes": [[self.topic, number] for number in range(self.partitions)],
                "options": [OPTIONS],
            },
            "anchors": [[self.topic, partition, *anchor] for partition, anchor in sorted(self.anchors.items())],
        }

    def append(self, kind, body, **header):
        packed = json.dumps({"kind": kind, "source": self.source, "epoch": self.epoch, **header}).encode()
        payload = struct.pack("<4sBBI", b"ICSP", 1, 0, len(packed)) + packed + json.dumps(body).encode()
        self.server.store(self.stream, self.log, 0, [(self.rng.getrandbits(128), payload, {}, 0)], "first")


def version_bucket(world):
    return world.bucket.name
