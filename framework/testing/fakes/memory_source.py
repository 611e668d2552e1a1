"""A source over a `MemoryStore`: the reference of the conformance kit, and a base for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from framework.config.format_registry import make_transformer
from framework.config.sections import SourceCommonConfig
from framework.iterator.store_iterator import StoreRecordIterator
from framework.storage.retry import RetryPolicy
from framework.store import ObjectStore
from framework.task import AbstractSourceTask
from framework.task.context import SourceContext
from framework.testing.fakes.memory_store import MemoryStore
from framework.transformer import Transformer


class MemorySourceTask(AbstractSourceTask):
    """Reads a `MemoryStore`. Does not close the store: it belongs to the test.

    Args:
        store: the bucket.
        policy: the retry policy of each call; by default without waiting.
        prefixes: the listed prefixes.
        page_size: keys per page.
        start_key: key after which listings begin.
        buckets: other buckets of the same store, for key lists stored there.
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

    def make_transformer(self, config: SourceCommonConfig) -> Transformer:
        """Return the configured format."""
        return make_transformer(config.input.options())

    @override
    def get_iterator(self, context: SourceContext) -> StoreRecordIterator:
        return self.iterator_class(
            context.config,
            self.make_transformer(context.config),
            context.offsets,
            store=self.store,
            policy=self.policy,
            prefixes=self.prefixes,
            page_size=self.page_size,
            start_key=self.start_key,
            feed=context.feed,
            once=context.once,
            open_bucket=self.buckets.__getitem__,
        )

    @override
    def close_resources(self) -> None:
        self.closes += 1
