"""The checker finds what is planted: nobody else tells whether the table's zeros are true."""

import ast
import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import checker, reader
from tests.faults.checker import Version, check, check_generations
from tests.faults.content import FORMS, body, records_of, values
from tests.faults.reader import Stored

BUCKET = "lake"
PARTITIONS = 3
LONG = "in/" + "ä" * 200 + ".csv"


def headers_of(key, etag):
    pieces, rest = [], key
    while rest:  # a header holds 255 bytes
        piece = rest[:100]
        pieces.append(piece)
        rest = rest[100:]
    named = {"key" if number == 0 else f"key.{number}": piece for number, piece in enumerate(pieces)}
    return {"bucket": BUCKET, "version": f"{etag}@1717000000000", **named}


def payload_of(value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()


class Topic:
    """A topic as it must be, and what must be in it; tests break the one or the other."""

    def __init__(self, counts, *, split_size=None):
        self.expected, self.topic_partitions = {}, [[] for _ in range(PARTITIONS)]
        for place, (key, form, counts_of_versions) in enumerate(counts):
            self.expected[key] = []
            for number, (count, sent) in enumerate(counts_of_versions):
                rows = values(form, key, number, count)
                records = records_of(form, rows, body(form, rows), split_size)
                last = number == len(counts_of_versions) - 1
                etag = f"{place:x}{number:x}"
                self.expected[key].append(Version(name=etag, records=records, whole=last))
                for split_number, record in list(records)[:sent]:
                    topic_partition = (place + max(0, split_number - 1)) % PARTITIONS
                    number_of = (place * 100 + number + 1) << 64 | split_number << 40 | record
                    payload = payload_of(records[split_number, record])
                    self.topic_partitions[topic_partition].append((number_of, headers_of(key, etag), payload))

    def stored(self):
        return [
            Stored(partition=topic_partition, offset=offset, id=number_of, headers=headers, payload=payload)
            for topic_partition, messages in enumerate(self.topic_partitions)
            for offset, (number_of, headers, payload) in enumerate(messages)
        ]

    def check(self, **more):
        return check(self.stored(), self.expected, bucket=BUCKET, **more)


def topic():
    return Topic(
        [
            ("in/a.jsonl", "jsonl", [(9, 9)]),
            (LONG, "csv", [(7, 3), (8, 8)]),
            ("in/c.txt", "txt", [(6, 6), (5, 0), (11, 11)]),
            ("in/d.bin", "bin", [(4, 4)]),
        ]
    )


def found(verdict):
    return {what: number for what in ("lost", "repeated", "mixed", "wrong") if (number := getattr(verdict, what))}


def test_it_imports_nothing_of_the_product():
    for module in (checker, reader):
        names = set()
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module)
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"apache_iggy"}


def test_a_topic_as_it_must_be():
    verdict = topic().check()
    assert verdict.good, verdict.sentences
    assert verdict.records == 9 + 3 + 8 + 6 + 11 + 4


@pytest.mark.parametrize("form", [*FORMS, "bin"])
def test_every_form(form):
    whole = Topic([(f"in/a.{form}", form, [(313, 313)])])
    verdict = whole.check()
    assert verdict.good, verdict.sentences
    assert verdict.records == 313


@pytest.mark.parametrize("topic_partition", range(PARTITIONS))
def test_any_lost_record_is_found(topic_partition):
    for at in range(len(topic().topic_partitions[topic_partition])):
        broken = topic()
        number_of, headers, _ = broken.topic_partitions[topic_partition].pop(at)
        # the last ones sent of versions that were overwritten need not be there
        may_be_gone = (headers["version"][:2], number_of & 0xFF) in {("10", 3), ("20", 6)}
        assert found(broken.check()) == ({} if may_be_gone else {"lost": 1})


@pytest.mark.parametrize("topic_partition", range(PARTITIONS))
def test_any_repeated_record_is_found(topic_partition):
    for at in range(len(topic().topic_partitions[topic_partition])):
        broken = topic()
        broken.topic_partitions[topic_partition].append(broken.topic_partitions[topic_partition][at])
        assert broken.check().repeated == 1


def test_a_record_repeated_in_another_partition():
    broken = topic()
    broken.topic_partitions[2].append(broken.topic_partitions[1][0])
    assert broken.check().repeated == 1


def test_two_swapped_records():
    broken = topic()
    topic_partition = broken.topic_partitions[0]
    topic_partition[2], topic_partition[3] = topic_partition[3], topic_partition[2]
    assert found(broken.check()) == {"wrong": 1}


def test_two_swapped_payloads():
    broken = topic()
    topic_partition = broken.topic_partitions[0]
    (one, head, first), (other, more, second) = topic_partition[2], topic_partition[3]
    topic_partition[2], topic_partition[3] = (one, head, second), (other, more, first)
    assert found(broken.check()) == {"wrong": 2}


