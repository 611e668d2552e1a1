"""Formats by name: the formats that ship in the package `transformers`, and registered ones.

A custom format is a callable that takes `InputOptions` and returns a `Transformer`, registered in the
project's pyproject.toml:

    [project.entry-points."iggy_cloud_sources.transformers"]
    lines-of-mine = "my_package:MyTransformer"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import cast

from framework.config.plugins import Registry, named_failure
from framework.errors import ConfigError
from framework.transformer import InputOptions, Transformer

DISTRIBUTION = "iggy-cloud-sources"
"""The name under which the framework is installed."""

ENTRY_POINT_GROUP = "iggy_cloud_sources.transformers"

NO_COLUMNS = (
    "input.columns: records of {format} have no columns that can be left unread; leave it out, and use the transform "
    "filter_fields to remove members of JSON"
)
"""The error for a format that cannot read single columns."""

TransformerFactory = Callable[[InputOptions], Transformer]


def make_transformer(options: InputOptions) -> Transformer:
    """Return the transformer of `options.format`.

    A shipped format cannot be replaced: its name always means the shipped one. Only the module of the
    chosen format is imported.

    Args:
        options: the format's name and its options.

    Raises:
        ConfigError: the format is unknown, options contradict each other (all mistakes at once), a
            registered format cannot be imported, or another `transformers` package hides the shipped one.
    """
    mistakes = list(options.validate_options())
    try:
        factory: TransformerFactory = FORMATS.find(options.format, shown=f"input.format: {options.format!r}")
    except KeyError:
        unknown = FORMATS.unknown(options.format)
        raise ConfigError([f'input.format = "{options.format}": {unknown}', *mistakes]) from None
    except ConfigError as exc:
        raise ConfigError([*exc.mistakes, *mistakes]) from exc
    if mistakes:
        raise ConfigError(mistakes)
    transformer = _made(factory, options)
    if options.columns and not transformer.reads_columns:
        raise ConfigError(NO_COLUMNS.format(format=options.format))
    return transformer


def _made(factory: TransformerFactory, options: InputOptions) -> Transformer:
    """Return the transformer; that of an author is checked.

    Raises:
        ConfigError: it cannot be made, or has no usable numbering options.
    """
    if options.format in _shipped():
        return factory(options)
    name = f"input.format: the format {options.format!r}"
    with named_failure(name):
        made: object = factory(options)
    if not isinstance(made, Transformer):
        raise ConfigError(f"{name} is registered with something that made {type(made).__name__}, not a Transformer")
    with named_failure(name):
        first: object = made.numbering_options()
        second = made.numbering_options()
    if not isinstance(first, Mapping) or not all(isinstance(item, str) for pair in first.items() for item in pair):
        raise ConfigError(f"{name}: numbering_options returned {first!r}, not a mapping of text to text")
    if first != second:
        raise ConfigError(f"{name}: numbering_options returned {first!r} and then {second!r}: it must never change")
    return made


def _shipped() -> Mapping[str, str]:
    """Return name -> `module:factory` of shipped formats. Works in a source tree, where no entry points are installed."""
    package = importlib.import_module("transformers")
    formats = getattr(package, "SHIPPED_FORMATS", None)
    if formats is None:
        where = getattr(package, "__file__", None) or "a folder"
        raise ConfigError(
            f"the package `transformers` that Python finds ({where}) is not that of {DISTRIBUTION}, but probably "
            "the machine-learning library of the same name: the two cannot share one environment, so make a new one"
        )
    return cast("Mapping[str, str]", formats)


FORMATS = Registry(
    kind="format", group=ENTRY_POINT_GROUP, shipped=_shipped, fits=callable, misfit="which cannot be called"
)
"""The possible values of `input.format`."""
