"""A whole source over a `MemoryStore`: the reference on which the conformance kit is proven, and a stage for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.errors import ConfigError
from framework.formats import make_transformer
from framework.retry import BackoffConfig, RetryPolicy
from framework.store import ObjectStore
from framework.store_iterator import StoreRecordIterator
from framework.task import AbstractSourceTask
from framework.testing.memory import MemoryStore
from framework.transformer import Transformer


class MemorySourceTask(AbstractSourceTask):
    """Reads a `MemoryStore`. Closing it leaves the store open: it is the test's.

    Args:
        store: the bucket.
        policy: how patiently each call is tried; without waiting by default.
        prefixes: what is listed.
        page_size: keys in a page.
        start_key: listings begin after it.
        buckets: other buckets of the same store, for lists of keys that lie there.
    """

    config_class = SourceCommonConfig
    iterator_class: ClassVar[type[StoreRecordIterator]] = StoreRecordIterator

    def __init__(
        self,
        store: ObjectStore | None = None,
        *,
        policy: RetryPolicy | None = None,
        prefixes: Sequence[str] = ("",),
        page_size: int = 1000,
        start_key: str | None = None,
        buckets: Sequence[ObjectStore] = (),
    ) -> None:
        super().__init__()
        self.store = store if store is not None else MemoryStore()
        self.policy = policy if policy is not None else RetryPolicy().without_waiting()
        self.prefixes = prefixes
        self.page_size = page_size
        self.start_key = start_key
        self.buckets = {store.bucket: store for store in buckets}
        self.closes = 0

    @override
    def configure(self, props: Mapping[str, Any]) -> SourceCommonConfig:
        return structure(props, SourceCommonConfig)

    def make_transformer(self) -> Transformer:
        """The configured format."""
        if self.config is None:
            raise ConfigError("no configuration")
        return make_transformer(self.config.input.options())

    @override
    def get_iterator(self, backoff_config: BackoffConfig) -> StoreRecordIterator:
        if self.config is None:
            raise ConfigError("no configuration")
        return self.iterator_class(
            self.config,
            self.make_transformer(),
            self.offsets,
            store=self.store,
            policy=self.policy,
            prefixes=self.prefixes,
            page_size=self.page_size,
            start_key=self.start_key,
            feed=self.feed,
            once=self.once,
            open_bucket=self.buckets.__getitem__,
        )

    @override
    def close_resources(self) -> None:
        self.closes += 1
