"""The task of the GCS source: its configuration, and its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from typing_extensions import override

from framework.config.sections import SourceCommonConfig
from framework.store_task import StoreSourceTask
from gcs_source.config import GcsConfig
from gcs_source.iterator import GcsSourceRecordIterator

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from gcs_source.client import GcsStore


@attrs.frozen(kw_only=True)
class GcsSourceConfig(SourceCommonConfig):
    """The configuration of the GCS source: what sources have in common, and `[gcs]`."""

    gcs: GcsConfig


class GcsSourceTask(StoreSourceTask):
    """Reads one bucket of Google Cloud Storage."""

    config_class = GcsSourceConfig
    section = "gcs"
    iterator_class = GcsSourceRecordIterator
    needs_modules: ClassVar[tuple[str, ...]] = ("google.cloud.storage", "requests")

    @override
    def make_store(self, bucket: str | None = None) -> GcsStore:
        from gcs_source.client import GcsStore  # noqa: PLC0415 - Google's libraries take a good part of a start

        config = self.bucket_config
        assert isinstance(config, GcsConfig)
        if bucket is not None:
            # The key of encrypted objects is that of the source's bucket: with it a list that is not encrypted is refused.
            config = attrs.evolve(config, bucket=bucket, customer_key="")
        return GcsStore(config, self.make_credentials())

    def make_credentials(self) -> Credentials | None:
        """Credentials of one's own, which no option of `[gcs]` can name; None takes what is configured.

        A subclass may replace it. Called once for each bucket and process, when the store is made.
        """
        return None
