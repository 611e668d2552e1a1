"""`python -m tests.faults`, or `make faults`: everything that can break breaks, many times, and a checker counts.

python -m tests.faults                                       the long form, two rows side by side
python -m tests.faults --rows kill-local,both --rounds 10    some rows, in short
python -m tests.faults --store gcs --rows kill-local         a row on that store: the same as --rows gcs-kill-local
python -m tests.faults --rows both --chain 3 --seed 7        one chain again, that of a failure
python -m tests.faults --report --page                       the table of what has run, also on the page
"""

import argparse
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.faults import report
from tests.faults.chain import Rig
from tests.faults.rows import BY_NAME, GCS_PREFIX, ROOT, named, run_row, why_not

SEED = 20261121
LONGEST_FIRST = ("kill-spark", "kill-local", "iggy-proxy", "store-proxy", "both")


def options(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", help="names, with commas; all of them: " + ", ".join(BY_NAME))
    parser.add_argument("--store", choices=("s3", "gcs"), help="only the rows of that store")
    parser.add_argument("--rounds", type=int, help="rounds of each row, in place of those of the long form")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--server", choices=("both", "embedded", "real"), default="both")
    parser.add_argument("--chain", type=int, help="only the chain of that number")
    parser.add_argument("--jobs", type=int, default=2, help="rows side by side")
    parser.add_argument("--out", default=".faults", help="folder for results and evidence")
    parser.add_argument("--keep", action="store_true", help="keep what each chain wrote, also when all is well")
    parser.add_argument("--report", action="store_true", help="run nothing, only tell what the folder holds")
    parser.add_argument("--page", action="store_true", help="write the table into docs/development/fault-injection.md")
    given = parser.parse_args(arguments)
    names = given.rows.split(",") if given.rows else [row.name for row in BY_NAME.values() if row.is_of(given.store)]
    given.rows = [named(name, given.store) for name in names]
    if unknown := [name for name, row in zip(names, given.rows, strict=True) if row is None]:
        of = f" of the store {given.store}" if given.store else ""
        there = [row.name for row in BY_NAME.values() if row.is_of(given.store)]
        parser.error(f"no such row{of}: {', '.join(unknown)}; there are {', '.join(there)}")
    return given


def run_here(name, given, out):
    """A row in this process; whether it was as it should be."""
    row = BY_NAME[name]
    rig = Rig(out, seed=given.seed, keep=given.keep)
    try:
        tally, seconds = run_row(row, rig, rounds=given.rounds, wanted=given.server, only=given.chain)
    finally:
        rig.close()
    wanted = given.rounds or row.rounds
    report.save(out, row, tally, seconds=seconds, seed=given.seed, wanted=wanted)
    if row.chain is not None and given.chain is None and tally.rounds < wanted:
        print(f"{name}: only {tally.rounds} of {wanted} faults struck while work was open", flush=True)
        return False
    return tally.good


def run_beside(names, given, out):
    """Rows in processes of their own, some at a time."""

    def run(name):
        command = [sys.executable, "-m", "tests.faults", "--rows", name, "--out", str(out), "--jobs", "1"]
        command += ["--seed", str(given.seed), "--server", given.server]
        if given.rounds is not None:
            command += ["--rounds", str(given.rounds)]
        with subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr) as process:
            running.append(process)
            return process.wait() == 0

    running = []
    ordered = sorted(names, key=lambda name: (name.removeprefix(GCS_PREFIX) not in LONGEST_FIRST, name))
    with ThreadPoolExecutor(given.jobs) as pool:
        try:
            return all(list(pool.map(run, ordered)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise


def main(arguments=None):
    """Runs what is asked for; 0 when nothing was lost, repeated, mixed or wrong."""
    given = options(arguments)
    out = report.folder(given.out)
    fine = True
    if not given.report:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
        names = []
        for name in given.rows:
            sentence = why_not(BY_NAME[name], given.server)
            if sentence:
                print(sentence, flush=True)
            else:
                names.append(name)
        for name in names:
            (out / f"{name}.json").unlink(missing_ok=True)
            (out / f"{name}.rounds.jsonl").unlink(missing_ok=True)
        if given.jobs > 1 and len(names) > 1:
            fine = run_beside(names, given, out)
        else:
            fine = min(
                [run_here(name, given, out) for name in names], default=True
            )  # each of them, not up to the first
    results = [one for one in report.load(out) if one["row"] in given.rows]
    (out / "faults.md").write_text(
        f"{report.headed(results, report.page)}\n\nWhat struck:\n\n{report.kinds(results)}\n"
    )
    if given.jobs > 1 or given.report or len(given.rows) > 1:
        print(report.headed(results, report.table))
    if given.page:
        report.write_page(results)
    return 0 if fine and report.good(results) else 1


if __name__ == "__main__":
    sys.exit(main())
