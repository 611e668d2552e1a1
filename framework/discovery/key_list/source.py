"""A supplied list of keys as rows, in any format and place."""

from __future__ import annotations

from collections.abc import Iterator

from framework.discovery.key_list.inventory import MAX_MANIFEST_BYTES, Inventory, data_rows, parse_manifest
from framework.discovery.key_list.location import ListPlace
from framework.discovery.key_list.rows import KeyRow, csv_rows, text_rows, unpacked
from framework.errors import ConfigError, KeyListError


class KeyList:
    """The rows of a list, read again on each iteration. For one thread.

    Args:
        place: where the list is stored.
        form: `text`, `csv`, `inventory`, or `auto`: by the name.
        encoding: of keys in text and CSV: `none`, `url`, or `auto` as in
            `framework.discovery.key_list.rows`.
        bucket: bucket of the source.
    """

    def __init__(self, place: ListPlace, *, form: str = "auto", encoding: str = "auto", bucket: str) -> None:
        self._place = place
        self._form = _form_of(place.name) if form == "auto" else form
        self._encoded = None if encoding == "auto" else encoding == "url"
        self._bucket = bucket

    @property
    def name(self) -> str:
        """The list's place, for messages."""
        return self._place.name

    def state(self) -> str:
        """Return a value that changes when the list is rewritten. Costs a stat call or one request.

        Raises:
            KeyListError: the list does not exist.
        """
        return self._place.state()

    def rows(self) -> Iterator[KeyRow]:
        """Yield all rows, in order, of the list that `state` last saw.

        Raises:
            KeyListError: the list is truncated, or has an invalid row. Earlier rows were yielded.
            ConfigError: a row belongs to another bucket.
            ObjectChangedError: the list was rewritten meanwhile.
        """
        for row in self._inventory_rows() if self._form == "inventory" else self._plain_rows():
            if row.bucket and row.bucket != self._bucket and not self._bucket.startswith("arn:"):
                raise self._other_bucket(row.place, row.bucket)
            yield row

    def _plain_rows(self) -> Iterator[KeyRow]:
        name = self._place.name
        with self._place.open() as packed, unpacked(packed, name) as file:
            if self._form == "csv":
                yield from csv_rows(file, name, bucket=self._bucket, encoded=self._encoded)
            else:
                yield from text_rows(file, name, encoded=bool(self._encoded))

    def _inventory_rows(self) -> Iterator[KeyRow]:
        inventory = self._inventory()
        for data in inventory.files:
            with self._place.open_data(data, inventory.destination_bucket) as file:
                yield from data_rows(inventory, file, self._place.data_name(data, inventory.destination_bucket))

    def _inventory(self) -> Inventory:
        name = self._place.name
        with self._place.open() as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise KeyListError(f"{name}: longer than the manifest of an inventory can be; is it a manifest.json?")
        inventory = parse_manifest(content, name)
        if inventory.source_bucket != self._bucket and not self._bucket.startswith("arn:"):
            raise self._other_bucket(f"{name}, sourceBucket", inventory.source_bucket)
        return inventory

    def _other_bucket(self, place: str, bucket: str) -> ConfigError:
        return ConfigError(
            f"{place}: is about the bucket {bucket}, but this source reads {self._bucket}; "
            "supply a list of that bucket's objects, or change the bucket of the source"
        )


def _form_of(name: str) -> str:
    lower = name.lower().removesuffix(".gz")
    return "inventory" if lower.endswith(".json") else "csv" if lower.endswith(".csv") else "text"
