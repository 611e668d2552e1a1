"""A source for an object store of your own: here the store is a folder, a page of keys at a time.

    python examples/shelf.py --config examples/shelf.toml --once

A store lists pages and opens ranges. Retries, parallel listing, prefetching, resuming, formats, positions, filters, the commands
and their exit codes come with it. `tests/conformance/test_shelf.py` runs the conformance kit on it.
"""

import os
from pathlib import Path

import attrs

from framework import (
    BucketConfig,
    ListPage,
    NativeObject,
    ObjectChangedError,
    ObjectNotFoundError,
    ObjectStore,
    SourceCommonConfig,
    StoreSourceTask,
    main,
    option,
)
from transformers import LocalFileInput


@attrs.frozen(kw_only=True)
class ShelfConfig(BucketConfig):
    path: str = option(doc="The folder to read, with everything below it.", minimum=1)


@attrs.frozen(kw_only=True)
class ShelfSourceConfig(SourceCommonConfig):
    shelf: ShelfConfig


class ShelfStore(ObjectStore):
    scheme = "shelf"

    def __init__(self, path):
        self.root = Path(path)
        self.bucket = str(self.root.absolute())

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        start = os.fsencode(continuation or after)
        names = (file.relative_to(self.root).as_posix() for file in self.root.rglob("*") if file.is_file())
        keys = sorted(
            (name for name in names if name.startswith(prefix) and os.fsencode(name) > start), key=os.fsencode
        )
        more = keys[page_size - 1] if len(keys) > page_size else None
        return ListPage(objects=[self.stat(key) for key in keys[:page_size]], continuation=more)

    def stat(self, key):
        try:
            found = (self.root / key).stat()
        except FileNotFoundError:
            raise ObjectNotFoundError("the file is gone", location=key) from None
        version = f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
        modified_ms = found.st_mtime_ns // 1_000_000
        return NativeObject(
            scheme="shelf", bucket=self.bucket, key=key, size=found.st_size, version=version, modified_ms=modified_ms
        )

    def open(self, native, start=0, end=None):
        if self.stat(native.key).version != native.version:
            raise ObjectChangedError("the file was changed since it was listed", location=native.location)
        return LocalFileInput(self.root / native.key, key=native.key).open(start, end)

    def close(self):
        pass


class ShelfTask(StoreSourceTask):
    config_class, section = ShelfSourceConfig, "shelf"

    def make_store(self, config):
        return ShelfStore(config.path)


if __name__ == "__main__":
    main(ShelfTask)
