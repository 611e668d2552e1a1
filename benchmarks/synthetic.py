"""A source whose bucket is arithmetic: any number of objects, no server, pages after a set delay. Executors can make it too.

    [synthetic]
    objects = 2000000
    page_delay = "80ms"

What is measured with it is ours: planning, positions, hand-over, sending.
"""

from __future__ import annotations

import hashlib
import io
import time

import attrs
from typing_extensions import override

from framework.config.format_registry import make_transformer
from framework.config.option import Seconds, option
from framework.config.sections import SourceCommonConfig
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import NativeObject
from framework.storage.retry import RetryPolicy
from framework.store import ListPage, ObjectStore
from framework.task import AbstractSourceTask, SourceContext
from framework.transformer import ReadStream

KEY = "lake/events/2026/11/part-{:09d}-c000.snappy.jsonl"
"""55 characters, as keys in lakes are."""

NUMBER = len("lake/events/2026/11/part-")
MODIFIED_MS = 1_790_000_000_000


@attrs.frozen(kw_only=True)
class SyntheticSection:
    """The section `[synthetic]`."""

    objects: int = option(minimum=0, doc="How many there are.")
    page_delay: Seconds = option(0.0, doc="How long a page takes to come.")
    read_delay: Seconds = option(0.0, doc="How long an object takes to be opened.")
    page_size: int = option(1000, minimum=1, doc="Keys in a page.")


@attrs.frozen(kw_only=True)
class SyntheticConfig(SourceCommonConfig):
    """What sources have in common, and `[synthetic]`."""

    synthetic: SyntheticSection


class SyntheticStore(ObjectStore):
    """Objects 0, 1, 2 ..., each with one line that holds its number."""

    scheme = "synthetic"
    bucket = "numbers"
    order_is_documented = True

    def __init__(self, options: SyntheticSection) -> None:
        self._options = options

    @override
    def list_page(
        self, *, prefix: str = "", after: str = "", continuation: str | None = None, page_size: int = 1000
    ) -> ListPage:
        time.sleep(self._options.page_delay)
        first = _first_behind(continuation or after)
        last = min(first + page_size, self._options.objects)
        objects = [self._object(number) for number in range(first, last)]
        more = last < self._options.objects
        return ListPage(
            objects=objects,
            continuation=objects[-1].key if more and objects else None,
            server_time_ms=int(time.time() * 1000),
        )

    def _object(self, number: int) -> NativeObject:
        return NativeObject(
            scheme=self.scheme,
            bucket=self.bucket,
            key=KEY.format(number),
            size=len(_line(number)),
            version=f"{hashlib.md5(b'%d' % number).hexdigest()}@{MODIFIED_MS + number}",
            modified_ms=MODIFIED_MS + number,
        )

    @override
    def open(self, native: NativeObject, start: int = 0, end: int | None = None) -> ReadStream:
        time.sleep(self._options.read_delay)
        return io.BytesIO(_line(int(native.key[NUMBER : NUMBER + 9]))[start:end])

    @override
    def close(self) -> None:
        pass


def _line(number: int) -> bytes:
    return b'{"number":%d}\n' % number


def _first_behind(key: str) -> int:
    """The number of the first key behind any text."""
    low, high = 0, 10**9
    while low < high:
        middle = (low + high) // 2
        if KEY.format(middle) > key:
            high = middle
        else:
            low = middle + 1
    return low


class SyntheticTask(AbstractSourceTask):
    """Reads the synthetic bucket."""

    config_class = SyntheticConfig

    @override
    def get_iterator(self, context: SourceContext) -> StoreRecordIterator:
        config = context.config
        assert isinstance(config, SyntheticConfig)
        return StoreRecordIterator(
            config,
            make_transformer(config.input.options()),
            context.offsets,
            store=SyntheticStore(config.synthetic),
            policy=RetryPolicy(),
            page_size=config.synthetic.page_size,
            feed=context.feed,
            once=context.once,
        )
