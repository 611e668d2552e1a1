"""The iterator of the GCS source."""

from __future__ import annotations

from framework.iterator.object_store import StoreRecordIterator


class GcsSourceRecordIterator(StoreRecordIterator):
    """Records of the objects of a bucket; see `StoreRecordIterator` and `GcsStore`."""
