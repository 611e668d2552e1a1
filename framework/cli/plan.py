"""The commands `plan` and `status`: the objects that a run would read, and the progress of the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from framework.cli.config_file import ConfigOption, JsonOption, SetOption
from framework.cli.offsets_commands import moment, saved_text, summary, summary_lines
from framework.cli.run import is_new, reached
from framework.cli.text import write_json, write_lines
from framework.errors import EXIT_DONE
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.cli.program import Program
    from framework.engine.dry_run import DryRun, ObjectTotals
    from framework.engine.inspection import Inspection

MAX_ROWS = 20
"""Maximum of partitions and folders in the text table; `--json` shows all."""


FORMER_IGNORE_OFFSETS = "--afresh"  # codespell:ignore afresh


def plan(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    ignore_offsets: Annotated[
        bool,
        typer.Option("--ignore-offsets", help="Plan as if nothing had been read, without a connection to Iggy."),
    ] = False,
    former: Annotated[bool, typer.Option(FORMER_IGNORE_OFFSETS, hidden=True)] = False,
    # Amazon S3 Standard in us-east-1, to a machine in the same region: others have other prices
    list_price: Annotated[float, typer.Option(help="US dollars for 1,000 LIST requests.", min=0)] = 0.005,
    get_price: Annotated[float, typer.Option(help="US dollars for 1,000 GET requests.", min=0)] = 0.0004,
    transfer_price: Annotated[float, typer.Option(help="US dollars for 10^9 bytes read.", min=0)] = 0.0,
    json: JsonOption = False,
) -> int:
    """Show what a run would read: objects, bytes, requests, cost. Lists the bucket, and changes nothing."""
    from framework.engine.dry_run import dry_run  # noqa: PLC0415 - loads what a run does
    from framework.engine.inspection import inspect  # noqa: PLC0415

    program: Program = context.obj
    if former:
        program.reporter.warn(f"plan {FORMER_IGNORE_OFFSETS}: now called plan --ignore-offsets")
    options = program.read(config, settings)
    found = None
    if not (ignore_offsets or former or is_new(options)):
        with reached(options) as connection:
            found = inspect(connection, options, check=True)
    planned = dry_run(program.task_class, options, found)
    cost = {
        "list": planned.list_requests / 1000 * list_price,
        "get": planned.total.objects / 1000 * get_price,
        "transfer": planned.total.size_bytes / 1e9 * transfer_price,
    }
    total = sum(cost.values())
    if json:
        prices = {"list_per_1000": list_price, "get_per_1000": get_price, "transfer_per_gb": transfer_price}
        write_json({**_plan_json(planned), "cost_usd": {**cost, "total": total}, "prices": prices})
        return EXIT_DONE
    write_lines(_plan_lines(planned))
    parts = ", ".join(f"${dollars:.4f} for {name.upper()}" for name, dollars in cost.items())
    write_lines([f"about ${total:.4f}: {parts}; prices by --list-price, --get-price, --transfer-price"])
    return EXIT_DONE


def status(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    no_list: Annotated[bool, typer.Option("--no-list", help="Do not list the bucket; the lag is not shown.")] = False,
    json: JsonOption = False,
) -> int:
    """Show progress, lag, running instance and last save. Objects count as done, reading or failed."""
    from framework.engine.dry_run import dry_run  # noqa: PLC0415 - loads what a run does
    from framework.engine.inspection import inspect  # noqa: PLC0415

    program: Program = context.obj
    options = program.read(config, settings)
    with reached(options) as connection:
        found = inspect(connection, options)
    counts = summary(found)
    if not json:
        write_lines([*summary_lines(counts), *_log_lines(found)])  # also when the bucket cannot be listed
    planned = None if no_list else dry_run(program.task_class, options, found)  # it takes the positions
    if json:
        lag = {"objects": planned.total.objects, "bytes": planned.total.size_bytes} if planned is not None else None
        unselected = len(planned.unselected) if planned is not None else None
        write_json({**counts, **_log_json(found), "lag": lag, "unselected": unselected})
    elif planned is not None:
        objects, size = counted(planned.total.objects, "object"), counted(planned.total.size_bytes, "byte")
        write_lines([f"lag: {objects}, {size} listed and not done", *_filtered(planned)])
        if planned.unselected:
            write_lines([_unselected(planned.unselected)])
    return EXIT_DONE


def _unselected(names: Sequence[str]) -> str:
    example = names[0] if len(names) == 1 else f"such as {names[0]}"
    return (
        f"begun, and now filtered or gone: {counted(len(names), 'object')}, {example}; each counts as reading, and is read "
        f"further only if a listing gives it again"
    )


def _log_json(found: Inspection) -> dict[str, Any]:
    return {
        "running": [
            {
                "host": claim.host,
                "process": claim.process,
                "since": moment(claim.at_us // 1000),
                "leader": claim.leader,
                "epoch": claim.epoch,
            }
            for claim in found.running
        ],
        "log": {"messages": found.log_messages, "bytes": found.log_bytes},
    }


def _log_lines(found: Inspection) -> Iterator[str]:
    runners = [claim for claim in found.running if claim.leader]
    workers = len(found.running) - len(runners)
    for claim in runners:
        yield f"running on {claim.who}" + (f", with {counted(workers, 'more connection')}" if workers else "")
    if not runners:
        yield "not running"
    yield (
        f"{saved_text(found)}; as of {moment(found.as_of_ms)}; the log: {counted(found.log_messages, 'message')}, "
        f"{counted(found.log_bytes, 'byte')}"
    )


def _plan_json(plan: DryRun) -> dict[str, Any]:
    return {
        **attrs.asdict(plan.total),
        "begun": plan.begun,
        "listed": plan.listed,
        "left_out": dict(plan.filtered),
        "list_requests": plan.list_requests,
        "get_requests": plan.total.objects,
        "endings": _groups_json(plan.endings),
        "partitions": _groups_json(plan.topic_partitions),
        "prefixes": _groups_json(plan.prefixes),
    }


def _groups_json(groups: Mapping[str, ObjectTotals]) -> dict[str, Any]:
    return {name: attrs.asdict(groups[name]) for name in sorted(groups)}


def _plan_lines(plan: DryRun) -> Iterator[str]:
    total = plan.total
    begun = f", {plan.begun:,} of them begun before" if plan.begun else ""
    objects, size = counted(total.objects, "object"), counted(total.size_bytes, "byte")
    yield f"to read: {objects}, {size}{begun}; {plan.listed:,} listed"
    yield from _filtered(plan)
    for title, groups in (
        ("ending", plan.endings),
        ("partition", plan.topic_partitions),
        ("folder", plan.prefixes),
    ):
        if groups:
            yield f"{title:<40} {'objects':>12} {'bytes':>20}"
        largest = sorted(groups.items(), key=lambda item: (-item[1].size_bytes, item[0]))
        for name, group in largest[:MAX_ROWS]:
            yield f"{name or '(none)':<40} {group.objects:>12,} {group.size_bytes:>20,}"
        if len(largest) > MAX_ROWS:
            yield f"... and {len(largest) - MAX_ROWS:,} more (--json shows all)"
    yield f"requests: {plan.list_requests:,} LIST for each listing, at least {plan.total.objects:,} GET"


def _filtered(plan: DryRun) -> Iterator[str]:
    for reason, count in sorted(plan.filtered.items()):
        yield f"filtered, {reason}: {counted(count, 'object')}"
