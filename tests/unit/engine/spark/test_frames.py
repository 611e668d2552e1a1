"""What an executor does for a table of records, in this process."""

import gc
import importlib.util
import inspect
import pickle
from types import SimpleNamespace

import attrs
import pyarrow as pa
import pytest

from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.engine.spark import frames
from framework.engine.spark.frames import (
    _Choice,
    _objects_of_rows,
    _Pages,
    _Reader,
    _rows_of_objects,
    _slots,
    list_objects,
    read_records,
)
from framework.engine.spark.listing_waves import Executors, wave_lister
from framework.engine.spark.range_batch import list_ranges, packed, unpacked
from framework.errors import FatalError, ObjectError, RecordError
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config
from tests.support.core import iterator_over, store_of
from tests.support.listing import even
from tests.unit.storage.listing.test_parallel import SortedStore


def choice_of(config, now=2_000_000_000.0):
    return _Choice(config=config, prefixes=("",), logs=(), now=now)


def batches_of(task_class, choice, natives):
    return _Reader(task_class=task_class, choice=choice).records([_rows_of_objects(list(natives))])


def keys_of(task_class, choice, natives):
    return {key for batch in batches_of(task_class, choice, natives) for key in batch.column("key").to_pylist()}


def test_a_part_that_is_computed_again_chooses_the_same_objects_at_a_later_time():
    """Others would move to groups that were read already, or are read twice."""
    store = store_of(**{f"{number}": 1 for number in range(9)})
    natives = list(store.list_all())
    now = natives[4].modified_ms / 1000 + 60.0
    choice = pickle.loads(pickle.dumps(choice_of(source_config(min_age="1m"), now)))
    pages = pa.RecordBatch.from_pydict({"page": [packed(natives)]})
    (chosen,) = choice.objects([pages])
    assert list(_objects_of_rows(chosen)) == natives[:5]

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

    assert keys_of(Task, choice, natives) == {native.key for native in natives[:5]}


def test_every_field_of_an_object_travels_also_a_key_that_is_no_unicode():
    store = store_of(a=1)
    (native,) = store.list_all()
    native = attrs.evolve(native, key="a/\udcff", scheme="file", storage_class="GLACIER", modified_ms=1_790_000_000_123)
    assert list(_objects_of_rows(_rows_of_objects([native, native]))) == [native, native]


def test_small_objects_go_to_spark_together_and_large_ones_in_parts():
    store = store_of(**{f"{number}": 1 for number in range(50)}, large=5000)

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

    batches = list(batches_of(Task, choice_of(source_config(batch_length=500)), store.list_all()))
    assert sum(batch.num_rows for batch in batches) == 5050
    assert 5 <= len(batches) <= 6
    assert max(batch.num_rows for batch in batches) <= 1500


def test_the_partition_of_a_record_is_the_one_that_its_key_chooses():
    store, transform = MemoryStore(), {"type": "partition_by", "field": "n"}
    for key in ("a", "b"):
        store.put(key, b"".join(b'{"n":%d}\n' % number for number in range(30)))

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

    choice = choice_of(source_config(transforms=[transform]))
    rows = [row for batch in batches_of(Task, choice, store.list_all()) for row in batch.to_pylist()]
    assert sorted((row["key"], row["record"]) for row in rows) == [(key, n) for key in "ab" for n in range(1, 31)]
    by_record = {(row["record"], row["partition"]) for row in rows}
    assert len(by_record) == 30  # the same for both objects
    assert {partition for _, partition in by_record} == {0, 1, 2}


@pytest.mark.parametrize("partitions", [1, 8])
def test_an_object_by_key_that_was_overwritten_is_looked_up_once_for_all_of_its_parts(partitions, monkeypatch):
    """Each part for itself would read the version of its own moment."""
    looked, stat = [], MemoryStore.stat
    monkeypatch.setattr(MemoryStore, "stat", lambda store, key: looked.append(key) or stat(store, key))
    store, transform = MemoryStore(), {"type": "partition_by", "field": "n"}
    store.put("a", b'{"n":1}\n')
    listed = list(store.list_all())
    store.put("a", b"".join(b'{"n":%d}\n' % number for number in range(30)))

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

    choice = choice_of(source_config(transforms=[transform], partitions=partitions))
    rows = [row for batch in batches_of(Task, choice, listed) for row in batch.to_pylist()]
    assert sorted(row["record"] for row in rows) == list(range(1, 31))
    assert looked == ["a"]


def test_a_table_of_which_no_more_is_wanted_leaves_no_stream_open():
    """`limit` and `show` end it so."""
    store = store_of(a=5000)

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

        def get_iterator(self, context):
            made.append(super().get_iterator(context))
            return made[0]

    made = []
    gc.disable()
    try:
        rows = batches_of(Task, choice_of(source_config(batch_length=1)), store.list_all())
        assert next(rows).column("record")[0].as_py() == 1
        rows.close()
        assert inspect.getgeneratorstate(made[0]._current) == inspect.GEN_CLOSED
    finally:
        gc.enable()


