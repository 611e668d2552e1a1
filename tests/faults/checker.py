"""Counts what is lost, repeated and mixed in a topic, from nothing but the topic and what was put into the bucket.

It shares no code with the product. What ids and headers mean it takes from docs/reference/iggy-messages.md; whose record a
message is, and which one, it takes from the payload itself, where `content` wrote it, and then holds id and headers to it.
So a record under another's name is found as well as one that is missing.

What must be there, for each key:

- the last version wholly, unless the object was deleted: then a part from its beginning on;
- of each version before it a part from its beginning on, and all of that before the next version's first record;
- each record once, the records of an object (or of a share of it) in one partition and in order;
- where keys choose the partition, each record in that of its key, with the partition and 1 as its share.

Where positions were set by hand, an object's records have an id of its own after each setting. Then all of that holds for the
records of each id by themselves, which begin behind the position; only the last must be there wholly.

A topic of dead letters is held to the same, with the bad records in place of the good ones.
"""

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise

MOST_SENTENCES = 40
COUNTED = ("records", "lost", "repeated", "mixed", "wrong")


@dataclass(frozen=True)
class Version:
    """What was once put under a key.

    Attributes:
        name: as the store gave it: an etag without quotes, a generation.
        records: (share, record number) -> what the message must hold: bytes, or a value that its JSON must equal. Share 0 is
            an object that is not split.
        whole: whether all of it must be there; otherwise a part from its beginning on.
    """

    name: str
    records: dict
    whole: bool = True


@dataclass
class Verdict:
    """What was found.

    Attributes:
        records: messages looked at.
        lost: records that must be there and are not.
        repeated: messages whose record is there already.
        mixed: messages of one version under another's name, or behind a later version's.
        wrong: everything else that must not be: unknown, changed or swapped payloads, wrong order, wrong partition.
        sentences: the first of all these, in words.
    """

    records: int = 0
    lost: int = 0
    repeated: int = 0
    mixed: int = 0
    wrong: int = 0
    sentences: list = field(default_factory=list)

    @property
    def good(self):
        return not (self.lost or self.repeated or self.mixed or self.wrong)

    def __add__(self, other):
        sentences = [*self.sentences, *other.sentences]
        numbers = {what: getattr(self, what) + getattr(other, what) for what in COUNTED}
        return Verdict(**numbers, sentences=sentences)

    def note(self, what, number, sentence):
        setattr(self, what, getattr(self, what) + number)
        if len(self.sentences) < MOST_SENTENCES:
            self.sentences.append(f"{what}: {sentence}")


def whole_header(headers, name):
    """A header's value, its pieces put together."""
    value, number = headers.get(name, ""), 1
    while (piece := headers.get(f"{name}.{number}")) is not None:
        value, number = value + piece, number + 1
    return value


def identity(payload):
    """(key, number of its version) that a payload says it is of; None for a payload that is not of ours."""
    try:
        if payload.startswith(b"{"):
            value = json.loads(payload)
            return value["of"], int(value["v"])
        key, version, _ = payload.split(b"|", 2)
        return key.decode(), int(version)
    except (ValueError, KeyError, TypeError):
        return None


def holds(payload, wanted):
    """Whether a payload is the wanted record."""
    if isinstance(wanted, bytes):
        return payload == wanted
    try:
        return json.loads(payload) == wanted
    except ValueError:
        return False


def check(stored, expected, *, bucket, headers=True, timed=True, by_key=False):
    """Compares a topic with what must be in it.

    Args:
        stored: all messages, each partition in the order of its offsets.
        expected: key -> its versions, in the order in which they were put.
        bucket: what the header `bucket` must say.
        headers: whether messages have headers.
        by_key: whether the share of a record says its partition.
        timed: whether the header `version` has the time of the last change behind the version's name, as of S3's etags.
    """
    verdict = Verdict(records=len(stored))
    counts, places, hashes, latest = defaultdict(Counter), defaultdict(list), defaultdict(set), {}
    for message in stored:
        where = f"partition {message.partition}, offset {message.offset}"
        known = identity(message.payload)
        if known is None or known[0] not in expected or not 0 <= known[1] < len(expected[known[0]]):
            verdict.note("wrong", 1, f"{where} holds nothing that was ever put into the bucket")
            continue
        key, number = known
        version = expected[key][number]
        split_number, record = message.id >> 40 & (1 << 24) - 1, message.id & (1 << 40) - 1
        place = f"{key}, version {number}, share {split_number}, record {record} ({where})"
        counts[known][split_number, record] += 1
        places[key, number, split_number].append((message.partition, record, place))
        hashes[known].add(message.id >> 64)
        if by_key and message.partition != split_number - 1:
            verdict.note("wrong", 1, f"not in the partition of its key: {place}")
        if counts[known][split_number, record] > 1:
            verdict.note("repeated", 1, place)
        if (split_number, record) not in version.records or not holds(
            message.payload, version.records[split_number, record]
        ):
            verdict.note("wrong", 1, f"the payload is not that of {place}")
        if headers:
            _check_headers(verdict, message.headers, key, version, place, bucket=bucket, timed=timed)
        elif message.headers:
            verdict.note("wrong", 1, f"headers at {place}")
        if latest.setdefault((key, message.partition), number) > number:
            verdict.note("mixed", 1, f"behind a record of version {latest[key, message.partition]}: {place}")
        latest[key, message.partition] = max(number, latest[key, message.partition])
    _check_order(verdict, places)
    _check_hashes(verdict, hashes)
    for key, versions in expected.items():
        for number, version in enumerate(versions):
            _check_missing(verdict, key, number, version, counts[key, number])
    return verdict


