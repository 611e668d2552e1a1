"""Which program runs a configuration: its section of a store decides, `[s3]` or `[gcs]`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs

from framework.config.option import nearest, sections_of
from framework.config.sections import SourceCommonConfig
from framework.errors import ConfigError
from framework.task import AbstractSourceTask

_SHIPPED = ("s3", "gcs")
_COMMON = frozenset(sections_of(SourceCommonConfig))


@attrs.frozen(kw_only=True)
class Kind:
    """A kind of source.

    Attributes:
        name: the section of its store, `s3`.
        program: its name, `s3_source`.
        task_class: the source.
        arguments: what the interpreter runs it with, `-m s3_source`.
    """

    name: str
    program: str
    task_class: type[AbstractSourceTask]
    arguments: tuple[str, ...]

    @property
    def config_class(self) -> type[SourceCommonConfig]:
        """The root class of its configuration."""
        found = self.task_class.config_class
        assert found is not None  # `Kinds` makes no other
        return found


class Kinds:
    """The kinds of sources that can run here: the program's own, and installed packages called `NAME_source`.

    Args:
        program: the name of this program.
        task_class: its source.
    """

    def __init__(self, program: str, task_class: type[AbstractSourceTask]) -> None:
        self._found: dict[str, Kind] = {}
        for name in _store_sections(task_class):
            self._found[name] = Kind(
                name=name, program=program, task_class=task_class, arguments=_arguments_of(program)
            )

    def of(self, mapping: Mapping[str, object], *, origin: str = "") -> Kind:
        """Return the kind of a configuration.

        Args:
            mapping: its sections.
            origin: its file, for the message.

        Raises:
            ConfigError: it has no section of a known store, or more than one.
        """
        names = [name for name, content in mapping.items() if isinstance(content, Mapping) and name not in _COMMON]
        kinds = [kind for kind in map(self.named, names) if kind is not None]
        if len(kinds) == 1:
            return kinds[0]
        if kinds:
            names = [kind.name for kind in kinds]
            raise ConfigError(f"sections of several stores, {', '.join(names)}: keep one", origin=origin)
        guesses = [(name, nearest(name, dict.fromkeys([*_SHIPPED, *self._found]))) for name in names]
        advice = "".join(f"; [{name}] is none: did you mean [{guess}]?" for name, guess in guesses if guess is not None)
        raise ConfigError(f"the section of its store is missing, for example [s3] or [gcs]{advice}", origin=origin)

    def named(self, name: str) -> Kind | None:
        """Return a kind by its name or the name of its program; None when there is none."""
        name = name.removesuffix("_source")
        if name not in self._found and name.isidentifier():
            kind = _installed(name)
            if kind is None:
                return None
            self._found[name] = kind
        return self._found.get(name)


def _installed(name: str) -> Kind | None:
    program = f"{name}_source"
    if not _is_module(f"{program}.task"):
        return None
    for value in vars(importlib.import_module(f"{program}.task")).values():
        if isinstance(value, type) and issubclass(value, AbstractSourceTask) and name in _store_sections(value):
            return Kind(name=name, program=program, task_class=value, arguments=("-m", program))
    return None


def _store_sections(task_class: type[AbstractSourceTask]) -> list[str]:
    config_class = task_class.config_class
    return [name for name in sections_of(config_class) if name not in _COMMON] if config_class is not None else []


def _arguments_of(program: str) -> tuple[str, ...]:
    """Return how a program is started: as a package, or as this process was."""
    if _is_module(f"{program}.__main__"):
        return ("-m", program)
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return ("-m", spec.name.removesuffix(".__main__"))
    return (str(Path(sys.argv[0]).resolve()),)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is no package
        return False
