"""Configurations of a worker's sources: read from files, and shown without their secrets."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from framework.config.layers import Layer, file_layers, merge
from framework.config.loading import CONNECTOR_KEY, Loaded
from framework.config.masked_view import MASK, shown_mapping
from framework.config.option import sections_of
from framework.config.sections import SourceCommonConfig
from framework.config.values import with_texts
from framework.errors import ConfigError
from framework.model.text import unicode_text
from framework.runtime.source_program import Kind, Kinds
from framework.task import AbstractSourceTask

Load = Callable[[type[AbstractSourceTask], Path, Sequence[Layer]], Loaded[SourceCommonConfig]]
"""Checks a file, given its layers, as the program itself does."""

_LOGIN = re.compile(r"@|token=")


@attrs.frozen(kw_only=True)
class Configuration:
    """One version of a source's configuration.

    Attributes:
        key: the source's key in the API: the option `key`, by default the source's name.
        source: the source's name; empty when the file has none.
        path: its file.
        layers: the content of the file and of those that it includes, with which the source is started.
        version: its number.
        enabled: whether it is to run.
        label: its name for people.
        kind: what runs it; None when the file does not say.
        mapping: its sections as they were written, with included files and overrides.
        includes: the files that it includes.
        mistake: why it cannot run; empty when it is right.
        settings: overrides of the command line, which count in its process and in its commands.
    """

    key: str
    source: str = ""
    path: Path
    layers: tuple[Layer, ...] = attrs.field(default=(), repr=False, eq=False)  # may hold passwords
    version: int = 0
    enabled: bool = True
    label: str = ""
    kind: Kind | None = None
    mapping: Mapping[str, Any] = attrs.field(factory=dict, repr=False)  # as written, passwords too
    includes: tuple[Path, ...] = ()
    mistake: str = ""
    settings: tuple[str, ...] = attrs.field(default=(), repr=False)  # may hold passwords

    def command(self, *words: str) -> list[str]:
        """Return what the interpreter runs it with, or a command of its program: `command("offsets", "export")`.

        The process needs `content_file` as its stdin.
        """
        program = self.kind.arguments if self.kind is not None else ()
        overrides = [part for setting in self.settings for part in ("--set", setting)]
        return [*program, "--content-on-stdin", *words, "--config", str(self.path), *overrides]

    def content_file(self) -> IO[bytes]:
        """Return its content as a file in memory. The file at its path, and those that it includes, may hold another by now.

        Raises:
            OSError: as many files are open as the system allows.
        """
        file = os.fdopen(os.memfd_create("configuration"), "w+b")
        pickle.dump(self.layers, file)
        file.seek(0)
        return file


def read_configuration(
    path: Path, kinds: Kinds, load: Load, *, key: str = "", settings: tuple[str, ...] = ()
) -> Configuration:
    """Return the configuration in a file. A mistake is part of the result.

    Args:
        path: the file.
        kinds: the sources that can run here.
        load: checks the file as the program does.
        key: the key, for a file that belongs to one; by default the file says it.
        settings: overrides of the command line; `load` applies them, too.
    """
    made, files = Configuration(key=key or unicode_text(path.name), path=path, settings=settings), list[Path]()
    try:
        try:
            layers = tuple(file_layers(path, files))
        finally:
            made = attrs.evolve(made, includes=tuple(dict.fromkeys(files[1:])))  # a change of one corrects its mistake
        mapping = merge(layers).values
        made = _described(attrs.evolve(made, layers=layers), mapping, key)
        kind = kinds.of(mapping, origin=str(path))
        made = attrs.evolve(made, kind=kind)
        loaded = load(kind.task_class, path, layers)
    except ConfigError as error:
        mistake = str(error)
    except Exception as error:  # noqa: BLE001 - one source in error, and the others run
        mistake = f"{path}: unexpected {type(error).__name__}: {error}"
    else:
        return _described(made, loaded.merged.values, key)  # an override may name the source, too
    return attrs.evolve(made, mistake=unicode_text(mistake))


def _described(made: Configuration, mapping: Mapping[str, Any], key: str) -> Configuration:
    """Return the configuration with what its sections say about it."""
    section = mapping.get("source")
    name = section.get("name") if isinstance(section, Mapping) else None
    source = str(name) if isinstance(name, str) and CONNECTOR_KEY.fullmatch(name) else ""
    given, label, version = mapping.get("key"), mapping.get("name"), mapping.get("version")
    return attrs.evolve(
        made,
        key=key or (given if isinstance(given, str) and CONNECTOR_KEY.fullmatch(given) else source or made.key),
        source=source,
        label=label if isinstance(label, str) else source,
        mapping=mapping,
        version=version if isinstance(version, int) and version >= 0 else 0,
        enabled=mapping.get("enabled") is not False,
    )


def shown(configuration: Configuration) -> dict[str, Any]:
    """Return the sections of a configuration for others to see.

    Values of secret options are masked, and so are values of unknown options: a misspelt `password` is one, too. In a
    configuration with a mistake, so are texts that may hold a login: `address = "user:password@host"` is such a mistake.
    References such as `${env:NAME}` are shown, they are no secrets.
    """
    if configuration.kind is None:
        return {}
    found = shown_mapping(configuration.mapping, sections_of(configuration.kind.config_class))
    return without_logins(found) if configuration.mistake else found


def without_logins(value: object) -> Any:
    """Return a shown value without the texts in it that may hold a login."""
    return with_texts(value, lambda text: MASK if MASK not in text and _LOGIN.search(text) else text)
