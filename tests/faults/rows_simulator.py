"""The row of the simulator: histories by the hundred thousand, of the real code in a simulated world."""

import os
import re
import subprocess
import sys

PROCESSES = 2
SUMMARY = re.compile(r"^(\d+) histories, (\d+) wrong", re.MULTILINE)
WRONG = re.compile(r"^seed \d+: ([A-Z ]+): .*", re.MULTILINE)
KINDS = {"LOST": "lost", "LETTER LOST": "lost", "REPEATED": "repeated", "ORDER": "mixed"}
"""Rule of the checker -> what the table calls it; all else is wrong."""


def run_histories(row, root, tally, count, seed):
    """So many histories from a seed on, in some processes; each history is a round."""
    each = -(-count // PROCESSES)
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.simulator",
                "--theme",
                "mixed",
                "--histories",
                str(each),
                "--most",
                "20",
                "--seed",
                str(seed + number),
                "--step",
                str(PROCESSES),
            ],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for process in running:
            take(row, tally, process.communicate()[0])
    finally:
        for process in running:
            process.kill()
            process.wait()


def take(row, tally, said):
    """Counts what a process said."""
    summary = SUMMARY.search(said)
    if summary is None:
        tally.wrong += 1
        tally.evidence.append(said[-2000:])
    else:
        tally.rounds += int(summary[1])
    for found in WRONG.finditer(said):
        what = KINDS.get(found[1], "wrong")
        setattr(tally, what, getattr(tally, what) + 1)
        tally.evidence.append(found[0])
    if summary is not None and int(summary[2]) != len(WRONG.findall(said)):
        tally.wrong += 1  # what it counts and what it tells must agree
    for sentence in tally.evidence[:5]:
        print(f"FAILED {row.name}: {sentence}", flush=True)
