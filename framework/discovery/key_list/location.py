"""Places of a supplied list: a local file, or an object of a store. Checking the state is cheap; bytes are streamed."""

from __future__ import annotations

import errno
import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from typing_extensions import override

from framework.discovery.key_list.inventory import DataFile, copy_checked
from framework.discovery.key_list.source import KeyList
from framework.errors import ConfigError, KeyListError, ObjectNotFoundError
from framework.model.objects import NativeObject
from framework.model.temporary_files import closed_at_end, temporary_for
from framework.storage.stat import Lookups
from framework.transformer import ReadStream

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]+)/(.+)", re.DOTALL)
_BUFFER_BYTES = 1 << 18


def key_list_of(address: str, lookups: Lookups, *, form: str, encoding: str) -> KeyList:
    """Return the list that `[discovery] keys` names: a path, or `scheme://bucket/key`. No I/O.

    Args:
        address: the path or address.
        lookups: requests to the store of the source.
        form: see `KeyList`.
        encoding: see `KeyList`.

    Raises:
        ConfigError: the address belongs to another store, or names no object.
    """
    options = {"form": form, "encoding": encoding, "source_bucket": lookups.store.bucket}
    if "\0" in address:
        raise ConfigError("[discovery] keys: has a null byte, which no path and no key has")
    if "://" not in address:
        return FileKeyList(Path(address), **options)
    found = _ADDRESS.fullmatch(address)
    scheme = lookups.store.scheme
    if found is None or found[1] != scheme:
        raise ConfigError(
            f'[discovery] keys = "{address}": must be a path of this machine, or an object as {scheme}://bucket/key'
        )
    return StoreKeyList(found[2], found[3], lookups, **options)


class FileKeyList(KeyList):
    """A file of this machine."""

    def __init__(self, path: Path, **options: str) -> None:
        super().__init__(str(path), **options)
        self._path = path

    @override
    def state(self) -> str:
        try:
            seen = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        return f"{seen.st_mtime_ns} {seen.st_size} {seen.st_ino}"

    @override
    def open(self) -> BinaryIO:
        if self._path.is_fifo():  # its open would wait without end, and each listing reads it again
            raise self._unreadable(OSError(errno.EINVAL, "it is a pipe, not a file"))
        try:
            return self._path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> KeyListError:
        return KeyListError(
            f"{self.name}: the list of keys cannot be read ({error.strerror}); check [discovery] keys. "
            "A path counts from the folder that the program runs in"
        )

    @override
    @contextmanager
    def open_data(self, data: DataFile) -> Iterator[tuple[BinaryIO, str]]:
        try:
            path = self._find(data)
            file = path.open("rb") if path is not None else None
        except OSError as error:  # such as a name that is too long
            raise KeyListError(f"{self.name}: the data file {data.key} cannot be read ({error.strerror})") from error
        if file is None:
            raise KeyListError(
                f"{self.name}: the data file {data.key} lies neither beside it nor in a folder data or ../data; copy it there, "
                "or name the manifest in the store"
            )
        with file:
            copy_checked(file, None, data, str(path))
            file.seek(0)
            yield file, str(path)

    def _find(self, data: DataFile) -> Path | None:
        """Find a data file where inventories are after a copy: as in the bucket, flat, or beside the manifest's folder."""
        folder, name = self._path.parent, data.key.rpartition("/")[2]
        within = [] if ".." in data.key.split("/") else [folder / data.key.lstrip("/")]
        places = (*within, folder / name, folder / "data" / name, folder.parent / "data" / name)
        return next((place for place in places if place.is_file()), None)


class StoreKeyList(KeyList):
    """An object of the source's store, in the same bucket or another.

    Args:
        bucket: bucket of the list.
        key: key of the list.
        lookups: requests to the store.
        **options: of `KeyList`.
    """

    def __init__(self, bucket: str, key: str, lookups: Lookups, **options: str) -> None:
        super().__init__(lookups.address(bucket, key), **options)
        self._bucket = bucket
        self._key = key
        self._lookups = lookups
        self._seen: NativeObject | None = None

    @override
    def state(self) -> str:
        try:
            self._seen = self._lookups.stat(self._bucket, self._key)
        except ObjectNotFoundError as error:
            raise self._missing() from error
        return self._seen.version

    @override
    def open(self) -> BinaryIO:
        assert self._seen is not None, "state() comes first"
        try:
            return self._stream(self._bucket, self._seen)
        except ObjectNotFoundError as error:
            raise self._missing() from error

    def _missing(self) -> KeyListError:
        return KeyListError(f"{self.name}: there is no such list of keys; check [discovery] keys")

    def _stream(self, bucket: str, native: NativeObject) -> BinaryIO:
        return io.BufferedReader(_StreamFile(self._lookups.open(bucket, native)), _BUFFER_BYTES)

    @override
    @contextmanager
    def open_data(self, data: DataFile) -> Iterator[tuple[BinaryIO, str]]:
        # Manifest and data lie in one bucket, where S3 puts both. What the manifest says is not asked: whoever may write it would
        # choose the buckets that are read with our credentials.
        name = self._lookups.address(self._bucket, data.key)
        # On disk, not in memory: it is checked to its end before anything of it is used.
        with temporary_for(name):
            copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - its end may fail
        with closed_at_end(copy):
            try:
                native = self._lookups.stat(self._bucket, data.key)
                with self._stream(self._bucket, native) as source:
                    copy_checked(source, copy, data, name)
            except ObjectNotFoundError as error:
                raise KeyListError(
                    f"{name}: there is no such data file, but {self.name} names it; the data files of an inventory are read from "
                    f"the bucket of its manifest, supply the whole inventory there"
                ) from error
            copy.seek(0)
            yield copy, name


class _StreamFile(io.RawIOBase):
    """A `ReadStream` as a Python file."""

    def __init__(self, stream: ReadStream) -> None:
        super().__init__()
        self._stream = stream

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any, /) -> int:
        chunk = self._stream.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    @override
    def close(self) -> None:
        self._stream.close()
        super().close()
