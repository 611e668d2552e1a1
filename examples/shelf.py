"""A source for an object store of your own: here the store is a folder, listed a page of keys at a time.

    python examples/shelf.py --config examples/shelf.toml --once

A store lists pages and opens ranges. Retries, parallel listing, prefetching, resuming, formats, positions, filters, the
commands and their exit codes come with the framework. `docs/tutorials/write-your-first-source.md` builds this file step
by step; `tests/conformance/test_shelf.py` runs the conformance kit on it.
"""

import os
from contextlib import suppress
from pathlib import Path

import attrs

from framework import BucketConfig, ListPage, NativeObject, ObjectStore, StoreSourceTask, main, option
from framework.errors import BucketNotFoundError, ObjectNotFoundError
from transformers import LocalFileInput


@attrs.frozen(kw_only=True)
class ShelfConfig(BucketConfig):
    path: str = option(doc="The folder to read, with everything below it.", minimum=1)


class ShelfStore(ObjectStore):
    scheme = "shelf"

    def __init__(self, path):
        self.root, self.bucket = Path(path), str(Path(path).absolute())

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        if not self.root.is_dir():
            raise BucketNotFoundError(f"{self.root}: there is no such folder; set [shelf] path")
        names = sorted(os.fsencode(file.relative_to(self.root)) for file in self.root.rglob("*") if file.is_file())
        start = os.fsencode(continuation or after)
        keys = [os.fsdecode(name) for name in names if name > start and name.startswith(os.fsencode(prefix))]
        page = [native for key in keys[:page_size] if (native := self.find(key))]
        return ListPage(objects=page, continuation=keys[page_size - 1] if len(keys) > page_size else None)

    def find(self, key):
        with suppress(ObjectNotFoundError):  # deleted during the listing
            file = LocalFileInput(self.root / key)
            version, ms = file.version, file.modified_ms
            return NativeObject(bucket=self.bucket, key=key, size=file.size, version=version, modified_ms=ms)

    def open(self, native, start=0, end=None):
        return LocalFileInput(self.root / native.key, version=native.version).open(start, end)


class ShelfTask(StoreSourceTask):
    section, section_class = "shelf", ShelfConfig

    def make_store(self, config):
        return ShelfStore(config.path)


if __name__ == "__main__":
    main(ShelfTask)
