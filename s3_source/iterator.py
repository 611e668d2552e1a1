"""The iterator of the S3 source."""

from __future__ import annotations

from framework.iterator.object_store import StoreRecordIterator


class S3SourceRecordIterator(StoreRecordIterator):
    """Records of the objects of a bucket; see `StoreRecordIterator` and `S3Store`."""
