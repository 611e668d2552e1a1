"""The sections that every source has, and the checks that need several of them.

A source's own root class adds its section (`[s3]`):

    @attrs.frozen(kw_only=True)
    class S3SourceConfig(SourceCommonConfig):
        s3: S3Config
"""
# ruff: noqa: FBT003  option() is an attrs field: it is called once a class, and its default stands first

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import attrs

from framework.config.discovery_section import DiscoverySection
from framework.config.http_sections import HttpSection, MetricsSection
from framework.config.iggy_section import IggySection
from framework.config.input_section import InputSection
from framework.config.key_template import (
    MAX_TOPIC_BYTES,
    OFFSETS_SUFFIX,
    TOPIC_PLACEHOLDER,
    NameTemplate,
    single_braces_error,
    topic_name_error,
)
from framework.config.option import Bytes, Seconds, option, sections_of
from framework.config.transform_registry import TransformConfig, order_errors, partition_options, partition_transform
from framework.model.positions import canonical_options
from framework.transformer import MAX_DEAD_LETTER_BYTES

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


def master_addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each address of a Spark master; none for `local`, `yarn` and the like.

    Raises:
        ValueError: an address has no host, or its port is no number of a port.
    """
    kind, _, rest = master.partition("://")
    if kind not in _DEFAULT_PORTS:
        return []
    found = []
    for address in rest.removeprefix("https://").removeprefix("http://").partition("/")[0].split(","):
        parts = urlsplit(f"//{address}")
        port = _DEFAULT_PORTS[kind] if parts.port is None else parts.port
        if not parts.hostname or not port:
            raise ValueError(address)
        found.append((parts.hostname, port))
    return found


def _is_master(text: str) -> bool:
    try:
        master_addresses(text)
    except ValueError:
        return False
    return _MASTER.fullmatch(text) is not None


_DEFAULT_PORTS = {"spark": 7077, "k8s": 443}
_MASTER = re.compile(r"local|local\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\s*\]|local-cluster\[.+\]|yarn|(spark|k8s)://.+")


@attrs.frozen(kw_only=True)
class SourceSection:
    """Identity of the source."""

    name: str = option(
        doc="The source's name. It is part of every position and message id: a source under another name starts from "
        "nothing. Letters, digits, `.`, `_` and `-`.",
        example="orders",
        minimum=1,
        maximum=100,
    )

    def validate_options(self) -> Iterator[str]:
        """Yield errors for characters that a topic's name cannot have."""
        if not _NAME.fullmatch(self.name):
            yield f'name = "{self.name}": may hold only letters, digits, ".", "_" and "-"'


@attrs.frozen(kw_only=True)
class NamingSection:
    """How keys determine topics and partitions."""

    template: str | None = option(
        None,
        doc="Form of the keys to read, over the whole key: `{{topic}}`, `{{partition}}`, `{{start_offset}}`, "
        "`{{timestamp}}`, `{{key}}`; everything else is literal. Other keys are filtered and counted. "
        "Absent: every key is read.",
        minimum=1,
    )
    regex: bool = option(
        False,
        doc="The template is a regular expression (Python's) over the whole key, with the named groups `topic`, "
        "`partition` and `start_offset`; the placeholders may be used in it too. A key that takes it longer than half a second "
        "is refused.",
    )
    distribution: str = option(
        "object_hash",
        choices=("object_hash", "partition"),
        doc='Which partition of its topic an object goes to. `"object_hash"`: a fixed hash of bucket and key. '
        '`"partition"`: the number at `{{partition}}`.',
    )
    topics: tuple[str, ...] = option(
        (),
        doc="Topics that keys may name, by their full names in Iggy. An object of any other topic stops the "
        "run, or is filtered with `[errors] tolerance`. Empty: every name, except the topics of positions and dead "
        "letters, and names that end in `-offsets`.",
    )
    max_topics: int = option(
        1000,
        minimum=1,
        maximum=100_000,
        unit="topics",
        doc="Maximum number of topics that keys may name: those that already hold records of this source, and"
        " new ones. Objects of further topics stop the run, or are filtered with `[errors] tolerance`. "
        "Anyone who may write objects can create topics by naming them.",
    )

    def parsed(self) -> NameTemplate | None:
        """Return the template, ready to match; None when every key is to be read."""
        return None if self.template is None else NameTemplate.parse(self.template, regex=self.regex)

    @property
    def names_topic(self) -> bool:
        """Whether keys name the topic. Also works for an invalid template, so that other errors are found as well."""
        text = self.template or ""
        return TOPIC_PLACEHOLDER in text or (self.regex and "(?P<topic>" in text)

    def validate_options(self) -> Iterator[str]:
        """Yield errors of the template, and of a distribution that needs a placeholder that it lacks."""
        template = self.parsed()  # its ConfigError is gathered by the loader
        if self.template is not None and (braces := single_braces_error(self.template)) is not None:
            yield f'template = "{self.template}": {braces}'
        if self.distribution == "partition" and (template is None or not template.has_partition):
            yield 'distribution = "partition": needs {{partition}} in the template'
        for topic in self.topics:
            mistake = topic_name_error(topic)
            if mistake is not None:
                yield f'topics: "{topic}" {mistake}'


