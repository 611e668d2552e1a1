"""The program as its user starts it, in a process of its own, and what the kernel knows of that process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[1]
LOOK_SECONDS = 0.02
STOP_SECONDS = 10.0


class Program:
    """`python -m s3_source --config ...`, started when made. Use it with `with`.

    Attributes:
        began: `time.perf_counter()` just before the start.
        peak_bytes: its highest resident size so far.
        seconds: how long it ran, once it has ended.
    """

    def __init__(self, folder: Path, sections: dict[str, Any], *arguments: str) -> None:
        path = folder / f"{sections['source']['name']}.toml"
        path.write_text(_toml({**sections, "log": {"format": "plain", "level": "warning"}}))
        self._errors = folder / f"{path.stem}.err"
        command = [sys.executable, "-m", "s3_source", "--config", str(path), *arguments]
        self.peak_bytes = 0
        self.seconds = 0.0
        with self._errors.open("wb") as errors:
            self.began = time.perf_counter()
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    @property
    def cpu_seconds(self) -> float:
        """What the process has used so far, all threads, without its children."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def check(self) -> None:
        """Raise when the process has ended with a failure."""
        if self._process.poll():
            raise RuntimeError(f"the program ended with {self._process.returncode}: {self._errors.read_text()[-2000:]}")

    def wait(self) -> None:
        """Wait for its end, watching its memory; the end must be a good one."""
        while self._process.poll() is None:
            self._look()
            time.sleep(LOOK_SECONDS)
        self.seconds = time.perf_counter() - self.began
        self.check()

    def _look(self) -> None:
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    """JSON's strings, numbers, booleans and lists are TOML's."""
    lines: list[str] = []
    for name, options in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in options.items())]
    return "\n".join([*lines, ""])
