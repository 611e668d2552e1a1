"""Processor and memory of the worker, with the processes of its sources, and of the machine."""

from __future__ import annotations

import contextlib
import threading

import attrs
import psutil


@attrs.frozen(kw_only=True)
class SystemFigures:
    """What `/stats` says about process and machine. Percentages are since the last call, memory is in bytes."""

    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: int
    total_memory: int
    available_memory: int


class SystemProbe:
    """Reads the figures. Thread-safe; the first percentages are 0."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[int, psutil.Process] = {}
        self._worker = psutil.Process()

    def read(self) -> SystemFigures:
        """Return the figures of now."""
        with self._lock:
            return self._read()

    def _read(self) -> SystemFigures:
        tree = [self._worker, *self._worker.children(recursive=True)]
        # each process keeps its last reading, so the former values must be used again
        self._processes = {process.pid: self._processes.get(process.pid, process) for process in tree}
        cpu, memory = 0.0, 0
        for process in self._processes.values():
            with contextlib.suppress(psutil.Error):  # it has just ended
                cpu += process.cpu_percent()
                memory += process.memory_info().rss
        machine = psutil.virtual_memory()
        return SystemFigures(
            process_id=self._worker.pid,
            cpu_usage=cpu,
            total_cpu_usage=psutil.cpu_percent(),
            memory_usage=memory,
            total_memory=machine.total,
            available_memory=machine.available,
        )
