"""`check` says of a source's own code what a run would say."""

import pytest

from framework.cli.check import _selection, _tried
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config


def task_that_lists(listing):
    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(MemoryStore())

        def get_iterator(self, context):
            iterator = super().get_iterator(context)
            iterator.get_native_item_stream = lambda start_key: listing
            return iterator

    return Task


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        (None, "get_native_item_stream returned NoneType, not an iterator of NativeObject"),
        (iter([None]), "the listing shows NoneType, not a NativeObject"),
        (iter(["a"]), "the listing shows str, not a NativeObject"),
    ],
)
def test_a_listing_that_is_none_fails_as_in_a_run(listing, said):
    (result,) = _tried("selection", _selection(task_that_lists(listing), source_config()))
    assert (result.step, result.ok, result.detail, result.exit_code) == ("selection", False, said, 3)


def test_a_task_without_an_iterator_is_named():
    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(MemoryStore())

        def get_iterator(self, context):
            return None

    (result,) = _tried("selection", _selection(Task, source_config()))
    assert not result.ok
    assert result.detail == "Task.get_iterator returned NoneType, not an AbstractSourceRecordIterator"


def test_an_input_that_is_none_fails_as_in_a_run():
    store = MemoryStore()
    store.put("a", b"1\n")

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

        def get_iterator(self, context):
            iterator = super().get_iterator(context)
            iterator.get_input_stream = lambda native: None
            return iterator

    *_, result = _tried("selection", _selection(Task, source_config()))
    assert (result.step, result.ok, result.exit_code) == ("records", False, 1)
    assert result.detail.endswith("a: StoreRecordIterator.get_input_stream returned NoneType, not an ObjectInput")
