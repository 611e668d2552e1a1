"""Worker processes as threads of this one, so that a crash can end one of them, or all, at a chosen event.

The leader and its workers are the program's own code. What stands in for the rest: threads for processes, pipes in
memory, and connections to an Iggy in memory. When a process dies, its connections and its ends of pipes close at once,
as an operating system closes them; its threads run on and have no effect.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import attrs
from typing_extensions import Self

from framework.config.iggy_address import IggyAddress
from framework.config.sections import SourceCommonConfig
from framework.engine.task_process import LeaderPipe, serve
from framework.engine.task_run import TaskRunPlan
from framework.iggy.connection import IggyConnection
from framework.task import AbstractSourceTask

MakeTask = Callable[[], AbstractSourceTask]


class CrashError(BaseException):
    """The process is dead. Nothing may catch this and go on."""


class _Channel:
    """One direction of a pipe."""

    def __init__(self) -> None:
        self._values: deque[bytes] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, value: bytes) -> None:
        with self._changed:
            if self._closed:
                raise BrokenPipeError("the other end is closed")
            self._values.append(value)
            self._changed.notify_all()

    def get(self) -> bytes:
        with self._changed:
            while not self._values:
                if self._closed:
                    raise EOFError
                self._changed.wait()
            return self._values.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class PipeEnd:
    """One end of a pipe in memory. Values are pickled, as between processes."""

    def __init__(self, incoming: _Channel, outgoing: _Channel) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._inherited = False

    def send(self, value: object) -> None:
        """Send a value.

        Raises:
            OSError: an end is closed.
        """
        self._outgoing.put(pickle.dumps(value))

    def recv(self) -> Any:
        """Wait for a value.

        Raises:
            EOFError: an end is closed, and everything was received.
        """
        return pickle.loads(self._incoming.get())  # noqa: S301 - made here

    def inherit(self) -> Self:
        """Return this end for a new process; closing the original then closes nothing."""
        self._inherited = True
        return type(self)(self._incoming, self._outgoing)

    def close(self) -> None:
        """Close this end. Idempotent."""
        if not self._inherited:
            self._incoming.close()
            self._outgoing.close()


class ThreadContext:
    """Start workers as threads: the context of a `framework.engine.process_group.ProcessGroup`.

    Args:
        connect: opens a connection for the process of that name.
        make_task: makes the task of the process of that name.
        kill: ends the process of that name.
    """

    def __init__(
        self,
        *,
        connect: Callable[[str], IggyConnection],
        make_task: Callable[[str], MakeTask],
        kill: Callable[[str], None],
    ) -> None:
        self.connect = connect
        self.make_task = make_task
        self.kill = kill
        self._leaders_ends: list[PipeEnd] = []
        self._workers: dict[str, ThreadProcess] = {}

    def Pipe(self) -> tuple[PipeEnd, PipeEnd]:  # noqa: N802 - the name in `multiprocessing`
        """Make a pipe; the leader keeps the first end."""
        there, back = _Channel(), _Channel()
        leaders = PipeEnd(back, there)
        self._leaders_ends.append(leaders)
        return leaders, PipeEnd(there, back)

    def Process(self, *, target: object, args: tuple[TaskRunPlan, PipeEnd], name: str, daemon: bool) -> ThreadProcess:  # noqa: N802 - the name in `multiprocessing`
        """Make a worker. It runs what `target` runs, less what concerns a process as a whole."""
        del target, daemon
        plan, pipe = args
        worker = self._workers[name] = ThreadProcess(self, plan, pipe.inherit(), name)
        return worker

    def died(self, process: str | None) -> None:
        """Close what a dead process held; None: what all of them held."""
        for name, worker in list(self._workers.items()):
            if process in {None, name}:
                worker.close()
        if process is None or process not in self._workers:
            for end in self._leaders_ends:
                end.close()


class ThreadProcess:
    """A worker in a thread, behind those members of `multiprocessing.Process` that the leader uses."""

    pid: int | None = None

    def __init__(self, context: ThreadContext, plan: TaskRunPlan, pipe: PipeEnd, name: str) -> None:
        self.name = name
        self._context = context
        # the engine makes tasks by their class, and so does not care that this is none
        self._plan = attrs.evolve(plan, task_class=cast("type[AbstractSourceTask]", context.make_task(name)))
        self._pipe = pipe
        self._connections: list[IggyConnection] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        pipe = cast("Any", self._pipe)
        try:
            serve(self._plan, pipe, LeaderPipe(pipe), connect=self._connect)
        except CrashError:
            pass
        finally:
            self.close()

    def _connect(self, address: IggyAddress, config: SourceCommonConfig) -> IggyConnection:
        del address, config
        connection = self._context.connect(self.name)
        self._connections.append(connection)
        if self._closed:  # killed while it connected
            connection.close()
        return connection

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def exitcode(self) -> int | None:
        """None: a thread has none."""
        return None

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def kill(self) -> None:
        """End the process: nothing that it does from now on has an effect."""
        self._context.kill(self.name)

    def close(self) -> None:
        """Close the connections and the pipe, as an operating system does at a process's end."""
        self._closed = True
        for connection in list(self._connections):
            connection.close()
        self._pipe.close()