def test_the_records_before_a_bad_one_come_before_its_error():
    """`limit` and `show` want no more than these."""
    store = store_of(a=3)
    store.put("a", b'{"n":1}\n{"n":2}\nno json\n')

    class Task(MemorySourceTask):
        def __init__(self):
            super().__init__(store)

    rows = batches_of(Task, choice_of(source_config()), store.list_all())
    assert next(rows).column("record").to_pylist() == [1, 2]
    with pytest.raises(RecordError, match="record 3"):
        next(rows)


@pytest.mark.parametrize("frame_of", [list_objects, read_records])
def test_without_pandas_one_sentence_says_what_to_do(frame_of, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else find_spec(name))
    with pytest.raises(FatalError, match='without pandas: pip install "pandas'):
        frame_of(object(), MemorySourceTask, source_config())


@pytest.mark.parametrize("frame_of", [list_objects, read_records])
def test_a_session_that_has_ended_is_named(frame_of):
    ended = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(FatalError, match=r"Spark context has ended.*make another"):
        frame_of(ended, MemorySourceTask, source_config())


# ---- the pages of a listing


class Frame:
    """What `_Pages` asks of a DataFrame."""

    def __init__(self, pages, kept=False, depth=1):
        self.pages = list(pages)
        self.kept = kept
        self.depth = depth

    def localCheckpoint(self):  # noqa: N802 - Spark's name
        return Frame(self.pages, kept=True)

    def union(self, other):
        return Frame(self.pages + other.pages, depth=1 + max(self.depth, other.depth))

    def keys(self):
        return [native.key for page in self.pages for native in unpacked(page)]


def natives_of(*numbers):
    (native,) = store_of(a=1).list_all()
    return [attrs.evolve(native, key=f"{number:06d}") for number in numbers]


def add(pages, *numbers):
    for native in natives_of(*numbers):
        pages.add(native)


def test_the_driver_keeps_no_more_pages_than_its_limit(monkeypatch):
    monkeypatch.setattr(frames, "PAGE_OBJECTS", 10)
    monkeypatch.setattr(frames, "DRIVER_BYTES", 1000)
    pages, held = _Pages(put=Frame), []
    for number in range(2000):
        add(pages, number)
        held.append(sum(map(len, pages._packed)))
    assert max(held) < 1000
    assert len(pages._frames) > 5
    assert all(frame.kept for frame in pages._frames)
    assert sorted(pages.frame().keys()) == [f"{number:06d}" for number in range(2000)]


def test_the_driver_unpacks_no_page_of_a_listing(monkeypatch):
    """One thread would take minutes for a hundred million objects."""
    monkeypatch.setattr(frames, "DRIVER_BYTES", 1000)
    store = SortedStore(even(300))
    iterator = iterator_over(store, task=MemorySourceTask(store, page_size=7))
    executors = Executors(
        width=lambda: 3, run=lambda wave: [one for batch in wave for one in list_ranges(iterator, batch)]
    )
    pages = _Pages(put=Frame)
    iterator.lister = wave_lister(iterator, MemorySourceTask, lambda: executors, unpack=pages.keep)
    assert list(iterator.get_native_item_stream(None)) == []
    assert all(frame.kept for frame in pages._frames)
    assert sum(map(len, pages._packed)) < 1000
    assert sorted(pages.frame().keys()) == even(300)
    iterator.close()


@pytest.mark.parametrize(
    "said",
    [
        "An error occurred while calling o1.collectToPython.\n: [SPARK_JOB_CANCELLED] Job 7 cancelled  SQLSTATE: XXKDA\n\tat a.B",
        "(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008\n\nJVM stack:",
    ],
)
def test_a_job_that_is_cancelled_between_two_waves_ends_the_listing_in_one_sentence(said):
    """The first is of a session of this process, the second of Spark Connect."""

    def cancelled(_):
        raise RuntimeError(said)

    class Cancelled(Frame):
        localCheckpoint = cancelled  # noqa: N815 - Spark's name

    session = SimpleNamespace(range=lambda _: SimpleNamespace(selectExpr=lambda _: SimpleNamespace(tail=cancelled)))
    with pytest.raises(FatalError, match=r"^the listing was cancelled: .*CANCELL?ED\][^\n]*$"):
        _slots(session)
    with pytest.raises(FatalError, match=r"^the listing was cancelled: .*CANCELL?ED\][^\n]*$"):
        _Pages(put=Cancelled).keep(b"." * frames.DRIVER_BYTES)


def test_the_plan_of_many_frames_is_flat(monkeypatch):
    """Spark and protobuf refuse one of some hundred levels."""
    monkeypatch.setattr(frames, "PAGE_OBJECTS", 1)
    monkeypatch.setattr(frames, "DRIVER_BYTES", 1)
    pages = _Pages(put=Frame)
    add(pages, *range(1000))
    frame = pages.frame()
    assert frame.keys() == [f"{number:06d}" for number in range(1000)]
    assert frame.depth <= 11


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
            list(batches_of(Task, choice_of(config), store.list_all()))
    else:
        assert keys_of(Task, choice_of(config), store.list_all()) == {"t/a"}
