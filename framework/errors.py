"""Every error of the framework, grouped by how to react to it.

    SourceError
    |-- RetriableError                 retry: the same call may succeed (exit code 1)
    |   |-- ThrottledError             the store asks to slow down (503 SlowDown, 429)
    |   |-- StoreUnavailableError      5xx, reset, timeout, name not resolved  (ConnectionError)
    |   |-- SparkUnavailableError      Spark's master or its executors did not answer in time  (ConnectionError)
    |   `-- IggyUnavailableError       server down, connection broken, no answer in time  (ConnectionError)
    |       `-- UnknownOutcomeError    a send whose records may or may not be stored: recover, never just send again
    |-- SkippableError                 a bad record or object; `errors.tolerance` decides
    |   |-- RecordError                a bad record; the rest of the object is readable  (ValueError)
    |   |   |-- RecordTooLargeError    longer than `input.max_record_bytes` or than Iggy can store
    |   |   `-- RecordTransformError   readable, but a transform cannot handle it
    |   `-- ObjectError                the rest of the object is unreadable
    |       |-- CorruptObjectError     does not match its format  (ValueError)
    |       |   `-- TruncatedObjectError   shorter than listed, or its end is missing  (EOFError)
    |       |-- ObjectNotFoundError    deleted between list and read  (FileNotFoundError)
    |       |-- ObjectChangedError     overwritten between list and read
    |       |-- ObjectArchivedError    in a storage class that requires a restore first
    |       `-- ObjectDeniedError      read denied, while other objects are readable  (PermissionError)
    `-- FatalError                     stop: a person must change something
        |-- ConfigError                all mistakes of a configuration together  (ValueError)
        |-- CredentialsError           missing or wrong credentials  (PermissionError)
        |-- AccessDeniedError          valid credentials without the permission  (PermissionError)
        |-- BucketNotFoundError        no such bucket  (FileNotFoundError)
        |-- ListingError               a listing that makes no progress or is out of order
        |-- KeyListError               a supplied list of keys that is unusable as it is  (ValueError)
        |-- IggyAuthError              wrong user, password or token  (PermissionError)
        |-- IggyTopicError             stream or topic missing, or not as configured
        |-- IggyProtocolError          the server speaks another protocol, or refuses a command
        |-- PositionError              positions that are unusable as they are
        |   |-- PositionMismatchError  a position made with other options (format, chunk size ...)
        |   |-- SourceRunningError     another instance of this source is running
        |   `-- SourceTakenOverError   another instance of this source took over from this one
        |-- StoreContractError         a store's code raised an error that is none of these, or returned what it may not
        |-- FormatContractError        a format returned records with other numbers, or no records at all
        |-- TransformContractError     a transform returned what cannot come from its records
        |-- TooManySkippedError        more bad data than `[errors]` allows: most likely a wrong format
        |-- ReaderFailedError          the reader thread failed; its cause is in `__cause__`
        |-- TaskClosedError            used before start or after stop  (ValueError)
        `-- NotAcknowledgedError       commit of batches that were not polled or not confirmed  (ValueError)

A message says what failed, where (`s3://bucket/key`, record 41), and what to do. It never contains a credential, a
signed address or the content of a record.

Each class defines the exit code of the program in `exit_code`: `EXIT_TRY_AGAIN`, `EXIT_CONFIGURATION` or `EXIT_PERSON`.
A supervisor restarts after the first and leaves the other two to a person.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterator, Sequence

from typing_extensions import override

EXIT_DONE = 0
"""The work is complete, or a continuous source was stopped on request."""

EXIT_TRY_AGAIN = 1
"""The same command may succeed later: a server was down, or `--once` was interrupted."""

EXIT_CONFIGURATION = 2
"""The configuration or the command line has a mistake."""

EXIT_PERSON = 3
"""A person must act: wrong credentials, a missing permission, a bad object."""


MESSAGE_CHARACTERS = 5000
"""Maximum length of the message of an error of a record or an object; the rest is cut off."""


class SourceError(Exception):
    """The root of all errors that the framework raises on purpose.

    Attributes:
        exit_code: the exit code of the program after this error.
    """

    exit_code: int = EXIT_PERSON


class RetriableError(SourceError):
    """The same call may succeed when retried.

    Attributes:
        retry_after_seconds: the wait that the server asked for; None when it asked for none.
    """

    exit_code = EXIT_TRY_AGAIN
    retry_after_seconds: float | None = None


class ThrottledError(RetriableError):
    """The store asks for fewer requests (503 SlowDown, 429)."""


class StoreUnavailableError(RetriableError, ConnectionError):
    """The store did not answer, or answered with a server error (5xx, reset, timeout)."""


class SparkUnavailableError(RetriableError, ConnectionError):
    """Spark's master or its executors did not answer in time."""


