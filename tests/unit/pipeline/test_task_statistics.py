"""Statistics of tasks: each figure adds up, and travels from process to process."""

import pickle

import attrs

from framework.pipeline.task_statistics import FIELDS, TaskStatistics


def numbered(first):
    numbers = {name: first + at for at, name in enumerate(FIELDS) if name != "kinds"}
    return TaskStatistics(**numbers, kinds={"RecordError": first})


def test_every_figure_adds_up():
    one, other = numbered(100), numbered(500)
    both = TaskStatistics.total([one, other, TaskStatistics()])
    for name in set(FIELDS) - {"kinds"}:
        assert getattr(both, name) == getattr(one, name) + getattr(other, name), name
    assert (one + TaskStatistics(kinds={"RecordError": 1, "ObjectError": 2})).kinds == {
        "RecordError": 101,
        "ObjectError": 2,
    }
    assert one.kinds == {"RecordError": 100}, "a sum shares nothing with its parts"
    assert TaskStatistics.total([]) == TaskStatistics()
    assert pickle.loads(pickle.dumps(both)) == both


def test_work_stays_when_a_task_ends_and_its_state_does_not():
    ended = numbered(100).without_state()
    assert (ended.store_away, ended.queue_records, ended.queue_bytes) == (0, 0, 0)
    assert attrs.evolve(ended, store_away=0).records == numbered(100).records
