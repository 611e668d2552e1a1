"""The contract of a source's iterator: objects -> batches of records; `object_store` implements it for a store."""

from framework.iterator.abstract_iterator import AbstractSourceRecordIterator

__all__ = ["AbstractSourceRecordIterator"]
