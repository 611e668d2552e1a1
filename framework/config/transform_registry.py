"""Transforms by name: the shipped ones, in `framework.transforms`, and registered ones.

A custom transform is a subclass of `framework.transform.Transform`, registered in the project's pyproject.toml:

    [project.entry-points."iggy_cloud_sources.transforms"]
    redact = "my_package:Redact"
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import xxhash

from framework.config.plugins import Registry, named_failure
from framework.model.positions import PARTITION_BY, PARTITION_DIGEST
from framework.transform import Transform

ENTRY_POINT_GROUP = "iggy_cloud_sources.transforms"

SHIPPED: Mapping[str, str] = {
    "add_fields": "framework.transforms.fields:AddFields",
    "update_fields": "framework.transforms.fields:UpdateFields",
    "delete_fields": "framework.transforms.fields:DeleteFields",
    "filter_fields": "framework.transforms.fields:FilterFields",
    "unwrap_envelope": "framework.transforms.unwrap_envelope:UnwrapEnvelope",
    "filter": "framework.transforms.record_filters:Filter",
    "headers": "framework.transforms.headers:Headers",
    "timestamp": "framework.transforms.timestamps:Timestamp",
    "partition_by": "framework.transforms.partitions:PartitionBy",
    "avro_convert": "framework.transforms.schemas:AvroConvert",
    "proto_convert": "framework.transforms.schemas:ProtoConvert",
    "json": "framework.transforms.converters:Json",
    "raw": "framework.transforms.converters:Raw",
    "text": "framework.transforms.converters:Text",
    "avro": "framework.transforms.schemas:Avro",
}
"""Type -> `module:class` of the shipped transforms. Only the modules of the configured ones are imported."""

NOT_SHIPPED: Mapping[str, str] = {
    "flatbuffer_convert": "unknown transform; only Iggy's connector runtime has it; register a transform of your own "
    "under this name"
}
"""Types that users of Iggy know -> the end of the message about them."""


PARTITION_RULE = 1
"""Version of the rule that makes a partition from a key; stored with positions."""


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


TRANSFORMS = Registry(
    kind="transform",
    group=ENTRY_POINT_GROUP,
    shipped=lambda: SHIPPED,
    fits=lambda found: isinstance(found, type) and issubclass(found, Transform),
    misfit="which is no subclass of Transform",
)
"""The possible values of an entry's `type`."""


def transform_class(name: str) -> type[Transform]:
    """Return the class of a transform. A shipped name always means the shipped transform.

    Raises:
        ConfigError: it cannot be imported, or is no transform.
        KeyError: there is none of that name.
    """
    return cast("type[Transform]", TRANSFORMS.find(name, shown=f'"{name}"'))


def make_transforms(configs: Iterable[TransformConfig]) -> Sequence[tuple[Transform, str]]:
    """Return the enabled transforms in order, each with its place in the configuration."""
    return [(_made(config), config.place) for config in configs if config.enabled]


def _made(config: TransformConfig) -> Transform:
    kind = transform_class(config.type)
    with named_failure(f"{config.place}: {kind.__module__}.{kind.__qualname__}"):
        return kind(config.options)


def partition_transform(configs: Iterable[TransformConfig]) -> TransformConfig | None:
    """Return the first enabled transform that chooses the partition of each record; None without one."""
    return next((config for config in configs if config.enabled and _chooses_partition(config)), None)


def partition_options(configs: Sequence[TransformConfig], *before: object) -> Mapping[str, str]:
    """Return what the partition of a record depends on, as numbering options; empty without such a transform.

    These are the transform, and whatever shapes the records before it: other transforms, and `before`. Options with
    their default values do not count, so that a release with further options changes nothing.

    Args:
        configs: the transforms.
        before: attrs instances.
    """
    chooser = partition_transform(configs)
    if chooser is None:
        return {}
    shaping = itertools.takewhile(lambda config: config is not chooser, configs)
    parts = [*before, *([config.type, config.options] for config in shaping if config.enabled)]
    rule = [PARTITION_RULE, parts, chooser.type, chooser.options]
    text = json.dumps(rule, sort_keys=True, separators=(",", ":"), default=_as_json)
    return {
        PARTITION_BY: str(getattr(chooser.options, "field", chooser.type)),
        PARTITION_DIGEST: xxhash.xxh3_64_hexdigest(text.encode()),
    }


def _as_json(value: Any) -> Any:
    """Return what JSON has in place of a value; the options of a class without those that have their default values."""
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False, filter=lambda field, given: given != _default(field, value))
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else repr(value)


def _default(field: attrs.Attribute[Any], of: object) -> Any:
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return default.factory(of) if default.takes_self else default.factory()
    return default


def order_errors(configs: Iterable[TransformConfig]) -> Iterator[str]:
    """Yield errors for a converter that is not the last transform, and for a second choice of the partition."""
    enabled = [config for config in configs if config.enabled]
    choosers = [config for config in enabled if _chooses_partition(config)]
    for config in choosers[1:]:
        yield f"{config.place}: {choosers[0].place} chooses the partition already; leave one of the two out"
    for config, following in itertools.pairwise(enabled):
        if transform_class(config.type).converts:
            yield f"{config.place}: is a converter, which must be the last transform; {following.place} stands behind it"


def _chooses_partition(config: TransformConfig) -> bool:
    return transform_class(config.type).chooses_partition
