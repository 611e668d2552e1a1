"""Conversions by a schema: JSON to Avro and Protobuf, and back."""
# ruff: noqa: FBT003  option() is an attrs field

from __future__ import annotations

import copy
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import orjson
from typing_extensions import override

from framework.config.files import read_file
from framework.config.option import option
from framework.errors import ConfigError, RecordError, is_of_machine
from framework.model.avro_indexes import refuse_indexes, refuses_indexes
from framework.model.avro_limits import REST_OF_BLOCK, UnusableDatumError, Walker, resolve_names, weigh
from framework.model.avro_values import LongDecimalError, NoTimeError, checked_values, exact_values, logical_name
from framework.model.json_limits import check_json
from framework.model.payloads import size_of
from framework.model.proto_limits import ProtoLimit
from framework.transform import GROWN_BYTES, GrownBatchError, Transform, TransformBatch, TransformContext, too_long
from framework.transformer import MAX_MESSAGE_BYTES
from framework.transforms.proto_json import ValueCheck
from framework.transforms.unions import UnionResolver, rounds_numbers

Convert = Callable[[bytes], bytes]

MAX_SCHEMA_BYTES = 16 << 20
"""Limit of the file of a schema or of a descriptor set."""

_WHOLE = "whole"
"""The field of the record in which a datum comes that is none."""


class Conversion(Transform):
    """A conversion of each payload alone. Payloads that are not in the source format are bad records."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self._convert = self.make_convert()

    def make_convert(self) -> Convert:
        """Return the conversion of a payload. It raises an exception for a payload that it cannot convert."""
        raise NotImplementedError

    @override
    def apply(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        convert, payloads, reasons = self._convert, [], {}
        size, most = 0, max(GROWN_BYTES, 2 * size_of(batch.payloads))
        for place, payload in enumerate(batch.payloads):
            try:
                converted = convert(payload)
            except Exception as failure:  # a schema's library raises what it likes
                if is_of_machine(failure):
                    raise
                reasons[place] = f"{self.name}: {_said(failure)}"
                continue
            if len(converted) > MAX_MESSAGE_BYTES:
                reasons[place] = f"{self.name}: {too_long(len(converted))}"
                continue
            payloads.append(converted)
            size += len(converted)
            if size > most and len(batch) > 1:
                raise GrownBatchError
        return batch.reject(reasons).with_payloads(payloads)


def _said(failure: Exception) -> str:
    """Return why a payload could not be converted, without its content."""
    return (
        failure.message if isinstance(failure, RecordError) else f"does not fit the schema ({type(failure).__name__})"
    )


@attrs.frozen(kw_only=True)
class AvroOptions:
    """Options of `avro`."""

    schema_json: str | None = option(None, doc="The schema, as JSON text. `${file:PATH}` reads it from a file.")
    schema_path: str | None = option(
        None, doc="A file with the schema. On Spark every executor needs it; `schema_json` goes along by itself."
    )

    def validate_options(self) -> Iterator[str]:
        """Yield errors for a missing or invalid schema."""
        yield from _schema_errors(self.schema_json, self.schema_path)


@attrs.frozen(kw_only=True)
class AvroConvertOptions(AvroOptions):
    """Options of `avro_convert`."""

    source_format: str = option("avro", choices=("avro", "json"), doc="What the payloads are.")
    target_format: str = option("json", choices=("avro", "json"), doc="What they become.")
    field_mappings: dict[str, str] = option(
        {},
        doc="Field name -> other name: of the JSON object, after decoding from Avro or before encoding to it. A record in "
        "which two fields would get one name is bad.",
    )

    @override
    def validate_options(self) -> Iterator[str]:
        """Yield errors for a missing or invalid schema, and for equal formats."""
        if self.source_format == self.target_format:
            yield f'target_format: is "{self.target_format}", as source_format; leave the transform out'
        yield from super().validate_options()


def _schema_errors(schema_json: str | None, schema_path: str | None) -> Iterator[str]:
    if (schema_json is None) is (schema_path is None):
        yield "schema_json: give either schema_json or schema_path"
        return
    name = "schema_json" if schema_json is not None else "schema_path"
    try:
        _avro_schema(schema_json, schema_path)
    except OSError as error:
        yield f"{name}: cannot be read: {error.strerror or type(error).__name__}"
    except json.JSONDecodeError as error:
        yield f"{name}: is no Avro schema: its JSON is wrong at line {error.lineno}, column {error.colno}"
    except ConfigError as error:
        yield f"{name}: is no Avro schema: {error}"
    except Exception as error:  # the library's many kinds
        if is_of_machine(error):
            raise
        yield f"{name}: is no Avro schema ({type(error).__name__})"


def _read(path: str) -> bytes:
    """Return the content of a schema's file, which is read more than once: it may be no pipe."""
    return read_file(Path(path), MAX_SCHEMA_BYTES, may_wait=False)


