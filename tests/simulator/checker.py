"""What must hold of what lies in the partitions, by the bucket's history and by what people did. It knows nothing else.

A record tells by its payload whose it is (`bucket.tell`). For every content of an object:
- none of its records comes more often than there was reason for: once for each time that it became the object's content, and once
  more for each reset that took it in, and for each time that its position was set before it;
- in a partition its records come in their order, one split of it in one partition only; where a transform chooses the
  partition, each record is in that of its key;
- what is in the bucket at the end is there whole, since the last time that it had to be sent anew; a bad record has its letter;
- a record that a transform filters is never there;
- of two objects in a partition that every listing showed together, the one with the lower start offset comes first, where the
  configuration says so.
"""

from collections import defaultdict

import attrs

from tests.simulator.bucket import key_hash, tell


class ViolationError(Exception):
    """What must not happen has happened."""

    def __init__(self, rule, text):
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Seen:
    """Where and when a record was stored."""

    __slots__ = ("at", "number", "partition", "serial", "topic")

    def __init__(self, serial, at, topic, partition, number):
        self.serial, self.at, self.topic, self.partition, self.number = serial, at, topic, partition, number

    def __repr__(self):
        return f"{self.number}@{self.partition}#{self.serial}"


def gather(partitions):
    """(key, tag) -> what was seen of it, in the order of storing.

    Args:
        partitions: (topic, partition, messages) each, a message having payload, serial and timestamp.
    """
    seen = defaultdict(list)
    for topic, partition, messages in partitions:
        for message in messages:
            for key, tag, number in tell(message.payload):
                seen[key, tag].append(Seen(message.serial, message.timestamp_us, topic, partition, number))
    for found in seen.values():
        found.sort(key=lambda one: one.serial)
    return seen


@attrs.define(kw_only=True)
class SetByHand:
    """A position that people have set, or may have.

    Attributes:
        life: the name of the process.
        begun: when, in microseconds.
        ended: when it was over; None when it may not have come to its end.
        key: of the object.
        tag: of the version.
        sent: how many records counted as sent before.
        count: how many count since.
        done: whether nothing more is to be read.
    """

    life: str
    begun: int
    ended: int | None = None
    key: str
    tag: int
    sent: int
    count: int
    done: bool


class Facts:
    """What the checker goes by.

    Attributes:
        partitions: what lies there: (topic, partition, messages).
        became: (time in microseconds, key, version or None), in order, of all buckets.
        current: key -> version: what is to be there, of those that are selected.
        resets: (begun, ended or None when it may not have come to its end, takes(key)) in microseconds.
        sets: `SetByHand`, in order.
        split_sizes: with which objects may have been split.
        key_partitions: over how many partitions keys were spread; empty when nothing was.
        some_divided: whether some objects were spread so, and others not.
        some_filtered: whether a transform filtered at some times, and not at others.
        replays: [begun, ended or None, the bad records that had a letter then], of each replay of dead letters.
        width: bytes of a record's line.
        first_listed: key -> when its bucket was listed for the first time; None: never.
        window_us: how much later than its last-modified an object may appear.
        now_us: the end.
        letters: (key, tag, number) -> how often; None: there is no topic for them.
        one_letter: whether a letter may come once only.
        bad_is_bad: whether bad records were bad under every format that was used.
        free: tags that nothing is demanded of (accepted as they are).
        extra: (key, tag) -> how often more it may come, for other good reasons.
        named: keys that anything may be there of; None: all.
        order: `Order`; None: objects may come in any.
    """

    def __init__(self, **values):
        self.__dict__.update(values)


class Order:
    """By start offsets, the number at the end of a key.

    Attributes:
        since_us: of what came to be since then.
        listings: (first page, last page) of every listing.
        exempt: keys that a listing may have shown and a read not given.
    """

    def __init__(self, *, since_us, listings, exempt):
        self.since_us, self.listings, self.exempt = since_us, listings, exempt


