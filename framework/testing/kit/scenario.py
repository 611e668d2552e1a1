"""Scenarios of the crash laws: what the source reads and how, and what the topics must hold in the end.

A scenario's promise, whatever crashed: every good record once, in order inside its split. Each bad record is not among
them, and has at least one dead letter; several letters of it have one id, and nothing else has a letter. Records that a
transform filters have neither, and keep their numbers. With objects divided by key each record is in the partition of its
key, and the records of an object in a partition are in order.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import xxhash

from framework.iggy.header_decoding import join_provenance
from framework.model.header_encoding import LETTER_HEADER
from framework.model.message_ids import parse_message_id
from framework.model.positions import OffsetManagerEntry
from framework.testing.kit.crash import Bench
from framework.testing.kit.law import BATCH, KEYS, QUEUE, Comparing
from framework.testing.rig import Capability, SourceRig

DEAD_LETTERS = "dead-letters"

Split = tuple[str, int]
"""Key and number of a split or part; 0 for an object that has one position."""


@attrs.frozen(kw_only=True)
class Scenario:
    """Describe how the source reads in a run of the crash laws.

    Attributes:
        name: names it on the command line.
        in_splits: objects are read in splits, each of several records.
        tasks: tasks, each in a process of its own when there are several.
        bad_records: objects hold bad records, which go to the dead letter topic.
        filters: transforms filter records: at an object's beginning and end, in its middle, and a whole object. Objects
            are read whole then.
        by_key: objects are divided by the field `n` of their records; not with splits.
    """

    name: str
    in_splits: bool = False
    tasks: int = 1
    bad_records: bool = False
    filters: bool = False
    by_key: bool = False

    def within(self, capabilities: frozenset[Capability]) -> Scenario:
        """Return what a rig can do of this scenario."""
        return attrs.evolve(
            self,
            in_splits=self.in_splits and Capability.SPLITS in capabilities,
            bad_records=self.bad_records and Capability.BAD_RECORDS in capabilities,
        )

    def fill(self, rig: SourceRig, counts: Sequence[int]) -> Contents:
        """Write the rig's objects."""
        good: dict[str, list[bytes]] = {}
        bad: dict[str, list[bytes]] = {}
        filtered: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        for index, (key, count) in enumerate(zip(KEYS, counts, strict=False)):
            records = rig.make_records(key, count)
            numbers = _bad_numbers(index, count) if self.bad_records else frozenset()
            for number in numbers:
                records[number - 1] = rig.bad_record(key, number)
            data = rig.encode(records)
            rig.put(key, data)
            dropped = {
                number
                for number, record in enumerate(records, 1)
                if self.filters and number not in numbers and _is_filtered(record)
            }
            filtered[key] = sorted(dropped)
            good[key] = [record for number, record in enumerate(records, 1) if number not in numbers | dropped]
            bad[key] = [record for number, record in enumerate(records, 1) if number in numbers]
            sizes[key] = len(data)
        split_size = 1 + sum(sizes.values()) // (_SPLITS * len(sizes)) if self.in_splits else 0
        return Contents(scenario=self, good=good, bad=bad, filtered=filtered, sizes=sizes, split_size=split_size)


_SPLITS = 2
"""Splits of an object of average size."""

PLAIN = Scenario(name="plain")
SPLITS = Scenario(name="splits", in_splits=True)
TASKS = Scenario(name="tasks", tasks=2)
BAD_RECORDS = Scenario(name="dead-letters", bad_records=True)
TOGETHER = Scenario(name="together", in_splits=True, tasks=2, bad_records=True)
TRANSFORMS = Scenario(name="transforms", bad_records=True, filters=True)
TRANSFORM_TASKS = Scenario(name="transforms-tasks", tasks=2, bad_records=True, filters=True)
KEYED = Scenario(name="keyed", bad_records=True, by_key=True)
KEYED_TASKS = Scenario(name="keyed-tasks", tasks=2, bad_records=True, filters=True, by_key=True)
SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        PLAIN,
        SPLITS,
        TASKS,
        BAD_RECORDS,
        TOGETHER,
        TRANSFORMS,
        TRANSFORM_TASKS,
        KEYED,
        KEYED_TASKS,
    )
}

