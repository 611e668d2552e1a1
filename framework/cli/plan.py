"""The commands `plan` and `status`: what would be read, and how far the source is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from framework.cli.output import printable
from framework.cli.positions import moment, summary, summary_lines
from framework.cli.run import read_config
from framework.engine.inspection import inspect
from framework.engine.local import with_moment
from framework.engine.outlook import Outlook, Part, look_ahead
from framework.engine.session import IggyTarget

if TYPE_CHECKING:
    from framework.cli.prices import Prices
    from framework.engine.inspection import Inspection
    from framework.task import AbstractSourceTask

MOST_ROWS = 20
"""Lanes and folders that a table for people shows; `--json` has all."""


def show_plan(task_class: type[AbstractSourceTask], path: Path, *, prices: Prices, afresh: bool, as_json: bool) -> int:
    """Writes to stdout what the next pass would read, what it would take, and about what that costs.

    Raises:
        ConfigError: mistakes in the file.
        SourceError: what a run would say about the bucket, or about positions made with other options.
    """
    config = with_moment(read_config(task_class, path))
    found = None
    if not afresh:
        with IggyTarget(config) as target, target.connect() as connection:
            found = inspect(connection, config)
    outlook = look_ahead(task_class, config, found)
    cost = prices.cost(outlook)
    if as_json:
        _json({**_outlook_json(outlook), "cost_usd": cost, "prices": attrs.asdict(prices)})
        return 0
    _write(_outlook_lines(outlook))
    parts = ", ".join(f"${cost[name]:.4f} for {name.upper()}" for name in ("list", "get", "transfer"))
    _write([f"about ${cost['total']:.4f}: {parts}; prices by --list-price, --get-price, --transfer-price"])
    return 0


def show_status(task_class: type[AbstractSourceTask], path: Path, *, no_list: bool, as_json: bool) -> int:
    """Writes to stdout how far the source is and who runs it. The source may run meanwhile.

    Raises:
        ConfigError: mistakes in the file.
        SourceError: as `show_plan`.
    """
    config = with_moment(read_config(task_class, path))
    with IggyTarget(config) as target, target.connect() as connection:
        found = inspect(connection, config)
    figures = {**summary(found), **_log_json(found)}
    table = [*summary_lines(found), *_log_lines(found)]  # before the positions are given away
    outlook = None if no_list else look_ahead(task_class, config, found)
    if as_json:
        lag = {"objects": outlook.total.objects, "bytes": outlook.total.size_bytes} if outlook is not None else None
        _json({**figures, "lag": lag})
        return 0
    _write(table)
    if outlook is not None:
        _write([f"lag: {outlook.total.objects:,} objects, {outlook.total.size_bytes:,} bytes are listed and not done"])
        _write(_left_out(outlook))
    return 0


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
        "log": {"messages": found.log_messages, "bytes": found.log_bytes, "epochs": found.epochs},
    }


def _log_lines(found: Inspection) -> Iterator[str]:
    runners = [claim for claim in found.running if claim.leader]
    workers = len(found.running) - len(runners)
    for claim in runners:
        yield f"running on {claim.who}" + (f", with {workers} more connections" if workers else "")
    if not runners:
        yield "not running"
    saved = f"saved last at {moment(found.last_saved_us // 1000)}" if found.last_saved_us else "never saved"
    yield (
        f"{saved}; as of {moment(found.as_of_ms)}; the log: {found.log_messages:,} messages, {found.log_bytes:,} bytes, "
        f"{found.epochs:,} epochs"
    )


def _outlook_json(outlook: Outlook) -> dict[str, Any]:
    return {
        **attrs.asdict(outlook.total),
        "begun": outlook.begun,
        "listed": outlook.listed,
        "left_out": dict(outlook.left_out),
        "list_requests": outlook.list_requests,
        "get_requests": outlook.get_requests,
        "endings": _shares_json(outlook.endings),
        "lanes": _shares_json(outlook.lanes),
        "prefixes": _shares_json(outlook.prefixes),
    }


def _shares_json(shares: Mapping[str, Part]) -> dict[str, Any]:
    return {name: attrs.asdict(shares[name]) for name in sorted(shares)}


def _outlook_lines(outlook: Outlook) -> Iterator[str]:
    total = outlook.total
    begun = f", {outlook.begun:,} of them begun before" if outlook.begun else ""
    yield f"to read: {total.objects:,} objects, {total.size_bytes:,} bytes{begun}; {outlook.listed:,} listed"
    yield from _left_out(outlook)
    for title, shares in (("ending", outlook.endings), ("lane", outlook.lanes), ("folder", outlook.prefixes)):
        if shares:
            yield f"{title:<40} {'objects':>12} {'bytes':>20}"
        largest = sorted(shares.items(), key=lambda item: (-item[1].size_bytes, item[0]))
        for name, share in largest[:MOST_ROWS]:
            yield f"{name or '(none)':<40} {share.objects:>12,} {share.size_bytes:>20,}"
        if len(largest) > MOST_ROWS:
            yield f"... and {len(largest) - MOST_ROWS:,} more (--json shows all)"
    yield f"requests: {outlook.list_requests:,} LIST for each pass, at least {outlook.get_requests:,} GET"


def _left_out(outlook: Outlook) -> Iterator[str]:
    for reason, count in sorted(outlook.left_out.items()):
        yield f"left out, {reason}: {count:,} objects"


def _json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def _write(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