class IggyUnavailableError(RetriableError, ConnectionError):
    """The Iggy server is down, or its connection broke; the failed call sent nothing."""


class UnknownOutcomeError(IggyUnavailableError):
    """The connection broke during a send: its records may be stored, even later. Recover before sending."""


class SkippableError(SourceError):
    """A record or an object is bad; `errors.tolerance` decides whether the source skips it.

    Attributes:
        message: what is wrong, in at most `MESSAGE_CHARACTERS`.
        location: the object, as `s3://bucket/key`.
        record_number: the record that failed, counted from 1; None when unknown.
        byte_offset: where the record starts in the object; None when unknown.
    """

    def __init__(
        self, message: str, *, location: str = "", record_number: int | None = None, byte_offset: int | None = None
    ) -> None:
        if len(message) > MESSAGE_CHARACTERS:  # it may name what stands in the object
            message = f"{message[: MESSAGE_CHARACTERS - 3]}..."
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


class RecordError(SkippableError, ValueError):
    """A record is bad; the records after it are readable."""


class RecordTooLargeError(RecordError):
    """A record exceeds `input.max_record_bytes` or the limit of an Iggy message (64,000,000 bytes)."""


class RecordTransformError(RecordError):
    """The format could read a record, and a transform could not handle it.

    Its dead letter holds the record as the format gave it, before the transforms.
    """


class ObjectError(SkippableError):
    """The rest of an object is unreadable."""


class CorruptObjectError(ObjectError, ValueError):
    """The object does not match its format: wrong magic bytes, a broken block, invalid text."""


class TruncatedObjectError(CorruptObjectError, EOFError):
    """The object ends too early: it has fewer bytes than listed, or its format's end is missing."""


class ObjectNotFoundError(ObjectError, FileNotFoundError):
    """The object was deleted between list and read."""

    exit_code = EXIT_TRY_AGAIN


class ObjectChangedError(ObjectError):
    """The object was overwritten between list and read; the new version is read from its first record.

    Attributes:
        in_place: whether a listing may show the new content in the version of the old one. It is read from its first
            record all the same.
    """

    exit_code = EXIT_TRY_AGAIN
    in_place: bool = False


class ObjectArchivedError(ObjectError):
    """The object is in a storage class that requires a restore before a read."""


class ObjectDeniedError(ObjectError, PermissionError):
    """Access to this object is denied, while other objects of the bucket are readable.

    Its KMS key, its tags or its owner forbid the read.
    """


class FatalError(SourceError):
    """A person must change something before the source can run."""


class ConfigError(FatalError, ValueError):
    """All mistakes of a configuration, reported together.

    Attributes:
        mistakes: one sentence per mistake, with its place in the file and the nearest known name.
    """

    exit_code = EXIT_CONFIGURATION

    def __init__(self, mistakes: Sequence[str] | str, *, origin: str = "") -> None:
        self.mistakes: tuple[str, ...] = (mistakes,) if isinstance(mistakes, str) else tuple(mistakes)
        self.origin = origin
        head = f"{origin}: " if origin else ""
        if len(self.mistakes) == 1:
            super().__init__(f"{head}{self.mistakes[0]}")
        else:
            lines = "".join(f"\n  - {mistake}" for mistake in self.mistakes)
            super().__init__(f"{head}{len(self.mistakes)} mistakes:{lines}")


class CredentialsError(FatalError, PermissionError):
    """No credentials were found, or the store does not know them."""


class AccessDeniedError(FatalError, PermissionError):
    """The credentials are valid but do not permit this action."""


class BucketNotFoundError(FatalError, FileNotFoundError):
    """No bucket has this name."""


class ListingError(FatalError):
    """A listing made no progress, or came out of order where the framework relies on order."""


class KeyListError(FatalError, ValueError):
    """A supplied list of keys (`[discovery] keys`) is missing, truncated, invalid, or fails its checksums."""


class IggyAuthError(FatalError, PermissionError):
    """Iggy refused the user, password or token."""


class IggyTopicError(FatalError):
    """A stream or topic is missing, or does not match the configuration."""


class IggyProtocolError(FatalError):
    """The server speaks another version of the protocol, or refuses a command."""


class PositionError(FatalError):
    """Positions are unusable as they are; the message says how to resolve that."""


class PositionMismatchError(PositionError):
    """A position was made with options that number records differently (format, chunk size, delimiter ...)."""


class SourceRunningError(PositionError):
    """Another instance of this source is running, or ended so recently that Iggy has not noticed."""

    exit_code = EXIT_TRY_AGAIN


