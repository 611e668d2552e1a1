"""What the exhibits are built from: the reference with another iterator, or with a format around the real one."""

from framework.iterator.store_iterator import StoreRecordIterator
from framework.testing.fakes.memory_rig import MemoryRig
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.transformer import Transformer


class WithIterator(MemoryRig):
    """A rig whose task uses another iterator."""

    iterator_class = StoreRecordIterator

    def __init__(self):
        super().__init__()
        self.task_class = type("Task", (MemorySourceTask,), {"iterator_class": self.iterator_class})


class Wrapping(Transformer):
    """A format around another one."""

    name = "wrapping"

    def __init__(self, inner):
        self.inner = inner

    def numbering_options(self):
        return self.inner.numbering_options()

    def read(self, source, *, skip=0, mark=None, limits=None):
        yield from self.inner.read(source, skip=skip, mark=mark, limits=limits)

    def can_split(self, key):
        return self.inner.can_split(key)

    def read_split(self, source, split, *, skip=0, mark=None, limits=None):
        yield from self.inner.read_split(source, split, skip=skip, mark=mark, limits=limits)


class WithTransformer(MemoryRig):
    """A rig whose task uses another format."""

    wrapping = Wrapping

    def __init__(self):
        super().__init__()
        wrapping = self.wrapping

        class Task(MemorySourceTask):
            def make_transformer(self, config):
                return wrapping(super().make_transformer(config))

        self.task_class = Task
