"""The commands `plan` and `status`: the objects that a run would read, and the progress of the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from framework.cli.config_file import ConfigFile
from framework.cli.offsets_commands import moment, summary, summary_lines
from framework.cli.run import is_new, reached, read_config
from framework.cli.text import write_json, write_lines
from framework.engine.dry_run import DryRun, ObjectTotals, dry_run
from framework.engine.inspection import inspect
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.engine.inspection import Inspection
    from framework.task import AbstractSourceTask

MAX_ROWS = 20
"""Maximum of partitions and folders in the text table; `--json` shows all."""


@attrs.frozen(kw_only=True)
class Prices:
    """Prices in US dollars.

    Attributes:
        list_per_1000: for 1,000 LIST requests.
        get_per_1000: for 1,000 GET requests.
        transfer_per_gb: for 1,000,000,000 bytes read.
    """

    list_per_1000: float
    get_per_1000: float
    transfer_per_gb: float

    def cost(self, plan: DryRun) -> dict[str, float]:
        """Return the approximate cost of a listing and its reads: `list`, `get`, `transfer`, `total`."""
        parts = {
            "list": plan.list_requests / 1000 * self.list_per_1000,
            "get": plan.total.objects / 1000 * self.get_per_1000,
            "transfer": plan.total.size_bytes / 1e9 * self.transfer_per_gb,
        }
        return {**parts, "total": sum(parts.values())}


def show_plan(
    task_class: type[AbstractSourceTask], file: ConfigFile, *, prices: Prices, ignore_offsets: bool, as_json: bool
) -> int:
    """Write to stdout the objects that the next listing would give, and their approximate cost.

    Raises:
        ConfigError: mistakes in the file.
        SourceError: the bucket's error, or positions made with other options.
    """
    config = read_config(task_class, file)
    found = None
    if not ignore_offsets and not is_new(config):
        with reached(config) as connection:
            found = inspect(connection, config, check=True)
    plan = dry_run(task_class, config, found)
    cost = prices.cost(plan)
    if as_json:
        write_json({**_plan_json(plan), "cost_usd": cost, "prices": attrs.asdict(prices)})
        return 0
    write_lines(_plan_lines(plan))
    parts = ", ".join(f"${cost[name]:.4f} for {name.upper()}" for name in ("list", "get", "transfer"))
    write_lines([f"about ${cost['total']:.4f}: {parts}; prices by --list-price, --get-price, --transfer-price"])
    return 0


def show_status(task_class: type[AbstractSourceTask], file: ConfigFile, *, no_list: bool, as_json: bool) -> int:
    """Write to stdout how far the source is and which processes run it. The source may be running.

    Raises:
        ConfigError: mistakes in the file.
        SourceError: as `show_plan`.
    """
    config = read_config(task_class, file)
    with reached(config) as connection:
        found = inspect(connection, config)
    counts = summary(found)
    if not as_json:
        write_lines([*summary_lines(counts), *_log_lines(found)])  # also when the bucket cannot be listed
    plan = None if no_list else dry_run(task_class, config, found)  # it takes the positions
    if as_json:
        lag = {"objects": plan.total.objects, "bytes": plan.total.size_bytes} if plan is not None else None
        unselected = len(plan.unselected) if plan is not None else None
        write_json({**counts, **_log_json(found), "lag": lag, "unselected": unselected})
        return 0
    if plan is not None:
        objects, size = counted(plan.total.objects, "object"), counted(plan.total.size_bytes, "byte")
        write_lines([f"lag: {objects}, {size} listed and not done"])
        write_lines(_filtered(plan))
        if plan.unselected:
            write_lines([_unselected(plan.unselected)])
    return 0


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
    saved_us = found.state.saved_us
    saved = f"saved last at {moment(saved_us // 1000)}" if saved_us else "never saved"
    yield (
        f"{saved}; as of {moment(found.as_of_ms)}; the log: {counted(found.log_messages, 'message')}, "
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