@attrs.frozen(kw_only=True)
class OffsetsSection:
    """Where positions are stored."""

    topic: str | None = option(
        None,
        doc="The topic that stores the positions. Absent: the source's name with `-offsets`. Sources may "
        "share a topic: each sees its own positions. A shared topic is never trimmed, and each start reads all of it.",
        minimum=1,
        maximum=MAX_TOPIC_BYTES,
    )
    commit_interval: Seconds = option(
        1.0,
        minimum=0.01,
        maximum=60,
        doc="How often positions are written. A crash repeats nothing: records sent since then are found in "
        "the topics.",
    )


@attrs.frozen(kw_only=True)
class RunnerSection:
    """The engine and its tasks."""

    engine: str = option(
        "spark",
        choices=("spark", "local"),
        doc='`"spark"`: executors of Spark, on this machine or on a cluster (see `[spark]`); needs Java 17. '
        '`"local"`: this machine, one process per task, no Java.',
        example="local",
    )
    tasks_max: int | None = option(
        None,
        minimum=1,
        maximum=1000,
        unit="tasks",
        doc="Maximum number of tasks; for a single topic at most `[iggy] partitions`. Absent: one per "
        'core of Spark; one with the engine `"local"`, where one task runs inside the program and several'
        " run in a process each.",
    )


@attrs.frozen(kw_only=True)
class SparkSection:
    """Settings of the engine `"spark"`. An active session (`spark-submit`, a notebook) takes precedence."""

    master: str = option("local[*]", minimum=1, doc="Spark's master: `local[*]`, `spark://host:7077`, `yarn` ...")
    conf: Mapping[str, str] = option(
        attrs.Factory(dict),
        secret=True,
        doc='Options of the session that is created, `spark.executor.memory = "2g"` and so on. Some are '
        "secrets: their values never appear in messages or on command lines.",
    )

    def validate_options(self) -> Iterator[str]:
        """Yield errors for an invalid master or a second one, and for speculation, which gives a partition two senders."""
        if not _is_master(self.master):
            yield (
                f'master = "{self.master}": must be local, local[N], spark://host:7077, yarn or k8s://https://host:port'
                + ("; Spark Connect cannot run a pipeline" if self.master.startswith("sc:") else "")
            )
        if "spark.master" in self.conf:
            yield "conf: spark.master is not an option here: set [spark] master"
        if "spark.remote" in self.conf:
            yield "conf: spark.remote names a server of Spark Connect, which cannot run a pipeline: set [spark] master"
        if self.conf.get("spark.speculation", "false").strip().lower() == "true":
            yield "conf: spark.speculation must be off; it runs one task twice at the same time, and a partition has one sender"