BY_KEY = {"type": "partition_by", "field": "n"}
PARTITIONS = 3
"""Partitions of a topic to which keys lead; the other scenarios leave the number to the rig."""

FILTERS = (
    {"type": "filter", "field": "object", "value_pattern": {"equals": KEYS[1]}, "action": "drop"},
    {"type": "filter", "field": "n", "value_pattern": {"less_than": 2}, "action": "drop"},
    {"type": "filter", "field": "n", "value_pattern": {"between": [5, 5.5]}, "action": "drop"},
    {"type": "filter", "field": "n", "value_pattern": {"equals": 9}, "action": "drop"},
)
"""The transforms of a scenario with filters; they fit the records of `SourceRig.make_records`."""


def _is_filtered(record: bytes) -> bool:
    """Return whether `FILTERS` drop a record; written without the code that they use."""
    fields = json.loads(record)
    number = fields.get("n", 2)
    return fields.get("object") == KEYS[1] or number in {1, 5, 9}


def _partition_of(record: bytes) -> int:
    """Return the partition of a record's key; written without the code of the transform."""
    return xxhash.xxh32(str(json.loads(record)["n"]).encode()).intdigest() % PARTITIONS


def _bad_numbers(index: int, count: int) -> frozenset[int]:
    """Return which records of an object are bad: at its beginning, at its end, or in its middle, some in a row."""
    places = ({1, 2}, {count // 2 + 1, count}, {3, count // 2 + 1, count // 2 + 2})
    return frozenset(places[index % len(places)])


@attrs.frozen(kw_only=True)
class Contents:
    """The objects of a scenario.

    Attributes:
        scenario: the scenario.
        good: key -> good records, in order.
        bad: key -> bad records, in order; all differ.
        filtered: key -> numbers of the records that transforms filter.
        sizes: key -> bytes of the object.
        split_size: bytes of a split; 0: objects are read whole.
    """

    scenario: Scenario
    good: Mapping[str, Sequence[bytes]]
    bad: Mapping[str, Sequence[bytes]]
    filtered: Mapping[str, Sequence[int]]
    sizes: Mapping[str, int]
    split_size: int

    def bench(self, rig: SourceRig) -> Bench:
        """Return a bench with a new server, and sizes that do not divide each other."""
        options: dict[str, Any] = {}
        if self.split_size:
            options["split_size"] = self.split_size
        if self.scenario.tasks > 1:
            options["tasks_max"] = self.scenario.tasks
        if self.scenario.bad_records:
            options |= {"tolerance": "skip_record", "dead_letter_topic": DEAD_LETTERS}
        transforms = [*(FILTERS if self.scenario.filters else ()), *([BY_KEY] if self.scenario.by_key else ())]
        if transforms:
            options["transforms"] = transforms
        if self.scenario.by_key:
            options["partitions"] = PARTITIONS
        # splits are smaller than objects, and must have several batches, too
        batch_length = BATCH - 1 if self.split_size else BATCH
        return Bench(
            rig, batch_length=batch_length, queue_records=QUEUE, linger_time=0.0, prefetch_objects=2, **options
        )

    def compare(self, comparing: Comparing, bench: Bench, entries: Sequence[OffsetManagerEntry], example: str) -> None:
        """Compare topics and positions after a run to the end with what must be there."""
        numbers = self._compare_records(comparing, bench, example)
        for split, bad in self._compare_dead_letters(comparing, bench, example).items():
            numbers.setdefault(split, []).extend(bad)
        for key, filtered in self.filtered.items():
            if filtered:
                numbers.setdefault((key, 0), []).extend(filtered)
        if self.scenario.by_key:  # a record counts in every part
            together: dict[Split, list[int]] = {}
            for (key, _), found in numbers.items():
                together.setdefault((key, 0), []).extend(found)
            numbers = together
        for (key, number), found in sorted(numbers.items()):
            place = f"{example}: {key!r}, split {number}: numbers of its records and dead letters"
            comparing.same(sorted(found), range(1, len(found) + 1), place)
        ends = {(entry.key, entry.split_number): (entry.records_done, entry.finished) for entry in entries}
        wanted = {split: (len(numbers.get(self._numbered_in(split), ())), True) for split in self._positions()}
        comparing.that(ends == wanted, f"{example}: positions at the end {ends}, must be {wanted}")

    def _compare_records(self, comparing: Comparing, bench: Bench, example: str) -> dict[Split, list[int]]:
        """Compare the records; return their numbers."""
        found: dict[Split, list[tuple[int, int, bytes]]] = {}
        for partition, message in bench.messages():
            parts = parse_message_id(message.message_id)
            key = join_provenance(message.headers)["key"]
            found.setdefault((key, parts.split_number), []).append((partition, parts.record, message.payload))
        strangers = sorted({key for key, _ in found} - set(self.good))
        comparing.same(strangers, [], f"{example}: keys in the topic that were never written")
        for (key, split), messages in sorted(found.items()):
            place = f"{example}: {key!r}, split {split}"
            comparing.that(len({partition for partition, _, _ in messages}) == 1, f"{place} is in several partitions")
            numbers = [number for _, number, _ in messages]
            comparing.same(numbers, sorted(set(numbers)), f"{place}: numbers of its records, in the topic's order")
        for key, records in self.good.items():
            of_key = [messages for (of, _), messages in sorted(found.items()) if of == key]
            together = list(itertools.chain.from_iterable(of_key))
            if self.scenario.by_key:
                together.sort(key=lambda message: message[1])
            payloads = [payload for _, _, payload in together]
            comparing.same(payloads, records, f"{example}: the topic's records of {key!r}")
            if self.scenario.by_key:
                there = [partition for partition, _, _ in together]
                comparing.same(there, list(map(_partition_of, payloads)), f"{example}: partitions of {key!r}")
        return {split: [number for _, number, _ in messages] for split, messages in found.items()}

    def _compare_dead_letters(self, comparing: Comparing, bench: Bench, example: str) -> dict[Split, set[int]]:
        """Compare the dead letters; return the numbers of the records."""
        ids: dict[tuple[str, bytes], set[int]] = {}
        numbers: dict[Split, set[int]] = {}
        for message in bench.dead_letters():
            headers, parts = join_provenance(message.headers), parse_message_id(message.message_id)
            comparing.that(headers[LETTER_HEADER] == "record", f"{example}: a letter about an {headers[LETTER_HEADER]}")
            ids.setdefault((headers["key"], message.payload), set()).add(message.message_id)
            numbers.setdefault((headers["key"], parts.split_number), set()).add(parts.record)
        wanted = sorted((key, record) for key, records in self.bad.items() for record in records)
        comparing.same(sorted(ids), wanted, f"{example}: bad records with a dead letter")
        different = len(set(itertools.chain.from_iterable(ids.values())))
        comparing.that(
            different == len(wanted) == sum(map(len, ids.values())),
            f"{example}: {len(wanted)} bad records have {different} ids of dead letters",
        )
        return numbers

    def highest(self, bench: Bench) -> dict[Split, int]:
        """Return the highest record number in the topic of each object or split."""
        found: dict[Split, int] = {}
        for _, message in bench.messages():
            parts = parse_message_id(message.message_id)
            split = join_provenance(message.headers)["key"], parts.split_number
            found[split] = max(found.get(split, 0), parts.record)
        return found

    def _numbered_in(self, split: Split) -> Split:
        """Return where the records of a position are numbered: those of a part in the object."""
        return (split[0], 0) if self.scenario.by_key else split

    def _positions(self) -> Iterator[Split]:
        if self.scenario.by_key:
            yield from itertools.product(self.sizes, range(1, PARTITIONS + 1))
            return
        for key, size in self.sizes.items():
            splits = -(-size // self.split_size) if self.split_size else 0
            yield from ((key, split) for split in (range(1, splits + 1) if splits > 1 else (0,)))
