"""Processes and threads as greenlets under one scheduler and one clock: the same seed gives the same history.

`install` replaces clocks, locks and threads of the standard library, so it belongs at the start of a process of its own, before
what is to be simulated is imported. Code between two waits takes no time and is never interrupted; everything that leaves a
process (a request, a message, a pause) is a wait.
"""

import importlib
import itertools
import pickle
import queue
import random
import secrets
import threading
import time
from collections import deque
from heapq import heappop, heappush

import greenlet

EPOCH = 1_800_000_000.0
"""The time of day at which every history begins."""

real_time = time.perf_counter


class Killed(BaseException):
    """Thrown into everything that runs in a process that is killed."""


class StuckError(Exception):
    """Nothing will ever happen again, or too much happened."""


class Host:
    """A machine: its clock may be wrong, and may be set."""

    def __init__(self, name):
        self.name = name
        self.clock_ahead = 0.0


class Process:
    """A process of a host: its threads, and what ends with it."""

    def __init__(self, world, host, name):
        self.world = world
        self.host = host
        self.name = name
        self.pid = next(world.pids)
        self.alive = True
        self.tasks = {}
        self.paused_until = 0.0
        self.at_exit = []
        self.extra = {}

    def __repr__(self):
        return self.name

    def die(self):
        """At once, in the middle of whatever it does. What it held open is closed by the system, a little later."""
        if not self.alive:
            return
        self.alive = False
        for task in list(self.tasks):
            task.end()
        self.tasks.clear()
        at_exit, self.at_exit = self.at_exit, []
        for leave in at_exit:
            leave()

    def forget(self):
        """What it knew goes with the history."""
        self.tasks.clear()
        self.at_exit.clear()
        self.extra.clear()


class Task:
    """A thread."""

    __slots__ = ("done", "error", "fn", "glet", "name", "process", "ticket", "value", "waiters", "world")

    def __init__(self, world, process, fn, name):
        self.world, self.process, self.fn, self.name = world, process, fn, name
        self.ticket = 0
        self.value = None
        self.done = False
        self.error = None
        self.waiters = []
        self.glet = None

    def begin(self):
        self.glet = idle.pop() if idle else greenlet.greenlet(run_tasks, parent=self.world.hub)
        self.glet.switch(self)

    def run(self):
        try:
            self.fn()
        except Killed:
            pass
        except greenlet.GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001 - it ends this thread alone
            self.error = error
            if self.world.on_error is not None:
                self.world.on_error(self, error)
        finally:
            self.done = True
            self.fn = self.value = self.glet = None
            self.process.tasks.pop(self, None)
            for waiter, ticket in self.waiters:
                self.world.wake(waiter, ticket, True)

    def end(self):
        self.ticket += 1
        if not self.done and self.glet is not None:
            self.world.throw(self, Killed)
        self.done = True
        self.fn = self.value = self.glet = None
        self.waiters = []


idle = []
"""Greenlets whose tasks are done. A new one costs as much as twenty switches, mostly for the memory of its frames."""


def run_tasks(task):
    """Runs one task after another."""
    me = greenlet.getcurrent()
    while True:
        task.run()
        task = None  # it goes with its history
        idle.append(me)
        task = me.parent.switch()