class SourceTakenOverError(PositionError):
    """Another instance of this source was started with `--take-over`; this instance ends."""


class StoreContractError(FatalError):
    """A store or an iterator raised an error that is not one of these, or returned what its contract does not allow."""

    exit_code = EXIT_TRY_AGAIN


class FormatContractError(FatalError):
    """A transformer yielded something that is not a batch, or records with other numbers than the next ones."""


class TransformContractError(FatalError):
    """A transform returned more records than it was given, others, or in another order, or changed headers in place."""


class TooManySkippedError(FatalError):
    """Bad records or objects exceed `errors.max_bad_records` or `errors.max_bad_records_per_hour`."""


_SKIP_RECORD = '; correct it, or go on behind it with [errors] tolerance = "skip_record"'
_SKIP_OBJECT = '; upload it again, leave it out with [discovery] exclude, or set [errors] tolerance = "skip_record"'


class ReaderFailedError(FatalError):
    """The reader thread failed; the original error is the cause.

    Attributes:
        unexpected: the class name of an unexpected cause; empty for a `SourceError`.
        trace: the traceback of such a cause. Both cross process boundaries, which a cause does not.
    """

    unexpected: str = ""
    trace: str = ""

    @classmethod
    def of(cls, cause: BaseException) -> ReaderFailedError:
        """Build the error for a reader that failed with `cause`: its exit code, its message, and the way out."""
        if missing := missing_package(cause):
            error = cls(missing)
            error.exit_code = EXIT_PERSON
            return error
        advice = _SKIP_RECORD if isinstance(cause, RecordError) else ""
        if isinstance(cause, CorruptObjectError):
            advice = _SKIP_OBJECT
        error = cls(f"{cause}{advice}")
        error.exit_code = exit_code_of(cause)
        if not isinstance(cause, SourceError):
            error.unexpected = type(cause).__name__
            error.trace = "".join(traceback.format_exception(cause))
        return error

    @override
    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.unexpected}: {text}" if self.unexpected else text


class TaskClosedError(FatalError, ValueError):
    """A task or an iterator was used before its start or after its end."""


class NotAcknowledgedError(FatalError, ValueError):
    """A commit of batches that were not polled, not confirmed, or out of order."""


_OWN_CODE = ("framework", "transformers", "contextlib")


def raised_at(error: BaseException) -> str:
    """Return where the code of an author failed: `my_package.store, line 12, in read`.

    That is the first place of the traceback outside of the framework; the last one if there is none.
    """
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", "?"))
        place = f"{module}, line {line}, in {frame.f_code.co_name}"
        if module.partition(".")[0] not in _OWN_CODE:
            break
    return place


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, each once: `raise first from second` may close a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error that was handled, and of its causes.

    A function that names an error in a variable is a cycle with the error's traceback: what its frames hold, such as some
    megabytes of an object, would stay until Python looks for cycles.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += [one.__cause__, one.__context__]


def cannot_listen(option: str, address: str, error: OSError) -> ConfigError:
    """Return the error for a port that cannot be opened. The owner of a port in use may end."""
    made = ConfigError(f"{option}: cannot listen at {address}: {error.strerror or type(error).__name__}")
    if error.errno == errno.EADDRINUSE:
        made.exit_code = EXIT_TRY_AGAIN
    return made


OWN_PACKAGES = ("framework", "transformers", "s3_source", "gcs_source")
"""Executors get them as far as they are installed here, and their loggers follow the configured level."""


def missing_package(error: BaseException | None) -> str:
    """Return the sentence about a package that is not installed; empty for other errors, and if a module of ours is missing."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not name or name in OWN_PACKAGES:
        return ""
    return f'the Python package "{name}" is needed and not installed for {sys.executable}: install it with pip'


def is_low_memory(error: BaseException | None) -> bool:
    """Return whether memory or threads ran out: so says the error, or one of its causes.

    A bad record or object is none of them, even if its damage made a library ask for more memory than any machine has.
    """
    for cause in causes(error):
        if isinstance(cause, SkippableError):
            return False
        refused = isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        if refused or isinstance(cause, MemoryError) or "can't start new thread" in str(cause):
            return True
    return False


def is_of_machine(error: BaseException) -> bool:
    """Return whether an error says something about this machine, and so nothing about the data that was being read.

    Memory or threads ran out, a module is missing or cannot be loaded, or the system refused a call (a full disk).
    """
    system = isinstance(error, OSError) and not isinstance(error, SourceError) and error.errno is not None
    return system or isinstance(error, ImportError) or is_low_memory(error)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of the program for an error. Unexpected errors may be retried."""
    return error.exit_code if isinstance(error, SourceError) else EXIT_TRY_AGAIN
