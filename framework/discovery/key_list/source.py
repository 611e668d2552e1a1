"""A supplied list of keys as rows, in any format. `framework.discovery.key_list.location` has the places."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

from framework.discovery.key_list.inventory import MAX_MANIFEST_BYTES, DataFile, Inventory, data_rows, parse_manifest
from framework.discovery.key_list.rows import KeyRow, csv_rows, text_rows, unpacked
from framework.errors import ConfigError, KeyListError


class KeyList(abc.ABC):
    """The rows of a list, read again on each iteration. For one thread.

    Attributes:
        name: a path or an address, for messages.

    Args:
        name: the list's place.
        form: `text`, `csv`, `inventory`, or `auto`: by the name.
        encoding: of keys in text and CSV: `none`, `url`, or `auto` as in
            `framework.discovery.key_list.rows`.
        source_bucket: bucket of the source.
    """

    def __init__(self, name: str, *, form: str, encoding: str, source_bucket: str) -> None:
        self.name = name
        self._form = _form_of(name) if form == "auto" else form
        self._encoded = None if encoding == "auto" else encoding == "url"
        self._source_bucket = source_bucket

    @abc.abstractmethod
    def state(self) -> str:
        """Return a value that changes when the list is rewritten. Costs a stat call or one request.

        Raises:
            KeyListError: the list does not exist.
        """

    @abc.abstractmethod
    def open(self) -> BinaryIO:
        """Open the list at its first byte: the object that `state` last saw, or the file as it is now.

        Raises:
            KeyListError: the list does not exist.
            ObjectChangedError: the object was rewritten since; also raised by reads.
        """

    @abc.abstractmethod
    def open_data(self, data: DataFile) -> AbstractContextManager[tuple[BinaryIO, str]]:
        """Open a complete and checked data file of the inventory in this place; give it, seekable, and its name.

        Args:
            data: the manifest's data about it.

        Raises:
            KeyListError: it is missing, or differs from the manifest.
        """

    def rows(self) -> Iterator[KeyRow]:
        """Yield all rows, in order, of the list that `state` last saw.

        Raises:
            KeyListError: the list is truncated, or has an invalid row. Earlier rows were yielded.
            ConfigError: a row belongs to another bucket.
            ObjectChangedError: the list was rewritten meanwhile.
        """
        for row in self._inventory_rows() if self._form == "inventory" else self._plain_rows():
            if row.bucket and row.bucket != self._source_bucket and not self._source_bucket.startswith("arn:"):
                raise self._other_bucket(row.place, row.bucket)
            yield row

    def _plain_rows(self) -> Iterator[KeyRow]:
        with self.open() as packed, unpacked(packed, self.name) as file:
            if self._form == "csv":
                yield from csv_rows(file, self.name, bucket=self._source_bucket, encoded=self._encoded)
            else:
                yield from text_rows(file, self.name, encoded=bool(self._encoded))

    def _inventory_rows(self) -> Iterator[KeyRow]:
        inventory = self._inventory()
        for data in inventory.files:
            with self.open_data(data) as (file, name):
                yield from data_rows(inventory, file, name)

    def _inventory(self) -> Inventory:
        name = self.name
        with self.open() as packed, unpacked(packed, name) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise KeyListError(f"{name}: longer than the manifest of an inventory can be; is it a manifest.json?")
        inventory = parse_manifest(content, name)
        if inventory.source_bucket != self._source_bucket and not self._source_bucket.startswith("arn:"):
            raise self._other_bucket(f"{name}, sourceBucket", inventory.source_bucket)
        return inventory

    def _other_bucket(self, place: str, bucket: str) -> ConfigError:
        return ConfigError(
            f"{place}: is about the bucket {bucket}, but this source reads {self._source_bucket}; "
            "supply a list of that bucket's objects, or change the bucket of the source"
        )


def _form_of(name: str) -> str:
    lower = name.lower().removesuffix(".gz")
    return "inventory" if lower.endswith(".json") else "csv" if lower.endswith(".csv") else "text"