class Scheduler:
    """One history's clock, events and threads."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.heap = []
        self.next_number = itertools.count().__next__
        self.pids = itertools.count(100)
        self.ready = deque()
        self.hub = greenlet.getcurrent()
        self.current = None
        self.on_error = None
        self.steps = 0
        self.most_steps = 400_000
        self.wrong = None

    # ---- from the hub

    def at(self, delay, fn, *args):
        """Calls it in the hub, so much later."""
        heappush(self.heap, (self.now + delay, self.next_number(), fn, args))

    def spawn(self, process, fn, name="main"):
        task = Task(self, process, fn, name)
        if process.alive:
            process.tasks[task] = None
            self.ready.append((task, task.ticket))
        else:
            task.done = True
        return task

    def wake(self, task, ticket, value=None):
        """Lets a task go on that waits with this ticket; later calls for the same wait do nothing."""
        if task.ticket == ticket and not task.done:
            task.ticket += 1
            task.value = value
            self.ready.append((task, task.ticket))

    def throw(self, task, error):
        """Ends a task by an error, from wherever that is found out."""
        before, self.current = self.current, task
        try:
            task.glet.throw(error)
        finally:
            self.current = before

    def run(self, until):
        """Goes on until `until()` is true, asked between any two events, or something is wrong.

        Raises:
            StuckError: nothing is left to happen, or it takes far too many steps.
        """
        ready, heap, rng = self.ready, self.heap, self.rng
        while self.wrong is None and not until():
            self.steps += 1
            if self.steps > self.most_steps:
                raise StuckError(f"{self.steps} steps")
            if ready:
                if len(ready) > 1:
                    ready.rotate(-rng.randrange(len(ready)))
                task, ticket = ready.popleft()
                if task.done or task.ticket != ticket:
                    continue
                if task.process.paused_until > self.now:
                    self.at(task.process.paused_until - self.now, ready.append, (task, ticket))
                    continue
                self.current = task
                try:
                    if task.glet is None:
                        task.begin()
                    else:
                        task.glet.switch(task.value)
                finally:
                    self.current = None
            elif heap:
                when, _, fn, args = heappop(heap)
                self.now = max(self.now, when)
                fn(*args)
            else:
                raise StuckError("nothing is left to happen")

    def forget(self):
        """At the end of a history: nothing that happened in it, or was still to come, is kept."""
        self.heap.clear()
        self.ready.clear()
        self.on_error = None

    # ---- from a task

    def park(self, timeout=None):
        """Waits until somebody wakes this task; gives what it was woken with, None when the time is over."""
        task = self.current
        if task is None:
            raise StuckError("a wait outside of any thread")
        if not task.process.alive:
            raise Killed
        if timeout is not None:
            self.at(max(0.0, timeout), self.wake, task, task.ticket)
        value = self.hub.switch()
        if not task.process.alive:
            raise Killed
        return value

    def ticket(self):
        return self.current, self.current.ticket

    def sleep(self, seconds):
        self.park(seconds)


world = None
"""The history under way: clocks, locks and threads ask it."""


def enter_world(scheduler):
    global world  # noqa: PLW0603
    world = scheduler


def _clock():
    return world.now if world is not None else 0.0


def _time_of_day():
    if world is None:
        return EPOCH
    ahead = world.current.process.host.clock_ahead if world.current is not None else 0.0
    return EPOCH + world.now + ahead


def _sleep(seconds):
    if world is not None and world.current is not None:
        world.sleep(seconds)


# ---- what stands for the standard library's


class Lock:
    """A lock of greenlets; without waiting it costs a comparison."""

    __slots__ = ("_locked", "_waiting")

    def __init__(self):
        self._locked = False
        self._waiting = None

    def acquire(self, blocking=True, timeout=-1):
        if not self._locked:
            self._locked = True
            return True
        if not blocking:
            return False
        if world is None or world.current is None:
            raise StuckError("a lock is held, and nobody can wait for it here")
        until = None if timeout is None or timeout < 0 else world.now + timeout
        while self._locked:
            if until is not None and world.now >= until:
                return False
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(world.ticket())
            world.park(None if until is None else until - world.now)
        self._locked = True
        return True

    def release(self):
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        while self._waiting:
            task, ticket = self._waiting.popleft()
            if task.ticket == ticket and not task.done:
                world.wake(task, ticket, True)
                break

    def locked(self):
        return self._locked

    def _at_fork_reinit(self):
        self._locked, self._waiting = False, None

    def __enter__(self):
        if self._locked:
            self.acquire()
        else:
            self._locked = True
        return self

    def __exit__(self, *_):
        if self._waiting is None:
            self._locked = False
        else:
            self.release()

    # what a condition needs

    def _release_save(self):
        self.release()

    def _acquire_restore(self, _):
        self.acquire()

    def _seize(self, _):
        self._locked = True


class RLock:
    __slots__ = ("_count", "_owner", "_waiting")

    def __init__(self):
        self._owner = None
        self._count = 0
        self._waiting = None

    def acquire(self, blocking=True, timeout=-1):
        me = world.current if world is not None else None
        if self._count == 0 or self._owner is me:
            self._owner = me
            self._count += 1
            return True
        if not blocking:
            return False
        if me is None:
            raise StuckError("a lock is held, and nobody can wait for it here")
        until = None if timeout is None or timeout < 0 else world.now + timeout
        while self._count:
            if until is not None and world.now >= until:
                return False
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(world.ticket())
            world.park(None if until is None else until - world.now)
        self._owner = me
        self._count = 1
        return True

    def release(self):
        if not self._count:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            while self._waiting:
                task, ticket = self._waiting.popleft()
                if task.ticket == ticket and not task.done:
                    world.wake(task, ticket, True)
                    break

    def __enter__(self):
        me = world.current if world is not None else None
        if not self._count:
            self._owner, self._count = me, 1
        elif self._owner is me:
            self._count += 1
        else:
            self.acquire()
        return self

    def __exit__(self, *_):
        if self._waiting is None and self._count:
            self._count -= 1
            if not self._count:
                self._owner = None
        else:
            self.release()

    def _at_fork_reinit(self):
        self._owner, self._count, self._waiting = None, 0, None

    # what a condition needs

    def _release_save(self):
        count, self._count = self._count, 1
        self.release()
        return count

    def _acquire_restore(self, count):
        self.acquire()
        self._count = count

    def _seize(self, count):
        self._owner, self._count = world.current, count

    def _is_owned(self):
        return self._count > 0 and self._owner is (world.current if world is not None else None)


class Condition:
    """Made by the hundred in each history: it has nothing of its own until somebody waits."""

    __slots__ = ("_lock", "_waiters")

    def __init__(self, lock=None):
        self._lock = lock if lock is not None else RLock()
        self._waiters = None

    def acquire(self, *args):
        return self._lock.acquire(*args)

    def release(self):
        self._lock.release()

    def __enter__(self):
        self._lock.__enter__()
        return self

    def __exit__(self, *_):
        self._lock.__exit__()

    def wait(self, timeout=None):
        if timeout is not None and timeout <= 0:
            return False
        place = world.ticket()
        if self._waiters is None:
            self._waiters = deque()
        self._waiters.append(place)
        count = self._lock._release_save()
        woken = None
        try:
            woken = world.park(timeout)
        finally:
            if place[0].process.alive:
                self._lock._acquire_restore(count)
            else:  # unwinding after a kill: no thread of this process runs any more
                self._lock._seize(count)
        return bool(woken)

    def wait_for(self, predicate, timeout=None):
        until = None if timeout is None else world.now + timeout
        result = predicate()
        while not result:
            left = None if until is None else until - world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n=1):
        waiters = self._waiters
        while waiters and n > 0:
            task, ticket = waiters.popleft()
            if task.ticket == ticket and not task.done:
                world.wake(task, ticket, True)
                n -= 1

    def notify_all(self):
        if self._waiters:
            self.notify(len(self._waiters))

    notifyAll = notify_all  # noqa: N815


class Event:
    """A flag that threads wait for: the standard library's has a condition and a lock of its own."""

    def __init__(self):
        self._flag = False
        self._waiters = None

    def is_set(self):
        return self._flag

    def set(self):
        self._flag = True
        waiters, self._waiters = self._waiters, None
        for task, ticket in waiters or ():
            world.wake(task, ticket, True)

    def clear(self):
        self._flag = False

    def wait(self, timeout=None):
        if self._flag:
            return True
        if timeout is not None and timeout <= 0:
            return False
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(world.ticket())
        return bool(world.park(timeout))


