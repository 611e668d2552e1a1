"""The task of the GCS source: its configuration and its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from typing_extensions import override

from framework.config.sections import SourceCommonConfig
from framework.task.store_task import StoreSourceTask
from gcs_source.config import GcsConfig
from gcs_source.kafka_connect import OPTIONS

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from gcs_source.client import GcsStore


@attrs.frozen(kw_only=True)
class GcsSourceConfig(SourceCommonConfig):
    """The configuration of the GCS source: the common sections, and `[gcs]`."""

    gcs: GcsConfig


class GcsSourceTask(StoreSourceTask):
    """Reads a bucket of Google Cloud Storage."""

    config_class = GcsSourceConfig
    section = "gcs"
    connector_options = OPTIONS
    needs_modules: ClassVar[tuple[str, ...]] = ("google.cloud.storage", "pycurl", "requests")

    @override
    def make_store(self, config: GcsConfig) -> GcsStore:
        from gcs_source.client import GcsStore  # noqa: PLC0415 - Google's libraries take a good part of a start

        return GcsStore(config, self.make_credentials())

    @override
    def config_of_bucket(self, config: GcsConfig, bucket: str) -> GcsConfig:
        # the key of encrypted objects is that of the source's bucket: with it a list that is not encrypted is refused
        return attrs.evolve(config, bucket=bucket, customer_key="")

    def make_credentials(self) -> Credentials | None:
        """Return custom credentials that no option of `[gcs]` covers; None uses the configured ones.

        Overridable. Called once per bucket and process, when the store is created.
        """
        return None
