"""Starts the sources of a folder, stops them, and restarts them by a policy. Each is alone in its failure.

Exit code 1 of a source, or its death by a signal: started again, after a pause that doubles with each failure. Exit
codes 2 and 3: in error until its configuration changes or a person restarts it.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

from framework.errors import EXIT_CONFIGURATION, EXIT_DONE, EXIT_PERSON, EXIT_TRY_AGAIN
from framework.runtime.configuration import Configuration
from framework.runtime.folder import content_of
from framework.runtime.managed_source import Failure, ManagedSource
from framework.runtime.state import PAUSED, RUNNING, STOPPED, StateFolder

if TYPE_CHECKING:
    from framework.runtime.children import ChildProcess
    from framework.runtime.folder import ConfigFolder

log = logging.getLogger(__name__)

FOLDER_SECONDS = 2.0
"""Interval at which the folder is looked at."""

STOP_SECONDS = 20.0
"""Time that a source has to stop in order; a run needs five seconds at most. Afterwards it is killed."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0

SOUND_SECONDS = 60.0
"""A source that ran so long before it failed is started again after the shortest pause."""

_TICK_SECONDS = 0.5

_STOPPED = frozenset({EXIT_TRY_AGAIN, -signal.SIGTERM, -signal.SIGINT})
"""How a source ends, beside `EXIT_DONE`, that is asked to stop while it still loads."""

Start = Callable[[Configuration, Callable[[], None]], "ChildProcess"]
"""Starts the source of a configuration; the second argument is called when it ends."""


MAX_VERSIONS = 100
"""Stored configuration versions of one source. More are refused: each is a file, and is read for every list of them."""


class BusyError(Exception):
    """The request does not fit the state of the source; the message says which would."""


class NotStoppedError(BusyError):
    """The request needs a stopped source."""


class UnknownSourceError(Exception):
    """There is no source with that key."""


class UnknownVersionError(Exception):
    """The source has no configuration with that version."""


