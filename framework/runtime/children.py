"""The processes of a worker's sources."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Sequence
from typing import IO

from typing_extensions import override

from framework.runtime.child_channel import WorkerEnd, socket_pair
from framework.runtime.commands import interpreter


class ChildProcess(WorkerEnd):
    """A source in a process of its own: the ordinary program, with a line to this worker.

    It writes its log to this process's stderr, and it ends when this process ends.

    Args:
        arguments: of the interpreter: `-m s3_source --config orders.toml`.
        key: the source's key, which is on each line of its log.
        ended: called when it ends, from another thread.
        stdin: what it reads; by default nothing.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self, arguments: Sequence[str], key: str, ended: Callable[[], None], stdin: IO[bytes] | None = None
    ) -> None:
        ours, theirs = socket_pair()
        with theirs:
            try:
                super().__init__(ours, ended)  # before the process: where processes are limited, threads count, too
                self._process = subprocess.Popen(  # noqa: S603 - the program itself
                    [
                        *interpreter(),
                        *arguments,
                        "--channel",
                        str(theirs.fileno()),
                        "--log-source",
                        key,
                    ],
                    stdin=stdin or subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C reaches the worker, which stops its sources
                )
            except OSError:
                ours.close()
                raise
            except RuntimeError as error:
                ours.close()
                raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    @override
    def close(self) -> None:
        """Read its last words and free the line."""
        self._process.wait()
        super().close()