def check_generations(stored, expected, positions, **how):
    """The same, for a topic whose source had positions set by hand.

    Args:
        stored: all messages, each partition in the order of its offsets.
        expected: key -> its versions, in the order in which they were put; of a set key only one.
        positions: key -> the numbers of records that its position was set to, in order.
        how: as for `check`.
    """
    own, others = defaultdict(list), []
    for message in stored:
        key = (identity(message.payload) or (None,))[0]
        (own[key] if key in positions else others).append(message)
    verdict = check(others, {key: versions for key, versions in expected.items() if key not in positions}, **how)
    for key, numbers in positions.items():
        verdict += _check_set(own[key], key, *expected[key], [0, *numbers], how)
    return verdict


def _check_set(messages, key, version, begins, how):
    """Each generation of a key begins behind one of these records; one of which nothing was sent is not to be seen."""
    verdict, groups = Verdict(), {}
    for message in messages:
        groups.setdefault(message.id >> 64, []).append(message)
    in_order = [message for group in groups.values() for message in group]
    behind = sum(one is not other for one, other in zip(messages, in_order, strict=True))
    if behind:
        verdict.note("mixed", behind, f"records of a position behind those of a later one: {key}")
    last, at = len(begins) - 1, len(begins)
    found = {}
    for group in reversed(groups.values()):
        first = group[0].id & (1 << 40) - 1
        at = next((number for number in reversed(range(at)) if begins[number] + 1 == first), -1)
        if at < 0:
            verdict.note("wrong", len(group), f"{key}: records from {first} on, where no position was set: {begins}")
            break
        found[at] = group
    for number, begin in enumerate(begins):
        records = {place: value for place, value in version.records.items() if place[1] > begin}
        part = replace(version, records=records, whole=version.whole and number == last)
        verdict += check(found.get(number, []), {key: [part]}, **how)
    came = {message.id & (1 << 40) - 1 for message in messages}
    missing = [place for place in version.records if place[1] not in came] if version.whole else []
    if missing:
        verdict.note("lost", len(missing), f"{key}: {len(missing)} under no position, {missing[:3]} ...")
    return verdict


def _check_headers(verdict, headers, key, version, place, *, bucket, timed):
    if whole_header(headers, "key") != key or headers.get("bucket") != bucket:
        verdict.note("wrong", 1, f"the headers name another object: {place}")
    elif not re.fullmatch(re.escape(version.name) + (r"@\d+" if timed else ""), headers.get("version", "")):
        verdict.note("mixed", 1, f"the headers name another version: {place}")


def _check_order(verdict, places):
    for found in places.values():
        if len({partition for partition, _, _ in found}) > 1:
            verdict.note("wrong", 1, f"in several partitions: {found[0][2]}")
        for (_, before, _), (_, after, place) in pairwise(found):
            if after < before:
                verdict.note("wrong", 1, f"behind record {before}: {place}")


def _check_hashes(verdict, hashes):
    owners = defaultdict(set)
    for (key, number), found in hashes.items():
        if len(found) > 1:
            verdict.note("wrong", 1, f"{key}, version {number} has {len(found)} ids")
        for one in found:
            owners[one].add((key, number))
    for found in owners.values():
        if len(found) > 1:
            verdict.note("mixed", 1, f"one id for {sorted(found)}")


def _check_missing(verdict, key, number, version, counts):
    ends = defaultdict(int)
    for split_number, record in counts:
        ends[split_number] = max(ends[split_number], record)
    missing = sorted(
        place for place in version.records if place not in counts and (version.whole or place[1] < ends[place[0]])
    )
    if missing:
        verdict.note(
            "lost",
            len(missing),
            f"{key}, version {number}: {len(missing)} of {len(version.records)}, {missing[:3]} ...",
        )
