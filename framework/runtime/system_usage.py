"""Processor, memory and run time of the worker, with the processes of its sources, and of the machine."""

from __future__ import annotations

import contextlib
import threading
import time

import psutil


class SystemProbe:
    """Reads the figures. Thread-safe; the first percentages are 0."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[int, psutil.Process] = {}
        self._worker = psutil.Process()
        self._start_time_us = time.time_ns() // 1000
        self._began_ns = time.monotonic_ns()  # whatever the time of day did meanwhile

    def read(self) -> dict[str, float]:
        """Return the figures of now."""
        with self._lock:
            tree = [self._worker, *self._worker.children(recursive=True)]
            # each process keeps its last reading, so the former values must be used again
            self._processes = {process.pid: self._processes.get(process.pid, process) for process in tree}
            cpu, memory = 0.0, 0
            for process in self._processes.values():
                with contextlib.suppress(psutil.Error):  # it has just ended
                    cpu += process.cpu_percent()
                    memory += process.memory_info().rss
            machine = psutil.virtual_memory()
            return {
                "process_id": self._worker.pid,
                "cpu_usage": cpu,
                "total_cpu_usage": psutil.cpu_percent(),
                "memory_usage": memory,
                "total_memory": machine.total,
                "available_memory": machine.available,
                "run_time": (time.monotonic_ns() - self._began_ns) // 1000,
                "start_time": self._start_time_us,
            }
