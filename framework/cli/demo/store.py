"""What the demo needs of a store: a local server, filled with files, and the section that reads its bucket."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from framework.task import AbstractSourceTask

BUCKET = "flights"


class DemoStore(abc.ABC):
    """A store on this machine, for the demo of its source. Only the demo writes to a bucket: a source never does."""

    program: ClassVar[str]
    """The package that is run: `s3_source`."""

    title: ClassVar[str]
    """The store for people: `S3`."""

    server_title: ClassVar[str]
    """What stands in for it: `SeaweedFS`."""

    scheme: ClassVar[str]
    """As it stands in an address."""

    task_class: ClassVar[type[AbstractSourceTask]]

    @property
    def short(self) -> str:
        """`s3` of `s3_source`: what `make demo STORE=` and examples/ call it."""
        return self.program.removesuffix("_source")

    @property
    def folder(self) -> Path:
        """Where the demo is kept by default; each store has its own, and with it its own topics."""
        return Path(".demo") if self.short == "s3" else Path(f".demo-{self.short}")

    @abc.abstractmethod
    def start(self, folder: Path) -> Any:
        """A running server with its data in that folder; it has `endpoint` and `stop()`.

        Raises:
            FatalError: its package is missing, or it does not start.
        """

    @abc.abstractmethod
    def command_line_mark(self, folder: Path) -> str:
        """An argument that only a server of this folder was started with: one that a killed demo left is ended by it."""

    @abc.abstractmethod
    def fill(self, server: Any, files: Mapping[str, Path]) -> int:
        """Makes the bucket `BUCKET` hold the files, by key; returns how many had to be sent.

        What is there with the same size stays as it is: the same bytes put again would be a new version, to be read again.
        Returns when every object can be read.

        Raises:
            FatalError: the server did not take them.
        """

    @abc.abstractmethod
    def section(self, server: Any, prefix: str) -> str:
        """The store's section of a configuration that reads the bucket below that prefix, as TOML."""
