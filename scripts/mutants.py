"""Mutation testing of the core: small mistakes are planted, one at a time, and the nearest unit tests must fail on each.

    make mutants                             all of them: hours
    make mutants ARGS="--sample 100"         a hundred, chosen by --seed: minutes
    make mutants ARGS="--module feed --sample 30"
    make mutants ARGS="--show NAME"          what was changed there

mutmut plants the mistakes and runs the tests; which modules and which tests, pyproject.toml says. It works on a copy, in .mutants:
mutmut leaves decorated functions alone, and half of the core's contract is decorated, so `@override` is left out there and
`@property` is written as a call. What lives on is equivalent, and stands in tests/mutants.md with its reason, or wants a better
test.

It ends with 1, too, when tests/mutants.md explains a mutant that is gone. tests/unit/test_mutants.py checks the names in
pyproject.toml.
"""

import argparse
import ast
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

import libcst as cst

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / ".mutants"
PACKAGES = ["framework", "transformers", "s3_source", "gcs_source", "tests"]
EXPLAINED = ROOT / "tests" / "mutants.md"
SPEED = """

import json
import pathlib

import pytest
from hypothesis import Phase, settings

settings.register_profile("mutants", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    stats = pathlib.Path("mutmut-stats.json")
    if stats.exists():
        seconds = json.loads(stats.read_text())["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
"""
"""Added to the copy's conftest.py: hypothesis looks for no smaller example that fails, and the quickest tests run first."""

KILLED, ALIVE, UNTESTED = {1, 3, 24, -24, 36, 152}, {0}, {5, 33}


