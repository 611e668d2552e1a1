"""Converts the properties of a Kafka connector that reads a bucket, such as Aiven's S3 source, into a configuration.

No value of a secret is copied: it becomes a reference `${env:NAME}`. Properties without a counterpart are listed, each
with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import attrs

from framework.config.key_template import NameTemplate
from framework.config.values import is_unicode
from framework.errors import ConfigError

_KAFKA = "where records go is [iggy]; no Kafka is involved"
_CONVERTER = "a record's payload is the bytes of the line, or JSON for Avro, Parquet and CSV"
_SINK = "an option of sinks, which write objects"
_ENVELOPE = "[input] envelope takes its envelope off"
_SMT = "single message transforms are classes of Kafka Connect; see [[transforms]]"
_NO_UNICODE = "its value is not valid Unicode: write it by hand"
_NOT_COPIED = "the value is not copied: set this variable"
NO_LOGIN = "a login or a query in it is not copied: keys go into their own options"
_NUMBER = re.compile(r"\s*[+-]?\d{1,99}\s*", re.ASCII)
_KAFKA_REFERENCE = re.compile(r"\$\{(?P<provider>[^{}:]+):(?P<rest>[^}]*)\}")


def _references(text: str) -> Iterator[re.Match[str]]:
    # up to the last end: without one, each beginning would be searched for it to the end of the text
    return _KAFKA_REFERENCE.finditer(text, 0, text.rfind("}") + 1)


def _has_reference(text: str) -> bool:
    return next(_references(text), None) is not None


@attrs.frozen(kw_only=True)
class ConnectorOption:
    """What becomes of one property.

    Attributes:
        to: the option, `s3.bucket`; empty without a counterpart.
        read: the value from its text; raises ValueError with a sentence about it.
        variable: for a secret, the environment variable that will hold it.
        note: what differs, or why there is no counterpart.
        by_hand: what to write if the value is a reference and the option cannot take it, `{}`; empty if it can.
        unit: what stands behind a reference: what it names is a number without its unit.
        yields: whether another property of the same option counts if both are given, as over a former name.
        of_sink: whether only sinks have it.
        replaces_template: whether a sink that has it names its objects without `file.name.template`.
        sink_default: what a sink does without it; empty if that is what a source does.
    """

    to: str = ""
    read: Callable[[str], object] = str
    variable: str = ""
    note: str = ""
    by_hand: str = ""
    unit: str = ""
    yields: bool = False
    of_sink: bool = False
    replaces_template: bool = False
    sink_default: str = ""


@attrs.frozen(kw_only=True)
class ConvertedProperty:
    """A row of the table.

    Attributes:
        name: the property; empty for an option that the file does not contain.
        to: the option that it became; empty without one.
        note: what differs, or why there is no counterpart.
        warning: what the user must know or correct; empty for nothing.
    """

    name: str
    to: str = ""
    note: str
    warning: str = ""


@attrs.frozen(kw_only=True)
class Converted:
    """The result: sections and options, and a row for each property."""

    sections: dict[str, dict[str, object]]
    rows: list[ConvertedProperty]


def whole_number(text: str) -> int:
    """Return the number; raises ValueError."""
    if not _NUMBER.fullmatch(text):
        raise ValueError("its value is not a whole number")
    return int(text)


def duration(to: str, unit: str) -> ConnectorOption:
    """Return what becomes of a property that is a number of a unit: a duration, which has the unit beside the number."""
    return ConnectorOption(to=to, read=lambda text: f"{whole_number(text)}{unit}", unit=unit)


def address(text: str) -> str:
    """Return an address without login, query and fragment, which may be secrets."""
    scheme, mark, rest = text.strip().rpartition("://")
    return scheme + mark + re.split(r"[?#]", rest.rpartition("@")[2])[0]


def _lower(text: str) -> str:
    return text.strip().lower()


def _tolerance(text: str) -> str:
    return {"all": "skip_record"}.get(_lower(text), _lower(text))


def _compression(text: str) -> str:
    if _lower(text) == "snappy":
        raise ValueError("its value has a framing of its own there (xerial's), which cannot be read")
    return _lower(text)


def _source_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text.strip())[:100]


TEMPLATE = "file.name.template"
START_KEY = "native.start.key"
TOPICS = "topics"
COMPRESSION = "file.compression.type"
FORMER_COMPRESSION = "output_compression"
FORMAT_OF_SINK = "format.output.type"
_TEMPLATE_NOTE = "found anywhere in the key, as there"
_INSIDE = "Parquet is compressed inside"
_IF_PARQUET = f'write "none" if {FORMAT_OF_SINK} holds parquet, which is compressed inside'
_FILLED_IN = "its value holds {{, which the sink fills in: write what stands before it as [%s] prefix"
_NOT_USED = (
    "the sink does not use it beside the prefix, behind which its keys are {{topic}}-{{partition}}-{{start_offset}}, then "
    ".avro and .gz if they apply: write the whole key as [naming] template, or leave it out to read every key"
)
_SINK_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*(?::[^{}]*)?\}\}", re.ASCII)

COMMON: Mapping[str, ConnectorOption] = {
    "name": ConnectorOption(to="source.name", read=_source_name, note="identifies the positions: keep it"),
    "tasks.max": ConnectorOption(to="runner.tasks_max", read=whole_number),
    "topic": ConnectorOption(to="iggy.topic"),
    TOPICS: ConnectorOption(
        to="iggy.topic",
        note="the former name of topic",
        by_hand='write "{}" if it holds one topic',
        yields=True,
    ),
    "topic.creation.default.partitions": ConnectorOption(to="iggy.partitions", read=whole_number),
    "input.format": ConnectorOption(to="input.format", read=_lower),
    "input.type": ConnectorOption(to="input.format", read=_lower, note="the former name of input.format", yields=True),
    FORMAT_OF_SINK: ConnectorOption(
        to="input.format", read=_lower, note=f"what the sink wrote; {_ENVELOPE}", yields=True, of_sink=True
    ),
    "transformer.max.buffer.size": ConnectorOption(
        to="input.chunk_size", read=whole_number, note="of input.format=bytes"
    ),
    "expected.max.message.size": ConnectorOption(
        to="input.max_record_bytes", read=whole_number, note="a longer record is a bad record"
    ),
    "distribution.type": ConnectorOption(to="naming.distribution", read=_lower),
    COMPRESSION: ConnectorOption(to="input.compression", read=_compression),
    FORMER_COMPRESSION: ConnectorOption(
        to="input.compression", read=_compression, note=f"the former name of {COMPRESSION}", yields=True, of_sink=True
    ),
    "errors.tolerance": ConnectorOption(
        to="errors.tolerance",
        read=_tolerance,
        note="all is skip_record: skipped records are counted and logged",
        by_hand='write "none", or "skip_record" if it holds all',
    ),
    "errors.deadletterqueue.topic.name": ConnectorOption(to="errors.dead_letter_topic"),
}
"""Properties of every source, and of Kafka Connect itself, that become options."""

WITHOUT_COUNTERPART: Mapping[str, str] = {
    "connector.class": "the program is the connector",
    "topics.regex": "what a sink read: name the topic to write to in [iggy] topic, or {{topic}} in [naming] template",
    "errors.log.enable": "errors are always logged",
    "errors.log.include.messages": "records are never logged; a dead letter has the bytes",
    "max.poll.records": "requests are formed by bytes and time: [iggy] batch_length, batch_bytes, linger_time",
    "ring.buffer.size": "every object has a position, so late keys are found: [discovery] allowed_lateness",
    "schema.registry.url": _CONVERTER,
    "schemas.enable": _CONVERTER,
    "kafka.retry.backoff.ms": "a source that has lost Iggy reconnects for five minutes",
    "bootstrap.servers": _KAFKA,
    "plugin.path": "there are no plug-ins to load",
    "exactly.once.support": "delivery is always exactly once",
    "transaction.boundary": "delivery is always exactly once",
    "task.id": "tasks are numbered by the program",
    "key.converter": _CONVERTER,
    "value.converter": _CONVERTER,
    "header.converter": _CONVERTER,
    "transforms": _SMT,
    "predicates": _SMT,
    "producer.": _KAFKA,
    "consumer.": _KAFKA,
    "admin.": _KAFKA,
    "offset.": "positions are in the topic [offsets] topic",
    "offsets.": "positions are in the topic [offsets] topic",
    "errors.retry.": "retries of the store are set in its section: max_attempts, retry_budget",
    "errors.deadletterqueue.": "a dead letter always says where and why",
    "topic.creation.": "the topic's other settings are Iggy's",
    "file.": _SINK,
    "format.output.": _SINK,
    "output_": _SINK,
    "rest.": "the worker's own options",
    "config.providers": "references are ${env:NAME} and ${file:PATH}",
}
"""Beginnings of properties without a counterpart, and the reason."""


def convert_properties(
    properties: Mapping[str, str], store: Mapping[str, ConnectorOption], *, section: str
) -> Converted:
    """Return the configuration that these properties describe, with placeholders for what they cannot say.

    Args:
        properties: the values by name.
        store: what becomes of the store's own properties.
        section: the store's section.
    """
    start = ConnectorOption(
        to=f"{section}.start_after", note="only the first listing starts there; finished objects are remembered"
    )
    known = {**COMMON, START_KEY: start, **store}
    sink = _is_sink(properties, known)
    if sink:
        known |= _of_sink(properties)
    sections: dict[str, dict[str, object]] = {}
    options = {name: known.get(name) or _by_prefix(name) for name in properties}
    counting: dict[str, str] = {}  # option -> the property that gives it
    rows: dict[str, ConvertedProperty] = {}
    for name in sorted(properties, key=lambda name: _turn(name, options[name])):
        text = properties[name]
        try:
            if name == TEMPLATE and sink:
                prefix = counting.get(f"{section}.prefix", "")
                rows[name] = _sink_template(text, sections, properties.get(prefix, ""), options.get(prefix))
            elif name == TEMPLATE:
                rows[name] = _template(text, sections)
            elif sink and "{{" in text and options[name].replaces_template:
                counting.setdefault(options[name].to, name)
                raise ValueError(_FILLED_IN % section)  # noqa: TRY301 - as what the others raise
            elif name == TOPICS and "," in text and not _is_reference(text) and "iggy.topic" not in counting:
                rows[name] = _several_topics(sections)
            else:
                rows[name] = _converted(name, text, options[name], sections, counting)
        except ValueError as reason:
            rows[name] = ConvertedProperty(name=name, note=f"{reason}", warning=f"to correct: {name}: {reason}")
    in_order = [rows[name] for name in properties]
    compression = known[COMPRESSION].sink_default if sink else ""
    completed = _completed(sections, section, compression, given=counting, sink=sink)
    return Converted(sections=sections, rows=[*in_order, *completed])


def _is_sink(properties: Mapping[str, str], known: Mapping[str, ConnectorOption]) -> bool:
    """Return whether the connector writes to the store: by its class, otherwise by its properties."""
    kind = properties.get("connector.class", "").rpartition(".")[2].lower()
    if ("sink" in kind) != ("source" in kind):
        return "sink" in kind
    return any(name in known and known[name].of_sink for name in properties)


def _of_sink(properties: Mapping[str, str]) -> dict[str, ConnectorOption]:
    """Return what becomes of properties that say something else of a sink."""
    found = {TOPICS: attrs.evolve(COMMON[TOPICS], note="the topic that the sink read")}
    if _lower(properties.get(FORMAT_OF_SINK, "")) == "parquet":
        found |= dict.fromkeys((COMPRESSION, FORMER_COMPRESSION), ConnectorOption(note=_INSIDE))
    return found


def _turn(name: str, option: ConnectorOption) -> int:
    """Return when a property has its turn: former names after current ones, what needs other values last."""
    if name in {TEMPLATE, TOPICS}:
        return 2 if name == TEMPLATE else 3
    return int(option.yields)


def _by_prefix(name: str) -> ConnectorOption:
    notes = (note for prefix, note in WITHOUT_COUNTERPART.items() if name.startswith(prefix))
    return ConnectorOption(note=next(notes, "unknown: neither Kafka Connect's nor this connector's"))


def _converted(
    name: str,
    text: str,
    option: ConnectorOption,
    sections: dict[str, dict[str, object]],
    counting: dict[str, str],
) -> ConvertedProperty:
    if not option.to:
        return ConvertedProperty(name=name, note=option.note)
    if not text.strip():
        return ConvertedProperty(name=name, note="empty")
    first = counting.setdefault(option.to, name)
    if first != name:
        note = f"ignored: {shown(option.to)} is set by {first}, which counts"
        return ConvertedProperty(name=name, note=note, warning=f"{name} is {note}")
    value, note = _value(text, option)
    section, _, key = option.to.partition(".")
    sections.setdefault(section, {})[key] = value
    return ConvertedProperty(name=name, to=option.to, note=note)


def _value(text: str, option: ConnectorOption) -> tuple[object, str]:
    """Return the value and the note of a property; raises ValueError with the reason when it cannot be used."""
    if not is_unicode(text):
        raise ValueError(_NO_UNICODE)
    if option.variable and not _is_reference(text):
        return f"${{env:{option.variable}}}", _NOT_COPIED
    if _has_reference(text):
        return _referred(text, option)
    value = option.read(text)
    return _joined([value]) if isinstance(value, str) else value, option.note


def _is_reference(text: str) -> bool:
    return _KAFKA_REFERENCE.fullmatch(text.strip()) is not None


def _referred(text: str, option: ConnectorOption) -> tuple[object, str]:
    """Return the value and the note of a property that holds references; raises ValueError as above."""
    if not _is_reference(text) and option.read is not str:
        raise ValueError("its value holds a reference beside other text: write it by hand")
    parts, note = _parts(text, option)
    value = f"{_joined(parts)}{option.unit}"
    if option.by_hand and _is_reference(text):
        way = option.by_hand.format(value)
        raise ValueError(f"its value is a reference, which {shown(option.to)} cannot take as it is: {way}")
    return value, note


def _parts(text: str, option: ConnectorOption) -> tuple[list[str], str]:
    """Return plain text and references in turn, and the note; each reference to a config provider is one of ours."""
    if _is_reference(text):
        text = text.strip()
    variable = option.variable or re.sub(r"\W", "_", option.to).upper()
    parts: list[str] = []
    providers: list[str] = []
    end = 0
    for reference in _references(text):
        parts.append(text[end : reference.start()])
        end = reference.end()
        provider, rest = reference["provider"], reference["rest"]
        if provider == "env":
            parts.append(f"${{env:{rest}}}")
        elif provider in {"dir", "directory"} and ":" in rest:
            folder, _, file = rest.rpartition(":")
            parts.append(f"${{file:{folder}/{file}}}")
        else:
            providers.append(provider)
            number = f"_{len(providers)}" if len(providers) > 1 else ""
            parts.append(f"${{env:{variable}{number}}}")
    parts.append(text[end:])
    if not providers:
        return parts, option.note
    names = " and ".join(dict.fromkeys(providers))
    return parts, f"was a reference of the config provider {names}: set this variable"


def _joined(parts: list[str], of: str = "value") -> str:
    """Return one text from plain text and references in turn; a plain `${` is escaped.

    Raises:
        ValueError: no text can have a plain `$` before a reference.
    """
    if any(plain.endswith("$") for plain in parts[:-1:2]):
        raise ValueError(
            f'its {of} has a "$" before a reference, where it would escape it: move the "$" into what that names'
        )
    return "".join(part if at % 2 else part.replace("${", "$${") for at, part in enumerate(parts))


def _template(text: str, sections: dict[str, dict[str, object]]) -> ConvertedProperty:
    if text.strip() in {".*", ".+", ""}:
        return ConvertedProperty(name=TEMPLATE, note="every key is read, which is the default")
    if not is_unicode(text):
        raise ValueError(_NO_UNICODE)
    if _has_reference(text):
        raise ValueError("its value holds a reference, which no expression can: write it as [naming] template")
    template = f".*?(?:{text}).*"
    try:
        NameTemplate.parse(template, regex=True)
    except ConfigError:
        raise ValueError("not a valid expression here (Python's syntax): write it as [naming] template") from None
    sections.setdefault("naming", {}).update(template=_joined([template]), regex=True)
    return ConvertedProperty(name=TEMPLATE, to="naming.template", note=_TEMPLATE_NOTE)


def _sink_template(
    text: str, sections: dict[str, dict[str, object]], prefix: str, option: ConnectorOption | None
) -> ConvertedProperty:
    """Add prefix and template of a sink, which are literal; `{{partition:padding=true}}` are digits too.

    Args:
        text: the template.
        sections: receives it.
        prefix: the value of the property with the prefix.
        option: what becomes of that property; None without one.

    Raises:
        ValueError: with the reason why there is none here.
    """
    if not text.strip():
        return ConvertedProperty(name=TEMPLATE, note="empty")
    if not is_unicode(prefix + text):
        raise ValueError(_NO_UNICODE)
    if option is not None and option.replaces_template:
        raise ValueError(_NOT_USED)
    if _has_reference(text):
        raise ValueError("its value holds a reference: write it as [naming] template")
    if "{{" in prefix:
        raise ValueError("its prefix holds {{, which begins a placeholder: write both as [naming] template")
    template = _SINK_VARIABLE.sub(r"{{\1}}", text)
    try:
        NameTemplate.parse(template)
    except ConfigError as exc:
        reasons = "; ".join(mistake.removeprefix(f'template = "{template}": ') for mistake in exc.mistakes)
        raise ValueError(f"not a valid template here: {reasons}") from None
    parts = _parts(prefix, option)[0] if option is not None else [""]
    parts[-1] += template
    sections.setdefault("naming", {})["template"] = _joined(parts, of="prefix")
    return ConvertedProperty(name=TEMPLATE, to="naming.template", note="the whole key, with the prefix before it")


def _several_topics(sections: dict[str, dict[str, object]]) -> ConvertedProperty:
    if "{{topic}}" in str(sections.get("naming", {}).get("template", "")):
        note = "several topics: records go to the topic that their key names"
        return ConvertedProperty(name=TOPICS, to="naming.template", note=note)
    raise ValueError("holds several topics: write the one to write to as topic, or {{topic}} in [naming] template")


def _completed(
    sections: dict[str, dict[str, object]], store: str, compression: str, *, given: Mapping[str, str], sink: bool
) -> Iterator[ConvertedProperty]:
    """Add what the properties do not say: their defaults where ours differ, and placeholders.

    Args:
        sections: what the properties say.
        store: the store's section.
        compression: what the connector does without a property for it; empty for nothing.
        given: the property that gives an option, by option; what it says may be unusable.
        sink: whether the connector writes to the store.
    """

    def add(to: str, value: object, note: str) -> Iterator[ConvertedProperty]:
        section, _, key = to.partition(".")
        if key not in sections.setdefault(section, {}):
            sections[section][key] = value
            yield ConvertedProperty(name="", to=to, note=f"to correct: see {given[to]}" if to in given else note)

    yield from add("source.name", "converted", "choose a name, and keep it")
    yield from add(f"{store}.bucket", "CHANGE-ME", "to fill in")
    if sink:
        yield from add("input.format", "csv", f"the default there; {_ENVELOPE}")
    yield from add("input.format", "bytes", "the default there")
    if sink and str(sections["input"]["format"]).startswith(("csv", "${")):
        yield from add("input.csv_header", value=False, note="a sink writes no header")
    note = 'the default there; "auto" goes by suffix and first bytes'
    if sink and sections["input"]["format"] == "parquet":
        note = _INSIDE
    yield from add("input.compression", "none" if "input.compression" in given else compression or "none", note)
    of_sink = given.get("input.format") == FORMAT_OF_SINK
    if of_sink and str(sections["input"]["format"]).startswith("${") and sections["input"]["compression"] != "none":
        warning = f"to correct: {shown('input.compression')}: {_IF_PARQUET}"
        yield ConvertedProperty(name="", to="input.compression", note=_IF_PARQUET, warning=warning)
    yield from add("iggy.address", "localhost:8090", "to fill in")
    yield from add("iggy.username", "iggy", "to fill in")
    yield from add("iggy.password", "${env:IGGY_PASSWORD}", "set this variable")
    yield from add("iggy.stream", "lake", "to fill in")
    template = sections.get("naming", {}).get("template", "")
    if "topic" not in sections["iggy"] and "{{topic}}" not in str(template):
        yield from add("iggy.topic", "records", "to fill in")
    tasks, partitions = sections.get("runner", {}).get("tasks_max", 1), sections["iggy"].get("partitions", 4)
    if isinstance(tasks, int) and isinstance(partitions, int) and tasks > partitions:
        sections["iggy"]["partitions"] = tasks
        yield ConvertedProperty(name="", to="iggy.partitions", note="at least one for each task")
    yield from add("runner.engine", "local", '"spark" for a cluster')


def shown(to: str) -> str:
    """Return `[s3] bucket` for `s3.bucket`."""
    section, _, name = to.partition(".")
    return f"[{section}] {name}"
