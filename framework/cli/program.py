"""The program of a source, as its commands see it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from framework.cli.config_file import ConfigFile
from framework.cli.error_reporter import ErrorReporter
from framework.cli.run import load_source
from framework.errors import ConfigError

if TYPE_CHECKING:
    from framework.config.layers import Layer
    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask


@attrs.define(kw_only=True)
class Program:
    """What the commands of a program have in common; typer hands it to each as `context.obj`.

    Attributes:
        name: its name, `s3_source`.
        command: how a user starts it, `python -m s3_source`.
        task_class: the source.
        has_demo: whether it has the command `demo`.
        reporter: writes warnings, and the error that ends the program.
        config: the configuration's file, when it stands before the command.
        settings: overrides that stand before the command.
        layers: the content of the configuration, from the worker that started this process.
    """

    name: str
    command: str
    task_class: type[AbstractSourceTask]
    has_demo: bool = False
    reporter: ErrorReporter
    config: Path | None = None
    settings: tuple[str, ...] = ()
    layers: tuple[Layer, ...] | None = None

    def overrides(self, settings: Sequence[str] | None) -> tuple[str, ...]:
        """Return the overrides that stand before the command, then those behind it."""
        return (*self.settings, *(settings or ()))

    def choose(self, config: Path | None, settings: Sequence[str] | None) -> ConfigFile:
        """Return the configuration that the options of a command name, or those before the command.

        Raises:
            ConfigError: no option names a file.
        """
        path = config or self.config
        if path is None:
            more = ", and the command demo needs none" if self.has_demo else ""
            raise ConfigError(f"no configuration: add --config FILE; the command config init writes one{more}")
        return ConfigFile(path=path, settings=self.overrides(settings), layers=self.layers)

    def read(self, config: Path | None, settings: Sequence[str] | None) -> SourceCommonConfig:
        """Return the configuration that the options name, fully checked.

        Raises:
            ConfigError: no option names a file, or the file has mistakes.
        """
        return load_source(self.task_class, self.choose(config, settings)).config
