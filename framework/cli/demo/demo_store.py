"""A store's part of the demo: a local server, filled with files, and the section that reads its bucket."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from framework.task import AbstractSourceTask

BUCKET = "flights"


class DemoStore(abc.ABC):
    """A local store for the demo of its source. Only the demo writes to a bucket: a source never does."""

    program: ClassVar[str]
    """The package to run: `s3_source`."""

    title: ClassVar[str]
    """Name of the store for people: `S3`."""

    server_title: ClassVar[str]
    """Name of the local server: `SeaweedFS`."""

    scheme: ClassVar[str]
    """Scheme in addresses."""

    task_class: ClassVar[type[AbstractSourceTask]]

    @property
    def short(self) -> str:
        """`s3` of `s3_source`: its name in `make demo STORE=` and examples/."""
        return self.program.removesuffix("_source")

    @property
    def folder(self) -> Path:
        """Default folder of the demo; each store has its own folder, and so its own topics."""
        return Path(".demo") if self.short == "s3" else Path(f".demo-{self.short}")

    @abc.abstractmethod
    def start(self, folder: Path) -> Any:
        """Return a running server with its data in that folder; it has `endpoint` and `has_ended()`, and `with` ends it.

        Raises:
            FatalError: its package is missing, or it does not start.
        """

    @abc.abstractmethod
    def command_line_mark(self, folder: Path) -> str:
        """Return an argument that identifies a server of this folder, so that the server of a killed demo can be ended."""

    @abc.abstractmethod
    def fill(self, server: Any, files: Mapping[str, Path]) -> int:
        """Upload the files into the bucket `BUCKET`, by key; return the number of uploads.

        Objects of the same size are kept: uploading the same bytes would make a new version, which is
        read again. Returns when every object can be read.

        Raises:
            FatalError: the server rejected an upload.
        """

    @abc.abstractmethod
    def section(self, server: Any, prefix: str) -> str:
        """Return the store's section of a configuration that reads the bucket below that prefix, as TOML."""
