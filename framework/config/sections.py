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

from framework.config.format_registry import FORMATS, NO_COLUMNS
from framework.config.globs import compile_globs
from framework.config.iggy_section import IggySection
from framework.config.key_template import (
    MAX_TOPIC_BYTES,
    OFFSETS_SUFFIX,
    TOPIC_PLACEHOLDER,
    NameTemplate,
    single_braces_error,
    topic_name_error,
)
from framework.config.option import Bytes, Moment, Seconds, SecondsOrForever, option, sections_of
from framework.config.transforms import TransformConfig, order_errors, partition_options, partition_transform
from framework.envelopes.layout import HEADER_ENCODINGS, PAYLOAD_ENCODINGS, TIME_UNITS
from framework.envelopes.options import ENVELOPES, EnvelopeOptions
from framework.model.hosts import is_this_machine
from framework.model.positions import canonical_options
from framework.transformer import (
    COMPRESSIONS,
    MAX_DEAD_LETTER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_WINDOW_BYTES,
    MIN_WINDOW_BYTES,
    InputOptions,
)

_MIB = 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


def _has_ports(master: str) -> bool:
    """Return whether the ports in the addresses of a master are numbers of ports."""
    kind, _, rest = master.partition("://")
    if kind not in {"spark", "k8s"}:
        return True
    addresses = rest.removeprefix("https://").removeprefix("http://").partition("/")[0]
    try:
        return all(urlsplit(f"//{address}").port != 0 for address in addresses.split(","))
    except ValueError:
        return False


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
        "`partition` and `start_offset`; the placeholders may be used in it too.",
    )
    distribution: str = option(
        "object_hash",
        choices=("object_hash", "partition"),
        doc='Which partition of its topic an object goes to. `"object_hash"`: a fixed hash of bucket and key. '
        '`"partition"`: the number at `{{partition}}`.',
    )
    topics: tuple[str, ...] = option(
        (),
        doc="Topics that keys may name, by their full names in Iggy. An object of any other topic is a bad "
        "object, see `[errors] tolerance`. Empty: every name, except the topics of positions and dead "
        "letters, and names that end in `-offsets`.",
    )
    max_topics: int = option(
        1000,
        minimum=1,
        maximum=100_000,
        unit="topics",
        doc="Maximum number of topics that keys may name: those that already hold records of this source, and"
        " new ones. Objects of further topics are bad objects. Anyone who may write objects can create "
        "topics by naming them.",
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


_READ_WHOLE = ("bytes", "csv", "json")
"""Shipped formats whose objects cannot be split."""

_INPUT_OPTIONS = [field.name for field in attrs.fields(InputOptions)]

_SENT_UNCHANGED = ("bytes", "json", "jsonl", "text")
"""Shipped formats whose records have no columns."""


@attrs.frozen(kw_only=True)
class InputSection:
    """How an object's bytes become records, and how far reading may run ahead of sending."""

    format: str = option(
        doc='What the objects hold: `"avro"`, `"jsonl"`, `"json"` (one array), `"parquet"`, `"csv"`, `"text"` (lines), '
        '`"bytes"` (chunks), `"auto"` (by the name), or the name of an installed format.',
        example="jsonl",
        minimum=1,
    )
    compression: str = option(
        "auto",
        choices=COMPRESSIONS,
        doc='Compression around the whole object. `"auto"`: by suffix and first bytes. `"snappy"` is the framed form.',
    )
    validate: bool = option(True, doc="Check that every line of `jsonl` is JSON; a line that is not is a bad record.")
    max_record_bytes: Bytes = option(
        MAX_MESSAGE_BYTES,
        minimum=1,
        maximum=MAX_MESSAGE_BYTES,
        doc="A longer record is a bad record. Iggy cannot store more than 64,000,000 bytes in one message.",
    )
    max_block_bytes: Bytes = option(
        64 * _MIB,
        minimum=1024,
        doc="`avro`: a block longer than this, stored or decompressed, fails its object. A block is held in "
        "memory whole.",
    )
    max_expansion: int = option(
        1000,
        minimum=0,
        unit="times",
        doc="An object fails when its records exceed both 1 GiB and this multiple of its stored bytes (each "
        "record counts as 100 bytes more than it has). 0: no limit.",
    )
    max_temporary_bytes: Bytes = option(
        1024 * _MIB,
        minimum=_MIB,
        doc="Maximum decompressed size of a Parquet file inside an outer compression: it goes to a temporary "
        "file (`TMPDIR`). A larger object fails.",
    )
    max_page_bytes: Bytes = option(
        1024 * _MIB,
        minimum=_MIB,
        doc="`parquet`: maximum memory for the pages that are read at once, for each column a dictionary and a page; and for "
        "the footer. More fails the object.",
    )
    max_window_bytes: Bytes = option(
        128 * _MIB,
        minimum=MIN_WINDOW_BYTES,
        maximum=MAX_WINDOW_BYTES,
        doc="zstd with a larger window (`--long=28` has 256 MiB, `--long=31` 2 GiB) or xz with a larger dictionary fails the "
        "object. A task holds the window of the object that it reads in memory.",
    )
    split_size: Bytes | None = option(
        None,
        minimum=1024,
        doc="Larger objects of `jsonl`, `text`, `avro` and `parquet` without a compression around them are divided into "
        "splits of this many bytes. Each split goes to its own partition, so that several tasks read one object; order "
        "is kept within a split. Objects in progress keep the split size with which they began. Absent: "
        "every object is read whole.",
    )
    columns: tuple[str, ...] = option(
        (),
        doc="`parquet`, `avro`, `csv`: only these columns are read and sent, in the file's order. A dotted path, "
        '`"customer.id"`, names a field of a record inside, also in lists. An object without one of them is bad. '
        "Empty: all.",
    )
    chunk_size: Bytes = option(
        4096,
        minimum=1,
        maximum=MAX_MESSAGE_BYTES,
        doc="Length of a record of `bytes`; the last record of an object may be shorter.",
    )
    whole_object: bool = option(False, doc="`bytes`: one record per object, whatever its size.")
    csv_header: bool = option(True, doc="`csv`: the first row names the fields. Otherwise a row becomes a JSON array.")
    csv_delimiter: str = option(",", doc="`csv`: one ASCII character between two fields.")
    csv_quote: str = option(
        '"',
        doc="`csv`: one ASCII character around a field that holds a delimiter or a line break; doubled inside. "
        "Empty: no quoting.",
    )
    envelope: str | None = option(
        None,
        choices=ENVELOPES,
        doc="How a topic was archived: its payloads, headers and times come back without the envelope. "
        '`"iggy-s3-sink"`: by the S3 sink of Iggy\'s connector runtime. `"aiven"`: by Aiven\'s sinks for S3 and GCS. '
        '`"confluent"`: by Confluent\'s S3 sink, or any that writes the value alone. `"custom"`: see `envelope_fields`. '
        "Absent: records are sent as they are.",
    )
    envelope_payload: str | None = option(
        None,
        choices=PAYLOAD_ENCODINGS,
        doc='How payloads are archived. `"json"`: as JSON, restored byte for byte. `"text"`, `"base64"`: as a string. '
        '`"raw"`: as Iggy\'s sink archives a stream with the schema `raw`, JSON where the bytes are JSON and base64 else. '
        'Absent: `"json"`; `"base64"` for `envelope_columns`.',
    )
    envelope_fields: Mapping[str, str] = option(
        attrs.Factory(dict),
        doc='`envelope = "custom"`: the names of the members that hold `payload`, `headers`, `timestamp`, `topic`, '
        "`partition` and `key`. Only `payload` is required.",
    )
    envelope_columns: tuple[str, ...] = option(
        (),
        doc='The fields of rows of CSV, in order, with `format = "csv"` and `csv_header = false`: for Aiven\'s sink the '
        "list of its `format.output.fields`.",
    )
    envelope_headers: str = option(
        "text",
        choices=HEADER_ENCODINGS,
        doc="What the strings of archived headers hold: their text, or base64 of their bytes. Bytes that are not UTF-8 "
        "become a raw header.",
    )
    envelope_header_kinds: Mapping[str, str] = option(
        attrs.Factory(dict),
        doc='Kinds of headers by name: `attempt = "uint32"`. `raw`, `string`, `int8` to `int128`, `uint8` to `uint128`, '
        "`float32`, `float64`. Other numbers become 64 bits wide, since JSON does not keep the width.",
    )
    envelope_key_header: str | None = option(
        None, minimum=1, doc="Name of the header that receives the archived key. Absent: keys are not restored."
    )
    envelope_timestamp_unit: str = option(
        "milliseconds",
        choices=tuple(TIME_UNITS),
        doc='`envelope = "custom"`: unit of a `timestamp` that is a number. Text is RFC 3339.',
    )
    envelope_mismatch: str = option(
        "bad_record",
        choices=("bad_record", "ignore"),
        doc="A record that was archived from another topic or partition than `{{topic}}` and `{{partition}}` of its "
        "object's name say: it is a bad record, or it goes where its object goes.",
    )
    prefetch_objects: int = option(
        256,
        minimum=1,
        maximum=1000,
        unit="objects",
        doc="Maximum number of objects requested ahead; their records are delivered in order.",
        former_names={"fetch_ahead": ""},
    )
    prefetch_bytes: Bytes = option(
        8 * _MIB,
        minimum=_MIB,
        doc="Memory for prefetched data. For large objects it limits `prefetch_objects`.",
        former_names={"fetch_ahead_bytes": ""},
    )
    queue_records: int = option(
        50_000,
        minimum=1,
        unit="records",
        doc="Maximum number of records that wait to be sent. A full queue blocks the reader.",
    )
    queue_bytes: Bytes = option(
        4 * _MIB, minimum=1, doc="Maximum number of bytes that wait to be sent (or one longer record)."
    )

    def envelope_options(self) -> EnvelopeOptions | None:
        """Return how the records were archived; None when they are sent as they are."""
        if self.envelope is None:
            return None
        return EnvelopeOptions(
            envelope=self.envelope,
            payload=self.envelope_payload,
            fields=self.envelope_fields,
            columns=self.envelope_columns,
            headers=self.envelope_headers,
            header_kinds=self.envelope_header_kinds,
            key_header=self.envelope_key_header,
            timestamp_unit=self.envelope_timestamp_unit,
            check_origin=self.envelope_mismatch == "bad_record",
        )

    def _envelope_errors(self) -> Iterator[str]:
        options = self.envelope_options()
        if options is not None:
            yield from options.validate_options()
        else:
            for name in ("payload", "fields", "columns", "header_kinds", "key_header"):
                if getattr(self, f"envelope_{name}"):
                    yield f"envelope_{name}: has no effect without envelope"
        if self.envelope_columns and (self.format != "csv" or self.csv_header):
            yield 'envelope_columns: needs format = "csv" and csv_header = false'

    def options(self) -> InputOptions:
        """Return the options that a transformer is created from."""
        options = InputOptions(**{name: getattr(self, name) for name in _INPUT_OPTIONS})
        envelope = self.envelope_options()
        # an envelope parses each record, so the format need not
        return attrs.evolve(options, validate=False) if envelope is not None and envelope.parses_records else options

    def shaping_options(self) -> Mapping[str, object]:
        """Return the options that shape good records, without those that have their default values."""
        given, defaults = attrs.asdict(self.options()), attrs.asdict(InputOptions())
        return {
            name: value
            for name, value in given.items()
            if value != defaults[name] and name != "validate" and not name.startswith("max_")
        }

    def validate_options(self) -> Iterator[str]:
        """Yield errors for an unknown format, and for options that contradict each other."""
        if self.format not in FORMATS:
            yield f'format = "{self.format}": {FORMATS.unknown(self.format)}'
        if self.split_size is not None and self.format in _READ_WHOLE:
            yield f"split_size: objects of {self.format} can only be read whole; leave it out"
        if self.split_size is not None and self.compression not in {"none", "auto"}:
            yield f"split_size: an object in {self.compression} can only be read from its beginning; leave split_size out"
        if self.columns and self.format in _SENT_UNCHANGED:
            yield NO_COLUMNS.format(format=self.format).removeprefix("input.")
        yield from self._envelope_errors()
        yield from (mistake.removeprefix("input.") for mistake in self.options().validate_options())


@attrs.frozen(kw_only=True)
class OffsetsSection:
    """Where positions are stored."""

    topic: str | None = option(
        None,
        doc="The topic that stores the positions. Absent: the source's name with `-offsets`. Sources may "
        "share a topic: each sees its own positions.",
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
class DiscoverySection:
    """Which objects are read, and how often new ones are listed."""

    mode: str = option(
        "list",
        choices=("list", "incremental", "keys"),
        former_values={"after": "incremental"},
        doc='`"list"`: every listing covers everything under the prefix. `"incremental"`: for rising keys; '
        "most listings start after the highest keys, and the store must list in the order of its keys. "
        '`"keys"`: read the objects that a supplied list names, see `keys`.',
    )
    lookback_keys: int = option(
        1000,
        minimum=0,
        maximum=1_000_000,
        unit="keys",
        doc='Mode `"incremental"`: number of highest keys that every listing repeats, to find late keys.',
    )
    full_listing_interval: Seconds = option(
        3600.0,
        minimum=0.01,
        former_names={"full_pass_interval": ""},
        doc='Mode `"incremental"`: interval between full listings. Until the next one, late keys below the '
        "look-back and objects overwritten there can go unnoticed.",
    )
    keys: str | None = option(
        None,
        minimum=1,
        doc="The list of mode `keys`: a path on the machine that runs the program, or an object of the store,"
        " `s3://bucket/key`. Text with one key per line, CSV, or the `manifest.json` of an S3 Inventory; "
        "`.gz` is decompressed. The list is read again when it changes.",
    )
    keys_format: str = option(
        "auto",
        choices=("auto", "text", "csv", "inventory"),
        doc='Format of the list. `"auto"`: by its name, `.csv` is `csv`, `.json` is `inventory`, anything else `text`.',
    )
    keys_encoding: str = option(
        "auto",
        choices=("auto", "none", "url"),
        doc='Encoding of keys in text and CSV: `"none"` for literal keys, `"url"` for URL-encoded keys. '
        '`"auto"`: literal, except in a CSV without a header whose first column is the bucket, as S3 '
        "Batch Operations writes it. An inventory is read as S3 writes it.",
    )
    keys_recheck: bool = option(
        True,
        doc="Look up finished objects again, with one request each, whenever the list is read and does not "
        "state their size, ETag and last-modified time. Otherwise finished objects are not read again, "
        "even if they were overwritten since.",
    )
    order: str = option(
        "listing",
        choices=("listing", "start_offset"),
        doc='Order in which the objects of a listing are read. `"listing"`: as the store lists them. `"start_offset"`: by '
        "`{{start_offset}}` of the template, so that the objects of an archived partition follow each other; all new objects "
        "of a listing wait in memory, some three kilobytes each, until it is complete.",
    )
    poll_interval: Seconds = option(
        5.0,
        minimum=0.01,
        doc="Interval between listings; never shorter than 10 times the duration of the last listing.",
    )
    list_concurrency: int = option(
        16,
        minimum=1,
        maximum=1000,
        unit="requests",
        doc="Maximum number of concurrent listing requests, over all tasks: a large prefix is divided into "
        "key ranges that are listed in parallel. A bucket of one page still costs one request. `1`: one "
        "chain of pages, objects in the order of their keys.",
    )
    list_requests_per_second: float | None = option(
        None,
        minimum=0.001,
        unit="requests a second",
        doc="Maximum number of listing requests per second. Absent: no limit.",
    )
    list_bytes_per_second: Bytes | None = option(
        None, minimum=1, doc="Maximum number of bytes of listings per second. Absent: no limit."
    )
    include: tuple[str, ...] = option(
        (),
        doc="Globs over the whole key; an object is read when at least one matches. `*` and `?` do not cross "
        "`/`, `**` does; `**/` also matches nothing. Empty: all.",
    )
    exclude: tuple[str, ...] = option(
        (), doc="Globs over the whole key; an object that matches any of them is not read."
    )
    modified_after: Moment | None = option(
        None,
        doc='Read only objects last modified at this time or later: a date with or without a time, UTC, or `"now"`, '
        "the time of the source's first start with that value, which the offsets log keeps.",
    )
    min_age: Seconds = option(
        0.0,
        doc='Defer objects until they reach this age, by the store\'s clock; in `mode = "keys"`, where nothing is listed, '
        "by this machine's. Every listing checks them again.",
    )
    archived: str = option(
        "skip",
        choices=("skip", "wait"),
        doc="How to handle objects in an archive class, which must be restored before they can be read (S3 "
        "Glacier Flexible Retrieval and Deep Archive, and the archive tiers of Intelligent-Tiering). "
        '`"skip"`: filter them, and count them by class. An object whose listing does not show its archive tier '
        '(Intelligent-Tiering) becomes a failed object; `offsets reset --key` reads it again. `"wait"`: try them again '
        "after each listing, with one request each, until they are restored; other objects do not wait for them.",
    )
    allowed_lateness: SecondsOrForever = option(
        86400.0,
        doc="How much later than its last-modified an object may appear: a multipart upload carries the time of its beginning. "
        "**Objects that appear with a last-modified time older than this are not read**: finished objects of that age lose their "
        "positions. "
        'Longer than the longest upload takes; `"forever"` keeps every position.',
        former_names={"late_arrival_window": ""},
    )
    ignore_hidden: bool = option(
        True,
        doc="Filter keys in which a part between two `/` begins with `.`, or with `_` unless it contains a "
        "`=` (`_SUCCESS`, `_temporary/part-0`, `.crc`; but not the partition folder `_day=1/`). Parts "
        "that `prefix` names do not count.",
    )
    allow_table_folders: bool = option(
        False,
        doc="Read the Parquet files below a Delta Lake or Iceberg table nevertheless. They include rows "
        "that the table has deleted or rewritten.",
    )

    def validate_options(self) -> Iterator[str]:
        """Yield errors for invalid globs, a key list without its mode, and the mode without a list."""
        if self.mode == "keys" and self.keys is None:
            yield 'keys: missing; mode = "keys" needs the place of the list'
        if self.mode != "keys" and self.keys is not None:
            yield f'keys: has no effect with mode = "{self.mode}"; set mode = "keys"'
        for name, globs in (("include", self.include), ("exclude", self.exclude)):
            if "" in globs:
                yield f"{name}: an empty glob matches nothing; leave it out"
            try:
                compile_globs(globs)
            except ValueError as exc:
                yield f"{name}: {exc}"


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
        doc="Maximum number of tasks; tasks beyond the number of partitions would be idle. Absent: one per "
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
        if not _MASTER.fullmatch(self.master) or not _has_ports(self.master):
            yield (
                f'master = "{self.master}": must be local, local[N], spark://host:7077, yarn or k8s://https://host:port'
                + ("; Spark Connect cannot run our tasks" if self.master.startswith("sc:") else "")
            )
        if "spark.master" in self.conf:
            yield "conf: spark.master is not an option here: set [spark] master"
        if "spark.remote" in self.conf:
            yield "conf: spark.remote names a server of Spark Connect, which cannot run our tasks: set [spark] master"
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
        " only counted and logged.",
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


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    number = int(port) if re.fullmatch("[0-9]{1,99}", port) else -1
    if not host or not 0 <= number <= 65535:  # noqa: PLR2004
        raise ValueError(address)
    return host.removeprefix("[").removesuffix("]"), number


@attrs.frozen(kw_only=True)
class MetricsSection:
    """Metrics for Prometheus."""

    address: str | None = option(
        None,
        doc="`host:port` to answer Prometheus at, for example `127.0.0.1:9464`: `/metrics`, and `/healthz` "
        "and `/readyz` for probes. Absent: off.",
        minimum=1,
    )

    def host_and_port(self) -> tuple[str, int] | None:
        """Return the address in two parts; None when metrics are off.

        Raises:
            ValueError: it is not `host:port`.
        """
        return None if self.address is None else _host_and_port(self.address)

    def validate_options(self) -> Iterator[str]:
        """Yield an error for an invalid address."""
        try:
            self.host_and_port()
        except ValueError:
            yield f'address = "{self.address}": must be host:port, for instance "127.0.0.1:9464"'


@attrs.frozen(kw_only=True)
class HttpTlsSection:
    """TLS of the HTTP API."""

    enabled: bool = option(False, doc="Answer over TLS only.")
    cert_file: str | None = option(None, minimum=1, doc="The certificate and its chain, a PEM file.")
    key_file: str | None = option(None, minimum=1, doc="Its private key, a PEM file.")

    def validate_options(self) -> Iterator[str]:
        """Yield an error for TLS without its files."""
        if self.enabled and (self.cert_file is None or self.key_file is None):
            yield "enabled: needs cert_file and key_file"


API_PATHS = frozenset({"connector-plugins", "connectors", "health", "openapi.json", "sinks", "sources", "stats"})
"""First parts of the HTTP API's own paths."""


@attrs.frozen(kw_only=True)
class HttpMetricsSection:
    """Metrics for Prometheus at the HTTP API, under the names of Iggy's connector runtime and our own."""

    enabled: bool = option(True, doc="Answer Prometheus at `endpoint`.")
    endpoint: str = option("/metrics", minimum=2, doc="Path of the metrics.")

    def validate_options(self) -> Iterator[str]:
        """Yield an error for a path that is none, or that the API has."""
        if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", self.endpoint):
            yield f'endpoint = "{self.endpoint}": must be a path such as "/metrics"'
        elif self.endpoint.split("/")[1] in API_PATHS:
            yield f'endpoint = "{self.endpoint}": is a path of the API; choose another, such as "/metrics"'


@attrs.frozen(kw_only=True)
class HttpSection:
    """HTTP API to watch, pause, restart and reconfigure the source.

    It has no effect in a worker's folder: the worker answers for all its sources.
    """

    enabled: bool = option(
        False,
        doc="Run the source in a process of its own, and answer the HTTP API beside it. Needs the extra `worker`.",
    )
    address: str = option(
        "127.0.0.1:8081",
        minimum=1,
        doc="`host:port` to listen on. Without `api_key` only an address that other machines cannot reach.",
    )
    api_key: str | None = option(
        None,
        secret=True,
        minimum=1,
        doc="Key that each request except `/` and `/health` must send in the header `api-key`. Who knows it can do what the "
        "source's user can do.",
    )
    state_dir: str | None = option(
        None,
        minimum=1,
        doc="Folder for paused states and configuration versions; only the user of the source may read it. Absent: "
        "`.NAME.state` beside the configuration file `NAME.toml`; of a worker, `.state` in its folder.",
    )
    tls: HttpTlsSection = attrs.field(factory=HttpTlsSection)
    metrics: HttpMetricsSection = attrs.field(factory=HttpMetricsSection)

    def host_and_port(self) -> tuple[str, int]:
        """Return the address in two parts.

        Raises:
            ValueError: it is not `host:port`.
        """
        return _host_and_port(self.address)

    @property
    def only_local(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_this_machine(self.host_and_port()[0])

    def validate_options(self) -> Iterator[str]:
        """Yield errors for an invalid address, and for one that everybody can use."""
        try:
            only_local = self.only_local
            if self.enabled and self.api_key is None and not only_local:
                yield f'address = "{self.address}": other machines can reach it; set api_key, or listen on 127.0.0.1'
        except ValueError:
            yield f'address = "{self.address}": must be host:port, for instance "127.0.0.1:8081"'
        if self.api_key is not None and (
            self.api_key.strip() != self.api_key or re.search(r"[\0-\x1f\x7f]", self.api_key)
        ):
            yield "api_key: has a space or a line break at an end, or a control character: no header can send it"


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
        if dead_letters is not None and self.errors.tolerance == "none":
            yield (
                f'[errors] dead_letter_topic = "{dead_letters}": nothing is skipped with tolerance = "none"; set "skip_record" or '
                f'"skip_object", or leave the topic out'
            )
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
