"""The task for any object store: a bucket, an iterator over it, and the release of their resources.

class ShelfTask(StoreSourceTask):
    section = "shelf"                             # the section `[shelf]` of the configuration
    section_class = ShelfConfig                   # a `BucketConfig` with the store's own options

    def make_store(self, config): ...             # of the bucket that the section names
"""

from __future__ import annotations

import abc
import keyword
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import attrs
from typing_extensions import override

from framework.config.bucket import BucketConfig
from framework.config.format_registry import make_transformer
from framework.config.kafka_connect import ConnectorOption
from framework.config.sections import SourceCommonConfig
from framework.errors import ConfigError, RetriableError, StoreContractError, TaskClosedError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.storage.daemon_threads import Awaited
from framework.storage.listing.first_contact import FIRST_CONTACT_SECONDS
from framework.storage.preflight import CheckResult, check_store
from framework.store import ObjectStore
from framework.task.abstract_task import AbstractSourceTask
from framework.task.context import SourceContext

log = logging.getLogger(__name__)


class StoreSourceTask(AbstractSourceTask, abc.ABC):
    """Read a bucket of a store. A subclass makes the store, and names the section that configures it."""

    section: ClassVar[str]
    """Name of the section, and of the attribute of the configuration that holds it."""

    section_class: ClassVar[type[BucketConfig] | None] = None
    """Class of the section. `config_class` is made from it, unless the subclass sets `config_class` itself."""

    iterator_class: ClassVar[type[StoreRecordIterator]] = StoreRecordIterator

    connector_options: ClassVar[Mapping[str, ConnectorOption]] = {}
    """What becomes of the store's properties of a Kafka connector, for the command `convert`."""

    @override
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.section_class is not None and "section_class" in vars(cls) and "config_class" not in vars(cls):
            _check_section(cls.__qualname__, getattr(cls, "section", None), cls.section_class)
            made = attrs.make_class(
                "config_class",
                {cls.section: attrs.field(type=cls.section_class)},
                bases=(SourceCommonConfig,),
                frozen=True,
                kw_only=True,
                slots=True,
            )
            made.__module__, made.__qualname__ = cls.__module__, f"{cls.__qualname__}.config_class"  # for pickle
            cls.config_class = made

    def __init__(self) -> None:
        super().__init__()
        self._stores: list[tuple[BucketConfig, ObjectStore]] = []

    @abc.abstractmethod
    def make_store(self, config: Any) -> ObjectStore:
        """Make the store of a bucket. Called once per bucket; may connect. `close_resources` closes the store.

        Args:
            config: the section of the store, of the class that the configuration declares for it.
        """

    def config_of_bucket(self, config: Any, bucket: str) -> BucketConfig:
        """Return the section for another bucket with the same identity, for a list of keys in that bucket.

        A subclass may override it when that bucket requires another identity.
        """
        other: BucketConfig = attrs.evolve(config, bucket=bucket)
        return other

    def bucket_config(self, config: SourceCommonConfig) -> BucketConfig:
        """Return the section of the store.

        Raises:
            ConfigError: the section is missing.
        """
        found = getattr(config, self.section, None)
        if not isinstance(found, BucketConfig):
            raise ConfigError(f"[{self.section}]: missing; this task reads what it names")
        return found

    def open_store(self, config: BucketConfig) -> ObjectStore:
        """Return the store of a bucket; made on first use, closed by `close_resources`.

        Making it may ask for credentials: that is tried again for some seconds. A stop of the task does not wait for it.

        Raises:
            TaskClosedError: the task was stopped first.
        """
        for known, store in self._stores:
            if known == config:
                return store
        policy = config.retry_policy.within(FIRST_CONTACT_SECONDS)
        call = partial(policy.call, self.make_store, config, what="opening the store", on_retry=_log_retry)
        # in another thread, which a stop leaves behind: a library may wait for minutes
        making = Awaited[object](partial(call, stop=self._stopping), "open-store", too_late=_close_unused)
        making.wait(self._stopping)
        if making.leave():
            raise TaskClosedError("the store was not open yet")
        made = making.result()
        if not isinstance(made, ObjectStore):
            raise StoreContractError(f"{type(self).__name__}.make_store returned {made!r}, not an ObjectStore")
        for name in ("scheme", "bucket"):
            if not isinstance(getattr(made, name, None), str):
                raise StoreContractError(
                    f"{type(made).__name__}.{name} must be a text; set it in the class or in __init__"
                )
        self._stores.append((config, made))
        return made

    @override
    def get_iterator(self, context: SourceContext) -> StoreRecordIterator:
        bucket = self.bucket_config(context.config)
        return self.iterator_class(
            context.config,
            make_transformer(context.config.input.options()),
            context.offsets,
            store=self.open_store(bucket),
            policy=bucket.retry_policy,
            prefixes=bucket.all_prefixes,
            page_size=bucket.page_size,
            start_key=bucket.start_after or None,
            feed=context.feed,
            once=context.once,
            open_bucket=lambda name: self.open_store(self.config_of_bucket(bucket, name)),
        )

    @override
    def check(self, config: SourceCommonConfig) -> Iterator[CheckResult]:
        bucket = self.bucket_config(config)
        store = self.open_store(bucket)
        if config.discovery.mode != "keys":
            yield from check_store(store, prefix=bucket.all_prefixes[0], after=bucket.start_after)
            return
        iterator = self.get_iterator(SourceContext(config=config))
        try:
            yield from check_store(store, named=iterator.get_native_item_stream(iterator.start_key))
        finally:
            iterator.close()

    @override
    def close_resources(self) -> None:
        for _, store in self._stores:
            store.close()


def _check_section(task: str, section: object, section_class: object) -> None:
    """Check what a configuration class is made from, before it fails somewhere else.

    Raises:
        TypeError: it is no name that a section can have, or no class of a bucket's section.
    """
    taken = attrs.fields_dict(SourceCommonConfig)
    if not isinstance(section, str) or not section.isidentifier() or keyword.iskeyword(section) or section in taken:
        raise TypeError(
            f"{task}.section = {section!r}: must be a name of letters, digits and _, and none of {', '.join(taken)}"
        )
    if not isinstance(section_class, type) or not issubclass(section_class, BucketConfig):
        raise TypeError(f"{task}.section_class = {section_class!r}: must be a subclass of BucketConfig")


def _close_unused(store: object) -> None:
    if isinstance(store, ObjectStore):
        store.close()


def _log_retry(error: RetriableError, tries: int, seconds: float) -> None:
    log.warning("the store cannot be opened, try %d, again in %.1f seconds: %s", tries, seconds, error)