def test_a_payload_of_another_object():
    broken = topic()
    number_of, headers, _ = broken.topic_partitions[0][0]
    broken.topic_partitions[0][0] = (number_of, headers, broken.topic_partitions[2][0][2])
    verdict = broken.check()
    assert verdict.lost == 1
    assert verdict.wrong


@pytest.mark.parametrize("payload", [b"", b"garbage", b"{}", b'{"of": 1}', b"in/none|0|1|", b"in/a.jsonl|7|1|"])
def test_what_nobody_put(payload):
    broken = topic()
    broken.topic_partitions[1].append((1, {}, payload))
    assert found(broken.check()) == {"wrong": 1}


def test_an_old_version_goes_on_behind_the_new_one():
    broken = topic()
    rows = values("csv", LONG, 0, 7)
    more = {name: str(value) for name, value in rows[3].items()}
    old = broken.topic_partitions[1][0][0] >> 64
    broken.topic_partitions[1].append((old << 64 | 4, headers_of(LONG, "10"), payload_of(more)))
    assert found(broken.check()) == {"mixed": 1}


def test_the_content_of_one_version_under_the_name_of_another():
    """The download went on with the new object's bytes."""
    broken = topic()
    topic_partition = broken.topic_partitions[1]
    new = next(at for at, one in enumerate(topic_partition) if one[1]["version"].startswith("11@"))
    rows = values("csv", LONG, 0, 7)
    number_of, headers, _ = topic_partition[new + 3]
    topic_partition[new + 3] = (number_of, headers, payload_of({name: str(value) for name, value in rows[3].items()}))
    verdict = broken.check()
    assert verdict.mixed >= 2
    assert verdict.lost == 1


def test_one_id_for_two_versions():
    broken = topic()
    topic_partition = broken.topic_partitions[1]
    old = topic_partition[0][0] >> 64
    for at, (number_of, headers, payload) in enumerate(topic_partition):
        if headers["version"].startswith("11@"):
            topic_partition[at] = (old << 64 | number_of & (1 << 64) - 1, headers, payload)
    assert found(broken.check()) == {"mixed": 1}


def test_several_ids_for_one_version():
    broken = topic()
    number_of, headers, payload = broken.topic_partitions[0][0]
    broken.topic_partitions[0][0] = (number_of + (1 << 64), headers, payload)
    assert broken.check().wrong


@pytest.mark.parametrize("change", [{"key": "in/b.jsonl"}, {"bucket": "other"}, {"key.1": "x"}, {"bucket": ""}])
def test_headers_that_name_another_object(change):
    broken = topic()
    number_of, headers, payload = broken.topic_partitions[0][0]
    broken.topic_partitions[0][0] = (number_of, headers | change, payload)
    assert found(broken.check()) == {"wrong": 1}


def test_the_name_of_a_version_is_compared_wholly():
    """S3's stands before the time of the last change, a generation alone."""
    bare = topic()
    bare.topic_partitions = [
        [
            (number_of, head | {"version": head["version"].partition("@")[0]}, payload)
            for number_of, head, payload in topic_partition
        ]
        for topic_partition in bare.topic_partitions
    ]
    assert bare.check(timed=False).good
    assert bare.check().mixed == topic().check(timed=False).mixed == topic().check().records
    number_of, headers, payload = bare.topic_partitions[0][0]
    bare.topic_partitions[0][0] = (number_of, headers | {"version": f"{headers['version']}0"}, payload)
    assert found(bare.check(timed=False)) == {"mixed": 1}


def test_headers_where_there_must_be_none():
    bare = topic()
    bare.topic_partitions = [
        [(number_of, {}, payload) for number_of, _, payload in topic_partition]
        for topic_partition in bare.topic_partitions
    ]
    assert bare.check(headers=False).good
    bare.topic_partitions[0][0] = (*bare.topic_partitions[0][0][:1], {"key": "x"}, bare.topic_partitions[0][0][2])
    assert found(bare.check(headers=False)) == {"wrong": 1}


def test_a_deleted_object_may_end_anywhere_and_have_no_hole():
    for sent in range(10):
        part = Topic([("in/a.jsonl", "jsonl", [(9, sent)])])
        assert found(part.check()) == ({"lost": 9 - sent} if sent < 9 else {})
        (version,) = part.expected["in/a.jsonl"]
        part.expected["in/a.jsonl"] = [dataclasses.replace(version, whole=False)]
        assert part.check().good
        if sent > 1:
            part.topic_partitions[0].pop(0)
            assert found(part.check()) == {"lost": 1}