def _avro_schema(schema_json: str | None, schema_path: str | None) -> Any:
    """Return the schema as it stands, after a check.

    Raises:
        ConfigError: it has an unknown type.
        Exception: it cannot be read, or is wrong in another way.
    """
    import fastavro  # noqa: PLC0415  loaded when used
    from fastavro.schema import UnknownType  # noqa: PLC0415

    text = str(schema_json) if schema_json is not None else _read(str(schema_path)).decode()
    schema = json.loads(text)
    try:
        fastavro.parse_schema(copy.deepcopy(schema))
    except UnknownType as error:
        raise ConfigError(f"it has the unknown type {json.dumps(error.name)}") from None
    weigh(resolve_names(schema))
    return schema


class AvroConvert(Conversion):
    """Convert payloads from Avro to JSON, or from JSON to Avro. An Avro payload is a datum without a file's header."""

    name = "avro_convert"
    options_class = AvroConvertOptions
    needs_modules = ("fastavro",)

    @override
    def make_convert(self) -> Convert:
        given = cast("AvroConvertOptions", self.options)
        schema = _avro_schema(given.schema_json, given.schema_path)
        if given.source_format == "avro":
            return _avro_to_json(schema, given.field_mappings)
        return _json_to_avro(schema, given.field_mappings)


class Avro(Conversion):
    """Write JSON payloads as Avro, each a datum without a file's header."""

    name = "avro"
    options_class = AvroOptions
    needs_modules = ("fastavro",)
    converts = True

    @override
    def make_convert(self) -> Convert:
        given = cast("AvroOptions", self.options)
        return _json_to_avro(_avro_schema(given.schema_json, given.schema_path), {})


def _json_to_avro(source: Any, names: Mapping[str, str]) -> Convert:
    from fastavro import parse_schema, schemaless_reader, schemaless_writer, validate  # noqa: PLC0415  loaded when used

    named: dict[str, Any] = {}
    schema = parse_schema(checked_values(source), named)
    recursive = weigh(resolve_names(source)).recursive
    unions = UnionResolver(schema, named) if recursive or rounds_numbers(source) else None
    narrow = '"float"' in json.dumps(source)

    def convert(payload: bytes) -> bytes:
        value = _json_of(payload)
        if names and isinstance(value, dict):
            value = _renamed(value, names)
        # the writer casts: 1.5 to 1, any text to true
        if not recursive and not validate(value, schema, raise_errors=False):
            raise RecordError(f"it does not fit the schema: {_misfit(value, schema)}")
        if unions is not None:
            value = unions.resolve(value)
        out = io.BytesIO()
        try:
            schemaless_writer(out, schema, value, strict_allow_default=True)
        except ValueError:
            raise RecordError("it has a field that the schema lacks, or lacks one without a default") from None
        datum = out.getvalue()
        if narrow and not _is_finite(schemaless_reader(io.BytesIO(datum), schema, None)):  # JSON has no infinities
            raise RecordError("it holds a number that is too large for Avro's float")
        return datum

    return convert


def _renamed(value: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return an object with other names.

    Raises:
        RecordError: one of its fields would be lost.
    """
    renamed = {names.get(name, name): field for name, field in value.items()}
    if len(renamed) < len(value):
        raise RecordError("field_mappings gives two of its fields one name")
    return renamed


def _misfit(value: object, schema: Any) -> str:
    """Return which field must be of which type; both are names of the schema."""
    from fastavro.validation import ValidationError, validate  # noqa: PLC0415  loaded when used

    try:
        validate(value, schema, raise_errors=True)
    except ValidationError as error:
        kinds = [part.schema for part in error.errors]
        wanted = [kind if isinstance(kind, str) else logical_name(kind) for kind in kinds]
        return f"{error.errors[0].field or 'it'} must be {' or '.join(dict.fromkeys(wanted))}"
    return "its types differ"


def _is_finite(value: object) -> bool:
    """Return whether no number inside is infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_finite, inside))


