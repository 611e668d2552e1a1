"""What an executor does for a table of records, in this process."""

import gc
import inspect

from framework.spark.frames import _read
from framework.testing.memory_source import MemorySourceTask
from framework.testing.options import source_config
from tests.support.core import store_of


def test_a_table_of_which_no_more_is_wanted_leaves_no_stream_open():
    """`limit` and `show` end it so."""
    store = store_of(a=50)

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

        def get_iterator(self, backoff_config):
            made.append(super().get_iterator(backoff_config))
            return made[0]

    made = []
    gc.disable()
    try:
        rows = _read((Task, source_config(batch_length=1)), store.list_all())
        assert next(rows)[3] == 1
        rows.close()
        assert inspect.getgeneratorstate(made[0]._current) == inspect.GEN_CLOSED
    finally:
        gc.enable()