@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_splits_of_an_object_in_blocks(form):
    split = Topic([(f"in/a.{form}", form, [(900, 900)])], split_size=1301)
    assert split.check().good
    assert len({one.id >> 40 & 0xFFFFFF for one in split.stored()}) > 2
    split.topic_partitions[1].pop(0)
    assert found(split.check()) == {"lost": 1}


def test_splits_of_a_split_object():
    split = Topic([("in/a.jsonl", "jsonl", [(90, 90)]), ("in/b.txt", "txt", [(70, 70)])], split_size=601)
    assert split.check().good
    assert len({one.id >> 40 & 0xFFFFFF for one in split.stored()}) > 5
    split.topic_partitions[1].pop(0)
    assert found(split.check()) == {"lost": 1}


@settings(deadline=None)
@given(st.data())
def test_whatever_is_taken_out_and_put_in_is_counted(data):
    """An oracle of its own: how many were taken out, and how many put in twice."""
    broken = Topic([(f"in/{n}.jsonl", "jsonl", [(11 + n, 11 + n)]) for n in range(5)])
    sizes = [len(topic_partition) for topic_partition in broken.topic_partitions]
    gone = data.draw(
        st.sets(
            st.sampled_from([(topic_partition, at) for topic_partition, size in enumerate(sizes) for at in range(size)])
        )
    )
    kept = [
        [one for at, one in enumerate(topic_partition) if (number, at) not in gone]
        for number, topic_partition in enumerate(broken.topic_partitions)
    ]
    twice = data.draw(st.integers(0, 5))
    broken.topic_partitions = kept
    added = 0
    for _ in range(twice):
        topic_partition = data.draw(
            st.sampled_from([topic_partition for topic_partition in kept if topic_partition] or [None])
        )
        if topic_partition is not None:
            topic_partition.append(data.draw(st.sampled_from(topic_partition)))
            added += 1
    verdict = broken.check()
    assert (verdict.lost, verdict.repeated, verdict.mixed) == (len(gone), added, 0)


def set_topic(*, begins=(4, 0), sent=(7, 6, 9), count=9):
    """An object whose position was set to these numbers, after so many records each; and another, of which nobody set it."""
    made = Topic([("in/a.jsonl", "jsonl", [(count, 0)]), ("in/b.txt", "txt", [(5, 5)])])
    (version,) = made.expected["in/a.jsonl"]
    for generation, (begin, end) in enumerate(zip((0, *begins), sent, strict=True), 1):
        for record in range(begin + 1, end + 1):
            payload = payload_of(version.records[0, record])
            made.topic_partitions[0].append((generation << 70 | record, headers_of("in/a.jsonl", "00"), payload))
    return made, {"in/a.jsonl": list(begins)}


def of_positions(made, positions):
    return found(check_generations(made.stored(), made.expected, positions, bucket=BUCKET))


@pytest.mark.parametrize(
    ("begins", "sent"),
    [
        ((4, 0), (7, 2, 9)),
        ((0,), (3, 9)),
        ((4, 4, 4), (6, 4, 5, 9)),  # a position of which nothing was sent before the next one
        ((9,), (9, 9)),  # set done
        ((5, 9), (5, 9, 9)),
        ((0, 0), (9, 0, 9)),
    ],
)
def test_records_behind_a_set_position_are_there_once_more(begins, sent):
    made, positions = set_topic(begins=begins, sent=sent)
    assert of_positions(made, positions) == {}
    assert of_positions(made, {}) != {} or sent[1:] == sent[:-1]


def test_what_is_wrong_behind_a_set_position():
    made, positions = set_topic()
    messages = made.topic_partitions[0]
    for place in range(len(messages)):
        made.topic_partitions[0] = messages[:place] + messages[place + 1 :]
        # the last record of a generation that was killed may be missing, and the first makes it begin where nobody set it
        assert bool(of_positions(made, positions)) == (place not in (6, 8)), place
        made.topic_partitions[0] = [*messages[: place + 1], *messages[place:]]
        assert of_positions(made, positions) == {"repeated": 1}
        # a record of the first generation that comes behind the others
        made.topic_partitions[0] = [*messages, messages[place]]
        assert of_positions(made, positions)


@pytest.mark.parametrize(
    ("begins", "told", "error"),
    [
        ((4,), (3,), "wrong"),  # it went on elsewhere
        ((4,), (4, 2), "lost"),  # nothing came behind the last position
        ((4,), (), "wrong"),
    ],
)
def test_positions_that_were_not_obeyed(begins, told, error):
    made, _ = set_topic(begins=begins, sent=(7, 9))
    assert error in of_positions(made, {"in/a.jsonl": list(told)})


def test_a_position_in_front_of_records_that_never_came():
    made, positions = set_topic(begins=(5,), sent=(3, 9))
    assert of_positions(made, positions) == {"lost": 2}
