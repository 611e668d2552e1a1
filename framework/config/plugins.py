"""Parts that a configuration names: those that ship, and those that other packages register as entry points."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from framework.config.option import nearest
from framework.errors import ConfigError, SourceError, is_low_memory, raised_at


@attrs.frozen(kw_only=True)
class Registry:
    """The parts of one kind, by name. A shipped name always means the shipped part.

    Attributes:
        kind: what the parts are, in messages: `format`.
        group: group of the entry points.
        shipped: returns name -> `module:attribute` of the shipped parts.
        fits: whether what a package registered is such a part.
        misfit: the end of the message when it is none: `which cannot be called`.
    """

    kind: str
    group: str
    shipped: Callable[[], Mapping[str, str]]
    fits: Callable[[object], bool]
    misfit: str

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted({*self.shipped(), *(entry.name for entry in registered(self.group))}))

    def unknown(self, name: str) -> str:
        """Return the end of the message about a name that no part has."""
        known = self.names()
        guess = nearest(name, known)
        advice = f'did you mean "{guess}"?' if guess else f"known are {', '.join(known)}"
        return f"unknown {self.kind}; {advice}"

    def find(self, name: str, *, shown: str) -> Any:
        """Return a part; only its module is imported. For a shipped part only the table is read.

        For registered parts the metadata of every installed distribution is searched: some hundredths of a second.

        Args:
            name: the part's name.
            shown: the part in messages.

        Raises:
            ConfigError: a registered part cannot be imported, or does not fit.
            KeyError: there is no part of that name.
        """
        shipped = self.shipped()
        if name in shipped:
            return pkgutil.resolve_name(shipped[name])
        entry = next((entry for entry in registered(self.group) if entry.name == name), None)
        if entry is None:
            raise KeyError(name)
        place = f"{shown} is registered as {entry.value}"
        try:
            found = entry.load()
        except Exception as exc:  # a module runs when it is imported, and may raise anything
            if is_low_memory(exc):
                raise
            text = str(exc) if isinstance(exc, ImportError | AttributeError) else f"{type(exc).__name__}: {exc}"
            raise ConfigError(f"{place} and cannot be loaded: {text}") from exc
        if not self.fits(found):
            raise ConfigError(f"{place}, {self.misfit}")
        return found


def registered(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of a group."""
    return tuple(importlib.metadata.entry_points(group=group))


@contextlib.contextmanager
def named_failure(part: str) -> Iterator[None]:
    """Turn an unexpected exception of a part's own code into a `ConfigError` that names the part and the line."""
    try:
        yield
    except Exception as exc:
        if isinstance(exc, SourceError | ImportError) or is_low_memory(exc):
            raise
        raise ConfigError(f"{part} failed with {type(exc).__name__}: {exc} ({raised_at(exc)})") from exc
