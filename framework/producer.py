"""The contract between a task and what stores its records: batches in, confirmations out."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType

from typing_extensions import Self

from framework.records import Acknowledgement, Lane, RecordBatch


class Producer(abc.ABC):
    """Stores batches of one lane at a time, in the order of the calls, and hands out the server's confirmations.

    A confirmation means that the server said the records are stored; nothing is sent twice by a producer. After an
    `UnknownOutcomeError` or an `IggyUnavailableError` the producer is of no more use: close it, recover, make another.
    One thread sends; any thread may wait for the futures.
    """

    @abc.abstractmethod
    def send(self, lane: Lane, batches: Sequence[RecordBatch]) -> Future[Acknowledgement]:
        """The confirmation to come for these batches, which go out together, after everything sent before.

        Batches without payloads need no message: when none has any, the acknowledgement is there at once, without an
        anchor. Blocks while as many sends are under way as the producer allows (that is the back pressure), at most for
        the time limit of one call.

        Args:
            lane: where the records go; every batch names the same.
            batches: in order; may be of several objects.

        Returns:
            A future with the acknowledgement, or with one of the errors below.

        Raises:
            RecordError: a payload is empty, or (`RecordTooLargeError`) too long to be stored; nothing of this call was sent.
            ValueError: a batch names another lane.
            UnknownOutcomeError: an earlier send may or may not be stored (also in the future).
            IggyUnavailableError: the connection is gone; nothing of this call was sent (also in the future).
            IggyTopicError: the topic or the partition is missing (in the future).
            TaskClosedError: the producer was closed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the producer without waiting for what is under way. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