class Thread:
    """A task of the process that starts it."""

    _names = itertools.count(1)

    def __init__(self, group=None, target=None, name=None, args=(), kwargs=None, *, daemon=None):
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or f"thread-{next(self._names)}"
        self.daemon = bool(daemon)
        self.ident = None
        self._task = None

    def start(self):
        self.ident = next(self._names)
        self._task = world.spawn(world.current.process, self.run, self.name)

    def run(self):
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self):
        return self._task is not None and not self._task.done

    def join(self, timeout=None):
        if self._task is not None and not self._task.done:
            self._task.waiters.append(world.ticket())
            world.park(timeout)


class Timer(Thread):
    def __init__(self, interval, function, args=None, kwargs=None):
        super().__init__()
        self.interval, self.function = interval, function
        self.args, self.kwargs = args or (), kwargs or {}
        self.finished = Event()

    def cancel(self):
        self.finished.set()

    def run(self):
        self.finished.wait(self.interval)
        if not self.finished.is_set():
            self.function(*self.args, **self.kwargs)
        self.finished.set()


class SimpleQueue:
    def __init__(self):
        self._items = deque()
        self._changed = Condition(Lock())

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def put(self, item, block=True, timeout=None):
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    put_nowait = put

    def get(self, block=True, timeout=None):
        with self._changed:
            until = None if timeout is None else world.now + timeout
            while not self._items:
                left = None if until is None else until - world.now
                if not block or (left is not None and left <= 0):
                    raise queue.Empty
                self._changed.wait(left)
            return self._items.popleft()

    def get_nowait(self):
        return self.get(block=False)

    def empty(self):
        return not self._items

    def qsize(self):
        return len(self._items)