def _avro_to_json(source: Any, names: Mapping[str, str]) -> Convert:
    """Return the conversion of data; what a datum may take is limited as in an Avro file."""
    import fastavro  # noqa: PLC0415  loaded when used

    wrapped = not (isinstance(source, dict) and source["type"] == "record")
    if wrapped:  # such a record has the very bytes of its field
        source = {"type": "record", "name": "iggy_cloud_sources.datum", "fields": [{"name": _WHOLE, "type": source}]}
    plain = resolve_names(source)
    weight, walker = weigh(plain), Walker(plain)
    schema = fastavro.parse_schema(exact_values(source))
    refuse_indexes(schema)
    always = not refuses_indexes()

    def convert(payload: bytes) -> bytes:
        if always or weight.must_walk(len(payload)):
            walker.put(payload)
            try:
                walker.count(1)
            except UnusableDatumError as exc:
                raise RecordError(str(exc).removesuffix(REST_OF_BLOCK)) from None
        stream = io.BytesIO(payload)
        try:
            value: Any = fastavro.schemaless_reader(stream, schema, None)
        except (LongDecimalError, NoTimeError) as exc:
            raise RecordError(str(exc)) from None
        if stream.tell() != len(payload):
            raise RecordError("it is longer than a datum of the schema")
        if wrapped:
            value = value[_WHOLE]
        if names and isinstance(value, dict):
            value = _renamed(value, names)
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)

    return convert


def _json_of(payload: bytes) -> Any:
    check_json(payload)
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        raise RecordError("it is no JSON") from None


def _plain(value: object) -> str:
    """Return what JSON has no form for: bytes as Avro's JSON encoding writes them, others as text."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


@attrs.frozen(kw_only=True)
class ProtoConvertOptions:
    """Options of `proto_convert`."""

    source_format: str = option("proto", choices=("proto", "json"), doc="What the payloads are.")
    target_format: str = option("json", choices=("proto", "json"), doc="What they become.")
    descriptor_set_path: str = option(
        doc="A file with the descriptor set, from `protoc --include_imports --descriptor_set_out=FILE`. On Spark every "
        "executor needs it."
    )
    message_type: str = option(doc="Full name of the message: `shop.v1.Order`.", minimum=1)
    preserve_names: bool = option(True, doc="JSON has the fields' names of the schema; otherwise in lowerCamelCase.")

    def validate_options(self) -> Iterator[str]:
        """Yield errors for equal formats, and for a descriptor set that is unusable or has no such message."""
        if self.source_format == self.target_format:
            yield f'target_format: is "{self.target_format}", as source_format; leave the transform out'
        try:
            _message_class(str(self.descriptor_set_path), str(self.message_type))
        except OSError as error:
            yield f"descriptor_set_path: cannot be read: {error.strerror or type(error).__name__}"
        except KeyError:
            yield f'message_type = "{self.message_type}": the descriptor set has no such message'
        except Exception as error:  # the library's many kinds
            if is_of_machine(error):
                raise
            yield f"descriptor_set_path: is no descriptor set ({type(error).__name__})"


def _message_class(path: str, name: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415  loaded when used

    files = descriptor_pb2.FileDescriptorSet.FromString(_read(path))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class ProtoConvert(Conversion):
    """Convert payloads from Protobuf to JSON, or from JSON to Protobuf."""

    name = "proto_convert"
    options_class = ProtoConvertOptions
    needs_modules = ("google.protobuf",)

    @override
    def make_convert(self) -> Convert:
        from google.protobuf import json_format  # noqa: PLC0415  loaded when used

        given = cast("ProtoConvertOptions", self.options)
        message = _message_class(given.descriptor_set_path, given.message_type)
        limit, values = ProtoLimit(message.DESCRIPTOR), ValueCheck(message.DESCRIPTOR)

        def to_json(payload: bytes) -> bytes:
            limit.check(payload)
            value = json_format.MessageToDict(
                message.FromString(payload), preserving_proto_field_name=given.preserve_names
            )
            return orjson.dumps(value)

        def to_proto(payload: bytes) -> bytes:
            value = _json_of(payload)
            try:
                made = json_format.ParseDict(value, message())
            except json_format.ParseError as error:
                raise RecordError(_proto_misfit(str(error), message.DESCRIPTOR)) from None
            values.check(value)
            return bytes(made.SerializeToString(deterministic=True))

        return to_json if given.source_format == "proto" else to_proto


def _proto_misfit(text: str, descriptor: Any) -> str:
    """Return which field does not fit, by the error of the library; only names of the message, since others are content."""
    path: list[str] = []
    for name in re.findall(r"Failed to parse (\S+) field: ", text):
        field = descriptor and (
            descriptor.fields_by_name.get(name) or descriptor.fields_by_camelcase_name.get(name)  # JSON has either
        )
        if field is None:
            break
        path.append(field.name)
        descriptor = field.message_type
    return f"its field {'.'.join(path)} does not fit the message" if path else "it does not fit the message"
