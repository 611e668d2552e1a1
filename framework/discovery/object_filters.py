"""Filters: which listed objects are read, and why the others are not.

Every filtered object is counted by reason; the counts of a listing go to the log and the metrics.

A Delta Lake, Iceberg or Hudi table is a folder of Parquet files of which only some are valid at any time, according to
its log. Reading all of them would send deleted and rewritten rows. So the source stops when it is about to read Parquet
files below such a log. A listing shows a table only within these limits:

- The log's own keys show where a table is. Delta's `_delta_log/` and Hudi's `.hoodie/` sort before most names of data
  files, Iceberg's `metadata/` after `data/`, and parallel ranges come in any order. A log that comes late in the
  listing is recognized then, by the folders of the Parquet files chosen before it. Some files of the table may already
  have been given out.
- `log_prefixes` returns prefixes to list first, one page each; `Selector.remember_logs` takes the keys.
  So a prefix that *is* a table (the common case) is refused before anything is read.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import attrs

from framework.config.globs import compile_globs
from framework.config.key_template import NOTHING_NAMED, NameMatch
from framework.discovery.routing import Router
from framework.errors import ConfigError
from framework.model.key_range import prefix_of
from framework.model.objects import NativeObject, TopicPartition
from framework.offsets.selection_scope import SelectionScope

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig


class FilterReason(str, enum.Enum):
    """Reasons why an object is filtered. The texts appear in logs and metrics."""

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


_ARCHIVED = {"GLACIER": FilterReason.GLACIER, "DEEP_ARCHIVE": FilterReason.DEEP_ARCHIVE}
"""Unreadable storage classes, as listings name them. A restored object keeps its class there: only a read
shows that it was restored.
"""


@attrs.frozen(kw_only=True, slots=True)
class TableLog:
    """A key that belongs to the log of a table.

    Attributes:
        kind: the table's format, as users call it.
        root: common prefix of all keys of the table; empty when the bucket itself is the table.
    """

    kind: str
    root: str


# A path segment that begins with `_`, unless it is a partition folder (`_day=1`), or with `.`, unless it is `.` or
# `..`, which hide nothing. Spark, Hive and Athena filter the same names.
_HIDDEN = re.compile(r"(?:\A|/)(?:_(?![^/]*=)|\.(?!\.?(?:/|\Z)))", re.DOTALL)
_HIDDEN_FOLDER_LOG = re.compile(r"(?:\A|/)(_delta_log|\.hoodie)/", re.DOTALL)
_ICEBERG_LOG = re.compile(r"(.*/)?metadata/[^/]+\.metadata\.json", re.DOTALL)
_MAX_ROOTS = 1000
_MAX_FOLDERS = 10_000


def table_log(key: str) -> TableLog | None:
    """Return the table to whose log a key belongs; None for any other key."""
    found = _HIDDEN_FOLDER_LOG.search(key)
    if found is not None:
        return TableLog(kind="Delta Lake" if found[1] == "_delta_log" else "Hudi", root=key[: found.start(1)])
    found = _ICEBERG_LOG.fullmatch(key) if key.endswith(".metadata.json") else None
    return None if found is None else TableLog(kind="Iceberg", root=found[1] or "")


def log_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return prefixes to list, one page each, that show before the first listing whether a prefix is itself a table."""
    folders = {prefix if not prefix or prefix.endswith("/") else f"{prefix}/" for prefix in prefixes}
    return tuple(f"{folder}{log}" for folder in sorted(folders) for log in ("_delta_log/", ".hoodie/", "metadata/"))


def _folders_above(folder: str) -> Iterator[str]:
    """Yield a folder and all above it, up to the empty name of the bucket."""
    while folder:
        yield folder
        folder = folder[: folder.rfind("/", 0, -1) + 1]
    yield ""


_NO_COUNTS = dict.fromkeys(FilterReason, 0)


