"""Parts that a configuration names: those that ship, and those that other packages register as entry points."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from framework.errors import ConfigError, SourceError, raised_at


def is_known(name: str, shipped: Mapping[str, str], group: str) -> bool:
    """Return whether a part has that name. For a shipped part only the table is read.

    For registered parts the metadata of every installed distribution is searched: some hundredths of a second.
    """
    return name in shipped or any(entry.name == name for entry in registered(group))


def known_names(shipped: Mapping[str, str], group: str) -> tuple[str, ...]:
    """Return all names, sorted."""
    return tuple(sorted({*shipped, *(entry.name for entry in registered(group))}))


def find(
    name: str, shipped: Mapping[str, str], group: str, *, shown: str, fits: Callable[[object], bool], misfit: str
) -> Any:
    """Return a part; only its module is imported. A shipped name always means the shipped part.

    Args:
        name: the part's name.
        shipped: name -> `module:attribute` of the shipped parts.
        group: group of the entry points.
        shown: the part in messages.
        fits: whether what a package registered is such a part.
        misfit: the end of the message when it is none: `which cannot be called`.

    Raises:
        ConfigError: a registered part cannot be imported, or does not fit.
        KeyError: there is no part of that name.
    """
    if name in shipped:
        return pkgutil.resolve_name(shipped[name])
    entry = next((entry for entry in registered(group) if entry.name == name), None)
    if entry is None:
        raise KeyError(name)
    place = f"{shown} is registered as {entry.value}"
    try:
        found = entry.load()
    except Exception as exc:  # a module runs when it is imported, and may raise anything
        text = str(exc) if isinstance(exc, ImportError | AttributeError) else f"{type(exc).__name__}: {exc}"
        raise ConfigError(f"{place} and cannot be loaded: {text}") from exc
    if not fits(found):
        raise ConfigError(f"{place}, {misfit}")
    return found


def registered(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of a group."""
    return tuple(importlib.metadata.entry_points(group=group))


@contextlib.contextmanager
def named_failure(part: str) -> Iterator[None]:
    """Turn an unexpected exception of a part's own code into a `ConfigError` that names the part and the line."""
    try:
        yield
    except (SourceError, ImportError):
        raise
    except Exception as exc:
        raise ConfigError(f"{part} failed with {type(exc).__name__}: {exc} ({raised_at(exc)})") from exc
