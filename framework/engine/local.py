"""The local engine: everything in this process, or one process per task. No JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from framework.engine.epoch_loop import Engine
from framework.pipeline.sender import Sender

if TYPE_CHECKING:
    from framework.engine.session import Session


class LocalEngine(Engine):
    """Run a source on this machine; the arguments are those of `Engine`."""

    @property
    @override
    def _several_writers(self) -> bool:
        return (self._config.runner.tasks_max or 1) > 1

    @override
    def _run_tasks(self, session: Session) -> None:
        if self._several_writers:
            from framework.engine.process_group import ProcessGroup  # noqa: PLC0415 - one task needs no processes

            group = ProcessGroup(self._task_class, self._config, session, once=self._once)
            with self._stops(group.stop):
                group.run(self._stopping, self._reporter)
        else:
            self._run_task(session)

    def _run_task(self, session: Session) -> None:
        task = self._task_class()
        try:
            with self._stops(task.stop):
                if not self._stopping.is_set():
                    task.start(self._config, offsets=session.offsets, once=self._once)
            if self._stopping.is_set():  # then the task is, too
                return
            sender = Sender(
                task,
                session.producer(),
                self._config,
                open_partition=session.partitions.open_one,
                dead_letters=session.dead_letters(),
                on_turn=session.look_when_due,
            )
            self._reporter.watch(task, sender, session.partitions)
            with self._stops(sender.stop):
                sender.run()
        finally:
            self._reporter.unwatch()
            task.stop()