@attrs.define(eq=False, repr=False, slots=False)
class Supervisor:
    """The sources of a worker. Thread-safe; `run` belongs to the main thread.

    Args:
        folder: the configuration files.
        state: what survives a restart of the worker; open.
        start: starts a process.
        read_version: returns the configuration in a stored version of a key.
        single: the one source of a program: its end by itself is the end of `run`.
        clock: monotonic seconds.
    """

    _folder: ConfigFolder
    _state: StateFolder
    _start: Start
    _read_version: Callable[[str, int], Configuration]
    _single: bool = attrs.field(default=False, kw_only=True)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _sources: dict[str, ManagedSource] = attrs.field(factory=dict, init=False)
    _ids: int = attrs.field(default=0, init=False)
    _look_at: float = attrs.field(default=0.0, init=False)
    _lock: threading.RLock = attrs.field(factory=threading.RLock, init=False)
    _woken: threading.Event = attrs.field(factory=threading.Event, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _exit_code: int | None = attrs.field(default=None, init=False)

    # ---- the loop

    def run(self) -> int:
        """Supervise until `stop`, or until a single source has ended. Return the exit code."""
        while not self.tick():
            self._woken.wait(_TICK_SECONDS)
            self._woken.clear()
        return self._exit_code or EXIT_DONE

    @property
    def ended(self) -> bool:
        """Whether a single source has ended by itself, or was running when `stop` came."""
        return self._exit_code is not None

    def stop(self) -> None:
        """Stop all sources in order and end `run`. Returns at once; callable from any thread, but not from a signal handler."""
        self._stopping = True
        self._woken.set()

    def wake(self) -> None:
        """Look at the sources again soon. Callable from any thread."""
        self._woken.set()

    def tick(self) -> bool:
        """Do what is due; return whether everything has ended."""
        with self._lock:
            if not self._stopping and self._clock() >= self._look_at:
                self._look_at = self._clock() + FOLDER_SECONDS
                found = self._folder.look()
                if found is not None:
                    self._apply(found)
                for source in self._sources.values():
                    self._look_at_version(source)
            for source in list(self._sources.values()):
                self._reap(source)
                self._reconcile(source)
                if source.removed and source.child is None and not source.busy:
                    del self._sources[source.key]
            over = self._stopping or self._exit_code is not None
            return over and all(source.child is None for source in self._sources.values())

    def _apply(self, found: Mapping[str, Configuration]) -> None:
        if not found and self._folder.path.is_dir():
            log.warning("%s has no file *.toml: a source starts as soon as there is one", self._folder.path)
        for key, source in self._sources.items():
            if key not in found and not source.removed:
                renamed = any(made.path == source.file.path for made in found.values())
                what = "has another key now" if renamed else "is gone"
                log.warning("%s: its file %s %s: stopping", key, source.file.path, what)
                source.removed = True
        for key, made in found.items():
            known = self._sources.get(key)
            if known is not None and made == known.file and not known.removed:
                continue
            source = known or self._add(made)
            source.file, source.removed = made, False
            self._activate(source)

    def _look_at_version(self, source: ManagedSource) -> None:
        """Read an activated version again when a file that it includes has changed; the folder does so for its files."""
        active = source.active
        if source.removed or active.path == source.file.path or not active.includes:
            return
        found = content_of(active.includes)
        last, source.seen = source.seen, found
        if found == last and found != source.settled:
            source.settled = found
            if self._kept_version(source, active.version) != active:
                log.info("%s: a file that version %d includes has changed", source.key, active.version)
                self._activate(source)

    def _add(self, made: Configuration) -> ManagedSource:
        self._ids += 1
        kept = self._state.get(made.key).state
        source = self._sources[made.key] = ManagedSource(id=self._ids, file=made, active=made, kept_state=kept)
        if kept != RUNNING:
            log.info("%s: %s, as before the last end of the worker", made.key, kept)
        return source

    def _activate(self, source: ManagedSource) -> None:
        """Take the active version as what is to run."""
        kept = self._state.get(source.key).active
        if kept == source.file.version:
            self._follow_file(source)
        if kept is None or kept == source.file.version:
            source.active = source.file
        else:
            source.active = self._kept_version(source, kept)
            log.info("%s: version %d is active, not version %d of its file", source.key, kept, source.file.version)
        active = source.active
        self._forget_failures(source)
        if active.mistake:
            running = "; the former configuration runs on" if source.child is not None else ""
            self._failed(source, active.mistake, running)
        elif not active.enabled:
            log.info("%s: enabled = false", source.key)

    def _follow_file(self, source: ManagedSource) -> None:
        """Let a file that took the number of the activated version replace it: its next number must not bring that back."""
        try:
            self._state.change(source.key, active=None)
        except OSError as error:
            what, reason = f"that version {source.file.version} is its file's now", error.strerror or error
            log.error("%s: %s cannot be kept: %s", source.key, what, reason)  # noqa: TRY400 - the next change tries again

    def _kept_version(self, source: ManagedSource, version: int) -> Configuration:
        """Return the activated version. One that is gone is a mistake: running another instead would surprise."""
        try:
            return self._read_version(source.key, version)
        except UnknownVersionError:
            mistake = f"version {version} is active and cannot be read, it is gone: activate another"
            return attrs.evolve(source.file, version=version, mistake=mistake)

    def _failed(self, source: ManagedSource, message: str, then: str = "") -> None:
        source.errors += 1
        source.last_error = Failure(message, time.time_ns() // 1000)
        log.error("%s: %s%s", source.key, " ".join(message.split("\n  ")), then)  # several mistakes have a line each

    def _reap(self, source: ManagedSource) -> None:
        child = source.child
        code = child.poll() if child is not None else None
        if child is None or code is None:
            if child is not None and source.stop_at is not None and self._clock() >= source.stop_at:
                log.error("%s: pid %d did not stop within %.0f seconds: killed", source.key, child.pid, STOP_SECONDS)
                source.stop_at = self._clock() + STOP_SECONDS
                child.kill()
            return
        child.close()
        asked, ran = source.stop_at is not None, self._clock() - source.started_at
        # what it was started with is no longer wanted, or a person has just asked for a restart: then none is waited for
        may_hold = not asked and not source.restart and source.running == source.active
        source.past = source.progress.without_state()
        source.child, source.running, source.stop_at = None, None, None
        if asked and (code <= EXIT_DONE or (code == EXIT_TRY_AGAIN and not child.error)):
            code = EXIT_DONE if code in _STOPPED else code
            log.info("%s: stopped", source.key)
        elif code == EXIT_DONE:
            source.held = may_hold
            log.warning("%s: pid %d ended by itself, exit code 0", source.key, child.pid)
        else:
            source.past.store_away = 1  # which of the two failed is not known
            source.held = may_hold and code in {EXIT_CONFIGURATION, EXIT_PERSON}
            self._ended_in_error(source, child, code, asked=asked, ran=ran)
        if self._single and (not asked or self._stopping):
            self._exit_code = code if code >= 0 else EXIT_TRY_AGAIN
        elif source.active.mistake and not source.removed:
            self._failed(source, source.active.mistake)

    def _ended_in_error(
        self, source: ManagedSource, child: ChildProcess, code: int, *, asked: bool, ran: float
    ) -> None:
        what = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        message = child.error or f"pid {child.pid} {what}"
        if source.held or asked or self._single or source.active.mistake:  # none of these is started again by itself
            self._failed(source, message, f" (exit code {code}: waiting for a person)" if source.held else "")
            return
        source.failures = 1 if ran >= SOUND_SECONDS else source.failures + 1
        pause = _pause_seconds(source.failures)
        source.retry_at = self._clock() + pause
        source.restarts += 1
        self._failed(source, message, f"; starting again in {pause:.0f} seconds")

    def _reconcile(self, source: ManagedSource) -> None:
        over = self._stopping or self._exit_code is not None
        wanted = source.wanted and not over
        if source.child is not None:
            changed = not source.active.mistake and source.running != source.active
            if source.stop_at is None and (not wanted or changed or source.restart):
                log.info("%s: stopping pid %d", source.key, source.child.pid)
                source.stop_at = self._clock() + STOP_SECONDS
                source.child.stop()
            return
        source.restart = False
        due = not source.held and self._clock() >= source.retry_at
        if wanted and due and not source.active.mistake:
            self._begin(source)
        elif self._single and wanted and source.active.mistake:
            self._exit_code = EXIT_CONFIGURATION

    def _begin(self, source: ManagedSource) -> None:
        """Begin, unless it still runs under another key, or its offsets are being changed there."""
        others = [other for other in self._sources.values() if other is not source and (other.running or other.busy)]
        first = next((each for each in others if (each.running or each.active).source == source.active.source), None)
        waits_for = first.key if first is not None else ""
        if waits_for and waits_for != source.waits_for:
            log.info(
                "%s: waits for the end of %s, which still has the source %s",
                source.key,
                waits_for,
                source.active.source,
            )
        source.waits_for = waits_for
        if waits_for:
            return
        source.started_at = self._clock()
        try:
            source.child = self._start(source.active, self.wake)
        except OSError as error:
            source.failures += 1
            source.retry_at = self._clock() + _pause_seconds(source.failures)
            self._failed(source, f"its process cannot be started: {error.strerror or error}")
            return
        source.running, source.stop_at = source.active, None
        log.info("%s: started, pid %d, version %d", source.key, source.child.pid, source.active.version)

    # ---- what the API asks

    @contextlib.contextmanager
    def locked(self) -> Iterator[list[ManagedSource]]:
        """Yield the sources in their order; they do not change meanwhile."""
        with self._lock:
            yield [source for source in self._sources.values() if not source.removed]

    @contextlib.contextmanager
    def source(self, key: str) -> Iterator[ManagedSource]:
        """Yield a source, which does not change meanwhile.

        Raises:
            UnknownSourceError: there is none.
        """
        with self._lock:
            source = self._sources.get(key)
            if source is None or source.removed:
                raise UnknownSourceError(key)
            yield source

    def set_state(self, key: str, state: str) -> None:
        """Run, pause or stop a source; kept over restarts. Idempotent.

        Raises:
            UnknownSourceError: there is none.
            OSError: the state cannot be kept; nothing has changed.
        """
        with self.source(key) as source:
            if state == RUNNING and source.kept_state != RUNNING:
                self._forget_failures(source)
            source.kept_state = self._state.change(key, state=state).state
            log.info("%s: %s, as asked", key, {RUNNING: "resumed", PAUSED: "paused", STOPPED: "stopped"}[state])
        self.wake()

    def restart(self, key: str) -> None:
        """Stop a source and start it again, also after an error. A wrong configuration is read again.

        Raises:
            UnknownSourceError: there is none.
            BusyError: it is paused, stopped or disabled, or its configuration is wrong.
        """
        with self.source(key) as source:
            if source.kept_state != RUNNING:
                raise BusyError(f"{key} is {source.kept_state}: resume it")
            if source.active.mistake:
                self._apply(self._folder.read_again())
                self._activate(source)
            if source.active.mistake and not source.removed:  # a file that names its source now is another
                raise BusyError(source.active.mistake)
            if not source.active.enabled:
                stored = source.active.path != source.file.path
                way = "activate another version" if stored else f"set enabled = true in {source.active.path}"
                raise BusyError(f"{key} is disabled: {way}")
            log.info("%s: restarting, as asked", key)
            self._forget_failures(source)
            source.restart = source.child is not None
        self.wake()

    @staticmethod
    def _forget_failures(source: ManagedSource) -> None:
        source.held, source.failures, source.retry_at = False, 0, 0.0
        if not source.active.mistake:
            source.last_error = None

    @contextlib.contextmanager
    def while_stopped(self, key: str) -> Iterator[Configuration]:
        """Yield the active configuration of a stopped source, which does not start meanwhile.

        Raises:
            UnknownSourceError: there is none.
            NotStoppedError: it is not stopped.
            BusyError: another change is under way.
        """
        with self.source(key) as source:
            if source.kept_state != STOPPED or source.child is not None:
                state = PAUSED if source.kept_state == PAUSED and source.child is None else source.status
                when = "when it has ended" if source.kept_state == STOPPED else f"after PUT /connectors/{key}/stop"
                raise NotStoppedError(f"{key} is {state}: its offsets can be changed {when}")
            if source.busy:
                raise BusyError(f"{key}: another change of its offsets is under way")
            source.busy = True
        try:
            yield source.active
        finally:
            with self._lock:
                source.busy = False
            self.wake()

    def versions(self, key: str) -> dict[int, Configuration]:
        """Return all configurations of a source, by version. The file's hides a stored one of its number.

        Raises:
            UnknownSourceError: there is none.
        """
        with self.source(key) as source:
            stored = {version: self._read_version(key, version) for version in self._state.versions(key)}
            return dict(sorted({**stored, source.file.version: source.file}.items()))

    def version(self, key: str, version: int) -> Configuration:
        """Return a configuration of a source, as `versions` does.

        Raises:
            UnknownSourceError, UnknownVersionError: there is none.
        """
        with self.source(key) as source:
            return source.file if version == source.file.version else self._read_version(key, version)

    def add_version(self, key: str, data: Callable[[int], bytes]) -> Configuration:
        """Store a configuration as the next version of a source; it is not active yet.

        Args:
            key: the key of the source.
            data: returns the content of its file, given the version.

        Raises:
            UnknownSourceError: there is none.
            BusyError: it has `MAX_VERSIONS` stored versions.
            OSError: it cannot be stored.
        """
        with self.source(key) as source:
            stored = self._state.versions(key)
            if len(stored) >= MAX_VERSIONS:
                raise BusyError(
                    f"{key} has {len(stored)} stored configuration versions, as many as are kept: delete one with "
                    f"DELETE /sources/{key}/configs?version={next(iter(stored))}"
                )
            version = 1 + max([source.file.version, self._state.get(key).last, *stored])
            self._state.change(key, last=version)
            self._state.add(key, version, data(version))
            log.info("%s: version %d stored", key, version)
            return self._read_version(key, version)

    def activate(self, key: str, version: int) -> None:
        """Make a version the active one: a running source is stopped in order and started with it.

        Raises:
            UnknownSourceError, UnknownVersionError: there is none.
            BusyError: the version has a mistake.
            OSError: it cannot be kept; nothing has changed.
        """
        with self.source(key) as source:
            made = self.version(key, version)
            if made.mistake:
                raise BusyError(made.mistake)
            self._state.change(key, active=None if version == source.file.version else version)
            log.info("%s: version %d activated", key, version)
            self._activate(source)
        self.wake()

    def remove_version(self, key: str, version: int | None) -> None:
        """Delete a stored version; by default the active one, after which the file's is active.

        Raises:
            UnknownSourceError, UnknownVersionError: there is none.
            BusyError: it is the version of the file.
            OSError: it cannot be deleted.
        """
        with self.source(key) as source:
            number = source.active.version if version is None else version
            stored = self._state.versions(key)
            of_file = number == source.file.version  # it hides a stored one of its number, which can be deleted by it
            if of_file and (version is None or number not in stored):
                raise BusyError(f"version {number} of {key} is the file {source.file.path}: change that")
            if number not in stored:
                raise UnknownVersionError(key, number)
            if self._state.get(key).active == number:
                self._state.change(key, active=None)
            if source.active.path == stored[number]:
                self._activate(source)
            self._state.remove(stored[number])
            log.info("%s: version %d deleted", key, number)
        self.wake()


def _pause_seconds(failures: int) -> float:
    """Return the pause after so many failures in a row, one or more; a source that is left alone fails for days."""
    doublings = min(failures - 1, 60)  # a float has no power of two for each number of failures
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**doublings)
