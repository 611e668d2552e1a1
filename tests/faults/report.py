"""Results as JSON, as a table, and on the page about delivery."""

import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import attrs

from benchmarks.table import machine
from tests.faults.rows import BY_NAME, ROOT, ROWS

PAGE = ROOT / "docs" / "development" / "fault-injection.md"
STORES = {"s3": "S3", "gcs": "Google Cloud Storage", "": "Without a store"}
"""A table for each."""

HEAD = ("fault", "rounds", "amid sending", "records checked", "lost", "repeated", "mixed", "wrong", "seconds")


def save(out, row, tally, *, seconds, seed, wanted):
    """Writes a row's result into the folder, as JSON."""
    told = {
        "row": row.name,
        "title": row.title,
        "wanted": wanted,
        "seed": seed,
        "seconds": round(seconds, 1),
        "when": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "commit": commit(),
        "machine": machine(),
        **attrs.asdict(tally),
    }
    (out / f"{row.name}.json").write_text(json.dumps(told, indent=1) + "\n")
    return told


def load(out):
    """The results of a folder, in the order of the rows."""
    found = [out / f"{row.name}.json" for row in ROWS]
    return [json.loads(path.read_text()) for path in found if path.is_file()]


def commit():
    """Of the tree that was tested, with a mark when it was changed since."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def good(results):
    """Whether nothing was lost, repeated, mixed or wrong, and nothing hung."""
    return not any(one[what] for one in results for what in ("lost", "repeated", "mixed", "wrong", "hung"))


def table(results):
    """The results as a table in Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "| --- " + "| ---: " * (len(HEAD) - 1) + "|"]
    for one in results:
        servers = ", ".join(f"{count} {kind}" for kind, count in sorted(one["servers"].items()))
        in_tests = not one["servers"]
        cells = (
            one["title"],
            f"{one['rounds']:,}" if in_tests else f"{one['rounds']} ({servers})",
            "" if in_tests else str(one["amid"]),
            "" if in_tests else f"{one['records']:,}",
            *(str(one[what]) for what in ("lost", "repeated", "mixed")),
            str(one["wrong"] + one["hung"]),
            f"{one['seconds']:.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kinds(results):
    """How often each kind of fault struck, and those that struck in one round: a line for each row of chains."""
    lines = [
        f"- {one['row']}: " + ", ".join(f"{kind} {count}" for kind, count in sorted(one["kinds"].items()))
        for one in results
        if one["servers"]
    ]
    return "\n".join(lines)


def marks(store):
    """Between which the page has that store's table."""
    name = f"faults {store or 'no store'}"
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def by_store(results):
    """Store -> its results; none of a store without any."""
    found = {store: [one for one in results if BY_NAME[one["row"]].store == store] for store in STORES}
    return {store: some for store, some in found.items() if some}


def headed(results, tell):
    """What `tell` makes of each store's results, under its name."""
    return "\n\n".join(f"{STORES[store]}\n\n{tell(some)}" for store, some in by_store(results).items())


def page(results):
    """What stands between the marks of the page, for the results of one store."""
    seeds = sorted({one["seed"] for one in results})
    days = sorted({one["when"][:10] for one in results})
    commits = sorted({one["commit"] for one in results})
    missed = sum(one["missed"] for one in results)
    ended = sum(one["ended"] for one in results)
    forgotten = sum(one["vanished"] for one in results)
    told = (
        f"{table(results)}\n\n"
        f"Last run: {' to '.join(days)}, `make faults` with seed {', '.join(map(str, seeds))}, commit {', '.join(commits)};"
        f" {results[0]['machine']}."
    )
    if any(one["servers"] for one in results):
        told += (
            f"\nBesides, {missed:,} faults came when there was nothing to do, and are not counted; killed servers had"
            f" forgotten {forgotten:,} confirmed\nmessages, which were sent again; the program ended with an error {ended}"
            " times and was started again."
            f" {sum(one.get('broken', 0) for one in results)} servers did not come back whole from a kill: they did not start,"
            "\nor gave no message behind some place, at which the program ended and said so."
        )
    return told


def write_page(results, path=PAGE):
    """Puts the results between the marks of their stores; what stands there of other stores stays."""
    text = path.read_text()
    for store, some in by_store(results).items():
        begin, end = marks(store)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{page(some)}\n{end}{rest.split(end)[1]}"
    path.write_text(text)


def folder(name):
    """The folder of results, made when it is missing."""
    made = Path(name).resolve()
    made.mkdir(parents=True, exist_ok=True)
    return made
