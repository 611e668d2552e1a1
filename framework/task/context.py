"""The inputs of an iterator, for tasks that run and for commands that only inspect."""

from __future__ import annotations

import attrs

from framework.config.sections import SourceCommonConfig
from framework.discovery.object_feed import ObjectFeed
from framework.offsets.manager import OffsetManager
from framework.task.backoff import BackoffConfig


@attrs.frozen(kw_only=True)
class SourceContext:
    """The inputs of an iterator.

    Attributes:
        config: the whole configuration.
        offsets: positions; the iterator reads them. By default an empty table in memory.
        feed: which objects to read; None: the iterator lists the bucket itself.
        once: a complete listing, then the end; with any feed: an unavailable store ends it.
        backoff: the task's pauses, for an iterator that waits internally.
    """

    config: SourceCommonConfig
    offsets: OffsetManager = attrs.field(factory=OffsetManager)
    feed: ObjectFeed | None = None
    once: bool = False
    backoff: BackoffConfig = attrs.field(factory=BackoffConfig)
