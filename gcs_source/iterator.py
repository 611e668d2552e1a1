"""The iterator of the GCS source: a store's iterator over one bucket."""

from __future__ import annotations

from framework.iterator.object_store import StoreRecordIterator


class GcsSourceRecordIterator(StoreRecordIterator):
    """Records of the objects of a bucket. All it needs comes from `StoreRecordIterator` and `GcsStore`."""
