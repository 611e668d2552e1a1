"""The sections every source has: defaults, and checks over several options."""

from __future__ import annotations

import pickle

import attrs
import pytest

from framework.config.loading import structure
from framework.config.option import options_of, sections_of, subsections_of
from framework.config.sections import SourceCommonConfig, SparkSection, master_addresses
from framework.errors import ConfigError
from framework.transformer import InputOptions

BASE = {
    "source": {"name": "orders"},
    "input": {"format": "jsonl"},
    "iggy": {"url": "iggy://iggy:hunter22@localhost:8090", "stream": "lake", "topic": "orders"},
}


def config(**sections):
    return structure(
        {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {**BASE, **sections}}, SourceCommonConfig
    )


def mistakes(**sections):
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    return list(caught.value.mistakes)


def without_topic(**sections):
    return {**sections, "iggy": {"topic": "{{topic}}", **sections.get("iggy", {})}}


def test_the_smallest_configuration_has_the_documented_defaults():
    made = config()
    assert made.offsets_topic == "orders-offsets"
    assert made.iggy.partitions == 4
    assert made.iggy.linger_time == 0.005
    assert made.input.prefetch_bytes == 8 * 2**20
    assert (made.runner.engine, made.runner.tasks_max) == ("spark", None)
    assert made.metrics.host_and_port() is None
    assert pickle.loads(pickle.dumps(made)) == made


def test_no_repr_shows_the_password_in_the_address():
    assert "hunter22" not in repr(config())


def test_input_gives_the_options_of_a_transformer():
    given = {"format": "csv", "csv_delimiter": ";", "csv_header": False, "max_record_bytes": "1MiB", "chunk_size": 7}
    options = config(input=given).input.options()
    assert options == InputOptions(
        format="csv", csv_delimiter=";", csv_header=False, max_record_bytes=2**20, chunk_size=7
    )
    for field in attrs.fields(InputOptions):
        assert field.name in {one.name for one in options_of(sections_of(SourceCommonConfig)["input"])}


def test_a_topic_must_come_from_somewhere():
    iggy = {key: value for key, value in BASE["iggy"].items() if key != "topic"}
    mapping = {**BASE, "iggy": iggy}
    with pytest.raises(ConfigError, match=r"\[iggy\] topic: missing; name one, or have the name template"):
        structure(mapping, SourceCommonConfig)
    for naming in ({"template": "{{topic}}/{{key}}"}, {"template": "(?P<topic>[a-z]+)/.*", "regex": True}):
        assert structure({**mapping, "naming": naming}, SourceCommonConfig).iggy.topic is None


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"iggy": {"topic": "raw-{{topic}}"}}, "uses {{topic}}, which the name template does not have"),
        ({"iggy": {"topic": "raw-{{partition}}"}}, "only {{topic}} can be used here"),
        ({"naming": {"distribution": "partition"}}, "[naming] distribution"),
        ({"naming": {"distribution": "partition", "template": "{{key}}"}}, "needs {{partition}} in the template"),
        ({"offsets": {"topic": "orders"}}, "[offsets] topic"),
        ({"runner": {"tasks_max": 5}}, "[runner] tasks_max = 5: must not be more than [iggy] partitions (4)"),
        ({"source": {"name": "my orders"}}, "[source] name"),
        ({"metrics": {"address": "9464"}}, "must be host:port"),
        ({"http": {"api_key": "hunter22\n"}}, "[http] api_key: has a space or a line break at an end"),
        ({"http": {"api_key": "hunter22 "}}, "no header can send it"),
        ({"http": {"api_key": "hun\0ter22"}}, "no header can send it"),
        ({"metrics": {"address": "localhost:99999"}}, "must be host:port"),
        ({"metrics": {"address": "localhost:" + 5000 * "9"}}, "must be host:port"),
        ({"input": {"format": "jsnol"}}, 'did you mean "jsonl"?'),
        ({"input": {"csv_delimiter": ";;"}}, "[input] csv_delimiter: must be one ASCII character"),
        ({"input": {"csv_quote": ","}}, "must not be the same"),
        (
            {"input": {"format": "csv", "split_size": "1MiB"}},
            "[input] split_size: objects of csv can only be read whole",
        ),
        ({"input": {"split_size": "1MiB", "compression": "gzip"}}, "[input] split_size: an object in gzip can only be"),
        ({"discovery": {"include": ["[z-a]"]}}, '[discovery] include: "[z-a]" is no valid glob'),
        ({"discovery": {"exclude": [""]}}, "[discovery] exclude: an empty glob"),
        ({"naming": {"template": "{{topc}}"}}, "[naming] template"),
        ({"iggy": {"url": "http://localhost:3000"}}, "[iggy] url: http:// is not supported: HTTP keeps no connection"),
    ],
)
def test_what_options_get_wrong_together(sections, said):
    (only,) = mistakes(**sections)
    assert said in only


