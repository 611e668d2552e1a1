"""Keys to topics, partitions and tasks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.key_template import NameMatch, NameTemplate
from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.discovery.routing import Router, object_partition_number, task_of
from framework.errors import ConfigError, ObjectError
from framework.model.objects import NativeObject, TopicPartition

TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
NUMBERS = st.integers(0, 10**9)


def native(key="a/b.jsonl", bucket="lake"):
    return NativeObject(scheme="s3", bucket=bucket, key=key, size=1, version="v")


def router(topic="orders", partitions=4, distribution="object_hash", template=None):
    naming = {"distribution": distribution, **({"template": template} if template else {})}
    iggy = {"url": "iggy://u:p@h", "stream": "s", "partitions": partitions, **({"topic": topic} if topic else {})}
    mapping = {"source": {"name": "o"}, "input": {"format": "jsonl"}, "iggy": iggy, "naming": naming}
    return Router(structure(mapping, SourceCommonConfig))


@pytest.mark.parametrize(
    ("template", "key", "expected"),
    [
        ("{{topic}}-{{partition}}-{{start_offset}}.gz", "orders-1-27.gz", ("orders", 1, 27)),
        ("{{topic}}-{{partition}}-{{start_offset}}.gz", "a-1-2-3.gz", ("a-1", 2, 3)),
        ("{{topic}}-{{partition}}-{{start_offset}}.gz", "22-10-12/customer-topic-1-1001.gz", None),
        (
            "{{timestamp}}-{{timestamp}}-{{timestamp}}/{{topic}}-{{partition}}-{{start_offset}}",
            "22-10-12/customer-topic-1-1001",
            ("customer-topic", 1, 1001),
        ),
        ("{{timestamp}}{{timestamp}}/{{key}}", "202405/x\ny/z", (None, None, None)),
        ("{{timestamp}}{{timestamp}}/{{key}}", "2/x", None),
        ("{{topic}}/{{key}}", "a/b/c", ("a", None, None)),
        ("a.b/{{topic}}", "aXb/t", None),
        ("a+(b)[c]/{{topic}}", "a+(b)[c]/t", ("t", None, None)),
        ("{{topic}}", "x/y", None),
        ("{{topic}}", "x\n", None),
        ("{{topic}}", "", None),
        ("{{partition}}", "٣", None),
        ("{{partition}}", "007", (None, 7, None)),
        ("{topic}/{{topic}}", "{topic}/x", ("x", None, None)),
        ("literal", "literal", (None, None, None)),
        ("literal", "literally", None),
    ],
)
def test_templates_are_literal_and_cover_the_whole_key(template, key, expected):
    found = NameTemplate.parse(template).match(key)
    assert found == (None if expected is None else NameMatch(*expected))


@given(topic=TOPICS, partition=NUMBERS, start=NUMBERS, stamp=NUMBERS, folder=st.text(max_size=10))
def test_what_was_written_is_found_again(topic, partition, start, stamp, folder):
    folder = folder.replace("{{", "")
    template = NameTemplate.parse(f"{folder}/{{{{topic}}}}/{{{{partition}}}}+{{{{start_offset}}}}@{{{{timestamp}}}}")
    assert template.match(f"{folder}/{topic}/{partition}+{start}@{stamp}") == NameMatch(topic, partition, start)
    assert template.match(f"x{folder}/{topic}/{partition}+{start}@{stamp}") is None
    assert template.match(f"{folder}/{topic}/{partition}+{start}@{stamp}x") is None


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{topc}}", "unknown placeholder {{topc}}; known are {{topic}}, {{partition}}"),
        ("{{timestamp:unit=yyyy}}", "unknown placeholder {{timestamp:unit=yyyy}}"),
        ("{{ topic }}", "unknown placeholder {{ topic }}"),
        ("{{topic}}/{{topic}}", "{{topic}} stands twice"),
        ("{{key}}/{{key}}", "{{key}} stands twice"),
        ("{{topic}}{{partition}}", "nothing tells where {{topic}} ends and {{partition}} begins"),
        ("{{partition}}0{{start_offset}}", "put text between them that is no digit"),
    ],
)
def test_templates_that_cannot_be(template, said):
    with pytest.raises(ConfigError) as caught:
        NameTemplate.parse(template)
    assert said in str(caught.value)


def test_all_mistakes_of_a_template_come_at_once():
    with pytest.raises(ConfigError) as caught:
        NameTemplate.parse("{{topc}}-{{partition}}-{{partition}}")
    assert len(caught.value.mistakes) == 2


def test_regular_expressions_on_request():
    template = NameTemplate.parse(r"(?:old|new)/(?P<topic>[a-z]+)(?:-(?P<partition>\d+))?\.(gz|zst)", regex=True)
    assert template.match("old/abc-3.gz") == NameMatch("abc", 3)
    assert template.match("old/abc.gz") is None, "a group that took no part gives no partition"
    assert template.match("xold/abc-3.gz") is None
    assert template.match(f"old/abc-{5000 * '9'}.gz") is None
    assert template.match("old/abc-3.gzz") is None
    mixed = NameTemplate.parse(r"(?:a|b)/{{topic}}/{{partition}}\..*", regex=True)
    assert (mixed.has_topic, mixed.has_partition) == (True, True)
    assert mixed.match("b/t/9.x") == NameMatch("t", 9)
    with pytest.raises(ConfigError, match="no valid regular expression"):
        NameTemplate.parse("(", regex=True)
    with pytest.raises(ConfigError, match="no valid regular expression"):
        NameTemplate.parse("{{topic}}(?P<topic>x)", regex=True)


@pytest.mark.parametrize("text", [r"(a+)+", r"x/(?:[a-z]+)*/y", r"(?:[a-z]+/)*x", r"([0-9]+){2,}"])
def test_a_repetition_of_a_repetition_is_a_regular_expression(text):
    NameTemplate.parse(text, regex=True)


def test_a_key_on_which_the_template_takes_too_long_is_refused():
    template = NameTemplate.parse("(?P<topic>(a|a)*)", regex=True)
    began = time.process_time()
    with pytest.raises(
        ObjectError, match=r"^a{60}!: the regular expression in \[naming\] template takes more than 0.5 s"
    ):
        template.match("a" * 60 + "!")
    assert time.process_time() - began < 5
    assert template.match("aa") == NameMatch("aa")


def test_no_literal_template_is_slow_on_a_key_made_for_it():
    template = NameTemplate.parse("{{timestamp}}-{{topic}}-{{partition}}-{{timestamp}}/{{key}}-{{start_offset}}.gz")
    keys = ["1-" + "1-" * 500 + "/" + "-1" * 10, "1" * 1024, "1-" * 512, "1-1-1-1/" + "-1" * 500]
    began = time.process_time()
    for key in keys:
        assert template.match(key) is None
    assert time.process_time() - began < 2  # catastrophic ones take longer than anybody waits


@given(st.text(max_size=30), st.text(max_size=50), st.integers(1, 1000))
def test_an_object_always_has_the_same_partition(bucket, key, topic_partitions):
    number = object_partition_number(bucket, key, topic_partitions)
    assert 0 <= number < topic_partitions
    assert number == object_partition_number(bucket, key, topic_partitions)


def test_the_hash_is_fixed_for_ever():
    # Positions and the order within objects rest on these numbers: another hash would move objects to other partitions.
    assert [object_partition_number("lake", f"events/{n}.jsonl", 1000) for n in range(3)] == FIXED_NUMBERS
    assert object_partition_number("a", "b/c", 2**32) != object_partition_number("a/b", "c", 2**32)


FIXED_NUMBERS = [54, 710, 312]


def test_another_process_with_another_hash_seed_agrees():
    code = (
        "from framework.discovery.routing import *; "
        "print(object_partition_number('b', 'k', 997), task_of(TopicPartition('t', 3), 7))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{object_partition_number('b', 'k', 997)} {task_of(TopicPartition('t', 3), 7)}\n"}


def test_partitions_are_used_evenly():
    counts = Counter(object_partition_number("b", f"k{n}", 8) for n in range(8000))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1150


@given(st.integers(1, 7), st.integers(1, 20), st.lists(TOPICS, min_size=1, max_size=3, unique=True))
def test_tasks_are_disjoint_and_together_complete(tasks, partitions, topics):
    topic_partitions = [TopicPartition(topic, partition) for topic in topics for partition in range(partitions)]
    owned = {
        task: [topic_partition for topic_partition in topic_partitions if task_of(topic_partition, tasks) == task]
        for task in range(tasks)
    }
    assert sorted(topic_partition for mine in owned.values() for topic_partition in mine) == sorted(topic_partitions)
    for topic in topics:
        sizes = [sum(topic_partition.topic == topic for topic_partition in mine) for mine in owned.values()]
        assert max(sizes) - min(sizes) <= 1


def test_a_configured_topic_wins_over_the_templates():
    match = NameMatch("found", 2)
    template = "{{topic}}/{{partition}}"
    assert router("orders", template=template).route(native(), match).topic == "orders"
    assert router(None, template=template).route(native(), match).topic == "found"
    assert router("raw-{{topic}}-x", template=template).route(native(), match).topic == "raw-found-x"
    assert router("orders").fixed_topic == "orders"
    assert router(None, template=template).fixed_topic is None


def test_object_hash_spreads_and_stays():
    route = router(partitions=7).route
    for number in range(50):
        key = f"k{number}"
        assert route(native(key), NameMatch()) == TopicPartition("orders", object_partition_number("lake", key, 7))


def test_partition_distribution_takes_the_number_and_refuses_one_too_large():
    made = router(partitions=3, distribution="partition", template="{{partition}}/{{key}}")
    assert made.route(native(), NameMatch(None, 2)) == TopicPartition("orders", 2)
    with pytest.raises(ObjectError) as caught:
        made.route(native("3/x"), NameMatch(None, 3))
    for part in ("s3://lake/3/x", "partition 3", "topic orders", "has 3 (0 to 2)", "[iggy] partitions"):
        assert part in str(caught.value)


def test_a_topic_that_gets_too_long_is_an_error_of_the_object():
    made = router("raw-{{topic}}", template="{{topic}}/{{key}}")
    with pytest.raises(ObjectError, match="1 to 255 bytes"):
        made.route(native(), NameMatch("t" * 255))
    assert NameTemplate.parse("{{topic}}").match("t" * 256) is None


def guarded(*, topic=None, naming=None, known=(), refusal=None, errors=None, partitions=4):
    mapping = {
        "source": {"name": "src"},
        "input": {"format": "jsonl"},
        "naming": {"template": "(?P<topic>[^/]*)/.*", "regex": True, **(naming or {})},
        "iggy": {"url": "iggy://u:p@h", "stream": "s", "partitions": partitions, **({"topic": topic} if topic else {})},
        "errors": errors or {},
    }
    config = structure(mapping, SourceCommonConfig)
    return Router(config, known_topics=known, refusal=refusal)


def routed(made, topic):
    return made.route(native(f"{topic}/x"), NameMatch(topic=topic))


def refused(made, topic):
    with pytest.raises(ObjectError) as caught:
        routed(made, topic)
    assert caught.value.location == f"s3://lake/{topic}/x"
    return caught.value.message


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("src-offsets", "keeps the positions of this source"),
        ("dead", "keeps its dead letters"),
        ("other-offsets", "ends in -offsets"),
        ("0", "digits alone"),
        ("0017", "digits alone"),
        ("+5", "digits alone"),
        ("a\nb", "control characters"),
        ("\x1b[2J", "control characters"),
        ("x" * 256, "1 to 255 bytes"),
        ("é" * 128, "1 to 255 bytes"),
        ("\udcff", "valid Unicode"),
    ],
)
def test_a_key_never_names_a_topic_that_records_must_not_go_to(topic, said):
    made = guarded(errors={"tolerance": "skip_record", "dead_letter_topic": "dead"})
    assert said in refused(made, topic)
    assert routed(made, "fine").topic == "fine"


def test_the_offsets_topic_is_out_of_reach_also_where_the_configuration_names_it():
    mapping = {
        "source": {"name": "src"},
        "input": {"format": "jsonl"},
        "naming": {"template": "{{topic}}/{{key}}"},
        "iggy": {"url": "iggy://u:p@h", "stream": "s", "topic": "x.{{topic}}"},
        "offsets": {"topic": "x.positions"},
    }
    made = Router(structure(mapping, SourceCommonConfig))
    assert "keeps the positions" in refused(made, "positions")
    assert routed(made, "src-offset").topic == "x.src-offset"


def test_only_listed_topics_are_named_where_a_list_is_given():
    made = guarded(naming={"topics": ["orders", "consumer-offsets"]}, known=["old"])
    assert routed(made, "orders").topic == "orders"
    assert routed(made, "consumer-offsets").topic == "consumer-offsets"
    for topic in ("old", "order", "Orders", "x-offsets"):
        assert "is not in [naming] topics" in refused(made, topic)


def test_the_topics_that_keys_name_are_limited_and_those_that_are_there_count():
    made = guarded(naming={"max_topics": 3}, known=["a", "b"])
    assert routed(made, "c").topic == "c"
    assert "3 topics that [naming] max_topics allows" in refused(made, "d")
    assert [routed(made, topic).topic for topic in "abcabc"] == list("abcabc")
    refused(made, "d")


def test_where_no_topic_is_made_there_is_no_limit():
    made = guarded(naming={"max_topics": 1}, known=None)
    assert [routed(made, topic).topic for topic in "abc"] == list("abc")


def test_iggy_is_asked_once_about_each_new_topic_and_again_in_the_next_listing():
    asked, away = [], {"bad": "has 7 partitions"}

    def refusal(topic):
        asked.append(topic)
        return away.get(topic)

    made = guarded(known=["old"], refusal=refusal)
    for _ in range(2):
        routed(made, "old")
        routed(made, "new")
        assert "has 7 partitions" in refused(made, "bad")
    assert asked == ["new", "bad"]
    away.clear()
    made.begin_listing()
    assert routed(made, "bad").topic == "bad"
    assert asked == ["new", "bad", "bad"]


def test_refusals_are_forgotten_before_they_fill_the_memory():
    made = guarded(refusal=lambda topic: "is away")
    for number in range(5000):
        refused(made, f"t{number}")
    assert len(made._answers) == 1000
    assert not made._of_topic
