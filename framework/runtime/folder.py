"""The folder of configuration files, looked at every few seconds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import attrs

from framework.config.files import read_file
from framework.config.layers import MAX_BYTES
from framework.model.text import unicode_text
from framework.runtime.configuration import Configuration

log = logging.getLogger(__name__)


class ConfigFolder:
    """The `*.toml` files of a folder as configurations. Not thread-safe.

    A change counts when two looks in a row find the same: a file may be seen half-written. The first look counts at
    once.

    Args:
        path: the folder, or a single file.
        read: returns the configuration in a file.
    """

    def __init__(self, path: Path, read: Callable[[Path], Configuration]) -> None:
        self.path = path
        self._read = read
        self._last: dict[Path, bytes] = {}
        self._settled: dict[Path, bytes] | None = None
        self._configurations: dict[Path, Configuration] = {}
        self._owners: frozenset[Path] = frozenset()
        self._lost = False

    def look(self) -> Mapping[str, Configuration] | None:
        """Return the configurations by key; None while nothing has changed, or the folder cannot be read."""
        try:
            found = {path: self._content(path) for path in self._files()}
        except OSError as error:
            if not self._lost:
                log.error("%s cannot be read, what runs goes on: %s", self.path, error.strerror)  # noqa: TRY400
            self._lost = True
            return None
        self._lost = False
        last, self._last = (found if self._settled is None else self._last), found
        before = self._settled or {}
        looks = {path: found if found.get(path) == last.get(path) else before for path in {*before, *found}}
        settled = {path: look[path] for path, look in looks.items() if path in look}
        if settled == self._settled:
            return None
        self._settled = settled
        self._configurations = {
            path: self._configurations[path] if before.get(path) == data else self._changed(path)
            for path, data in settled.items()
        }
        return self._by_key()

    def read_again(self) -> Mapping[str, Configuration]:
        """Return the configurations by key, after reading again those with a mistake: its cause may lie elsewhere."""
        for path, made in self._configurations.items():
            if made.mistake:
                self._configurations[path] = self._changed(path)
        return self._by_key()

    def _changed(self, path: Path) -> Configuration:
        made, former = self._read(path), self._configurations.get(path)
        if former is not None and not made.source:  # it no longer says whose it is
            return attrs.evolve(made, key=former.key, source=former.source, label=former.label)
        return made

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path] if self.path.is_file() else list(self.path.iterdir())  # raises what is wrong
        return [
            path
            for path in self.path.iterdir()
            if path.suffix == ".toml" and not path.name.startswith(".") and path.is_file()
        ]

    def _content(self, path: Path) -> bytes:
        """Return the content of a file, and of what it includes as far as that is known."""
        known = self._configurations.get(path)
        return content_of((path, *(known.includes if known is not None else ())))

    def _by_key(self) -> dict[str, Configuration]:
        """Return the configurations by key.

        Of two with one key or source, the former owner stays; at the start, the file that is named as it, else the
        first: a copy beside it must not take over when the worker starts again.
        """
        result: dict[str, Configuration] = {}
        sources: dict[str, Path] = {}
        owners: set[Path] = set()
        for path in sorted(self._configurations, key=self._rank):
            made = self._configurations[path]
            other = sources.get(made.source) or (result[made.key].path if made.key in result else None)
            if other is not None:
                what = f'source "{made.source}"' if made.source in sources else f'key "{made.key}"'
                mistake = f"{path}: the {what} is also in {other}: rename one of them, or remove a file"
                key = _free(unicode_text(path.name), result)
                made = attrs.evolve(made, key=key, source="", mistake=unicode_text(mistake))
            else:
                owners.add(path)
                if made.source:
                    sources[made.source] = path
            result[made.key] = made
        self._owners = frozenset(owners)
        return result

    def _rank(self, path: Path) -> tuple[bool, bool, Path]:
        made = self._configurations[path]
        return path not in self._owners, path.stem not in {made.key, made.source}, path


def _free(key: str, taken: Mapping[str, object]) -> str:
    while key in taken:
        key += "_"
    return key


def content_of(paths: Iterable[Path]) -> bytes:
    """Return the content of files, to find changes; of one that cannot be read, nothing: reading it again then says why."""
    content = b""
    for path in paths:
        with contextlib.suppress(OSError):
            content += read_file(path, MAX_BYTES, may_wait=False)
        content += b"\0"
    return content
