"""The section `[discovery]`: which objects are read, and when they are listed."""
# ruff: noqa: FBT003  option() is an attrs field: it is called once a class, and its default stands first

from __future__ import annotations

from collections.abc import Iterator

import attrs

from framework.config.globs import compile_globs
from framework.config.option import Bytes, Moment, Seconds, SecondsOrForever, option


@attrs.frozen(kw_only=True)
class DiscoverySection:
    """Which objects are read, and how often new ones are listed."""

    mode: str = option(
        "list",
        choices=("list", "incremental", "keys"),
        former_values={"after": "incremental"},
        doc='`"list"`: every listing covers everything under the prefix. `"incremental"`: for rising keys; '
        "most listings start after the highest keys, and the store must list in the order of its keys. "
        '`"keys"`: read the objects that a supplied list names, see `keys`.',
    )
    lookback_keys: int = option(
        1000,
        minimum=0,
        maximum=1_000_000,
        unit="keys",
        doc='Mode `"incremental"`: number of highest keys that every listing repeats, to find late keys.',
    )
    full_listing_interval: Seconds = option(
        3600.0,
        minimum=0.01,
        former_names={"full_pass_interval": ""},
        doc='Mode `"incremental"`: interval between full listings. Until the next one, late keys below the '
        "look-back and objects overwritten there can go unnoticed.",
    )
    keys: str | None = option(
        None,
        minimum=1,
        doc="The list of mode `keys`: a path on the machine that runs the program, or an object of the store,"
        " `s3://bucket/key`. Text with one key per line, CSV, or the `manifest.json` of an S3 Inventory; "
        "`.gz` is decompressed. The list is read again when it changes.",
    )
    keys_format: str = option(
        "auto",
        choices=("auto", "text", "csv", "inventory"),
        doc='Format of the list. `"auto"`: by its name, `.csv` is `csv`, `.json` is `inventory`, anything else `text`.',
    )
    keys_encoding: str = option(
        "auto",
        choices=("auto", "none", "url"),
        doc='Encoding of keys in text and CSV: `"none"` for literal keys, `"url"` for URL-encoded keys. '
        '`"auto"`: literal, except in a CSV without a header whose first column is the bucket, as S3 '
        "Batch Operations writes it. An inventory is read as S3 writes it.",
    )
    keys_recheck: bool = option(
        True,
        doc="Look up finished objects again, with one request each, whenever the list is read and does not "
        "state their size, ETag and last-modified time. Otherwise finished objects are not read again, "
        "even if they were overwritten since.",
    )
    order: str = option(
        "listing",
        choices=("listing", "start_offset"),
        doc='Order in which the objects of a listing are read. `"listing"`: as the store lists them. `"start_offset"`: by '
        "`{{start_offset}}` of the template, so that the objects of an archived partition follow each other; all new objects "
        "of a listing wait in memory, some three kilobytes each, until it is complete.",
    )
    poll_interval: Seconds = option(
        5.0,
        minimum=0.01,
        doc="Interval between listings; never shorter than 10 times the duration of the last listing, or of the one before "
        "if that was shorter.",
    )
    list_concurrency: int = option(
        16,
        minimum=1,
        maximum=1000,
        unit="requests",
        doc="Maximum number of concurrent listing requests, over all tasks: a large prefix is divided into "
        "key ranges that are listed in parallel. A bucket of one page still costs one request. `1`: one "
        "chain of pages, objects in the order of their keys.",
    )
    list_requests_per_second: float | None = option(
        None,
        minimum=0.001,
        unit="requests a second",
        doc="Maximum number of listing requests per second. Absent: no limit.",
    )
    list_bytes_per_second: Bytes | None = option(
        None, minimum=1, doc="Maximum number of bytes of listings per second. Absent: no limit."
    )
    include: tuple[str, ...] = option(
        (),
        doc="Globs over the whole key; an object is read when at least one matches. `*` and `?` do not cross "
        "`/`, `**` does; `**/` also matches nothing. Empty: all.",
    )
    exclude: tuple[str, ...] = option(
        (), doc="Globs over the whole key; an object that matches any of them is not read."
    )
    modified_after: Moment | None = option(
        None,
        doc='Read only objects last modified at this time or later: a date with or without a time, UTC, or `"now"`, '
        "the time of the source's first start with that value, which the offsets log keeps.",
    )
    min_age: Seconds = option(
        0.0,
        doc='Defer objects until they reach this age, by the store\'s clock; in `mode = "keys"`, where nothing is listed, '
        "by this machine's. Every listing checks them again.",
    )
    archived: str = option(
        "skip",
        choices=("skip", "wait"),
        doc="How to handle objects in an archive class, which must be restored before they can be read (S3 "
        "Glacier Flexible Retrieval and Deep Archive, and the archive tiers of Intelligent-Tiering). "
        '`"skip"`: filter them, and count them by class. An object whose listing does not show its archive tier '
        '(Intelligent-Tiering) becomes a failed object; `offsets reset --key` reads it again. `"wait"`: try them again '
        "after each listing, with one request each, until they are restored; other objects do not wait for them.",
    )
    allowed_lateness: SecondsOrForever = option(
        86400.0,
        doc="How much later than its last-modified an object may appear: a multipart upload carries the time of its beginning. "
        "**Objects that appear with a last-modified time older than this are not read**: finished objects of that age lose their "
        "positions. "
        'Longer than the longest upload takes; `"forever"` keeps every position.',
        former_names={"late_arrival_window": ""},
    )
    ignore_hidden: bool = option(
        True,
        doc="Filter keys in which a part between two `/` begins with `.`, or with `_` unless it contains a "
        "`=` (`_SUCCESS`, `_temporary/part-0`, `.crc`; but not the partition folder `_day=1/`). Parts "
        "that `prefix` names do not count.",
    )
    allow_table_folders: bool = option(
        False,
        doc="Read the Parquet files below a Delta Lake or Iceberg table nevertheless. They include rows "
        "that the table has deleted or rewritten.",
    )

    def validate_options(self) -> Iterator[str]:
        """Yield errors for invalid globs, a key list without its mode, and the mode without a list."""
        if self.mode == "keys" and self.keys is None:
            yield 'keys: missing; mode = "keys" needs the place of the list'
        if self.mode != "keys" and self.keys is not None:
            yield f'keys: has no effect with mode = "{self.mode}"; set mode = "keys"'
        for name, globs in (("include", self.include), ("exclude", self.exclude)):
            if "" in globs:
                yield f"{name}: an empty glob matches nothing; leave it out"
            try:
                compile_globs(globs)
            except ValueError as exc:
                yield f"{name}: {exc}"
