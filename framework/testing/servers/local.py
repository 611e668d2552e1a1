"""A server of another project as a child process: loopback only, stopped by its process id."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from typing_extensions import Self

from framework.errors import FatalError


class LocalServer:
    """A running server. Use its class's `start`, then `stop`, or a `with` statement.

    Attributes:
        endpoint: `http://127.0.0.1:PORT`.
        process: the child.
    """

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint

    def wait_until_ready(self, answers: Callable[[], bool], seconds: float, hint: str = "") -> None:
        """Wait until it answers; end it when it does not.

        Args:
            answers: asks it once.
            seconds: how long it is asked.
            hint: where to look for the cause, for the message.

        Raises:
            FatalError: it ended, or did not answer in time.
        """
        try:
            self._wait(answers, seconds, hint)
        except BaseException:
            self.stop()
            raise

    def _wait(self, answers: Callable[[], bool], seconds: float, hint: str) -> None:
        limit = time.monotonic() + seconds
        while not answers():
            code = self.process.poll()
            if code is not None:
                raise FatalError(f"the local server at {self.endpoint} ended at its start (exit {code}){hint}")
            if time.monotonic() > limit:
                raise FatalError(f"the local server at {self.endpoint} was not ready in {seconds:.0f} seconds{hint}")
            time.sleep(0.02)

    def has_ended(self) -> bool:
        """Whether it has ended: by itself, or killed from outside."""
        return self.process.poll() is not None

    def stop(self) -> None:
        """Kill it. Idempotent.

        Nothing is lost: the servers hand every write to the system before they answer.
        """
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
