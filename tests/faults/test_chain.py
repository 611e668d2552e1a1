"""What chains run on: servers that failed to start once are started again."""

import contextlib

import pytest

from framework.iggy.topics import PartitionDamagedError
from tests.faults import chain


@pytest.fixture
def rig(tmp_path):
    made = chain.Rig(tmp_path, seed=1)
    yield made
    made.close()


class Failing:
    """Leaves a file where it starts; the first start fails."""

    def __init__(self, folder, *_):
        folder.mkdir(exist_ok=True)
        (folder / "log").open("x").close()
        self.folder = folder

    starts = 0

    def start(self):
        type(self).starts += 1
        if self.starts == 1:
            raise OSError("the port is taken")
        return self

    def kill(self):
        """Nothing runs."""


@pytest.fixture
def failing(monkeypatch):
    """A kind of servers of this test alone, in place of stores and Iggy servers."""
    kind = type("FailingOnce", (Failing,), {})

    @contextlib.contextmanager
    def running(folder):
        yield kind(folder).start()

    monkeypatch.setattr(chain, "running_moto", running)
    monkeypatch.setattr(chain, "OwnServer", kind)
    return kind


@pytest.mark.parametrize("start", [lambda rig: rig.store("moto"), lambda rig: rig.server("real")])
def test_what_failed_to_start_is_started_again(rig, failing, start):
    with pytest.raises(OSError, match="taken"):
        start(rig)
    assert start(rig) is start(rig)
    assert failing.starts == 2


def test_a_damaged_partition_is_told_in_the_words_that_chains_look_for():
    assert chain.DAMAGED in str(PartitionDamagedError.found("a partition", 9, missing=3))
