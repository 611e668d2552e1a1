"""What an executor does for a table of records, in this process."""

import gc
import inspect

import pytest
from pyspark.errors import PySparkAttributeError

from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.engine.spark.frames import _read, list_objects, read_records
from framework.errors import ConfigError, ObjectError
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config
from tests.support.core import store_of


def test_a_table_of_which_no_more_is_wanted_leaves_no_stream_open():
    """`limit` and `show` end it so."""
    store = store_of(a=50)

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

        def get_iterator(self, context):
            made.append(super().get_iterator(context))
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


@pytest.mark.parametrize("frame_of", [list_objects, read_records])
def test_a_session_of_spark_connect_is_refused_in_one_sentence(frame_of):
    class Session:
        """As that of Spark Connect: it has no context, and says so in four sentences about the JVM."""

        def __getattr__(self, name):
            raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED", {"attr_name": name})

    with pytest.raises(ConfigError, match="Spark Connect, which cannot run our tasks; start Spark in this process"):
        frame_of(Session(), MemorySourceTask, source_config())


@pytest.mark.parametrize("tolerance", ["none", "skip_object"])
def test_a_name_that_no_topic_can_have_is_a_bad_object_of_a_table_too(tolerance):
    store = store_of(**{"t/a": 3, "17/b": 3})

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

    config = structure(
        {
            "source": {"name": "s"},
            "naming": {"template": "{{topic}}/{{key}}"},
            "input": {"format": "jsonl"},
            "iggy": {"url": "iggy://u:p@h", "stream": "lake"},
            "errors": {"tolerance": tolerance},
        },
        SourceCommonConfig,
    )
    if tolerance == "none":
        with pytest.raises(ObjectError, match="17/b"):
            list(_read((Task, config), store.list_all()))
    else:
        assert {row[1] for row in _read((Task, config), store.list_all())} == {"t/a"}
