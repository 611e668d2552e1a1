"""The contract between a task and the storage of its records: batches in, confirmations out."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType

from typing_extensions import Self

from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import TopicPartition


class Producer(abc.ABC):
    """Store batches, a partition per call, in the order of the calls, and return the server's confirmations.

    A confirmation means that the server reported the records as stored; a producer never sends twice. After an
    `UnknownOutcomeError` or an `IggyUnavailableError` the producer is unusable: close it, recover, make another. A
    single thread sends; any thread may wait for the futures.
    """

    @abc.abstractmethod
    def send(self, topic_partition: TopicPartition, batches: Sequence[RecordBatch]) -> Future[Acknowledgement]:
        """Send batches together, after everything sent before; return a future for their confirmation.

        Batches without payloads need no message: when no batch has payloads, the acknowledgement is immediate and has
        no anchor. Blocks while the producer's maximum of sends is in flight (this is the back-pressure), at most for
        the time limit of a call.

        Args:
            topic_partition: destination of the records; every batch names the same partition.
            batches: in order; may belong to several objects.

        Returns:
            A future with the acknowledgement, or with an error from the list below.

        Raises:
            RecordError: a payload is empty, or (`RecordTooLargeError`) too long; nothing of this call was sent.
            ValueError: a batch names another partition.
            UnknownOutcomeError: an earlier send may or may not be stored (also in the future).
            IggyUnavailableError: the connection is lost; nothing of this call was sent (also in the future).
            IggyTopicError: the topic or the partition is missing (in the future).
            TaskClosedError: the producer was closed.
        """

    def check_delivered(self) -> None:  # noqa: B027 - a producer without a server has nothing to read back
        """Check that consumers can receive what was confirmed. Called before positions are saved; by default nothing.

        Raises:
            PositionError: the server confirms records that it does not deliver.
            IggyUnavailableError: the connection is lost.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the producer without waiting for sends in flight. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
