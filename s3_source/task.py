"""The task of the S3 source: its configuration and its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from typing_extensions import override

from framework.config.sections import SourceCommonConfig
from framework.task.store_task import StoreSourceTask
from s3_source.config import S3Config
from s3_source.kafka_connect import OPTIONS

if TYPE_CHECKING:
    from boto3.session import Session

    from s3_source.client import S3Store


@attrs.frozen(kw_only=True)
class S3SourceConfig(SourceCommonConfig):
    """The configuration of the S3 source: the common sections, and `[s3]`."""

    s3: S3Config


class S3SourceTask(StoreSourceTask):
    """Reads a bucket of S3, or of a store with its protocol."""

    config_class = S3SourceConfig
    section = "s3"
    connector_options = OPTIONS
    needs_modules: ClassVar[tuple[str, ...]] = ("boto3", "pycurl")

    @override
    def make_store(self, config: S3Config) -> S3Store:
        from s3_source.client import S3Store  # noqa: PLC0415 - boto3 takes a good part of a start

        return S3Store(config, self.make_session())

    @override
    def config_of_bucket(self, config: S3Config, bucket: str) -> S3Config:
        # the key of encrypted objects is that of the source's bucket: with it a list that is not encrypted is refused
        return attrs.evolve(config, bucket=bucket, sse_customer_key="")

    def make_session(self) -> Session | None:
        """Return a custom boto3 session, for credentials that no option of `[s3]` covers; None uses the configured ones.

        Overridable. Called once per bucket and process, when the store is created.
        """
        return None
