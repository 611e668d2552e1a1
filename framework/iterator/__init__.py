"""The contract of a source's iterator: objects -> batches of records; `store_iterator` implements it for a store."""

from framework.iterator.abstract_iterator import AbstractSourceRecordIterator

__all__ = ["AbstractSourceRecordIterator"]
