"""What a worker keeps over its own end: paused and stopped sources, configuration versions, and which are active.

    STATE_DIR/worker.lock                      held while a worker runs
    STATE_DIR/state.json                       {"sources": {"orders": {"state": "paused", "active": 3, "last": 4}}}
    STATE_DIR/source_orders_3.toml             version 3 of the source with the key `orders`

Each file is replaced as a whole: after `kill -9` it is as before or as after. Configurations may contain secrets, so
only the owner can read the folder, and a folder of another user is refused (not by a worker that runs as root).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct
from typing_extensions import Self

from framework.errors import EXIT_TRY_AGAIN, ConfigError
from framework.model.private_files import ForeignFolderError, make_private, open_draft, open_lock

RUNNING, PAUSED, STOPPED = "running", "paused", "stopped"

_VERSION_FILE = re.compile(r"source_(.+)_(\d+)\.toml")


class KeptState(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kept state of a source.

    Attributes:
        state: what a person asked for: `running`, `paused` or `stopped`.
        active: the activated configuration version; None for the version of the file.
        last: the highest number that a stored version has had; each number is given once.
    """

    state: Literal["running", "paused", "stopped"] = "running"
    active: int | None = None
    last: int = 0


class _File(Struct):
    sources: dict[str, KeptState]


class StateFolder:
    """The kept state of a worker, in a folder of its own. A context manager; thread-safe under the caller's lock.

    Args:
        path: the folder; created when missing.
        option: the name of the option that gave it, for messages.

    Attributes:
        path: as given.
    """

    def __init__(self, path: Path, *, option: str = "--state-dir") -> None:
        self.path = path
        self._option = option
        self._open = contextlib.ExitStack()
        self._states: dict[str, KeptState] = {}

    def __enter__(self) -> Self:
        """Open the folder.

        Raises:
            ConfigError: it cannot be used, its content is damaged, or another worker uses it.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                make_private(self.path, may_be_shared=True)
                lock = stack.enter_context(os.fdopen(open_lock(self.path / "worker.lock"), "ab"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                error = ConfigError(f"{self._option}: another worker uses {self.path}; give each its own folder")
                error.exit_code = EXIT_TRY_AGAIN  # it may end
                raise error from None
            except ForeignFolderError as foreign:
                raise ConfigError(f"{self._option}: {foreign}") from None
            except OSError as failure:
                reason = failure.strerror or type(failure).__name__
                raise ConfigError(f"{self._option}: the folder {self.path} cannot be used: {reason}") from None
            self._states = self._read()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def get(self, key: str) -> KeptState:
        """Return the kept state of a source; the default for an unknown one."""
        return self._states.get(key, KeptState())

    def change(self, key: str, **changes: Any) -> KeptState:
        """Keep a changed state, and return it.

        Raises:
            OSError: it cannot be written; nothing has changed.
        """
        changed = msgspec.structs.replace(self.get(key), **changes)
        if changed != self.get(key):
            states = {**self._states, key: changed}
            self._write("state.json", msgspec.json.format(msgspec.json.encode(_File(states), order="sorted")))
            self._states = states
        return changed

    def versions(self, key: str) -> Mapping[int, Path]:
        """Return the stored configuration versions of a source, by number."""
        found: dict[int, Path] = {}
        for path in self.path.glob("source_*.toml"):
            parts = _VERSION_FILE.fullmatch(path.name)
            if parts is not None and parts[1] == quote(key, safe=""):
                found[int(parts[2])] = path
        return dict(sorted(found.items()))

    def add(self, key: str, version: int, data: bytes) -> Path:
        """Store a version of a source's configuration.

        Raises:
            OSError: it cannot be written.
        """
        return self._write(f"source_{quote(key, safe='')}_{version}.toml", data)

    def remove(self, path: Path) -> None:
        """Delete a stored version. Idempotent."""
        path.unlink(missing_ok=True)

    def _read(self) -> dict[str, KeptState]:
        path = self.path / "state.json"
        for draft in self.path.glob("*.tmp"):  # of a worker that was killed
            with contextlib.suppress(OSError):  # a folder is no draft
                draft.unlink(missing_ok=True)
        try:
            return msgspec.json.decode(path.read_bytes(), type=_File).sources
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self._option}: {path} cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConfigError(
                f"{self._option}: {path} is damaged: restore it, or delete it; paused sources then run"
            ) from None

    def _write(self, name: str, data: bytes) -> Path:
        path, draft = self.path / name, self.path / f"{name}.tmp"
        try:
            with os.fdopen(open_draft(draft), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error  # a write on a full disk names no file
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return path