def test_a_bad_template_does_not_hide_other_mistakes_or_invent_any():
    found = mistakes(naming={"template": "{{topc}}/{{topic}}"}, iggy={"topic": "x-{{topic}}", "batch_length": 0})
    assert len(found) == 2
    assert "unknown placeholder {{topc}}" in found[0]
    assert "batch_length" in found[1]


def test_more_tasks_than_partitions_are_allowed_when_objects_name_their_topics():
    naming = {"template": "{{topic}}/{{key}}"}
    assert config(naming=naming, iggy={"topic": "{{topic}}"}, runner={"tasks_max": 9}).runner.tasks_max == 9


@pytest.mark.parametrize("address", ["127.0.0.1:9464", "localhost:0", "[::1]:9464"])
def test_metrics_addresses(address):
    host, port = config(metrics={"address": address}).metrics.host_and_port()
    assert f"{host}:{port}" == address.replace("[", "").replace("]", "")


def test_every_option_is_documented_by_a_sentence():
    for section in sections_of(SourceCommonConfig).values():
        for one in options_of(section):
            assert one.doc.rstrip().endswith("."), one.name
        assert len(options_of(section)) + len(subsections_of(section)) == len(attrs.fields(section))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"iggy": {"stream": "17"}},
            '[iggy] stream = "17": is digits alone, which Iggy takes for a number and not for a name',
        ),
        ({"iggy": {"topic": "17"}}, '[iggy] topic = "17": is digits'),
        ({"iggy": {"topic": "ä" * 200}}, "1 to 255 bytes"),
        ({"offsets": {"topic": "17"}}, '[offsets] topic = "17": is digits'),
        (
            {"errors": {"dead_letter_topic": "1\n", "tolerance": "skip_record"}},
            "[errors] dead_letter_topic",
        ),
        ({"naming": {"topics": ["a"]}}, "[naming] topics: has no effect"),
    ],
)
def test_names_that_iggy_cannot_have_are_found_in_the_file(sections, said):
    assert any(said in mistake for mistake in mistakes(**sections)), mistakes(**sections)


def test_the_list_of_topics_holds_neither_positions_nor_dead_letters_nor_numbers():
    sections = without_topic(
        naming={"template": "{{topic}}/{{key}}", "topics": ["orders-offsets", "bad", "12", "fine"]},
        errors={"dead_letter_topic": "bad", "tolerance": "skip_record"},
    )
    said = "\n".join(mistakes(**sections))
    assert '"orders-offsets" is the topic of positions' in said
    assert '"bad" is the topic of positions or dead letters' in said
    assert '[naming] topics: "12" is digits' in said
    assert '"fine"' not in said


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://a:7077,b:7077",
        "k8s://https://h:443",
        "spark://[::1]:7077",
    ],
)
def test_masters_of_spark(master):
    assert list(SparkSection(master=master).validate_options()) == []


def test_an_address_of_a_master_without_a_port_has_its_default():
    assert master_addresses("spark://a,[::1]:8000") == [("a", 7077), ("::1", 8000)]
    assert master_addresses("k8s://https://h/path") == [("h", 443)]
    assert master_addresses("yarn") == master_addresses("local[2]") == []


@pytest.mark.parametrize(
    "master",
    [
        "locl[2]",
        "local[2",
        "yarn-client",
        "host:7077",
        "spark://h:70777",
        "spark://h:0",
        "spark://:7077",
        "spark://a:7077,",
        "spark://[::1",
        "k8s://https://h:x",
        "mesos://h:5050",
        "sc://h:15002",
    ],
)
def test_a_master_that_is_none_is_told_what_it_must_be(master):
    (mistake,) = SparkSection(master=master).validate_options()
    assert mistake.startswith(f'master = "{master}": must be local, local[N], spark://host:7077')
    assert ("Spark Connect" in mistake) == (master == "sc://h:15002")


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"spark.speculation": " TRUE "}, "spark.speculation must be off"),  # Spark cuts blanks off
        ({"spark.master": "spark://head:7077"}, "set [spark] master"),
        ({"spark.remote": "sc://head:15002"}, "set [spark] master"),
    ],
)
def test_options_that_contradict_ours(conf, said):
    (mistake,) = SparkSection(conf=conf).validate_options()
    assert said in mistake


def test_a_mistake_about_tls_hides_none_of_its_section():
    found = mistakes(iggy={"username": "ann", "stream": "17", "tls": {"enabled": "maybe"}})
    assert [text.split(":")[0] for text in found] == [
        '[iggy.tls] enabled = "maybe"',
        '[iggy] stream = "17"',
        "[iggy] password",
        "[iggy] url, username",
    ]
