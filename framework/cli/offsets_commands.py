"""The commands of the group `offsets`: show, export, reset, set and accept positions."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framework.cli.config_file import ConfigOption, DryRunOption, JsonOption, SetOption, YesOption, objects_option
from framework.cli.run import bucket_of, reached
from framework.cli.text import confirmed, write_json, write_json_lines, write_lines
from framework.errors import EXIT_DONE, EXIT_TRY_AGAIN, ConfigError
from framework.model.text import counted
from framework.offsets.position_filter import PositionFilter
from framework.offsets.set_position import SetPosition

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.engine.inspection import Inspection
    from framework.model.positions import OffsetManagerEntry


KeyOption = Annotated[str | None, objects_option("Only the object of this key.")]
PrefixOption = Annotated[str | None, objects_option("Only objects whose keys begin so.")]

offsets_app = typer.Typer(help="Show and change the positions of the source.", rich_markup_mode=None)


@offsets_app.command()
def show(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    key: KeyOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> int:
    """Count positions by state and partition. With --key or --prefix, shows each."""
    choice = _choice(key, prefix)
    found = _read_log(context, config, settings)
    entries = [] if choice is None else sorted(_chosen(found, choice), key=attrgetter("bucket", "key", "split_number"))
    if json:
        more = {} if choice is None else {"entries": [*map(as_row, entries)]}
        write_json({**summary(found), **more})
        return EXIT_DONE
    if choice is None:
        write_lines(summary_lines(summary(found)))
    else:
        write_lines(_entry_lines(entries) if entries else [unknown_text(choice, _chosen(found, None))])
    write_lines([f"as of {moment(found.as_of_ms)}, {saved_text(found)}"])
    return EXIT_DONE


@offsets_app.command()
def export(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    key: KeyOption = None,
    prefix: PrefixOption = None,
) -> int:
    """Write every position to stdout, one JSON line each."""
    choice = _choice(key, prefix)
    write_json_lines(map(as_row, _chosen(_read_log(context, config, settings), choice)))
    return EXIT_DONE


@offsets_app.command()
def reset(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    key: KeyOption = None,
    prefix: PrefixOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All objects.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> int:
    """Delete positions, to read objects again. The next run sends them from their first record."""
    from framework.engine.inspection import inspect  # noqa: PLC0415 - loads what a run does
    from framework.engine.positions_admin import reset_positions  # noqa: PLC0415
    from framework.iggy.dead_letters.reader import dead_letters_of  # noqa: PLC0415

    if sum((key is not None, prefix is not None, everything)) != 1:
        raise ConfigError("choose what to reset: one of --key KEY, --prefix PREFIX, --all")
    choice = PositionFilter(key=key, prefix=prefix)
    options = context.obj.read(config, settings)
    with reached(options) as connection:
        found = inspect(connection, options)
        objects, records, unfinished = count_entries(_chosen(found, choice))
        watermark = found.state.watermark
        opened = choice.removed_from(watermark) != watermark
        if everything:
            objects, records = objects + watermark.objects, records + watermark.records
        # an end by kill -9 leaves records that were sent and not saved: only a start finds them in the topic
        least = "at least " if unfinished else ""
        what = f"after the reset the next run reads again: {counted(objects, 'object')}, {least}{counted(records, 'record')}"
        if everything and not objects:
            what = f'no positions are stored in topic "{found.topic}": the next run reads every object whole'
        elif opened and not everything:
            what += ", and whatever else is there that was finished long ago and has no position of its own any more"
        write_lines([what])
        # a reset that was killed may have left dead letters, without positions: the same command finishes it
        known = objects or opened or everything or dead_letters_of(connection, options, choice.takes_object)
        if not known:
            write_lines([f"nothing to reset: {unknown_text(choice, _chosen(found, None))}"])
            return EXIT_DONE
        if dry_run:
            return EXIT_DONE
        if not confirmed("Forget these positions?", yes=yes, dry_run=True):
            return EXIT_TRY_AGAIN
        epoch = reset_positions(connection, options, choice).epoch
    write_lines([f"forgotten, in epoch {epoch}; what the topics hold stays there"])
    return EXIT_DONE


@offsets_app.command("set")
def set_(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    key: Annotated[str | None, objects_option("The object of this key.")] = None,
    records: Annotated[
        int | None, typer.Option(min=0, help="So many records count as sent.", show_default=False)
    ] = None,
    done: Annotated[bool, typer.Option("--done", help="Nothing more of it is read.")] = False,
    version: Annotated[
        str | None, typer.Option(help="Refuse unless the position is of this version.", show_default=False)
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> int:
    """Set the position of an object. The next run goes on behind that record, or leaves the object out."""
    from framework.engine.inspection import inspect  # noqa: PLC0415 - loads what a run does
    from framework.engine.positions_admin import set_position  # noqa: PLC0415

    if key is None:
        raise ConfigError("choose which object: --key KEY")
    if (records is None) is not done:
        raise ConfigError("choose its position: one of --records NUMBER, --done")
    options = context.obj.read(config, settings)
    change = SetPosition(
        key=key,
        records=records,
        version=version,
        numbering_options=_numbering_options(options),
        bucket=bucket_of(options),
        partitions=options.iggy.partitions,
    )
    with reached(options) as connection:
        entry = change.find(inspect(connection, options).state.positions.view())
        write_lines([_outcome(entry, change)])
        if dry_run:
            return EXIT_DONE
        if not confirmed("Set this position?", yes=yes, dry_run=True):
            return EXIT_TRY_AGAIN
        epoch = set_position(connection, options, change).epoch
    write_lines([f"set, in epoch {epoch}; what the topics hold stays there"])
    return EXIT_DONE


@offsets_app.command()
def accept_data_loss(
    context: typer.Context, config: ConfigOption = None, settings: SetOption = None, yes: YesOption = False
) -> int:
    """Continue after topics were purged or recreated. Finished objects stay done and are not sent again."""
    from framework.engine.positions_admin import accept_changes  # noqa: PLC0415 - loads what a run does

    options = context.obj.read(config, settings)
    with reached(options) as connection:
        if not confirmed(
            "Go on with the topics as they are? Records that were taken away are not sent again.", yes=yes
        ):
            return EXIT_TRY_AGAIN
        done = accept_changes(connection, options, numbering_options=_numbering_options(options))
    again = f"; {counted(done.restarting, 'partly read object')} will be sent again, whole" if done.restarting else ""
    write_lines([f"accepted, in epoch {done.epoch}: kept {counted(done.positions, 'position')} as before{again}"])
    return EXIT_DONE


@offsets_app.command(hidden=True)
def accept(
    context: typer.Context, config: ConfigOption = None, settings: SetOption = None, yes: YesOption = False
) -> int:
    """Former name of `accept-data-loss`."""
    context.obj.reporter.warn("offsets accept: now called offsets accept-data-loss")
    return accept_data_loss(context, config, settings, yes)


def _choice(key: str | None, prefix: str | None) -> PositionFilter | None:
    if key is not None and prefix is not None:
        raise ConfigError("--key and --prefix together choose nothing: give one of them")
    return PositionFilter(key=key, prefix=prefix) if key is not None or prefix is not None else None


def _outcome(entry: OffsetManagerEntry, change: SetPosition) -> str:
    """Return what the next run does with the object, as text."""
    place, count = f"{entry.bucket}/{entry.key}", change.count_of(entry)
    made = change.applied(entry, entry.generation)
    if made.finished:
        return f"{place}: nothing more is read; {counted(count, 'record')} of it count as sent"
    again = entry.records_done - count
    least = "at least " if not entry.final else ""
    then = f"reads again {least}{counted(again, 'record')}" if again >= 0 else f"skips {counted(-again, 'record')}"
    return f"{place}: the next run {then}, and goes on with record {count + 1:,}"


def _numbering_options(config: SourceCommonConfig) -> str:
    from framework.config.format_registry import make_transformer  # noqa: PLC0415 - formats are found when they are used

    return config.numbering_options(make_transformer(config.input.options()).numbering_options())


def _read_log(context: typer.Context, config: Path | None, settings: list[str] | None) -> Inspection:
    """Return the offsets log of the source; it may be running."""
    from framework.engine.inspection import inspect  # noqa: PLC0415 - loads what a run does

    options = context.obj.read(config, settings)
    with reached(options) as connection:
        return inspect(connection, options)


def _chosen(found: Inspection, choice: PositionFilter | None) -> Iterator[OffsetManagerEntry]:
    return (entry for entry in found.state.positions.view() if choice is None or choice.takes(entry.key))


def unknown_text(choice: PositionFilter, entries: Iterable[OffsetManagerEntry]) -> str:
    """Return, as text, that no position belongs to the selected objects.

    Args:
        choice: what was selected.
        entries: all positions, whose buckets may begin what was given, as they do where positions are shown.
    """
    given = choice.prefix or "" if choice.key is None else choice.key
    which = f"below the prefix {given!r}" if choice.key is None else f"with the key {given!r}"
    has_bucket = "://" in given or any(given.startswith(f"{entry.bucket}/") for entry in entries)
    more = "; give what follows the bucket's name" if has_bucket else ""
    return f"no object {which} has a position{more}"


def count_entries(entries: Iterable[OffsetManagerEntry]) -> tuple[int, int, int]:
    """Count objects (all splits and parts of an object count once), records, and positions that are not final."""
    objects = records = unfinished = 0
    for entry in entries:
        objects += entry.split_number <= 1
        records += entry.records_done if entry.counts_object else 0
        unfinished += not entry.final
    return objects, records, unfinished


def as_row(entry: OffsetManagerEntry) -> dict[str, Any]:
    """Return a position as `export` writes it; docs/guides/positions-by-hand.md explains each field."""
    row = {"bucket": entry.bucket, "key": entry.key, **entry.get_properties()}
    if entry.numbering_options:
        row["depends_on"] = json.loads(entry.numbering_options)
    return row


def summary(found: Inspection) -> dict[str, Any]:
    """Return counts by state and partition, as `show --json` writes them."""
    topic_partitions: dict[str, Counter[str]] = defaultdict(Counter)
    records = 0
    state = found.state
    for entry in state.positions.view():
        topic_partition = topic_partitions[str(entry.topic_partition)]
        topic_partition[entry.state.value] += 1
        topic_partition["records"] += entry.records_done
        records += entry.records_done if entry.counts_object else 0
    states = ("done", "reading", "failed")
    return {
        "source": state.source,
        "offsets_topic": found.topic,
        "as_of": moment(found.as_of_ms),
        "last_saved": moment(state.saved_us // 1000) if state.saved_us else None,
        "epoch": state.last_epoch,
        "positions": {name: sum(counts[name] for counts in topic_partitions.values()) for name in states},
        "records": records,
        "folded": {
            "objects": state.watermark.objects,
            "records": state.watermark.records,
            "ranges": len(state.watermark),
        },
        "partitions": {
            name: {field: topic_partitions[name][field] for field in (*states, "records")}
            for name in sorted(topic_partitions)
        },
    }


def summary_lines(counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the counts as a table for people."""
    yield f'source "{counts["source"]}", positions in topic "{counts["offsets_topic"]}", epoch {counts["epoch"]}'
    yield f"{'topic_partition':<32} {'done':>12} {'reading':>12} {'failed':>12} {'records':>16}"
    rows = {**counts["partitions"], "all": {**counts["positions"], "records": counts["records"]}}
    for name, row in rows.items():
        yield f"{name:<32} {row['done']:>12,} {row['reading']:>12,} {row['failed']:>12,} {row['records']:>16,}"
    compacted = counts["folded"]
    if compacted["objects"]:
        yield (
            f"done long ago, without a position of their own: {counted(compacted['objects'], 'object')}, "
            f"{counted(compacted['records'], 'record')}, in {counted(compacted['ranges'], 'range')} of keys"
        )


def _entry_lines(entries: Sequence[OffsetManagerEntry]) -> Iterator[str]:
    for entry in entries:
        yield f"{entry.bucket}/{entry.key}{_division_text(entry)}"
        saved = f", saved {entry.records_saved:,}" if entry.records_saved < entry.records_done else ""
        yield (
            f"  version {entry.version}  records {entry.records_done:,}{saved}  {entry.state.value}  partition "
            f"{entry.topic_partition}"
        )
        if entry.skipped:
            yield f"  skipped {counted(entry.skipped, 'bad record')}"
        if entry.is_abandoned:
            yield "  begins again in another partition: its own is gone"
        elif entry.numbering_options:
            yield f"  depends on {entry.numbering_options}"
    yield counted(len(entries), "position")


def _division_text(entry: OffsetManagerEntry) -> str:
    if entry.part is not None:
        return f"  part {entry.part.number} of {entry.part.parts} by key"
    return f"  split {entry.split_number}" if entry.split_number else ""


def saved_text(found: Inspection) -> str:
    """Return when the positions were saved last, as text."""
    saved_us = found.state.saved_us
    return f"saved last at {moment(saved_us // 1000)}" if saved_us else "never saved"


def moment(milliseconds: int) -> str:
    """Return a time as text, UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
