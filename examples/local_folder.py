"""A source without an object store: it delivers the files of a folder to Iggy.

    python examples/local_folder.py --config examples/local_folder.toml --once

A source consists of a section of the configuration, an iterator that lists and opens, and a task that names both.
Formats, positions, recovery, retries, filters, the commands and their exit codes come with the framework.
`tests/conformance/test_local_folder.py` runs the conformance kit on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
from typing_extensions import override

from framework import AbstractSourceRecordIterator, AbstractSourceTask, NativeObject, ObjectInput, main
from framework.config.option import option
from framework.config.sections import SourceCommonConfig
from framework.errors import BucketNotFoundError, ObjectNotFoundError
from framework.transformer import ReadStream
from transformers import LocalFileInput


@attrs.frozen(kw_only=True)
class FolderSection:
    """The section `[folder]`."""

    path: str = option(doc="The folder to read, with everything below it.", minimum=1)


@attrs.frozen(kw_only=True)
class FolderConfig(SourceCommonConfig):
    """What sources have in common, and `[folder]`."""

    folder: FolderSection


class FolderInput:
    """A listed version of a file; opens it on request.

    Write files elsewhere and move them here: a file that is written in place during the read looks whole.
    """

    def __init__(self, root: Path, native: NativeObject) -> None:
        self._root = root
        self._native = native
        self.key = native.key
        self.location = native.location
        self.size = native.size

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        """Open the bytes `start .. end - 1`."""
        return LocalFileInput(self._root / self.key, self.key, version=self._native.version).open(start, end)


class FolderIterator(AbstractSourceRecordIterator):
    """List and open files."""

    @property
    def root(self) -> Path:
        """The folder."""
        assert isinstance(self.config, FolderConfig)
        return Path(self.config.folder.path).absolute()

    @override
    def get_native_item_stream(self, offset: str | None) -> Iterator[NativeObject]:
        """Yield every file after `offset`, in the order of the keys' UTF-8 bytes."""
        if not self.root.is_dir():
            raise BucketNotFoundError(f"{self.root}: there is no such folder; set [folder] path")
        paths = {path.relative_to(self.root).as_posix(): path for path in self.root.rglob("*") if path.is_file()}
        for key in sorted(paths, key=os.fsencode):
            if offset is not None and os.fsencode(key) <= os.fsencode(offset):
                continue
            try:
                file = LocalFileInput(paths[key])
            except ObjectNotFoundError:
                continue  # deleted during the listing
            yield NativeObject(
                scheme="file",
                bucket=str(self.root),
                key=key,
                size=file.size,
                version=file.version,
                modified_ms=file.modified_ms,
            )

    @override
    def get_input_stream(self, native: NativeObject) -> ObjectInput:
        return FolderInput(self.root, native)


class FolderTask(AbstractSourceTask):
    """Read a folder."""

    config_class = FolderConfig
    iterator_class = FolderIterator


if __name__ == "__main__":
    main(FolderTask)