def check(facts):
    """Raises `ViolationError`."""
    seen = gather(facts.partitions)
    versions = {version.tag: version for _, _, version in facts.became if version is not None}
    became = defaultdict(list)
    for at, key, version in facts.became:
        if version is not None:
            became[key, version.tag].append(at)
    for (key, tag), found in seen.items():
        if tag not in versions:
            raise ViolationError("UNKNOWN", f"records of {key} v{tag}, which never was")
        if facts.named is not None and key not in facts.named:
            raise ViolationError("NOT NAMED", f"records of {key} v{tag}, which no list names")
        _check_upper(facts, key, versions[tag], became[key, tag], found)
    for key, version in facts.current.items():
        _check_whole(facts, key, version, became[key, version.tag], seen)
    if facts.order is not None:
        _check_order(facts, seen)
    if facts.letters is not None and facts.one_letter:
        for (key, tag, number), count in facts.letters.items():
            if count > len(became[key, tag]) + _resets_of(facts, key) + _sets_of(facts, key, tag, number):
                raise ViolationError("LETTER TWICE", f"{key} v{tag} record {number}: {count} letters")


def _check_order(facts, seen):
    """Only of keys with a single content: everything that could change the order of others is part of their history."""
    order, contents = facts.order, defaultdict(list)
    for at, key, version in facts.became:
        contents[key].append((at, version))
    places = defaultdict(list)
    for key, ones in contents.items():
        at, version = ones[0]
        if len(ones) > 1 or key in order.exempt or at < order.since_us:
            continue
        by_partition = defaultdict(list)
        for one in seen.get((key, version.tag), ()):
            by_partition[one.topic, one.partition].append(one.serial)
        for partition, serials in by_partition.items():
            places[partition].append((int(key.rpartition("/")[2]), at, key, min(serials), max(serials)))
    for partition, objects in places.items():
        objects.sort()
        for place, (start, at, key, _, last) in enumerate(objects):
            for other_start, other_at, other, first, _ in objects[place + 1 :]:
                if start == other_start or first > last:
                    continue
                if not any(begun < at and ended >= other_at for begun, ended in order.listings):
                    raise ViolationError("START OFFSETS", f"{other} comes before the end of {key} in {partition}")


def _resets_of(facts, key):
    return sum(takes(key) for _, _, takes in facts.resets)


def _sets_of(facts, key, tag, number):
    """How often people may have set a position so that this record comes again."""
    return sum((one.key, one.tag) == (key, tag) and number > one.count for one in facts.sets)


def _check_counts(facts, key, version, most, found):
    counts = defaultdict(int)
    for one in found:
        counts[one.number] += 1
    for number, count in counts.items():
        if number in version.bad and facts.bad_is_bad and not facts.replays:
            raise ViolationError("BAD SENT", f"{key} v{version.tag} record {number}")
        if number in version.filtered and not facts.some_filtered:
            raise ViolationError("FILTERED SENT", f"{key} v{version.tag} record {number}")
        limit = most + _sets_of(facts, key, version.tag, number)
        if count > limit:
            raise ViolationError(
                "REPEATED", f"{key} v{version.tag} record {number}: {count} times, at most {limit}: {found}"
            )


def _check_upper(facts, key, version, became, found):
    most = len(became) + _resets_of(facts, key) + facts.extra.get((key, version.tag), 0)
    _check_counts(facts, key, version, most, found)
    if _sets_of(facts, key, version.tag, version.count):
        most += 1  # some may stand behind their successors of before
    if facts.replays:
        found = [one for one in found if one.number not in version.bad]  # they come late
    if facts.some_divided and not (most == 1 and _out_of_order(facts, version, found, None)):
        return
    if facts.key_partitions:
        counts = facts.key_partitions
        for one in found:
            if all(one.partition != key_hash(version.tag, one.number) % partitions for partitions in counts):
                raise ViolationError("KEY", f"{key} v{version.tag}: {one} is in another partition than its key's")
        if most == 1 and all(_out_of_place(version, found, partitions) for partitions in counts):
            raise ViolationError("ORDER", f"{key} v{version.tag}: {_out_of_place(version, found, counts[-1])}: {found}")
    elif most == 1:
        complaint = ""
        for size in (None, *facts.split_sizes):
            complaint = _out_of_order(facts, version, found, size)
            if not complaint:
                return
        raise ViolationError("ORDER", f"{key} v{version.tag}: {complaint}: {found}")


