"""Work of Spark in other threads."""

from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkAttributeError

from framework.engine.spark.threads import for_thread, for_thread_of


class Java:
    """The part of a Java context that holds local properties; `broken`: each call fails."""

    def __init__(self, *, stopped=False, broken=False):
        self.stopped, self.broken, self.properties = stopped, broken, {"spark.scheduler.pool": "night"}

    def sc(self):
        return self

    def isStopped(self):  # noqa: N802 - as in Java
        return self.stopped

    def getLocalProperties(self):  # noqa: N802
        if self.broken:
            raise RuntimeError("An error occurred while calling o1.getLocalProperties")
        return SimpleNamespace(clone=lambda: dict(self.properties))

    def setLocalProperties(self, properties):  # noqa: N802
        self.properties = properties


def test_a_thread_inherits_the_properties_of_the_one_that_gave_it_its_work():
    java = Java()
    work = for_thread(SimpleNamespace(_jsc=java), lambda more: (java.properties, more))
    java.properties = {}
    assert work(7) == ({"spark.scheduler.pool": "night"}, 7)


@pytest.mark.parametrize("java", [None, Java(stopped=True, broken=True)])
def test_an_application_that_ended_fails_in_the_work_itself(java):
    """Its thread must not fail before the work: nobody would hear of it, and the run would wait for ever."""
    assert for_thread(SimpleNamespace(_jsc=java), lambda: 7)() == 7


def test_another_failure_is_told():
    with pytest.raises(RuntimeError, match="getLocalProperties"):
        for_thread(SimpleNamespace(_jsc=Java(broken=True)), lambda: 7)


class Session:
    """A session of Spark Connect; of this process with `java`."""

    def __init__(self, java=None):
        self.tags = {"nightly"}
        if java is not None:
            self.sparkContext = SimpleNamespace(_jsc=java)

    def __getattr__(self, name):
        raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED", {"attr_name": name})

    def getTags(self):  # noqa: N802
        return set(self.tags)

    def addTag(self, tag):  # noqa: N802
        self.tags.add(tag)


def test_a_thread_of_a_session_has_its_tags_and_its_scheduler_pool():
    java = Java()
    for session in (Session(), Session(java)):
        java.properties = {"spark.scheduler.pool": "night"}
        work = for_thread_of(session, lambda session=session: (session.tags, java.properties))
        session.tags, java.properties = set(), {}
        tags, properties = work()
        assert tags == {"nightly"}
    assert properties == {"spark.scheduler.pool": "night"}
