"""Every error of the framework, split by what to do about it.

    SourceError
    |-- RetriableError                 try again: the same call may succeed
    |   |-- ThrottledError             the store asks to slow down (503 SlowDown, 429)
    |   |-- StoreUnavailableError      5xx, reset, timeout, name not resolved  (ConnectionError)
    |   `-- IggyUnavailableError       server away, connection broken, no answer in time  (ConnectionError)
    |       `-- UnknownOutcomeError    a send whose records may or may not be stored: recover, never just send again
    |-- SkippableError                 this record or object is bad; `errors.tolerance` decides
    |   |-- RecordError                one record; the rest of the object can be read  (ValueError)
    |   |   `-- RecordTooLargeError    longer than `input.max_record_bytes` or than Iggy can store
    |   `-- ObjectError                the rest of the object cannot be read
    |       |-- CorruptObjectError     not what its format says  (ValueError)
    |       |   `-- TruncatedObjectError   shorter than listed, or its end is missing  (EOFError)
    |       |-- ObjectNotFoundError    gone between list and read  (FileNotFoundError)
    |       |-- ObjectChangedError     overwritten between list and read
    |       `-- ObjectArchivedError    in a storage class that must be restored first
    `-- FatalError                     stop: a person must change something
        |-- ConfigError                every mistake of a configuration at once  (ValueError)
        |-- CredentialsError           no credentials, or wrong ones  (PermissionError)
        |-- AccessDeniedError          right credentials, no permission  (PermissionError)
        |-- BucketNotFoundError        no such bucket  (FileNotFoundError)
        |-- ListingError               a listing that makes no progress or is out of order
        |-- KeyListError               a supplied list of keys that cannot be used as it is  (ValueError)
        |-- IggyAuthError              wrong user, password or token  (PermissionError)
        |-- IggyTopicError             stream or topic missing, or not as configured
        |-- IggyProtocolError          the server speaks another protocol, or refuses a command
        |-- PositionError              positions that cannot be used as they are
        |   |-- PositionMismatchError  a position made with other options (format, chunk size ...)
        |   |-- SourceRunningError     another instance of this source is at work
        |   `-- SourceTakenOverError   another instance of this source was started in place of this one
        |-- TooManySkippedError        more bad data than `[errors]` allows: a wrong format, most likely
        |-- ReaderFailedError          the reader thread ended; its cause is in `__cause__`
        |-- TaskClosedError            used before start or after stop  (ValueError)
        `-- NotAcknowledgedError       commit of what was not handed out or not confirmed  (ValueError)

A message says what failed, where (`s3://bucket/key`, record 41), and what to do. It never holds a credential, a signed
address or the content of a record.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override


class SourceError(Exception):
    """The root: anything that the framework raises on purpose."""


class RetriableError(SourceError):
    """The same call may succeed when it is made again.

    Attributes:
        retry_after_seconds: how long the other side asked to wait, when it said so.
    """

    retry_after_seconds: float | None = None


class ThrottledError(RetriableError):
    """The store asks for fewer requests (503 SlowDown, 429)."""


class StoreUnavailableError(RetriableError, ConnectionError):
    """The store did not answer, or answered with a failure of its own (5xx, reset, timeout)."""


class IggyUnavailableError(RetriableError, ConnectionError):
    """The Iggy server is away, or the connection to it broke; nothing was sent by the call that raised it."""


class UnknownOutcomeError(IggyUnavailableError):
    """A send was under way when the connection broke: its records may be stored, even later. Recover before sending."""


class SkippableError(SourceError):
    """A record or an object is bad; `errors.tolerance` decides whether the source goes on without it.

    Attributes:
        location: the object, as `s3://bucket/key`.
        record_number: the record that failed, counted from 1; None when it is not known.
        byte_offset: where in the object the record starts, when it is known.
    """

    def __init__(
        self, message: str, *, location: str = "", record_number: int | None = None, byte_offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
        self.record_number = record_number
        self.byte_offset = byte_offset

    @override
    def __str__(self) -> str:
        place = self.location
        if self.record_number is not None:
            place = f"{place}, record {self.record_number}" if place else f"record {self.record_number}"
        if self.byte_offset is not None:
            place = f"{place} (byte {self.byte_offset})" if place else f"byte {self.byte_offset}"
        return f"{place}: {self.message}" if place else self.message

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_skippable, (type(self), self.message, self.location, self.record_number, self.byte_offset))


def _rebuild_skippable(
    kind: type[SkippableError], message: str, location: str, record_number: int | None, byte_offset: int | None
) -> SkippableError:
    return kind(message, location=location, record_number=record_number, byte_offset=byte_offset)


class RecordError(SkippableError, ValueError):
    """One record is bad; the records after it can be read."""


class RecordTooLargeError(RecordError):
    """A record is longer than `input.max_record_bytes`, or than an Iggy message can be (64,000,000 bytes)."""


class ObjectError(SkippableError):
    """The rest of an object cannot be read."""


class CorruptObjectError(ObjectError, ValueError):
    """The object is not what its format says: wrong magic bytes, a broken block, text that is not text."""


class TruncatedObjectError(CorruptObjectError, EOFError):
    """The object ends too early: fewer bytes than listed, or a format whose end is missing."""


class ObjectNotFoundError(ObjectError, FileNotFoundError):
    """The object was deleted between list and read."""


class ObjectChangedError(ObjectError):
    """The object was overwritten between list and read; the new version is read from its first record."""


class ObjectArchivedError(ObjectError):
    """The object lies in a storage class that must be restored before it can be read."""


class FatalError(SourceError):
    """A person must change something before this can work."""


class ConfigError(FatalError, ValueError):
    """A configuration with mistakes, all of them at once.

    Attributes:
        mistakes: one sentence each, with the place in the file and the nearest known name.
    """

    def __init__(self, mistakes: Sequence[str] | str, *, origin: str = "") -> None:
        self.mistakes: tuple[str, ...] = (mistakes,) if isinstance(mistakes, str) else tuple(mistakes)
        self.origin = origin
        head = f"{origin}: " if origin else ""
        if len(self.mistakes) == 1:
            super().__init__(f"{head}{self.mistakes[0]}")
        else:
            lines = "".join(f"\n  - {mistake}" for mistake in self.mistakes)
            super().__init__(f"{head}{len(self.mistakes)} mistakes:{lines}")

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_config_error, (self.mistakes, self.origin))


def _rebuild_config_error(mistakes: tuple[str, ...], origin: str) -> ConfigError:
    return ConfigError(mistakes, origin=origin)


class CredentialsError(FatalError, PermissionError):
    """No credentials were found, or the store does not know them."""


class AccessDeniedError(FatalError, PermissionError):
    """The credentials are known but do not allow this."""


class BucketNotFoundError(FatalError, FileNotFoundError):
    """There is no bucket of that name."""


class ListingError(FatalError):
    """A listing made no progress, or came out of order where order is relied on."""


class KeyListError(FatalError, ValueError):
    """A supplied list of keys (`[discovery] keys`) is missing, cut short, other than its checksums say, or senseless."""


class IggyAuthError(FatalError, PermissionError):
    """Iggy refused the user, password or token."""


class IggyTopicError(FatalError):
    """A stream or topic is missing, or is not as the configuration says."""


class IggyProtocolError(FatalError):
    """The server speaks another version of the protocol, or refuses a command."""


class PositionError(FatalError):
    """Positions that cannot be used as they are; the message names the way out."""


class PositionMismatchError(PositionError):
    """A position was made with options that count records in another way (format, chunk size, delimiter ...)."""


class SourceRunningError(PositionError):
    """Another instance of this source is at work."""


class SourceTakenOverError(PositionError):
    """Another instance of this source was started with `--take-over`; this one ends."""


class TooManySkippedError(FatalError):
    """More records or objects are bad than `errors.max_skipped` and `errors.max_skipped_per_hour` allow."""


class ReaderFailedError(FatalError):
    """The reader thread ended with an error, which is the cause of this one."""


class TaskClosedError(FatalError, ValueError):
    """A task or an iterator was used before its start or after its end."""


class NotAcknowledgedError(FatalError, ValueError):
    """A commit of batches that were not handed out, not confirmed, or are out of order."""
