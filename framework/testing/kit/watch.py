"""A look into a running source: methods of its task and iterator replaced, and its streams watched."""

from __future__ import annotations

from collections.abc import Callable

from framework.discovery.object_feed import Assignment, ObjectFeed
from framework.iterator import AbstractSourceRecordIterator
from framework.model.objects import NativeObject
from framework.task import AbstractSourceTask
from framework.task.context import SourceContext
from framework.transformer import ObjectInput, ReadStream


def replace(owner: object, **methods: Callable[..., object]) -> None:
    """Replace methods that an object has; a type checker would refuse the plain assignment."""
    for name, method in methods.items():
        getattr(owner, name)
        setattr(owner, name, method)


def change_iterators(task: AbstractSourceTask, change: Callable[[AbstractSourceRecordIterator], None]) -> None:
    """Change each iterator that a task makes, before its first call."""
    get_iterator = task.get_iterator

    def changed(context: SourceContext) -> AbstractSourceRecordIterator:
        iterator = get_iterator(context)
        change(iterator)
        return iterator

    replace(task, get_iterator=changed)


def watch_streams(
    iterator: AbstractSourceRecordIterator,
    *,
    before: Callable[[], object] = lambda: None,
    wrap: Callable[[ReadStream, str], ReadStream] = lambda stream, _: stream,
) -> None:
    """Call `before` whenever an iterator opens a stream, and have it read what `wrap` makes of stream and location."""
    get_input_stream = iterator.get_input_stream

    def watched(native: NativeObject) -> ObjectInput:
        return _WatchedInput(get_input_stream(native), before, wrap)

    replace(iterator, get_input_stream=watched)


class _WatchedInput:
    def __init__(
        self, inner: ObjectInput, before: Callable[[], object], wrap: Callable[[ReadStream, str], ReadStream]
    ) -> None:
        self._inner, self._before, self._wrap = inner, before, wrap
        self.location, self.key, self.size = inner.location, inner.key, inner.size

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        self._before()
        return self._wrap(self._inner.open(start, end), self.location)


def take_all(feed: ObjectFeed) -> list[Assignment]:
    """Return all objects that a feed gives now."""
    taken: list[Assignment] = []
    while (assignment := feed.take()) is not None:
        taken.append(assignment)
    return taken
