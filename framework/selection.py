"""Which listed objects are data to read, and why the others are not.

What is left out is never silent: each reason is counted, and the counts of a pass go to the log and the metrics.

A Delta Lake, Iceberg or Hudi table is a folder of Parquet files of which only some are valid at any time: which ones,
its log says. Reading the files as they lie would send deleted and rewritten rows. So the source stops when it is about
to read Parquet files below such a log. What a listing can show of that is limited, and this is how far it goes:

- the log's own keys tell where a table is. Delta's `_delta_log/` and Hudi's `.hoodie/` sort before most names of data
  files, Iceberg's `metadata/` after `data/`, and ranges that are listed side by side come in any order. A log that comes
  late in the listing is noticed when it comes, by the folders of the Parquet files chosen before it; some files of the
  table may have been handed out by then;
- `log_prefixes` names what to list before the first pass, one page each, and `Selector.remember_logs` takes what came:
  so a prefix that *is* a table (the common case) is refused before anything is read.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from framework.errors import ConfigError
from framework.globs import compile_globs
from framework.naming import NOTHING_NAMED, NameMatch, Router
from framework.records import Lane, NativeObject
from framework.selected import SelectedObjects

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig


class LeftOut(str, enum.Enum):
    """Why an object is not read. The texts stand in logs and metrics."""

    EMPTY = "empty"
    FOLDER_MARK = "folder mark"
    HIDDEN = "hidden"
    NOT_MATCHED = "not matched by the template"
    NOT_INCLUDED = "not included"
    EXCLUDED = "excluded"
    TOO_OLD = "too old"
    TOO_YOUNG = "too young"
    GLACIER = "archived (GLACIER)"
    DEEP_ARCHIVE = "archived (DEEP_ARCHIVE)"


_ARCHIVED = {"GLACIER": LeftOut.GLACIER, "DEEP_ARCHIVE": LeftOut.DEEP_ARCHIVE}
"""Storage classes, as listings name them, of which nothing can be read. A restored one keeps its class there: only a read
tells."""


@attrs.frozen(kw_only=True, slots=True)
class TableLog:
    """A key that belongs to the log of a table.

    Attributes:
        kind: the table's format, as users call it.
        root: what all keys of the table begin with; empty when the bucket itself is the table.
    """

    kind: str
    root: str


# A part that begins with `_`, unless it is a partition folder (`_day=1`), or with `.`, unless it is `.` or `..`, which
# hide nothing. Spark, Hive and Athena leave out the same names.
_HIDDEN = re.compile(r"(?:\A|/)(?:_(?![^/]*=)|\.(?!\.?(?:/|\Z)))", re.DOTALL)
_HIDDEN_FOLDER_LOG = re.compile(r"(?:\A|/)(_delta_log|\.hoodie)/", re.DOTALL)
_ICEBERG_LOG = re.compile(r"(.*/)?metadata/[^/]+\.metadata\.json", re.DOTALL)
_MOST_ROOTS = 1000
_MOST_FOLDERS = 10_000


def table_log(key: str) -> TableLog | None:
    """The table whose log a key belongs to; None for any other key."""
    found = _HIDDEN_FOLDER_LOG.search(key)
    if found is not None:
        return TableLog(kind="Delta Lake" if found[1] == "_delta_log" else "Hudi", root=key[: found.start(1)])
    found = _ICEBERG_LOG.fullmatch(key) if key.endswith(".metadata.json") else None
    return None if found is None else TableLog(kind="Iceberg", root=found[1] or "")


def log_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    """What to list, one page each, to know before the first pass whether a prefix is itself a table."""
    folders = {prefix if not prefix or prefix.endswith("/") else f"{prefix}/" for prefix in prefixes}
    return tuple(f"{folder}{log}" for folder in sorted(folders) for log in ("_delta_log/", ".hoodie/", "metadata/"))


class Selector:
    """Decides about every key of a listing, by the configuration alone. Made for millions: one microsecond a key.

    One listing at a time: it remembers what the pass showed so far.

    Attributes:
        counts: reason -> objects, in this pass.
    """

    def __init__(
        self, config: SourceCommonConfig, now: Callable[[], float] = time.time, *, prefixes: Sequence[str] = ()
    ) -> None:
        """Compiles the filters.

        Args:
            config: `[naming]`, `[discovery]` and the format of `[input]` count.
            now: the store's clock, seconds since 1970.
            prefixes: what is listed; hidden parts that they name themselves hide nothing.

        Raises:
            ConfigError: a template that is none; the loader finds it earlier.
        """
        discovery = config.discovery
        template = config.naming.parsed()
        self._match = None if template is None else template.match
        include, exclude = compile_globs(discovery.include), compile_globs(discovery.exclude)
        self._include = None if include is None else include.match
        self._exclude = None if exclude is None else exclude.match
        self._now = now
        self._min_age_ms = discovery.min_age * 1000
        self._oldest_ms = _milliseconds(discovery.modified_after, now)
        self._youngest_ms = float("inf")
        self._archived = _ARCHIVED if discovery.archived == "skip" else {}
        self._ignore_hidden = discovery.ignore_hidden
        self._prefixes = tuple(sorted(filter(None, prefixes), key=len, reverse=True))
        self._parquet_suffix = {"parquet": "", "auto": ".parquet"}.get(config.input.format)
        if discovery.allow_table_folders:
            self._parquet_suffix = None
        self.counts: dict[LeftOut, int] = dict.fromkeys(LeftOut, 0)
        self._known_logs: dict[str, TableLog] = {}
        self.begin_pass()

    def remember_logs(self, keys: Iterable[str]) -> None:
        """Takes keys found before the first pass below `log_prefixes`: their tables are known from the first key on."""
        for log in filter(None, map(table_log, keys)):
            self._known_logs[log.root] = log
        self.begin_pass()

    def begin_pass(self) -> None:
        """A listing begins: the counts are 0, and ages are measured from now."""
        self.counts.update(dict.fromkeys(LeftOut, 0))
        self._tables = dict(self._known_logs)
        self._roots = tuple(self._tables)
        self._folders: dict[str, NativeObject] = {}  # of the Parquet files chosen, one of them for each
        if self._min_age_ms:
            self._youngest_ms = self._now() * 1000 - self._min_age_ms

    def decide(  # noqa: C901, PLR0911  a list of reasons, in order
        self, native: NativeObject, *, started: bool = False
    ) -> NameMatch | LeftOut:
        """What the template finds in the key of an object to read, or the reason why it is left out (and counted).

        Args:
            native: as listed.
            started: some of it was sent already; its age no longer matters.

        Raises:
            ConfigError: the object is a Parquet file of a Delta Lake, Iceberg or Hudi table.
        """
        key = native.key
        # Most keys have no part that begins so: two searches in C decide, and the patterns see the rest only.
        marked = "/_" in key or "/." in key or key[:1] in {"_", "."}
        if self._parquet_suffix is not None and (marked or key.endswith(".metadata.json")):
            self._notice_log(native)
        if native.size == 0:
            is_mark = key.endswith(("/", "_$folder$"))
            return self._leave_out(LeftOut.FOLDER_MARK if is_mark else LeftOut.EMPTY)
        if marked and self._ignore_hidden and self._is_hidden(key):
            return self._leave_out(LeftOut.HIDDEN)
        match = NOTHING_NAMED if self._match is None else self._match(key)
        if match is None:
            return self._leave_out(LeftOut.NOT_MATCHED)
        if self._include is not None and self._include(key) is None:
            return self._leave_out(LeftOut.NOT_INCLUDED)
        if self._exclude is not None and self._exclude(key) is not None:
            return self._leave_out(LeftOut.EXCLUDED)
        modified = native.modified_ms
        if modified < self._oldest_ms and not started:
            return self._leave_out(LeftOut.TOO_OLD)
        if modified > self._youngest_ms and not started:
            return self._leave_out(LeftOut.TOO_YOUNG)
        if native.storage_class in self._archived and not started:
            return self._leave_out(self._archived[native.storage_class])
        if self._parquet_suffix is not None and key.endswith(self._parquet_suffix):
            self._remember_folder(native)
            if self._roots and key.startswith(self._roots):
                self._refuse(native)
        return match

    def _leave_out(self, reason: LeftOut) -> LeftOut:
        self.counts[reason] += 1
        return reason

    def _is_hidden(self, key: str) -> bool:
        for prefix in self._prefixes:  # the longest first
            if key.startswith(prefix):
                # The part in which the prefix ends is chosen by it; the next one begins after the next "/".
                return _HIDDEN.search(key, len(prefix) - prefix.endswith("/")) is not None
        return _HIDDEN.search(key) is not None

    def _notice_log(self, native: NativeObject) -> None:
        log = table_log(native.key)
        if log is None or log.root in self._tables:
            return
        if len(self._tables) >= _MOST_ROOTS:  # a bucket of tables that the filters leave out: the oldest are behind us
            del self._tables[next(iter(self._tables))]
        self._tables[log.root] = log
        self._roots = tuple(self._tables)
        for folder, chosen in self._folders.items():
            if folder.startswith(log.root):
                self._refuse(chosen)

    def _remember_folder(self, native: NativeObject) -> None:
        folder = native.key[: native.key.rfind("/") + 1]
        if folder not in self._folders:
            if len(self._folders) >= _MOST_FOLDERS:
                del self._folders[next(iter(self._folders))]
            self._folders[folder] = native

    def _refuse(self, native: NativeObject) -> None:
        log = next(log for root, log in self._tables.items() if native.key.startswith(root))
        place = f"{native.location.removesuffix(native.key)}{log.root}"
        raise ConfigError(
            f"{place} is a table of {log.kind}, and {native.key} is one of its files: read as plain Parquet it would "
            "give rows that the table has deleted or rewritten. Leave it out with [discovery] exclude, or, for a table "
            "that is only ever appended to, set [discovery] allow_table_folders = true"
        )


def selection_digest(config: SourceCommonConfig, start_key: str | None) -> str:
    """A short text for the options that decide which listed objects are read: equal when they are."""
    discovery = {
        name: getattr(config.discovery, name)
        for name in (
            "include",
            "exclude",
            "modified_after",
            "min_age",
            "ignore_hidden",
            "archived",
            "allow_table_folders",
        )
    }
    chosen = [config.naming.template, config.naming.regex, discovery, start_key or "", config.errors.tolerance]
    return hashlib.blake2b(json.dumps(chosen).encode(), digest_size=8).hexdigest()


def selected_objects(config: SourceCommonConfig, bucket: str, prefixes: Sequence[str]) -> SelectedObjects:
    """What the watermark is bound to: the options that decide which objects of a bucket are read.

    Not among them: `min_age`, since what is too young is never hidden; and a later `modified_after`, which shows nothing new.
    """
    discovery, naming = config.discovery, config.naming
    values = {
        "[naming] template": [naming.template, naming.regex],
        "[discovery] include": discovery.include,
        "[discovery] exclude": discovery.exclude,
        "[discovery] ignore_hidden": discovery.ignore_hidden,
        "[discovery] archived": discovery.archived,
    }
    oldest_ms = _milliseconds(discovery.modified_after, time.time)
    return SelectedObjects(
        bucket=bucket,
        prefixes=tuple(prefixes) or ("",),
        options={
            name: hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
            for name, value in values.items()
        },
        oldest_ms=int(oldest_ms) if discovery.modified_after is not None else None,
    )


class RoutedSelection:
    """A selector and a router in one: which lane a listed object belongs to, if any.

    Args:
        selector: decides.
        router: knows the lane.
        put_off: told of each object that is left out for now only, for being too young.
    """

    def __init__(
        self, selector: Selector, router: Router, *, put_off: Callable[[NativeObject], None] | None = None
    ) -> None:
        self._selector = selector
        self._router = router
        self._put_off = put_off

    def begin_pass(self) -> None:
        """A listing begins."""
        self._selector.begin_pass()

    def lane_for(self, native: NativeObject, *, started: bool = False) -> Lane | None:
        """Where the object's records go; None when it is left out, which is counted by reason.

        Raises:
            ConfigError: the object belongs to a table, see the module.
            ObjectError: its name says a partition or a topic that cannot be.
        """
        decision = self._selector.decide(native, started=started)
        if isinstance(decision, LeftOut):
            if decision is LeftOut.TOO_YOUNG and self._put_off is not None:
                self._put_off(native)
            return None
        return self._router.route(native, decision)

    def left_out(self) -> dict[str, int]:
        """Reason -> objects left out in this pass, reasons without any not named."""
        return {reason.value: count for reason, count in self._selector.counts.items() if count}


def _milliseconds(moment: str | None, now: Callable[[], float]) -> float:
    if moment is None:
        return float("-inf")
    return (now() if moment == "now" else datetime.fromisoformat(moment).timestamp()) * 1000