def install():
    """Puts simulated clocks, locks, threads and randomness in place of the real ones, for the rest of this process."""
    import os
    import socket

    importlib.import_module("concurrent.futures.thread")  # with the real locks, which it wants at a fork
    time.monotonic = _clock
    time.time = _time_of_day
    time.time_ns = lambda: int(_time_of_day() * 1e9)
    time.sleep = _sleep
    threading.Lock = Lock
    threading.RLock = RLock
    threading.Condition = Condition
    threading.Event = Event
    threading.Thread = Thread
    threading.Timer = Timer
    queue.SimpleQueue = SimpleQueue

    def randbits(bits):
        return world.rng.getrandbits(bits)

    secrets.randbits = randbits
    secrets.token_hex = lambda count=16: f"{randbits(8 * count):0{2 * count}x}"
    secrets.token_bytes = lambda count=16: randbits(8 * count).to_bytes(count, "big")
    random.random = lambda: world.rng.random() if world is not None else 0.5
    real_pid = os.getpid
    os.getpid = lambda: world.current.process.pid if world is not None and world.current is not None else real_pid()
    real_host = socket.gethostname
    socket.gethostname = lambda: (
        world.current.process.host.name if world is not None and world.current is not None else real_host()
    )


# ---- processes of one host talk through pipes


class PipeEnd:
    """One end of a pipe between two processes: messages keep their order and take their time."""

    def __init__(self, scheduler, latency):
        self.world, self.latency = scheduler, latency
        self.peer = None
        self.inbox = deque()
        self.last_arrival = 0.0
        self.closed = False
        self.ended = False
        self.handles = 0
        self.changed = Condition(Lock())

    def send(self, value):
        if self.closed:
            raise OSError("handle is closed")
        if self.peer.closed:
            raise BrokenPipeError("the other end is closed")
        copy = pickle.loads(pickle.dumps(value))
        self._later(self.peer._take, copy)

    def _later(self, fn, *args):
        self.last_arrival = max(self.last_arrival, self.world.now + self.latency())
        self.world.at(self.last_arrival - self.world.now, fn, *args)

    def _take(self, value):
        if not self.closed:
            with self.changed:
                self.inbox.append(value)
                self.changed.notify_all()

    def _end(self):
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def recv(self):
        with self.changed:
            while not self.inbox:
                if self.closed:
                    raise OSError("handle is closed")
                if self.ended:
                    raise EOFError
                self.changed.wait()
            return self.inbox.popleft()

    def poll(self, timeout=0.0):
        with self.changed:
            if not self.inbox and not self.ended:
                self.changed.wait(timeout)
            return bool(self.inbox) or self.ended

    def close(self):
        if not self.closed:
            self.closed = True
            self._later(self.peer._end)
            with self.changed:
                self.changed.notify_all()


class PipeHandle:
    """What a process holds of a pipe's end; the end is closed with the last handle."""

    def __init__(self, end):
        self.end = end
        self._open = True
        end.handles += 1

    def close(self):
        if self._open:
            self._open = False
            self.end.handles -= 1
            if not self.end.handles:
                self.end.close()

    def __getattr__(self, name):
        return getattr(self.end, name)


def make_pipe(scheduler, latency):
    left, right = PipeEnd(scheduler, latency), PipeEnd(scheduler, latency)
    left.peer, right.peer = right, left
    handles = PipeHandle(left), PipeHandle(right)
    scheduler.current.process.at_exit.extend(handle.close for handle in handles)
    return handles


class ChildProcess:
    """Stands for `multiprocessing.Process`: a process of the same host, ended with `kill`; outlives its parent's end."""

    def __init__(self, scheduler, target, args, name, startup):
        self._world, self._target, self._args, self.name, self._startup = scheduler, target, args, name, startup
        self.process = None
        self._main = None

    @property
    def pid(self):
        return self.process.pid if self.process is not None else None

    @property
    def exitcode(self):
        return None if self.is_alive() else 0

    def start(self):
        parent = self._world.current.process
        self.process = child = Process(self._world, parent.host, f"{parent.name}/{self.name}")
        child.extra.update(parent.extra)
        parent.extra.setdefault("children", []).append(child)
        args = [PipeHandle(arg.end) if isinstance(arg, PipeHandle) else arg for arg in self._args]
        child.at_exit.extend(arg.close for arg in args if isinstance(arg, PipeHandle))

        def main():
            self._world.sleep(self._startup())
            try:
                self._target(*args)
            finally:
                if child.alive:  # the other threads end with the main one
                    self._world.at(0.0, child.die)

        self._main = self._world.spawn(child, main, self.name)

    def is_alive(self):
        return self.process is not None and self.process.alive and not self._main.done

    def join(self, timeout=None):
        if self.is_alive():
            self._main.waiters.append(self._world.ticket())
            self._world.park(timeout)

    def kill(self):
        process = self.process
        if process is not None:
            self._world.at(0.0, process.die)

    terminate = kill
