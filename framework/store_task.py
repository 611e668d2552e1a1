"""The task of any object store: one bucket, one iterator over it, and closing of what they opened.

class S3SourceTask(StoreSourceTask):
    config_class = S3SourceConfig                 # SourceCommonConfig and the store's own section
    section = "s3"                                # a `BucketConfig`

    def make_store(self, bucket): ...
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from typing_extensions import override

from framework.checks import CheckResult, check_store
from framework.config.bucket import BucketConfig
from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.errors import ConfigError
from framework.formats import make_transformer
from framework.retry import BackoffConfig
from framework.store import ObjectStore
from framework.store_iterator import StoreRecordIterator
from framework.task import AbstractSourceTask


class StoreSourceTask(AbstractSourceTask):
    """Reads one bucket of a store. A subclass says how the store is made, and names the section that configures it."""

    section: ClassVar[str]
    """Name of the section, and of the attribute of the configuration that holds it."""

    iterator_class: ClassVar[type[StoreRecordIterator]] = StoreRecordIterator

    def __init__(self) -> None:
        super().__init__()
        self._store: ObjectStore | None = None
        self._others: dict[str, ObjectStore] = {}

    @abc.abstractmethod
    def make_store(self, bucket: str | None = None) -> ObjectStore:
        """The store of the configured bucket, or of another one with the same identity. Called once for each.

        May connect. It is closed by `close_resources`.
        """

    @property
    def bucket_config(self) -> BucketConfig:
        """The section of the store.

        Raises:
            ConfigError: it is missing.
        """
        found = getattr(self.config, self.section, None)
        if not isinstance(found, BucketConfig):
            raise ConfigError(f"[{self.section}]: missing; this task reads what it names")
        return found

    @override
    def configure(self, props: Mapping[str, Any]) -> SourceCommonConfig:
        if self.config_class is None:
            raise TypeError(f"{type(self).__name__} names no config_class")
        config = structure(props, self.config_class)
        make_transformer(config.input.options())
        return config

    @override
    def get_iterator(self, backoff_config: BackoffConfig) -> StoreRecordIterator:
        bucket, config = self.bucket_config, self.config
        assert config is not None  # `bucket_config` has looked
        return self.iterator_class(
            config,
            make_transformer(config.input.options()),
            self.offsets,
            store=self.open_store(),
            policy=bucket.retry_policy,
            prefixes=bucket.all_prefixes,
            page_size=bucket.page_size,
            start_key=bucket.native_start_key or None,
            feed=self.feed,
            once=self.once,
            open_bucket=self.open_bucket,
        )

    def open_store(self) -> ObjectStore:
        """The bucket; made at the first use, closed by `close_resources`."""
        if self._store is None:
            self._store = self.make_store()
        return self._store

    def open_bucket(self, bucket: str) -> ObjectStore:
        """Another bucket with the same identity, for a list of keys that lies there; closed by `close_resources`.

        A subclass may replace it, when that bucket wants another identity.
        """
        if bucket not in self._others:
            self._others[bucket] = self.make_store(bucket)
        return self._others[bucket]

    @override
    def check(self) -> Iterator[CheckResult]:
        config, store, bucket = self.config, self.open_store(), self.bucket_config
        if config is None or config.discovery.mode != "keys":
            yield from check_store(store, prefix=bucket.all_prefixes[0], after=bucket.native_start_key)
            return
        iterator = self.get_iterator(self.backoff_config)
        try:
            yield from check_store(store, named=iterator.get_native_item_stream(iterator.start_key))
        finally:
            iterator.close()

    @override
    def close_resources(self) -> None:
        for store in (self._store, *self._others.values()):
            if store is not None:
                store.close()