class Selector:
    """Filter the keys of a listing by the configuration alone. Built for millions of keys: one microsecond each.

    Supports one listing at a time: it remembers what the listing showed so far.

    Attributes:
        counts: reason -> objects, in this listing.
    """

    def __init__(
        self, config: SourceCommonConfig, now: Callable[[], float] = time.time, *, prefixes: Sequence[str] = ()
    ) -> None:
        """Compile the filters.

        Args:
            config: `[naming]`, `[discovery]` and the format of `[input]` are used.
            now: the store's clock, seconds since 1970.
            prefixes: listed prefixes; hidden segments within them hide nothing.

        Raises:
            ConfigError: a template is invalid; the loader finds it earlier.
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
        self._youngest_ms: float | None = None
        self._archived = _ARCHIVED if discovery.archived == "skip" else {}
        self._ignore_hidden = discovery.ignore_hidden
        self._prefixes = sorted(prefixes)
        self._parquet_suffix = {"parquet": "", "auto": ".parquet"}.get(config.input.format)
        if discovery.allow_table_folders:
            self._parquet_suffix = None
        self.counts = dict(_NO_COUNTS)
        self._known_logs: dict[str, TableLog] = {}
        self.begin_listing()

    def remember_logs(self, keys: Iterable[str]) -> None:
        """Add log keys found below `log_prefixes` before the first listing: their tables are known from the start."""
        for log in filter(None, map(table_log, keys)):
            self._known_logs[log.root] = log
        self.begin_listing()

    def begin_listing(self) -> None:
        """Start a listing: reset the counts, and measure ages from its first object whose age matters.

        Not from now: the store tells its clock with the first page.
        """
        self.counts.update(_NO_COUNTS)
        self._tables = dict(self._known_logs)  # by root
        self._folders: dict[str, NativeObject] = {}  # folder -> a chosen Parquet file in it, or below it
        self._youngest_ms = None

    def decide(  # noqa: C901, PLR0911  a list of reasons, in order
        self, native: NativeObject, *, started: bool = False
    ) -> NameMatch | FilterReason:
        """Return the template's match in the key of an object to read, or the reason why it is filtered (and counted).

        Args:
            native: the object as listed.
            started: part of it was sent already; its age no longer matters.

        Raises:
            ConfigError: the object is a Parquet file of a Delta Lake, Iceberg or Hudi table.
        """
        key = native.key
        # Most keys have no such segment: two substring searches in C rule it out, and only the rest reach the patterns.
        marked = "/_" in key or "/." in key or key[:1] in {"_", "."}
        if self._parquet_suffix is not None and (marked or key.endswith(".metadata.json")):
            self._notice_log(native)
        if native.size == 0:
            is_mark = key.endswith(("/", "_$folder$"))
            return self._filter(FilterReason.FOLDER_MARK if is_mark else FilterReason.EMPTY)
        if marked and self._ignore_hidden and self._is_hidden(key):
            return self._filter(FilterReason.HIDDEN)
        match = NOTHING_NAMED if self._match is None else self._match(key)
        if match is None:
            return self._filter(FilterReason.NOT_MATCHED)
        if self._include is not None and self._include(key) is None:
            return self._filter(FilterReason.NOT_INCLUDED)
        if self._exclude is not None and self._exclude(key) is not None:
            return self._filter(FilterReason.EXCLUDED)
        modified = native.modified_ms
        if modified < self._oldest_ms and not started:
            return self._filter(FilterReason.TOO_OLD)
        if self._min_age_ms and not started and modified > self._youngest():
            return self._filter(FilterReason.TOO_YOUNG)
        if native.storage_class in self._archived and not started:
            return self._filter(self._archived[native.storage_class])
        if self._parquet_suffix is not None and key.endswith(self._parquet_suffix):
            self._notice_file(native)
        return match

    def _youngest(self) -> float:
        """Return the last-modified time of the youngest objects to read, in this listing."""
        if self._youngest_ms is None:
            self._youngest_ms = self._now() * 1000 - self._min_age_ms
        return self._youngest_ms

    def _filter(self, reason: FilterReason) -> FilterReason:
        self.counts[reason] += 1
        return reason

    def _is_hidden(self, key: str) -> bool:
        prefix = prefix_of(self._prefixes, key) or ""
        # The prefix itself names the segment in which it ends; the next segment begins after the next "/".
        return _HIDDEN.search(key, len(prefix) - prefix.endswith("/")) is not None

    def _notice_log(self, native: NativeObject) -> None:
        log = table_log(native.key)
        if log is None or log.root in self._tables:
            return
        if len(self._tables) >= _MAX_ROOTS:  # many filtered tables: the listing is past the oldest
            del self._tables[next(iter(self._tables))]
        self._tables[log.root] = log
        chosen = self._folders.get(log.root)
        if chosen is not None:
            self._refuse(chosen, log)

    def _notice_file(self, native: NativeObject) -> None:
        folder = native.key[: native.key.rfind("/") + 1]
        if folder not in self._folders:
            for above in _folders_above(folder):
                self._folders.pop(above, None)  # to the end: what is above outlives what is below
                self._folders[above] = native
            while len(self._folders) > _MAX_FOLDERS:
                del self._folders[next(iter(self._folders))]
        if self._tables:
            log = next(filter(None, map(self._tables.get, _folders_above(folder))), None)
            if log is not None:
                self._refuse(native, log)

    def _refuse(self, native: NativeObject, log: TableLog) -> None:
        place = f"{native.location.removesuffix(native.key)}{log.root}"
        raise ConfigError(
            f"{place} is a table of {log.kind}, and {native.key} is one of its files: read as plain Parquet it would "
            "give rows that the table has deleted or rewritten. Leave it out with [discovery] exclude, or, for a table "
            "that is only ever appended to, set [discovery] allow_table_folders = true"
        )


def with_start(config: SourceCommonConfig, start_ms: int) -> SourceCommonConfig:
    """Replace `modified_after = "now"` by the time of the source's first start, in milliseconds since 1970.

    In whole seconds, as stores round last-modified down to them: what appears in the same second is read.
    """
    moment = datetime.fromtimestamp(start_ms // 1000, timezone.utc).isoformat()
    return attrs.evolve(config, discovery=attrs.evolve(config.discovery, modified_after=moment))


def selection_digest(config: SourceCommonConfig, start_key: str | None) -> str:
    """Return a short digest of the options that decide which listed objects are read: equal digests, equal options."""
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


def selected_objects(
    config: SourceCommonConfig,
    bucket: str,
    prefixes: Sequence[str],
    *,
    address: str | None = None,
    since_start: bool = False,
) -> SelectionScope:
    """Return the scope that positions are bound to: the bucket, and the options that decide which objects are read.

    Excluded: `min_age`, as objects that are too young are only deferred; and a later `modified_after`, which adds no
    objects.
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
    return SelectionScope(
        address=address,
        bucket=bucket,
        prefixes=tuple(prefixes) or ("",),
        options={
            name: hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
            for name, value in values.items()
        },
        oldest_ms=int(oldest_ms) if discovery.modified_after is not None else None,
        since_start=since_start,
    )


