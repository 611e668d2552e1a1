"""What a message tells the user to type exists: every command and option of the program, every section and option of the file."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import typer.main

from framework.cli.app import make_app
from framework.config.option import options_of, sections_of
from gcs_source.task import GcsSourceConfig
from s3_source.demo import demo
from s3_source.task import S3SourceConfig

ROOT = Path(__file__).parents[2]
OTHERS = {
    "framework/iggy/embedded",
    "framework/testing",
    "framework/cli/demo",
    "s3_source/kafka_connect.py",
    "gcs_source/kafka_connect.py",
}
"""Programs of their own, with options of their own; and properties of Kafka connectors."""

NOT_OURS = {
    *("--x-", "--xa-"),
    *("--port", "--owned", "--username", "--no-sync"),
    *("--properties-file", "--load-spark-defaults"),
    *("--long", "--uid"),
}
"""Endings of buckets, options of the embedded server, of Spark's launcher, of zstd, of useradd."""


@cache
def commands():
    """name -> options, of every command; the empty name is the run."""

    def walk(command, name):
        yield name, frozenset(option for param in command.params for option in (*param.opts, *param.secondary_opts))
        for child, found in getattr(command, "commands", {}).items():
            yield from walk(found, f"{name} {child}".strip())

    return dict(walk(typer.main.get_command(make_app(demo)), ""))


@cache
def sections():
    found = {}
    for config in (S3SourceConfig, GcsSourceConfig):
        for name, section in sections_of(config).items():
            found.setdefault(name, set()).update(option.name for option in options_of(section))
    return found


def texts(source):
    """Every text of a module that is no docstring, with `{}` for what is put in."""
    tree = ast.parse(source)
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (loose | parts):
            yield node.value


@cache
def hints():
    """(module, text) of every text of the program."""
    return list(_hints())


def _hints():
    for package in ("framework", "transformers", "s3_source", "gcs_source"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not any(name.startswith(other) for other in OTHERS):
                for text in texts(path.read_text(encoding="utf-8")):
                    yield name, text


def test_options_that_are_named_exist():
    known = frozenset().union(*commands().values())
    found = {(name, option) for name, text in hints() for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*\b", text)}
    assert len(found) > 20
    assert {(name, option) for name, option in found if option not in known | NOT_OURS} == set()


def test_commands_that_are_named_exist_with_the_options_that_are_named_behind_them():
    count = 0
    for name, text in hints():
        quoted = re.findall(r"[`\"]((?:offsets|dead-letter) [a-z]+(?:-[a-z]+)*)((?: --[a-z-]+)*)", text)
        plain = re.findall(r"((?:offsets|dead-letter) [a-z]+(?:-[a-z]+)*)((?: --[a-z-]+)+)", text)
        for command, tail in {*quoted, *plain}:
            count += 1
            assert command in commands(), (name, text)
            assert set(tail.split()) <= commands()[command], (name, text)
    assert count > 5


@pytest.mark.parametrize("name", ["s3", "gcs"])
def test_options_of_the_store_that_are_named_exist(name):
    found = {(path, option) for path, text in hints() for option in re.findall(rf"\b{name}\.([a-z_]+)\b", text)}
    assert len(found) > 5
    known = sections()[name] | {"toml", "amazonaws"}
    assert {(path, option) for path, option in found if option not in known} == set()


def test_sections_and_options_of_the_file_that_are_named_exist():
    found = {
        (path, section, option)
        for path, text in hints()
        for section, option in re.findall(r"(?<![\w\]])\[([a-z]\w*)\] ([a-z_]+)\b", text)
    }
    assert len(found) > 30
    wrong = {(path, section, option) for path, section, option in found if option not in sections().get(section, ())}
    words = {"and", "or", "is", "with", "does", "has", "to", "no", "back"}
    assert {one for one in wrong if one[2] not in words} == set()