def _out_of_order(facts, version, found, split_size):
    """Why this is not the order of an object that is split so; empty when it is."""
    groups = defaultdict(list)
    for one in found:
        split_number = 0 if split_size is None else (one.number - 1) * facts.width // split_size
        groups[split_number].append(one)
    for split_number, ones in groups.items():
        if len({(one.topic, one.partition) for one in ones}) > 1:
            return f"part {split_number} lies in several partitions"
        numbers = [one.number for one in ones]
        if numbers != sorted(numbers):
            return f"part {split_number} is out of order"
    return ""


def _out_of_place(version, found, partitions):
    """Why this is not an object whose keys are spread over so many partitions; empty when it is."""
    last = defaultdict(int)
    for one in found:
        if one.partition != key_hash(version.tag, one.number) % partitions:
            return f"record {one.number} is in another partition than its key's"
        if one.number <= last[one.partition]:
            return f"record {one.number} is out of order"
        last[one.partition] = one.number
    return ""


def _check_whole(facts, key, version, became, seen):
    tag = version.tag
    if tag in facts.free:
        return
    last_us = became[-1]
    late_ms = facts.window_us // 1000
    first_listed = facts.first_listed[key]
    since = 0
    for begun, ended, takes in facts.resets:
        if ended is not None and takes(key) and became[0] < begun:
            since = max(since, ended)
    if first_listed is not None and last_us >= first_listed and since < last_us:
        if version.modified_ms <= last_us // 1000 - late_ms + 2000:
            return  # older than the window when it appeared: documented
        if len(became) > 1 and version.modified_ms <= facts.now_us // 1000 - late_ms:
            return  # restored behind the watermark: the same
    if len(became) > 1 and _another_between(facts, key, tag, became, seen):
        since = max(since, last_us)
    sets = [one for one in facts.sets if (one.key, one.tag) == (key, tag)]
    if any(one.done and since < one.begun for one in sets):
        return  # whatever is missing was left out
    left_out = {number for one in sets if since < one.begun for number in range(one.sent + 1, one.count + 1)}
    ends = [(one.count, one.ended) for one in sets if one.ended is not None]
    last = {number: max([since, *(at for count, at in ends if number > count)]) for number in version.good}
    numbers = {one.number for one in seen.get((key, tag), ()) if one.at >= last.get(one.number, since)}
    missing = [number for number in version.good if number not in numbers and number not in left_out]
    if missing:
        raise ViolationError(
            "LOST",
            f"{key} v{tag}: records {missing} of {version.count} are not there"
            + (f" since {since}" if since else "")
            + f"; {sorted(numbers)} are; all: {seen.get((key, tag), [])}",
        )
    _check_replayed(facts, version, len(became), seen)
    if facts.letters is not None and facts.bad_is_bad:
        for number in version.bad:
            if not facts.letters.get((key, tag, number)):
                raise ViolationError("LETTER LOST", f"{key} v{tag} record {number}")


def _check_replayed(facts, version, times, seen):
    """Bad records of a content that was read once are there, too, when a replay of their letters came to its end."""
    key, tag = version.key, version.tag
    if times > 1 or facts.resets or facts.sets or (key, tag) in facts.extra:
        return
    replayed = {place for _, ended, places in facts.replays if ended is not None for place in places}
    there = {one.number for one in seen.get((key, tag), ())}
    missing = [number for number in sorted(version.bad) if (key, tag, number) in replayed and number not in there]
    if missing:
        raise ViolationError("LOST", f"{key} v{tag}: replayed records {missing} are not there")


def _another_between(facts, key, tag, became, seen):
    """Whether another content was seen to be current between the last two times that this one was, behind records of this one."""
    before, last = became[-2], became[-1]
    first_of_ours = min((one.serial for one in seen.get((key, tag), ())), default=None)
    if first_of_ours is None:
        return False
    for at, other_key, other in facts.became:
        if other_key == key and other is not None and other.tag != tag and before < at < last:
            for one in seen.get((key, other.tag), ()):
                if at <= one.at < last and one.serial > first_of_ours:
                    return True
    return False
