"""The command `convert`: a configuration from the properties of a Kafka connector."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framework.cli.run import config_class_of
from framework.cli.text import in_columns, printable
from framework.config.files import read_file
from framework.config.java_properties import parse_properties
from framework.config.kafka_connect import Converted, convert_properties, shown
from framework.config.loading import structure
from framework.config.sections import ordered_sections
from framework.config.toml_text import table_lines
from framework.errors import EXIT_DONE, ConfigError

if TYPE_CHECKING:
    from framework.cli.program import Program

_MAX_BYTES = 1 << 20
_LATER = "LATER"
_REFERENCE_LATER = re.compile(r"(?<!\$)\$\{(?:env|file):[^}]+\}")
_PLACES = re.compile(r"\[([\w.]+)\] (\w+(?:, \w+)*)")


def convert(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="Properties of a connector, or its JSON.", metavar="FILE", readable=False)
    ],
) -> int:
    """Convert the properties of a Kafka connector, such as Aiven's. Writes a configuration to stdout."""
    program: Program = context.obj
    task_class = program.task_class
    root = config_class_of(task_class)
    section: str | None = getattr(task_class, "section", None)
    if section is None:
        raise ConfigError(f"{task_class.__name__} has no section for its store, so nothing can be converted for it")
    properties, repeated = _read(file)
    own = getattr(task_class, "connector_options", {})
    converted = convert_properties(properties, own, section=section)
    sys.stdout.write("".join(f"{line}\n" for line in _lines(program.command, root, file, converted)))
    sys.stdout.flush()
    if not any(name in own for name in properties):
        _warn(f"no property is one of a connector whose store is [{section}]: is it the connector of another store?")
    if properties.get("transforms", "").strip():
        _warn(
            "transforms are not converted: until you write [[transforms]], records keep what these removed or changed"
        )
    for name in repeated:
        _warn(f"{name} is given more than once; the last value counts")
    for row in converted.rows:
        if row.warning:
            _warn(row.warning)
    for mistake in _mistakes(converted.sections, root):
        _warn(f"to correct: {mistake}")
    return EXIT_DONE


def _mistakes(sections: Mapping[str, Mapping[str, object]], root: type) -> Iterator[str]:
    """Yield the mistakes, except those that depend on a value behind a reference: it is known where the source runs."""
    later: set[tuple[str, str]] = set()
    values: dict[str, dict[str, object]] = {}
    for section, options in sections.items():
        values[section] = dict(options)
        for name, value in options.items():
            if isinstance(value, str) and _REFERENCE_LATER.search(value):
                later.add((section, name))
                values[section][name] = _REFERENCE_LATER.sub(
                    f"${{env:{_LATER}}}", value
                )  # reads nothing of this machine
    try:
        structure(values, root, environment={_LATER: "set-later"})
    except ConfigError as exc:
        for mistake in exc.mistakes:
            named = {(found[1], name) for found in _PLACES.finditer(mistake) for name in found[2].split(", ")}
            if not named & later:
                yield mistake


def _read(path: Path) -> tuple[dict[str, str], list[str]]:
    try:
        data = read_file(path, _MAX_BYTES)
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror or type(exc).__name__}", origin=str(path)) from None
    if b"\0" in data:
        raise ConfigError("is no file of properties: it is binary", origin=str(path))
    if data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return _from_json(data, path), []
    try:
        properties, repeated = parse_properties(data)
    except ValueError as exc:
        raise ConfigError(f"is no valid file of properties: {exc}", origin=str(path)) from None
    properties.pop("", None)
    if any(name.startswith("[") for name in properties):
        raise ConfigError("has sections, so it is a configuration of this program, not a connector's", origin=str(path))
    if not any("." in name for name in properties):
        raise ConfigError("has no property of a connector, such as connector.class=...", origin=str(path))
    return properties, repeated


def _from_json(data: bytes, path: Path) -> dict[str, str]:
    """Return the properties in the JSON that Kafka Connect's REST interface takes: `{"name": ..., "config": {...}}`."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigError("is neither properties nor JSON", origin=str(path)) from None
    config = content.get("config", content)
    if not isinstance(config, dict) or not all(
        isinstance(value, str | int | float | None) for value in config.values()
    ):
        raise ConfigError('is no connector: its JSON must be {"name": "...", "config": {...}}', origin=str(path))
    name = {"name": content["name"]} if config is not content and isinstance(content.get("name"), str) else {}
    given = {key: "" if value is None else value for key, value in config.items()}
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}
    return {**name, **texts}


def _lines(command: str, root: type, path: Path, converted: Converted) -> Iterator[str]:
    yield f"# Converted from {printable(path.name)}. Check it: {command} check --config FILE"
    for section in ordered_sections(root):
        options = converted.sections.get(section)
        if options:
            yield from table_lines(f"[{section}]", options)
    yield ""
    yield "# Property by property:"
    rows = [
        (printable(row.name) or "(absent)", shown(row.to) if row.to else "no counterpart", printable(row.note))
        for row in converted.rows
    ]
    yield from (f"#   {line}" for line in in_columns(rows))


def _warn(text: str) -> None:
    sys.stderr.write(f"warning: {printable(text)}\n")
