"""The task of the S3 source: configuration, iterator, and closing of what they opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from typing_extensions import override

from framework.checks import CheckResult
from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.errors import ConfigError
from framework.formats import make_transformer
from framework.retry import BackoffConfig, RetryPolicy
from framework.task import AbstractSourceTask
from s3_source.config import S3Config
from s3_source.iterator import S3SourceRecordIterator

if TYPE_CHECKING:
    from boto3.session import Session

    from s3_source.client import S3Store


@attrs.frozen(kw_only=True)
class S3SourceConfig(SourceCommonConfig):
    """The configuration of the S3 source: what sources have in common, and `[s3]`."""

    s3: S3Config


class S3SourceTask(AbstractSourceTask):
    """Reads one bucket of S3, or of a store that speaks its protocol."""

    config_class = S3SourceConfig
    needs_modules: ClassVar[tuple[str, ...]] = ("boto3",)

    def __init__(self) -> None:
        super().__init__()
        self._store: S3Store | None = None
        self._others: dict[str, S3Store] = {}

    @override
    def configure(self, props: Mapping[str, Any]) -> S3SourceConfig:
        config = structure(props, S3SourceConfig)
        make_transformer(config.input.options())
        return config

    @override
    def get_iterator(self, backoff_config: BackoffConfig) -> S3SourceRecordIterator:
        config = self._s3_config()
        s3 = config.s3
        return S3SourceRecordIterator(
            config,
            make_transformer(config.input.options()),
            self.offsets,
            store=self.open_store(),
            policy=RetryPolicy(
                attempts=s3.max_attempts,
                base_seconds=s3.retry_base_seconds,
                cap_seconds=s3.retry_cap_seconds,
                budget_seconds=s3.retry_budget_seconds,
            ),
            prefixes=s3.all_prefixes,
            page_size=s3.page_size,
            start_key=s3.native_start_key or None,
            feed=self.feed,
            once=self.once,
            open_bucket=self.open_bucket,
        )

    def open_store(self) -> S3Store:
        """The bucket; made at the first use, closed by `close_resources`."""
        if self._store is None:
            from s3_source.client import S3Store  # noqa: PLC0415 - boto3 takes a good part of a start

            self._store = S3Store(self._s3_config().s3, self.make_session())
        return self._store

    def open_bucket(self, bucket: str) -> S3Store:
        """Another bucket with the same identity, for a list of keys that lies there; closed by `close_resources`.

        A subclass may replace it, when that bucket wants another identity.
        """
        if bucket not in self._others:
            from s3_source.client import S3Store  # noqa: PLC0415 - as above

            # The key of encrypted objects is that of the source's bucket: with it a list that is not encrypted is refused.
            config = attrs.evolve(self._s3_config().s3, bucket=bucket, sse_customer_key="")
            self._others[bucket] = S3Store(config, self.make_session())
        return self._others[bucket]

    def make_session(self) -> Session | None:
        """A boto3 session of one's own, for credentials that no option of `[s3]` can name; None takes what is configured.

        A subclass may replace it. Called once per process, when the store is made.
        """
        return None

    @override
    def check(self) -> Iterator[CheckResult]:
        if self._s3_config().discovery.mode != "keys":
            yield from self.open_store().check()
            return
        iterator = self.get_iterator(self.backoff_config)
        try:
            yield from self.open_store().check(iterator.get_native_item_stream(iterator.start_key))
        finally:
            iterator.close()

    @override
    def close_resources(self) -> None:
        for store in (self._store, *self._others.values()):
            if store is not None:
                store.close()

    def _s3_config(self) -> S3SourceConfig:
        if not isinstance(self.config, S3SourceConfig):
            raise ConfigError("[s3]: missing; this task reads S3")
        return self.config
