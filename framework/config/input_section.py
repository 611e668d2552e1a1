"""The section `[input]`: how the bytes of objects become records."""
# ruff: noqa: FBT003  option() is an attrs field: it is called once a class, and its default stands first

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from framework.config.format_registry import make_transformer
from framework.config.option import Bytes, option
from framework.envelopes.layout import HEADER_ENCODINGS, PAYLOAD_ENCODINGS, TIME_UNITS
from framework.envelopes.options import ENVELOPES, EnvelopeOptions
from framework.errors import ConfigError
from framework.transformer import (
    COMPRESSIONS,
    MAX_MESSAGE_BYTES,
    MAX_WINDOW_BYTES,
    MIN_WINDOW_BYTES,
    InputOptions,
)

_MIB = 1024 * 1024

_READ_WHOLE = ("bytes", "csv", "json")
"""Shipped formats whose objects cannot be split."""

_INPUT_OPTIONS = [field.name for field in attrs.fields(InputOptions)]
_ENVELOPE_OPTIONS = attrs.fields_dict(EnvelopeOptions).keys() - {"envelope", "check_origin"}


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
        doc="An object fails when its records, or what its compression, blocks or pages hold, exceed both 1 GiB and "
        "this multiple of its stored bytes (each record counts as 100 bytes more than it has). 0: no limit.",
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
            check_origin=self.envelope_mismatch == "bad_record",
            **{name: getattr(self, f"envelope_{name}") for name in _ENVELOPE_OPTIONS},
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

    def shaping_options(self) -> InputOptions:
        """Return the options that shape good records; the others have their default values."""
        others = {name: value for name, value in attrs.asdict(InputOptions()).items() if name.startswith("max_")}
        return attrs.evolve(self.options(), **others, validate=True)

    def validate_options(self) -> Iterator[str]:
        """Yield errors for options that contradict each other, and for a format that cannot be made from them."""
        if self.split_size is not None and self.format in _READ_WHOLE:
            yield f"split_size: objects of {self.format} can only be read whole; leave it out"
        if self.split_size is not None and self.compression not in {"none", "auto"}:
            yield f"split_size: an object in {self.compression} can only be read from its beginning; leave split_size out"
        yield from self._envelope_errors()
        try:
            make_transformer(self.options())
        except ConfigError as exc:
            yield from (mistake.removeprefix("input.") for mistake in exc.mistakes)