@attrs.frozen(kw_only=True)
class ErrorsSection:
    """Handling of bad records and bad objects."""

    tolerance: str = option(
        "none",
        choices=("none", "skip_record", "skip_object"),
        doc='`"none"`: stop at the first bad record or object. `"skip_record"`: skip bad records, and the '
        'rest of an object that cannot be read. `"skip_object"`: a bad record fails its object. '
        "Everything skipped is counted and logged.",
    )
    dead_letter_topic: str | None = option(
        None,
        doc="A topic of the same stream for dead letters: where each skipped record was, why it was skipped, "
        "and its bytes. `dead-letter show` lists them, `dead-letter replay` sends the records again. "
        "Created when missing, with one partition. Sources may share a topic. Absent: skipped records are"
        ' only counted and logged. With `tolerance = "none"` nothing is skipped, and those commands read what is there.',
        minimum=1,
        maximum=MAX_TOPIC_BYTES,
    )
    dead_letter_bytes: Bytes = option(
        MAX_DEAD_LETTER_BYTES,
        minimum=1,
        maximum=MAX_DEAD_LETTER_BYTES,
        doc="Maximum bytes of a bad record that a dead letter holds; of a longer record it holds the beginning.",
    )
    max_bad_records: int = option(
        1000,
        minimum=0,
        unit="records",
        doc="Maximum number of skipped records per object. One more stops the source: a wrong `format` must "
        "not turn a bucket into dead letters.",
        former_names={"max_skipped": ""},
    )
    max_bad_records_per_hour: int = option(
        10_000,
        minimum=0,
        unit="records and objects",
        doc="Maximum number of skipped records and failed objects within an hour. One more stops the source. "
        "The offsets log remembers them, so a restart does not raise the limit; `offsets reset` clears "
        "them.",
        former_names={"max_skipped_per_hour": ""},
    )


@attrs.frozen(kw_only=True)
class LogSection:
    """Logging of a run."""

    format: str = option(
        "auto",
        choices=("auto", "plain", "json"),
        doc='`"auto"`: a progress bar and plain lines on a terminal, plain lines elsewhere. '
        '`"json"`: one JSON object a line.',
    )
    level: str = option("info", choices=("debug", "info", "warning", "error"), doc="Minimum level of the log.")
    objects: bool = option(
        False,
        doc="Log one line per finished object: key, version, records, topic, partition, seconds. The level "
        "`debug` includes these lines.",
    )


