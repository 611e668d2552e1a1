"""Pipes in memory behave as pipes between processes, and a dead process holds nothing open."""

import threading
from types import SimpleNamespace

import pytest

from framework.config.iggy_address import IggyAddress
from framework.engine.task_run import TaskRunPlan
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import LEADER, CrashError, CrashPoint
from framework.testing.kit.processes import ThreadContext
from framework.testing.options import source_config
from tests.support.iggy_messages import append

PLAN = TaskRunPlan(
    task_class=object, config=source_config(), address=IggyAddress(host="127.0.0.1", port=8090), epoch=1, log_from=0
)


def context_over(server):
    return ThreadContext(connect=lambda _: server.connect(), make_task=lambda _: None, kill=lambda _: None)


def test_values_come_as_copies_and_in_order():
    ours, theirs = context_over(None).Pipe()
    value = ["a"]
    ours.send(value)
    value.append("b")
    ours.send(value)
    theirs.send("back")
    assert [theirs.recv(), theirs.recv(), ours.recv()] == [["a"], ["a", "b"], "back"]


def test_what_cannot_be_pickled_is_not_sent():
    ours, _ = context_over(None).Pipe()
    with pytest.raises(TypeError, match="pickle"):
        ours.send(threading.Lock())


def test_a_closed_end_is_the_end_behind_what_was_sent():
    ours, theirs = context_over(None).Pipe()
    ours.send(1)
    ours.close()
    assert theirs.recv() == 1
    with pytest.raises(EOFError):
        theirs.recv()
    with pytest.raises(OSError, match="closed"):
        theirs.send(2)


def test_a_close_wakes_who_waits():
    ours, theirs = context_over(None).Pipe()
    seen = []

    def wait():
        with pytest.raises(EOFError):
            theirs.recv()
        seen.append("the end")

    waiting = threading.Thread(target=wait)
    waiting.start()
    ours.close()
    waiting.join(10)
    assert seen == ["the end"]


def test_an_inherited_end_stays_open_when_the_original_is_closed():
    ours, theirs = context_over(None).Pipe()
    inherited = theirs.inherit()
    theirs.close()
    ours.send(1)
    assert inherited.recv() == 1


def test_the_leaders_ends_close_with_the_leader():
    context = context_over(None)
    _, theirs = context.Pipe()
    context.died(LEADER)
    with pytest.raises(EOFError):
        theirs.recv()


@pytest.mark.parametrize("dead", ["task-0", None])
def test_connections_close_with_their_process_also_those_that_it_was_just_opening(dead):
    server = MemoryIggy()
    context = context_over(server)
    pipe = context.Pipe()[1]
    worker = context.Process(target=None, args=(PLAN, pipe), name="task-0", daemon=True)
    other = context.Process(target=None, args=(PLAN, context.Pipe()[1]), name="task-1", daemon=True)
    for process in (worker, other):
        process._connect(None, None)
    context.died(dead)
    assert len(server.clients()) == (1 if dead else 0)
    worker._connect(None, None)
    assert len(server.clients()) == (1 if dead else 0)


def test_a_connection_tells_its_own_listener():
    server, seen = MemoryIggy(), []
    server.on_event = lambda name: seen.append(("server", name))
    one, other = server.connect(), server.connect()
    one.on_event = lambda name: seen.append(("one", name))
    one.ensure_stream("s")
    one.create_topic("s", "t", 1)
    append(one, "s", "t", 0, b"x")
    append(other, "s", "t", 0, b"x")
    assert seen == [("one", "send"), ("one", "ack"), ("server", "send"), ("server", "ack")]


# ---- who dies


def test_alone_one_process_dies_and_the_others_go_on():
    crash, dead = CrashPoint(2, alone=True), []
    crash.on_death = dead.append
    crash("send", "task-0")
    with pytest.raises(CrashError):
        crash("ack", "task-0")
    crash("send", "task-1")
    with pytest.raises(CrashError):
        crash("send", "task-0")
    assert dead == ["task-0"]
    assert crash.struck
    assert not crash.crashed
    assert crash.place == "ack of task-0, alone"
    assert crash.processes == ["task-0", "task-0", "task-1"]


def test_otherwise_all_die():
    crash, dead = CrashPoint(1), []
    crash.on_death = dead.append
    for process in ("task-0", "task-1", LEADER):
        with pytest.raises(CrashError):
            crash("send", process)
    assert dead == [None]
    assert crash.crashed
    assert crash.events == ["send"]


def test_before_it_dies_a_process_stalls_until_the_others_have_done_what_they_can(monkeypatch):
    crash, looks, done = CrashPoint(1, alone=True), [], []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) % 3 == 0 and len(looks) < 10:
            crash("send", "task-1")

    monkeypatch.setattr("framework.testing.kit.crash.time", SimpleNamespace(sleep=sleep))
    crash.on_death = lambda _: done.append(list(crash.processes))
    with pytest.raises(CrashError):
        crash("page", LEADER)
    assert done == [[LEADER, "task-1", "task-1", "task-1"]]
    assert len(looks) > 20
