"""A configuration from flat names, for tests: `source_config(batch_length=4, tolerance="skip_record")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from framework.config.loading import structure
from framework.config.option import options_of, sections_of
from framework.config.sections import SourceCommonConfig

C = TypeVar("C", bound=SourceCommonConfig)

DEFAULTS: Mapping[str, object] = {
    "name": "kit",
    "format": "jsonl",
    "url": "iggy://iggy:iggy@127.0.0.1:8090",
    "stream": "kit",
    "topic": "records",
    "partitions": 3,
    "poll_interval": 0.01,
    "commit_interval": 0.01,
    "prefetch_objects": 3,
}
"""Defaults of tests: a name for each required option, and short waits."""


def source_props(options: Mapping[str, object], root: type[SourceCommonConfig]) -> dict[str, Any]:
    """Return sections and options, as in a TOML file.

    A name in several sections belongs to a store's section before a section inside another, then to the first.

    `transforms` is the list `[[transforms]]`.

    Raises:
        KeyError: no section has an option of that name.
    """
    owners: dict[str, str] = {}
    for section, cls in sorted(sections_of(root).items(), key=_depth):
        for option in options_of(cls):
            owners.setdefault(option.name, section)
    props: dict[str, Any] = {}
    for name, value in options.items():
        if name == "transforms":
            props[name] = value
            continue
        first, *inner = owners[name].split(".")
        content = props.setdefault(first, {})
        for part in inner:
            content = content.setdefault(part, {})
        content[name] = value
    return props


def _depth(section: tuple[str, object]) -> int:
    return section[0].count(".")


def source_config(root: type[C] | None = SourceCommonConfig, **options: Any) -> C:  # type: ignore[assignment]
    """Return a checked configuration: these options over `DEFAULTS`.

    Args:
        root: the class of the configuration, `MyTask.config_class`.
        **options: see `source_props`.

    Raises:
        TypeError: the task names no `config_class`.
        KeyError: no section has an option of that name.
        ConfigError: mistakes.
    """
    if root is None:
        raise TypeError("the task names no config_class")
    given = {**DEFAULTS, **options}
    try:
        known = _made.get((root, tuple(given.items())))
    except TypeError:  # a list among them
        return structure(source_props(given, root), root)
    if isinstance(known, root):
        return known
    _made.clear()  # the same one is asked for again and again, while one check runs
    made = _made[root, tuple(given.items())] = structure(source_props(given, root), root)
    return made


_made: dict[tuple[type[SourceCommonConfig], tuple[tuple[str, object], ...]], SourceCommonConfig] = {}
"""Cache of the last configuration: it is frozen, and loading it takes longer than a whole run on the store in memory.
"""
