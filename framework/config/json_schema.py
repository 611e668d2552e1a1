"""A JSON schema of a configuration, generated from the option declarations: for editors, and for checks in a pipeline.

It is draft 7, which the TOML plug-ins of editors read. A schema sees one file: it cannot know options that come from
included files or from the environment, and it knows no contradictions between options. The loader checks everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import attrs

from framework.config.layers import INCLUDE
from framework.config.loading import CONNECTOR_KEY
from framework.config.option import Option, is_list, is_table, options_of, subsections_of, union_members, unit_of
from framework.config.transform_registry import SHIPPED, transform_class

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
_REFERENCE = {"$ref": "#/definitions/reference"}
_PLAIN = {bool: "boolean", int: "integer", float: "number"}
_WITH_UNIT: dict[str, Schema] = {
    "duration": {"$ref": "#/definitions/duration"},
    "lasting": {"anyOf": [{"$ref": "#/definitions/duration"}, {"const": "forever"}]},
    "size": {"$ref": "#/definitions/size"},
    "moment": {"type": "string"},
}
_DEFINITIONS: Schema = {
    "reference": {
        "description": "Text from elsewhere: ${env:NAME} or ${file:PATH}.",
        "type": "string",
        "pattern": r"\$\{(env|file):[^}]+\}",
    },
    "duration": {
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)\s*$"},
            _REFERENCE,
        ]
    },
    "size": {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(B|[kKMGT]B|[KMGT]iB)\s*$"},
            _REFERENCE,
        ]
    },
    "texts": {
        "type": "object",
        "additionalProperties": {"anyOf": [{"type": ["string", "number", "boolean"]}, {"$ref": "#/definitions/texts"}]},
    },
}


def json_schema(cls: type, *, title: str) -> Schema:
    """Return the schema of a root class.

    Args:
        cls: the root class.
        title: the schema's title.
    """
    sections = subsections_of(cls)
    properties: Schema = {
        INCLUDE: {
            "description": "Files with further options, relative to this one. A later one wins; this file wins over all.",
            "type": "array",
            "items": {"type": "string", "minLength": 1},
        }
    }
    properties |= {
        "type": {"description": "As in connector files of Iggy.", "const": "source"},
        "key": {
            "description": "The source's key in a worker's API.",
            "type": "string",
            "pattern": f"^{CONNECTOR_KEY.pattern}$",
        },
        "enabled": {"description": "Whether a worker starts the source.", "type": "boolean"},
        "version": {"description": "Number of this version of the configuration.", "type": "integer", "minimum": 0},
        "name": {"description": "The source's name for people, in a worker's API.", "type": "string"},
    }
    properties |= {name: _section(section) for name, section in sections.items()}
    if "transforms" in attrs.fields_dict(cls):
        properties["transforms"] = _transforms()
    return {
        "$schema": DRAFT,
        "title": title,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        # included files may hold what is required
        "if": {"not": {"required": [INCLUDE]}},
        "then": _required(cls),
        "definitions": _DEFINITIONS,
    }


def _transforms() -> Schema:
    """Return the schema of `[[transforms]]`. Installed transforms of other packages may have any options."""
    known = []
    for name in SHIPPED:
        options = _object(transform_class(name).options_class)
        properties = {"type": {"const": name}, "enabled": {"type": "boolean", "default": True}, **options["properties"]}
        known.append({"if": {"properties": {"type": {"const": name}}}, "then": {**options, "properties": properties}})
    entry = {
        "type": "object",
        "properties": {"type": {"type": "string", "description": f"One of {', '.join(SHIPPED)}, or an installed one."}},
        "required": ["type"],
        "allOf": known,
    }
    return {"description": "What happens to each record, in this order.", "type": "array", "items": entry}


def _object(cls: type) -> Schema:
    """Return the schema of a table in a list."""
    required = [option.name for option in options_of(cls) if option.required]
    return {**_table(cls), **({"required": required} if required else {})}


def _required(cls: type) -> Schema:
    inner = {name: found for name, section in subsections_of(cls).items() if (found := _required(section))}
    names = [option.name for option in options_of(cls) if option.required]
    names += [name for name, found in inner.items() if "required" in found or "anyOf" in found]
    one_of: tuple[str, ...] = getattr(cls, "one_of", ())
    schema: Schema = {}
    if names:
        schema["required"] = names
    if one_of:
        schema["anyOf"] = [{"required": [name]} for name in one_of]
    if inner:
        schema["properties"] = inner
    return schema


def _section(cls: type) -> Schema:
    doc = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
    return {"description": doc, **_table(cls)}


def _table(cls: type) -> Schema:
    properties: Schema = {}
    for option in options_of(cls):
        properties[option.name] = _option(option)
        for former in option.former_names:
            kind = {**_kind(option), "description": f"Former name of {option.name}.", "deprecated": True}
            properties[former] = kind
    properties |= {name: _section(section) for name, section in subsections_of(cls).items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _option(option: Option) -> Schema:
    default = option.default
    schema = {"description": " ".join(option.doc.split()), **_kind(option)}
    if option.required or default is None or isinstance(default, Mapping) or default == math.inf:
        return schema
    return {**schema, "default": list(default) if isinstance(default, tuple) else default}


def _kind(option: Option) -> Schema:
    if option.choices is not None:
        return {"anyOf": [{"enum": [*option.choices, *option.former_values]}, _REFERENCE]}
    return _type(option.type, option.minimum, option.maximum)


def _type(kind: Any, minimum: float | None = None, maximum: float | None = None) -> Schema:
    members = union_members(kind)
    if members:
        found = [_type(member, minimum, maximum) for member in members]
        return found[0] if len(found) == 1 else {"anyOf": found}
    unit = unit_of(kind)
    if unit is not None:
        return _WITH_UNIT[unit.name]
    if is_table(kind):
        return {"$ref": "#/definitions/texts"}
    if is_list(kind):
        return {"type": "array", "items": _type(get_args(kind)[0]), **_range("Items", minimum, maximum)}
    return _single(kind, minimum, maximum)


def _single(kind: Any, minimum: float | None, maximum: float | None) -> Schema:
    """Return the schema of a single value, or of a table in a list; any JSON value has none."""
    if kind is str:
        return {"type": "string", **_range("Length", minimum, maximum)}
    if kind in _PLAIN:
        return {"anyOf": [{"type": _PLAIN[kind], **_range("imum", minimum, maximum)}, _REFERENCE]}
    if not attrs.has(kind):
        return {}
    flags = list(getattr(kind, "FLAGS", ()))
    return {"anyOf": [_object(kind), {"enum": flags}]} if flags else _object(kind)


def _range(what: str, minimum: float | None, maximum: float | None) -> Schema:
    limits = {f"min{what}": minimum, f"max{what}": maximum}
    return {name: limit for name, limit in limits.items() if limit is not None}
