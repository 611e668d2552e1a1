"""Transforms by name: the shipped ones, in `framework.transforms`, and registered ones.

A custom transform is a subclass of `framework.transform.Transform`, registered in the project's pyproject.toml:

    [project.entry-points."iggy_cloud_sources.transforms"]
    redact = "my_package:Redact"
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import attrs

from framework.errors import ConfigError
from framework.transform import Transform

ENTRY_POINT_GROUP = "iggy_cloud_sources.transforms"

SHIPPED: Mapping[str, str] = {
    "add_fields": "framework.transforms.fields:AddFields",
    "update_fields": "framework.transforms.fields:UpdateFields",
    "delete_fields": "framework.transforms.fields:DeleteFields",
    "filter_fields": "framework.transforms.fields:FilterFields",
    "unwrap_envelope": "framework.transforms.envelope:UnwrapEnvelope",
    "filter": "framework.transforms.filters:Filter",
    "headers": "framework.transforms.headers:Headers",
    "timestamp": "framework.transforms.timestamps:Timestamp",
    "avro_convert": "framework.transforms.schemas:AvroConvert",
    "proto_convert": "framework.transforms.schemas:ProtoConvert",
    "json": "framework.transforms.converters:Json",
    "raw": "framework.transforms.converters:Raw",
    "text": "framework.transforms.converters:Text",
    "avro": "framework.transforms.schemas:Avro",
}
"""Type -> `module:class` of the shipped transforms. Only the modules of the configured ones are imported."""


@attrs.frozen(kw_only=True)
class TransformConfig:
    """An entry of `[[transforms]]`.

    Attributes:
        type: name of the transform.
        enabled: whether it is applied.
        options: an instance of its `options_class`.
        place: the entry in messages: `transforms[0] (add_fields)`.
    """

    type: str
    enabled: bool = True
    options: object
    place: str


def known_transforms() -> tuple[str, ...]:
    """Return the possible values of `type`, sorted."""
    return tuple(sorted({*SHIPPED, *(entry.name for entry in _registered())}))


def transform_class(name: str) -> type[Transform]:
    """Return the class of a transform. A shipped name always means the shipped transform.

    Raises:
        ConfigError: it cannot be imported, or is no transform.
        KeyError: there is none of that name.
    """
    if name in SHIPPED:
        module, _, attribute = SHIPPED[name].partition(":")
        return cast("type[Transform]", getattr(importlib.import_module(module), attribute))
    for entry in _registered():
        if entry.name == name:
            return _load(entry)
    raise KeyError(name)


def make_transforms(configs: Iterable[TransformConfig]) -> Sequence[tuple[Transform, str]]:
    """Return the enabled transforms in order, each with its place in the configuration."""
    return [(transform_class(config.type)(config.options), config.place) for config in configs if config.enabled]


def order_errors(configs: Iterable[TransformConfig]) -> Iterator[str]:
    """Yield an error for a converter that is not the last transform."""
    enabled = [config for config in configs if config.enabled]
    for config, following in itertools.pairwise(enabled):
        if transform_class(config.type).converts:
            yield f"{config.place}: is a converter, which must be the last transform; {following.place} stands behind it"


def _load(entry: importlib.metadata.EntryPoint) -> type[Transform]:
    try:
        found = entry.load()
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f'"{entry.name}" is registered as {entry.value} and cannot be loaded: {exc}') from exc
    if not (isinstance(found, type) and issubclass(found, Transform)):
        raise ConfigError(f'"{entry.name}" is registered as {entry.value}, which is no subclass of Transform')
    return found


def _registered() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