@attrs.frozen(kw_only=True)
class SourceCommonConfig:
    """Configuration common to all sources. A subclass adds its store's section."""

    source: SourceSection
    naming: NamingSection = attrs.field(factory=NamingSection)
    input: InputSection
    iggy: IggySection
    offsets: OffsetsSection = attrs.field(factory=OffsetsSection)
    discovery: DiscoverySection = attrs.field(factory=DiscoverySection)
    runner: RunnerSection = attrs.field(factory=RunnerSection)
    spark: SparkSection = attrs.field(factory=SparkSection)
    errors: ErrorsSection = attrs.field(factory=ErrorsSection)
    transforms: tuple[TransformConfig, ...] = ()
    log: LogSection = attrs.field(factory=LogSection)
    metrics: MetricsSection = attrs.field(factory=MetricsSection)
    http: HttpSection = attrs.field(factory=HttpSection)

    @property
    def offsets_topic(self) -> str:
        """The topic that stores the positions."""
        return self.offsets.topic or f"{self.source.name}{OFFSETS_SUFFIX}"

    def validate_options(self) -> Iterator[str]:
        """Yield errors that involve several sections."""
        topic = self.iggy.topic
        has_topic = self.naming.names_topic
        if topic is None and not has_topic:
            yield "[iggy] topic: missing; name one, or have the name template give it with {{topic}}"
        if topic is not None and TOPIC_PLACEHOLDER in topic and not has_topic:
            yield f'[iggy] topic = "{topic}": uses {{{{topic}}}}, which the name template does not have'
        if topic is not None and (braces := single_braces_error(topic)) is not None:
            yield f'[iggy] topic = "{topic}": {braces}'
        if topic is not None and "{{" in topic.replace(TOPIC_PLACEHOLDER, ""):
            yield f'[iggy] topic = "{topic}": only {{{{topic}}}} can be used here'
        if self.input.split_size is not None and self.naming.distribution == "partition":
            yield (
                '[input] split_size: splits go to several partitions, but [naming] distribution = "partition" puts each object '
                "in the partition that its key names; leave one of the two out"
            )
        yield from self._partition_errors()
        yield from self._order_errors()
        yield from self._name_errors()
        yield from order_errors(self.transforms)
        if topic == self.offsets_topic:
            yield f'[offsets] topic = "{topic}": must be another topic than the records go to'
        dead_letters = self.errors.dead_letter_topic
        if dead_letters is not None and dead_letters in {topic, self.offsets_topic}:
            yield f'[errors] dead_letter_topic = "{dead_letters}": must be another topic than records and positions go to'
        tasks = self.runner.tasks_max or 1
        if topic is not None and TOPIC_PLACEHOLDER not in topic and tasks > self.iggy.partitions:
            yield (
                f"[runner] tasks_max = {tasks}: must not be more than [iggy] partitions "
                f"({self.iggy.partitions}), since a partition belongs to one task"
            )

    def numbering_options(self, of_format: Mapping[str, str]) -> str:
        """Return the options that number and divide records, canonical.

        Args:
            of_format: those of the format.
        """
        if not self.divides_by_key:
            return canonical_options(of_format)
        before = self.input.shaping_options(), self.input.envelope_options()
        return canonical_options({**of_format, **partition_options(self.transforms, *before)})

    @property
    def divides_by_key(self) -> bool:
        """Whether a transform chooses the partition of each record."""
        return partition_transform(self.transforms) is not None

    def _partition_errors(self) -> Iterator[str]:
        """Yield errors for a choice of the partition that something else has made already."""
        chooser = partition_transform(self.transforms)
        if chooser is None:
            return
        if self.input.split_size is not None:
            yield (
                f"{chooser.place}: chooses the partition of each record, and [input] split_size that of each split; leave one "
                f"of the two out"
            )
        if self.naming.distribution == "partition":
            yield (
                f'{chooser.place}: chooses the partition of each record, and [naming] distribution = "partition" that of each '
                f"object; leave one of the two out"
            )

    def _order_errors(self) -> Iterator[str]:
        """Yield errors for an order that cannot be kept."""
        if self.discovery.order != "start_offset":
            return
        if "start_offset" not in (self.naming.template or ""):
            yield '[discovery] order = "start_offset": needs {{start_offset}} in [naming] template'
        if self.discovery.mode != "list":
            yield f'[discovery] order = "start_offset": has no effect with mode = "{self.discovery.mode}"; set mode = "list"'
        if self.runner.engine != "local":
            yield '[discovery] order = "start_offset": needs [runner] engine = "local", which lists in one process'

    def _name_errors(self) -> Iterator[str]:
        """Yield errors for topic names that Iggy rejects, and for named topics that keys cannot or must not use."""
        topic, dead_letters = self.iggy.topic, self.errors.dead_letter_topic
        for place, name in (("[offsets] topic", self.offsets.topic), ("[errors] dead_letter_topic", dead_letters)):
            mistake = topic_name_error(name) if name is not None else None
            if mistake is not None:
                yield f'{place} = "{name}": {mistake}'
        if self.naming.topics and topic is not None and TOPIC_PLACEHOLDER not in topic:
            yield f'[naming] topics: has no effect, since every record goes to [iggy] topic = "{topic}"; leave one of the two out'
        for reserved in {self.offsets_topic, dead_letters}.intersection(self.naming.topics):
            yield f'[naming] topics: "{reserved}" is the topic of positions or dead letters, where records never go'


def ordered_sections(root: type) -> dict[str, type]:
    """Return the sections of a root class as pages and files show them: the source, its store, then the common ones."""
    sections = sections_of(root)
    common = sections_of(SourceCommonConfig)
    own = [name for name in sections if name not in common]
    first = [name for name in ("source", *own, "input", "iggy") if name in sections]
    return {name: sections[name] for name in dict.fromkeys([*first, *sections])}