class Undecorated(cst.CSTTransformer):
    """Methods without `@override`, and properties as `name = property(name)` behind a plain method."""

    def leave_FunctionDef(  # noqa: N802  # libcst calls it so
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.FlattenSentinel[cst.BaseStatement]:
        """The method as mutmut takes it."""
        names = [cst.Module([]).code_for_node(each.decorator) for each in original_node.decorators]
        if not names or not set(names) <= {"override", "property"}:
            return updated_node
        plain = updated_node.with_changes(decorators=[])
        if "property" not in names:
            return plain
        name = original_node.name.value
        return cst.FlattenSentinel([plain, cst.parse_statement(f"{name} = property({name})\n")])


def copy_the_project() -> None:
    """Bring .mutants up to date; what has not changed keeps its time, so that mutmut keeps its results."""
    wanted = {ROOT / "pyproject.toml"}
    for package in PACKAGES:
        wanted |= {path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    for path in wanted:
        copy = COPY / path.relative_to(ROOT)
        data = path.read_bytes()
        if path.suffix == ".py" and PACKAGES[-1] not in path.relative_to(ROOT).parts[:1]:
            data = cst.parse_module(data).visit(Undecorated()).bytes if b"@" in data else data
        elif path == ROOT / "tests" / "conftest.py":
            data += SPEED.encode()
        if not copy.exists() or copy.read_bytes() != data:
            # mutmut plants nothing in a module that is named later, and has not changed
            if path.name == "pyproject.toml":
                shutil.rmtree(COPY / "mutants", ignore_errors=True)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
    for folder in [COPY / package for package in PACKAGES]:
        for copy in folder.rglob("*"):
            if copy.is_file() and "__pycache__" not in copy.parts and ROOT / copy.relative_to(COPY) not in wanted:
                copy.unlink()
                mutated = COPY / "mutants" / copy.relative_to(COPY)
                mutated.unlink(missing_ok=True)
                mutated.with_name(f"{mutated.name}.meta").unlink(missing_ok=True)


def results() -> dict[str, int | None]:
    """Each mutant's name, and how pytest ended for it; None when it was not tried."""
    files = sorted((COPY / "mutants").rglob("*.py.meta"))
    return {name: code for path in files for name, code in json.loads(path.read_text())["exit_code_by_key"].items()}


@functools.cache
def functions_of(module: str) -> dict[str, list[str]]:
    """The lines of each function of a module, as mutmut wrote it: every mutant is a function of its own."""
    source = (COPY / "mutants" / f"{module.replace('.', '/')}.py").read_text()
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return {node.name: lines[node.lineno - 1 : node.end_lineno] for node in functions}


@functools.cache
def change_of(name: str) -> str:
    """The line that is another one in a mutant's function; empty when lines are only gone."""
    module, _, mutant = name.rpartition(".")
    function = mutant.rpartition("__mutmut_")[0]

    def lines_of(copy: str) -> list[str]:
        own = function.rpartition("ǁ")[2].removeprefix("x_")
        return [line.strip().replace(copy, own) for line in functions_of(module)[copy]]

    before = lines_of(f"{function}__mutmut_orig")
    return next((line for line in lines_of(mutant) if line not in before), "")


def explained_changes() -> list[tuple[str, str]]:
    """What tests/mutants.md explains: functions and changed lines, since numbers of mutants move; `…` is any text."""
    rows = re.findall(r"^\| `([\w.ǁ…]+)` \| `(.+?)` \|", EXPLAINED.read_text(), re.MULTILINE)
    return [(function, line.replace(r"\|", "|")) for function, line in rows]


def is_like(text: str, pattern: str) -> bool:
    """Return whether a text is the pattern, in which `…` stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), text) is not None


def is_explained(name: str, rows: Iterable[tuple[str, str]]) -> bool:
    """Return whether one of these rows of tests/mutants.md explains a mutant."""
    function = name.rpartition("__mutmut_")[0]
    lines = [line for of_function, line in rows if is_like(function, of_function)]
    return bool(lines) and any(is_like(change_of(name), line) for line in lines)


def missing_changes(names: Collection[str]) -> list[str]:
    """Return the rows of tests/mutants.md that explain no mutant."""
    return [" ".join(row) for row in explained_changes() if not any(is_explained(name, [row]) for name in names)]


def mutmut(*arguments: str) -> None:
    """Run mutmut in the copy, with as many examples as in CI."""
    environment = {**os.environ, "CI": "true"}
    done = subprocess.run([sys.executable, "-m", "mutmut", *arguments], cwd=COPY, env=environment, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def report(chosen: set[str]) -> bool:
    """Print what lived on and the rate; return whether something lives on that tests/mutants.md does not explain."""
    found = {name: exit_code for name, exit_code in results().items() if name in chosen}
    ends = Counter(
        "killed" if code in KILLED else "alive" if code in ALIVE else "untested" if code in UNTESTED else "unclear"
        for code in found.values()
    )
    explained = explained_changes()
    open_ones = [
        name for name, code in sorted(found.items()) if code not in KILLED and not is_explained(name, explained)
    ]
    print(f"\n{len(found)} mutants: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    print(f"killed: {100 * ends['killed'] / max(1, len(found)):.1f} %")
    by_module: dict[str, list[bool]] = defaultdict(list)
    for name, code in found.items():
        by_module[name.rpartition(".")[0]].append(code in KILLED)
    for module, killed in sorted(by_module.items(), key=lambda item: sum(item[1]) / len(item[1])):
        print(f"  {sum(killed):4} of {len(killed):4}  {module}")
    print("".join(f"  not explained: {name}\n" for name in open_ones), end="")
    return bool(open_ones)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make mutants", description="mutation testing of the core")
    parser.add_argument("--sample", type=int, help="so many, chosen by the seed; without it all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--module", action="append", default=[], help="only this module, as `feed` or `offset_log.codec`"
    )
    parser.add_argument("--jobs", type=int, default=2, help="tests side by side")
    parser.add_argument("--name", action="append", default=[], help="only this mutant")
    parser.add_argument("--show", help="what was changed there; nothing runs")
    options = parser.parse_args()
    if options.show:
        mutmut("show", options.show)
        return 0
    copy_the_project()
    # The first run writes the mutants and learns which test reaches what; it ends at a name that does not exist.
    first = subprocess.run(
        [sys.executable, "-m", "mutmut", "run", "none"], cwd=COPY, check=False, capture_output=True, text=True
    )
    names = sorted(results())
    if not names:
        sys.exit(f"error: mutmut made no mutants; it said: {(first.stdout + first.stderr)[-2000:]}")
    gone = missing_changes(names)
    if options.module:
        names = [name for name in names if any(f".{module}." in f".{name}" for module in options.module)]
    if options.name:
        names = [name for name in names if name in options.name]
    if options.sample:
        names = random.Random(options.seed).sample(names, min(options.sample, len(names)))
    if not names:
        sys.exit("error: no mutant has that name")
    mutmut("run", "--max-children", str(options.jobs), *names)
    alive = report(set(names))
    print("".join(f"  tests/mutants.md explains what no mutant does: {row}\n" for row in gone), end="")
    return int(alive or bool(gone))


if __name__ == "__main__":
    sys.exit(main())
