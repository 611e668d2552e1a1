"""The contract of a source's task: one reader, one queue; `store_task` has the task for any object store."""

from framework.task.abstract_task import AbstractSourceTask, iterator_of
from framework.task.context import SourceContext

__all__ = ["AbstractSourceTask", "SourceContext", "iterator_of"]
