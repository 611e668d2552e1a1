"""A bucket: versions of objects, what a listing and a read answer, and everything that was ever in it.

Payloads say whose they are: a record names key, version and number, so that whoever reads it elsewhere needs nothing else.
"""

import re
import zlib

from tests.simulator.runtime import EPOCH

UNIT = re.compile(rb"<([a-z0-9/-]+)\|(\d+)\|(\d+)\.*>")


def record(key, version, number, width):
    """A record that says whose it is, `width` bytes long at least."""
    text = f"<{key}|{version}|{number}>".encode()
    if len(text) < width:
        text = text[:-1] + b"." * (width - len(text)) + b">"
    return text


def tell(payload):
    """(key, version, number) of each record that a payload holds, in order; what is none of ours gives nothing."""
    return [(found[1].decode(), int(found[2]), int(found[3])) for found in UNIT.finditer(payload)]


def is_filtered(key, tag, number):
    """Whether the transform of the histories filters a record: at both ends, some in a row, and whole contents."""
    return tag % 4 == 0 or number in (1, 3, 4) or number > 6 or (number + tag) % 5 == 0


def is_refused(key, tag, number):
    """Whether the transform cannot handle a record."""
    return not is_filtered(key, tag, number) and (number + tag) % 3 == 0


def key_hash(tag, number):
    """What the partition of a record follows from, where a transform chooses it: some records have the same key."""
    return zlib.crc32(b"%d/%d" % (tag % 3, number * number % 7))


class Version:
    """One content that an object has had.

    Attributes:
        tag: number of the content, over all objects.
        records: good ones and bad ones, counted from 1.
        bad: numbers of the bad ones.
        data: the bytes.
        filtered: numbers of those that a transform filters.
    """

    def __init__(self, key, tag, modified_ms, count, bad, data, filtered=frozenset()):
        self.key, self.tag, self.modified_ms, self.count, self.bad, self.data = key, tag, modified_ms, count, bad, data
        self.filtered = filtered
        self.good = [number for number in range(1, count + 1) if number not in bad and number not in filtered]

    def __repr__(self):
        return f"v{self.tag}"


class Lie:
    """What a store says once although it is not so."""

    def __init__(self, kind, key, until):
        self.kind, self.key, self.until = kind, key, until


class Bucket:
    """One bucket at one address."""

    def __init__(self, world, name, address):
        self.world, self.name, self.address = world, name, address
        self.objects = {}
        self.became = []  # (when, key, version or None): the whole history, in order
        self.versions = {}
        self.lies = []
        self.lie_rate = {}
        self.break_rate = 0.0
        self.largest_read = 1 << 20
        self.read_seconds = 0.02  # at most, between two reads of a stream that gives little at once
        self.first_listed = None
        self.told_ahead_ms = 0  # when
        self.archived = {}  # key -> until when it must be restored before it can be read
        self.lies_in_lookups = False
        self.pages = []  # (when, who) of each page of a listing

    def now_ms(self):
        return int((EPOCH + self.world.now) * 1000)

    def forget(self):
        self.objects, self.became, self.versions, self.lies, self.pages = {}, [], {}, [], []

    # ---- what people do

    def put(self, version):
        self.objects[version.key] = version
        self.versions[version.tag] = version
        self.became.append((self.world.now, version.key, version))

    def is_archived(self, key):
        return self.world.now < self.archived.get(key, 0.0)

    def delete(self, key):
        if self.objects.pop(key, None) is not None:
            self.became.append((self.world.now, key, None))

    # ---- what it answers (in the hub, at the moment when a request arrives)

    def lie(self, kind, key):
        """Whether to say something wrong to this request."""
        now = self.world.now
        for one in self.lies:
            if one.kind == kind and one.key == key and now < one.until:
                return True
        rate = self.lie_rate.get(kind, 0.0)
        return bool(rate) and self.world.rng.random() < rate

    def page(self, prefix, after, page_size, who=None):
        """(versions in the order of their keys, whether more follow, the time of the answer)"""
        self.pages.append((self.world.now, who))
        keys = sorted(
            (key for key in self.objects if key.startswith(prefix) and (not after or key > after)), key=str.encode
        )
        chosen = [self.objects[key] for key in keys[:page_size]]
        if self.first_listed is None:
            self.first_listed = self.world.now
        return chosen, len(keys) > page_size, self.now_ms() // 1000 * 1000 + self.told_ahead_ms

    def listings(self, most_seconds):
        """(first page, last page) of each listing: pages for the same process with less than so much time between them."""
        found, last = [], {}
        for at, who in self.pages:
            listing = last.get(who)
            if listing is None or at - listing[1] > most_seconds:
                listing = last[who] = [at, at]
                found.append(listing)
            listing[1] = at
        return found