@attrs.define(eq=False, repr=False, slots=False)
class RoutedSelection:
    """A selector and a router combined: return a listed object's partition, if any.

    Args:
        selector: filters the object.
        router: chooses the partition.
        on_deferred: called with each object that is only deferred, for being too young.
    """

    _selector: Selector
    _router: Router
    _on_deferred: Callable[[NativeObject], None] | None = None

    def begin_listing(self) -> None:
        """Start a listing."""
        self._selector.begin_listing()
        self._router.begin_listing()

    def partition_for(self, native: NativeObject, *, started: bool = False) -> TopicPartition | None:
        """Return the partition for the object's records; None when it is filtered, which is counted by reason.

        Raises:
            ConfigError: the object belongs to a table, see the module.
            ObjectError: its key names a partition or topic that is invalid, or must not be written to.
        """
        decision = self._selector.decide(native, started=started)
        if isinstance(decision, FilterReason):
            if decision is FilterReason.TOO_YOUNG and self._on_deferred is not None:
                self._on_deferred(native)
            return None
        return self._router.route(native, decision)

    def filtered(self) -> dict[str, int]:
        """Return reason -> objects filtered in this listing, without zero counts."""
        return {reason.value: count for reason, count in self._selector.counts.items() if count}


def _milliseconds(moment: str | None, now: Callable[[], float]) -> float:
    if moment is None:
        return float("-inf")
    return (now() if moment == "now" else datetime.fromisoformat(moment).timestamp()) * 1000
