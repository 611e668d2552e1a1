"""The configuration of a task whose class names its section."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from framework import BucketConfig, SourceCommonConfig, StoreSourceTask, option
from framework.config.option import sections_of
from framework.errors import ConfigError, StoreContractError, StoreUnavailableError, TaskClosedError
from framework.testing.fakes.memory_store import MemoryStore

COMMON = {
    "source": {"name": "orders"},
    "input": {"format": "jsonl"},
    "iggy": {"url": "embedded:unused", "stream": "lake", "topic": "orders"},
}


@attrs.frozen(kw_only=True)
class DrawerConfig(BucketConfig):
    path: str = option(doc="The drawer.", minimum=1)


class DrawerTask(StoreSourceTask):
    section, section_class = "drawer", DrawerConfig

    def make_store(self, config):
        raise NotImplementedError


class LabelledDrawerTask(DrawerTask):
    """A subclass without a section of its own."""


@attrs.frozen(kw_only=True)
class WrittenConfig(SourceCommonConfig):
    drawer: DrawerConfig
    label: DrawerConfig


class WrittenTask(DrawerTask):
    section, section_class, config_class = "drawer", DrawerConfig, WrittenConfig


def test_a_section_class_gives_the_configuration_its_section():
    assert sections_of(DrawerTask.config_class)["drawer"] is DrawerConfig
    config = DrawerTask().configure({**COMMON, "drawer": {"path": "a", "prefix": "b/"}})
    assert isinstance(config, SourceCommonConfig)
    assert (config.drawer.path, config.drawer.prefix) == ("a", "b/")


def test_the_section_is_checked():
    with pytest.raises(ConfigError, match=r"\[drawer\] path"):
        DrawerTask().configure(COMMON)


@pytest.mark.parametrize("task_class", [DrawerTask, LabelledDrawerTask])
def test_the_configuration_pickles(task_class):
    config = task_class().configure({**COMMON, "drawer": {"path": "a"}})
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.drawer.path == "a"


def test_a_written_configuration_class_stays():
    assert WrittenTask.config_class is WrittenConfig


@attrs.frozen(kw_only=True)
class LooseConfig:
    path: str = option(doc="The drawer.")


@pytest.mark.parametrize(
    ("section", "section_class", "reason"),
    [
        ("my-drawer", DrawerConfig, r"BadTask\.section = 'my-drawer': must be a name of letters, digits and _"),
        ("", DrawerConfig, "section = ''"),
        ("class", DrawerConfig, "section = 'class'"),
        (None, DrawerConfig, "section = None"),
        ("http", DrawerConfig, "section = 'http': .*, and none of source, naming, input, .*http"),
        ("drawer", LooseConfig, r"BadTask\.section_class = <class .*LooseConfig'>: must be a subclass of BucketConfig"),
        ("drawer", "DrawerConfig", "section_class = 'DrawerConfig': must be a subclass"),
    ],
)
def test_a_section_that_cannot_be_is_refused_with_its_class(section, section_class, reason):
    with pytest.raises(TypeError, match=reason):
        type("BadTask", (DrawerTask,), {"section": section, "section_class": section_class})


def test_a_task_that_makes_no_store_is_named():
    class Forgetful(DrawerTask):
        def make_store(self, config):
            DrawerConfig(path=config.path)

    with pytest.raises(StoreContractError, match=r"^Forgetful.make_store returned None, not an ObjectStore$"):
        Forgetful().open_store(DrawerConfig(path="x"))


@pytest.mark.parametrize("name", ["scheme", "bucket"])
def test_a_store_without_a_scheme_or_a_bucket_is_named(name):
    class Nameless(MemoryStore):
        def __init__(self):
            super().__init__()
            setattr(self, name, None)

    class NamelessTask(DrawerTask):
        def make_store(self, config):
            return Nameless()

    with pytest.raises(StoreContractError, match=rf"^Nameless\.{name} must be a text; set it in the class"):
        NamelessTask().open_store(DrawerConfig(path="x"))


def test_options_of_a_class_without_its_decorator_are_not_unknown_options():
    class BareConfig(BucketConfig):
        path: str = option(doc="The drawer.", minimum=1)

    class BareTask(DrawerTask):
        section, section_class = "drawer", BareConfig

    with pytest.raises(
        ConfigError, match=r"BareConfig: its option path counts only with @attrs\.frozen\(kw_only=True\)"
    ):
        BareTask().configure({**COMMON, "drawer": {"path": "a"}})


def test_a_store_whose_credentials_fail_for_a_moment_is_opened_again(monkeypatch, caplog):
    """A container agent that answers 500 once: boto3 asks for credentials when its client is made."""
    tries = []

    class Flaky(DrawerTask):
        def make_store(self, config):
            tries.append(config)
            if len(tries) < 3:
                raise StoreUnavailableError("the credentials cannot be had now")
            return MemoryStore()

    monkeypatch.setattr("framework.storage.retry.time.sleep", lambda seconds: None)
    assert isinstance(Flaky().open_store(DrawerConfig(path="x")), MemoryStore)
    assert len(tries) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_stop_does_not_wait_for_a_store_that_is_being_opened_and_it_is_closed_when_it_comes():
    asked, answer, closed = threading.Event(), threading.Event(), threading.Event()

    class Late(MemoryStore):
        def close(self):
            closed.set()

    class Waits(DrawerTask):
        def make_store(self, config):
            asked.set()
            assert answer.wait(20)
            return Late()

    task = Waits()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(task.start, {**COMMON, "drawer": {"path": "a"}})
        assert asked.wait(20)
        task.stop()
        with pytest.raises(TaskClosedError, match="the store was not open yet"):
            started.result(20)
        assert not closed.is_set()
        answer.set()
    assert closed.wait(20)


def test_a_store_that_comes_in_the_moment_of_a_stop_is_used(monkeypatch):
    """Between the end of the wait, which has no result, and the look whether one came."""

    def wait(self, stopping):
        assert self.ended.wait(20)

    monkeypatch.setattr("framework.task.store_task.Awaited.wait", wait)
    monkeypatch.setattr(DrawerTask, "make_store", lambda self, config: MemoryStore())
    assert isinstance(DrawerTask().open_store(DrawerConfig(path="x")), MemoryStore)
