"""What an executor does for a table of records, in this process."""

import gc
import inspect
import pickle
from collections import Counter

import pytest
from pyspark.errors import PySparkAttributeError

from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.engine.spark.frames import _Choice, _group_of, _read, list_objects, read_records
from framework.engine.spark.range_batch import packed
from framework.errors import ConfigError, ObjectError
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config
from tests.support.core import store_of


def choice_of(config, now=2_000_000_000.0):
    return _Choice(config=config, prefixes=("",), logs=(), now=now)


def test_a_part_that_is_computed_again_chooses_the_same_objects_at_a_later_time():
    """Others would move to groups that were read already, or are read twice."""
    store = store_of(**{f"{number}": 1 for number in range(9)})
    natives = list(store.list_all())
    now = natives[4].modified_ms / 1000 + 60.0
    choice = pickle.loads(pickle.dumps(choice_of(source_config(min_age="1m"), now)))
    chosen = list(choice.of([packed(natives)]))
    assert [native.key for native in chosen] == [one.key for one in natives[:5]]

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

    assert {row[1] for row in _read(Task, choice, chosen)} == {native.key for native in chosen}


def test_the_group_of_an_object_is_told_by_its_key_alone():
    store = store_of(**{f"{number}": 1 for number in range(2000)})
    natives = list(store.list_all())
    groups = {native.key: _group_of(native, 10) for native in natives}
    assert {native.key: _group_of(native, 10) for native in reversed(natives)} == groups
    assert all(140 < count < 270 for count in Counter(groups.values()).values())


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
        rows = _read(Task, choice_of(source_config(batch_length=1)), store.list_all())
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
            list(_read(Task, choice_of(config), store.list_all()))
    else:
        assert {row[1] for row in _read(Task, choice_of(config), store.list_all())} == {"t/a"}
