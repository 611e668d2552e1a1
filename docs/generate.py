"""The reference pages that are written from the code: errors, contracts, options, command line, HTTP API.

    python docs/generate.py             writes them
    python docs/generate.py --check     names the stale pages; exit code 1 if there are any

Their prose is in `docs/prose`: a page's text with a line `@@NAME` where a generated part belongs, and notes by heading.
`tests/unit/docs/test_docs.py` fails when a page is stale, or when an error, a method or a command is missing from it.
"""
# ruff: noqa: INP001  a script beside the pages, not a package

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script's own folder is what Python puts there

import typer.main  # noqa: E402

from framework import errors  # noqa: E402
from framework.cli.app import make_app  # noqa: E402
from framework.cli.config import schema_text  # noqa: E402
from framework.config.loading import load  # noqa: E402
from framework.config.option import Option, is_list, options_of, sections_of, table_class  # noqa: E402
from framework.config.sections import SourceCommonConfig  # noqa: E402
from framework.config.toml_text import default_text  # noqa: E402
from framework.config.transform_registry import SHIPPED, transform_class  # noqa: E402
from framework.config.value_limits import limits_text  # noqa: E402
from framework.discovery.object_feed import ObjectFeed  # noqa: E402
from framework.engine.metrics import reference_rows  # noqa: E402
from framework.iterator import AbstractSourceRecordIterator  # noqa: E402
from framework.model.batches import SkippedRecord  # noqa: E402
from framework.model.objects import NativeObject, ResumePoint  # noqa: E402
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey  # noqa: E402
from framework.model.splits import Split  # noqa: E402
from framework.offsets.manager import OffsetManager  # noqa: E402
from framework.offsets.offset_store import OffsetStore  # noqa: E402
from framework.offsets.table import PositionTable  # noqa: E402
from framework.pipeline.producer_contract import Producer  # noqa: E402
from framework.storage.preflight import CheckResult  # noqa: E402
from framework.store import ListPage, ObjectStore  # noqa: E402
from framework.task import AbstractSourceTask, SourceContext  # noqa: E402
from framework.task.store_task import StoreSourceTask  # noqa: E402
from framework.testing.kit import LAWS  # noqa: E402
from framework.testing.rig import SourceRig  # noqa: E402
from framework.transform import Transform, TransformBatch, TransformContext  # noqa: E402
from framework.transformer import BatchLimits, ObjectInput, PayloadBatch, ReadStream, Transformer  # noqa: E402
from framework.transforms.values import KeyPattern, ValuePattern  # noqa: E402
from gcs_source.config import GcsConfig  # noqa: E402
from gcs_source.task import GcsSourceConfig  # noqa: E402
from s3_source.config import S3Config  # noqa: E402
from s3_source.demo import demo  # noqa: E402
from s3_source.task import S3SourceConfig, S3SourceTask  # noqa: E402

_WRITTEN_BY = "<!-- Written by `python docs/generate.py`. Change the code, not this page. -->"
PROSE = ROOT / "docs" / "prose"


def filled(name: str, **parts: Iterable[str]) -> str:
    """Return the prose of a page with the lines of each part in place of its line `@@NAME`."""
    text = (PROSE / f"{name}.txt").read_text(encoding="utf-8")
    for part, lines in parts.items():
        text = text.replace(f"@@{part}\n", "\n".join(lines))
    return text


def notes(name: str) -> dict[str, str]:
    """Return the notes of a file in the prose: heading -> text."""
    text = (PROSE / f"{name}.txt").read_text(encoding="utf-8")
    headings = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return {heading: note.strip() for heading, note in zip(headings[::2], headings[1::2], strict=True)}


# ---- errors.md


def error_classes() -> list[type[errors.SourceError]]:
    """Every error, in the order of the module."""
    found = [
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.SourceError)
    ]
    return sorted(found, key=lambda cls: inspect.getsourcelines(cls)[1])


def errors_page() -> str:
    """docs/reference/errors.md."""
    tree = inspect.cleandoc(errors.__doc__ or "")
    title, _, rest = tree.partition("\n\n")
    drawing, _, after = rest.partition("\n\n")
    lines = ["# Errors", "", _WRITTEN_BY, "", title, "", "```text", textwrap.dedent(drawing), "```", "", after, ""]
    lines += [
        "All are in `framework.errors`. The program writes the message to stderr as one sentence and exits with the code of",
        "the error: 1 try again, 2 configuration, 3 a person must act. [Bad data](../guides/bad-data.md) explains how to skip",
        "bad records and objects.",
        "",
    ]
    advice = notes("error-advice")
    for cls in error_classes():
        lines += [
            f"## {cls.__name__}",
            "",
            *rendered(cls.__doc__),
            "",
            f"**What to do.** {_sentence(advice[cls.__name__])} Exit code: {_exit_code(cls)}.",
            "",
        ]
    return "\n".join(lines)


def _exit_code(cls: type[errors.SourceError]) -> str:
    return "that of its cause" if cls is errors.ReaderFailedError else str(cls.exit_code)


# ---- contracts.md

CONTRACTS: tuple[type, ...] = (
    AbstractSourceTask,
    AbstractSourceRecordIterator,
    SourceContext,
    StoreSourceTask,
    ObjectStore,
    ListPage,
    NativeObject,
    Transformer,
    PayloadBatch,
    SkippedRecord,
    ResumePoint,
    ObjectInput,
    ReadStream,
    BatchLimits,
    Split,
    CheckResult,
    Transform,
    TransformBatch,
    TransformContext,
    ObjectFeed,
    OffsetManager,
    PositionTable,
    OffsetManagerEntry,
    OffsetManagerKey,
    OffsetStore,
    Producer,
    SourceRig,
)
"""The classes that authors subclass, fill or call, in the order of the page."""

_LISTED: Mapping[type, frozenset[str]] = {
    AbstractSourceRecordIterator: frozenset(
        (
            *("get_native_item_stream", "get_input_stream", "get_native_key", "get_offset_manager_key"),
            *("create_offset_manager_entry", "create_source_record", "create_feed", "look_up", "store_clock"),
            *("get_table_log_keys", "prefixes", "bucket", "address", "start_key", "finished", "next_batch", "close"),
        )
    ),
    OffsetManager: frozenset(
        (
            *("populate_offset_manager", "get_entry", "add_entry", "remove_entry", "store_begun", "commit"),
            *("flush", "dirty"),
        )
    ),
    PositionTable: frozenset(("entries", "is_finished")),
    OffsetManagerEntry: frozenset(
        (
            *("start", "finished", "final", "done", "state", "split", "get_manager_key", "get_properties"),
            *("from_properties", "get_int", "get_long", "get_string"),
        )
    ),
}
"""Of these classes the page has only the methods that authors override or call; the framework calls the others."""


def methods_of(cls: type) -> Iterator[tuple[str, Any, bool]]:
    """Yield name, function and whether it is abstract, of the methods of a class that the page has."""
    is_protocol = bool(getattr(cls, "_is_protocol", False))
    abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        function = function.fget if isinstance(function, property) else function
        if inspect.isfunction(function) and not name.startswith("_") and name in _LISTED.get(cls, {name}):
            yield name, value, is_protocol or name in abstract


def contracts_page() -> str:
    """docs/reference/contracts.md."""
    lines = [
        *(f"- [{cls.__name__}](#{cls.__name__.lower()})" for cls in CONTRACTS),
        "- [Laws](#laws)",
        "",
    ]
    for cls in CONTRACTS:
        lines += [
            f"## {cls.__name__}",
            "",
            f"`from {cls.__module__} import {cls.__name__}`",
            "",
            *rendered(cls.__doc__),
            "",
        ]
        methods = list(methods_of(cls))
        for name, value, is_abstract in methods:
            if is_abstract or name in _IN_FULL:
                mark = " (abstract)" if is_abstract else ""
                lines += [f"### {cls.__name__}.{name}{mark}", "", "```python", signature(value), "```", ""]
                lines += [*rendered(inspect.getdoc(_function(value))), ""]
        others = [(name, value) for name, value, is_abstract in methods if not (is_abstract or name in _IN_FULL)]
        if others:
            lines += [f"### Other methods of {cls.__name__}", "", "| method | does |", "| --- | --- |"]
            lines += [f"| `{_call(name, value)}` | {_summary(value)} |" for name, value in others]
            lines += [""]
    return filled("contracts", contracts=lines, laws=_laws())


_IN_FULL = frozenset(
    ("configure", "get_iterator", "close_resources", "check", "start", "commit", "begin", "read_split")
)
"""Methods with a default that the page has in full, because authors often override or call them."""


def _call(name: str, value: Any) -> str:
    """Return a method as it is called, without types; a property without parentheses."""
    if isinstance(value, property):
        return name
    parameters = inspect.signature(_function(value)).parameters
    return f"{name}({', '.join(one for one in parameters if one not in {'self', 'cls'})})"


def _summary(value: Any) -> str:
    """Return the first paragraph of a method's docstring, and its errors."""
    text = inspect.getdoc(_function(value)) or ""
    raises = re.search(r"^Raises:\n((?: +.*\n?)+)", text, re.MULTILINE)
    errors_ = re.findall(r"^ {4}([\w, ]+):", raises[1], re.MULTILINE) if raises else []
    summary = " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
    return f"{summary} Raises {', '.join(errors_)}." if errors_ else summary


def _laws() -> list[str]:
    """Every law of the conformance kit, in the order of their letters in the house style."""
    rows: list[str] = []
    for law in sorted(LAWS.values(), key=lambda law: ("LITODESH".index(law.id[0]), law.id)):
        tries = " ".join((law.check.__doc__ or "").split("\n\n")[0].split())
        needs = ", ".join(f"`{capability.name}`" for capability in sorted(law.needs, key=lambda one: one.name))
        rows.append(f"| {law.id} | {law.says} | {tries} | {needs} |")
    return [*rows, ""]


def _function(value: Any) -> Callable[..., Any]:
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    function: Any = value.fget if isinstance(value, property) else value
    return cast("Callable[..., Any]", function)


def signature(value: Any) -> str:
    """The head of a method as it stands in the source, on lines of a readable length."""
    node = ast.parse(textwrap.dedent(inspect.getsource(_function(value)))).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise TypeError(f"{value!r} is no method")
    kind = next((f"@{one}\n" for one in ("property", "classmethod", "staticmethod") if _is(value, one)), "")
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    arguments = re.sub(r"(: [^=,]+)=(?=\S)", r"\1 = ", ast.unparse(node.args))
    line = f"def {node.name}({arguments}){result}"
    if len(line) <= 100:  # noqa: PLR2004  what fits a page
        return kind + line
    parts = re.split(r", (?=\*?\w+(?::|=|$|,)|\*,)", arguments)  # never inside brackets: `name:` stands outside
    return f"{kind}def {node.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, {"property": property, "classmethod": classmethod, "staticmethod": staticmethod}[kind])


# ---- command-line.md


def command_page() -> str:
    """docs/reference/command-line.md."""
    root: Any = typer.main.get_command(make_app(demo))
    lines, of_command = ["## `python -m s3_source --config FILE [--once]`", ""], notes("command-notes")
    lines += [_sentence(root.callback.__doc__ or ""), "", *_options(root)]
    for name, command in _commands(root):
        lines += [f"## `python -m s3_source {name}`", "", _sentence(command.help or ""), "", *_options(command)]
        lines += [of_command[name], ""] if name in of_command else []
    return filled("command-line", commands=lines)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, `offsets show`."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


_TABLE_HEAD = 2


def _options(command: Any) -> list[str]:
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    lines += [
        f"| {_names(option)} | {_default(option)} | {_sentence(option.help)} |"
        for option in command.params
        if option.opts and not getattr(option, "hidden", False)
    ]
    lines = [line for line in lines if "--help" not in line]
    return [*lines, ""] if len(lines) > _TABLE_HEAD else []


def _names(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.metavar}`"
    value = (
        "" if option.is_flag else f" {'FILE' if '--config' in option.opts else option.metavar or option.name.upper()}"
    )
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def _default(option: Any) -> str:
    return "" if getattr(option, "is_flag", False) or option.default in {None, ""} else f"`{option.default}`"


def _sentence(text: str) -> str:
    return " ".join(text.split())


# ---- configuration.md, transforms.md


def configuration_page() -> str:
    """docs/reference/configuration.md."""
    common = dict(sections_of(SourceCommonConfig))
    source, like = common.pop("source"), ("s3", S3Config)
    texts = [section_text("source", source), section_text("s3", S3Config), section_text("gcs", GcsConfig, like=like)]
    texts += [section_text(name, cls) for name, cls in common.items()]
    metrics = [f"| `{name}` | {kind} | {labels} | {doc} |" for name, kind, labels, doc in reference_rows()]
    return filled("configuration", sections=texts, metrics=[*metrics, ""])


def section_text(name: str, cls: type, *, like: tuple[str, type] | None = None) -> str:
    """Return a section of the page: its purpose, and a table of its options.

    Args:
        name: the section.
        cls: its class.
        like: name and class of an earlier section: options that are the same there are only named.
    """
    options = {option.name: _row(option) for option in sorted(options_of(cls), key=lambda item: not item.required)}
    earlier = {_row(option) for option in options_of(like[1])} if like is not None else set()
    same = [f"`{option}`" for option, row in options.items() if row in earlier]
    lines = [f"## `[{name}]`", "", inspect.cleandoc(cls.__doc__ or ""), ""]
    if like is not None and same:
        lines += [f"As in `[{like[0]}]`: {', '.join(same)}. Its own options:", ""]
    lines += ["| option | type | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [row for row in options.values() if row not in earlier]
    return "\n".join([*lines, ""])


def _row(option: Option) -> str:
    cells = (f"`{option.name}`", _kind(option), _default_of(option), _meaning(option))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(option: Option) -> str:
    choices = option.choices
    if choices is not None:
        return _alternatives(choices)
    limits = limits_text(option)
    unit = option.unit
    text = ", ".join(filter(None, (f"{option.type_text} of {unit}" if unit else option.type_text, limits)))
    return f"{text}, secret" if option.secret else text


def _alternatives(choices: Iterable[str]) -> str:
    return ", ".join(f'`"{choice}"`' for choice in choices)


def _default_of(option: Option) -> str:
    if option.required:
        return "required"
    return "" if option.default is None else f"`{default_text(option)}`"


def _meaning(option: Option) -> str:
    former = option.former_names
    old = f" Formerly {', '.join(f'`{name}`' for name in former)}." if former else ""
    for value, current in option.former_values.items():
        old += f' `"{current}"` was formerly `"{value}"`.'
    return " ".join(option.doc.split()) + old


def transforms_page() -> str:
    """Return the page of the shipped transforms, in Markdown."""
    lines: list[str] = []
    shared: dict[type, int] = {}
    for name in SHIPPED:
        for table in set(_tables_of(transform_class(name).options_class)):
            shared[table] = shared.get(table, 0) + 1
    own = {table for table, count in shared.items() if count == 1 and table not in _ALWAYS_SHARED}
    for name in SHIPPED:
        transform = transform_class(name)
        lines += [f"## `{name}`", "", inspect.cleandoc(transform.__doc__ or ""), ""]
        options = options_of(transform.options_class)
        lines += _table(options) if options else ["It has no options.", ""]
        for option in options:
            inner = table_class(option.type)
            if inner is not None and inner in own:
                lines += [f"Each of `{option.name}`:" if is_list(option.type) else f"`{option.name}`:", ""]
                lines += _table(options_of(inner))
    lines += ["## Values and patterns", ""]
    for table in sorted(shared.keys() - own, key=lambda cls: cls.__name__):
        lines += [f"### {_words(table)}", "", inspect.cleandoc(table.__doc__ or ""), "", *_table(options_of(table))]
    return filled("transforms", transforms=lines)


_ALWAYS_SHARED = (KeyPattern, ValuePattern)


def _words(cls: type) -> str:
    """Return `FieldValue` as `Field value`."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda found: f" {found[1].lower()}", cls.__name__)


def _tables_of(cls: type) -> Iterator[type]:
    """Yield the classes of the tables inside an options class, and inside those."""
    for option in options_of(cls):
        inner = table_class(option.type)
        if inner is not None:
            yield inner
            yield from _tables_of(inner)


def _table(options: Iterable[Option]) -> list[str]:
    rows = [_row(option) for option in sorted(options, key=lambda item: not item.required)]
    return ["| option | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]


# ---- docstrings to Markdown

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
_TITLES = {"Args": "Arguments"}


def rendered(docstring: str | None) -> list[str]:
    """A docstring of Google's style as Markdown: paragraphs, then its sections as lists."""
    text = inspect.cleandoc(docstring or "")
    parts = _SECTION.split(text)
    lines = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        inside, outside = _inside(body)
        lines += ["", f"**{_TITLES.get(title, title)}**", ""]
        named = title in {"Args", "Attributes", "Raises"}
        lines += [f"- {_item(item)}" for item in _items(inside)] if named else [_sentence(inside)]
        lines += ["", outside] if outside else []
    return lines


def _inside(body: str) -> tuple[str, str]:
    """The indented part that belongs to a section, and the paragraphs behind it."""
    lines = body.strip("\n").split("\n")
    end = next((at for at, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return textwrap.dedent("\n".join(lines[:end])), "\n".join(lines[end:]).strip()


def _items(text: str) -> list[str]:
    items: list[str] = []
    for line in filter(None, text.split("\n")):
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    return items


def _item(text: str) -> str:
    names, colon, meaning = text.partition(": ")
    return f"`{names}`: {meaning}" if colon else text


# ---- writing

# ---- http-api.md


def http_page() -> str:
    """Return docs/reference/http-api.md."""
    app = _http_app()
    described = app.openapi()
    paths: list[str] = []
    connect = ("/connectors", "/connector-plugins")
    for title, ours in (("Paths of Iggy's connector runtime", False), ("Verbs of Kafka Connect", True)):
        paths += [f"## {title}", "", "| request | answer | body | meaning |", "| --- | --- | --- | --- |"]
        for path, methods in described["paths"].items():
            if path.startswith(connect) is ours:
                paths += [_http_row(method, path, operation) for method, operation in methods.items()]
        paths.append("")
    lines = ["## Errors", "", "| status | meaning |", "| --- | --- |"]
    lines += [f"| {status} | {text} |" for status, text in http_errors().items()]
    lines += [
        "",
        "An error is `{code, reason}`, below `/connectors` and `/connector-plugins` `{error_code, message}`.",
        "",
    ]
    lines += ["## Documents", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        if "properties" in schema:
            lines += _http_document(name, schema)
    lines += ["## Metrics", "", "| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{name}` | {kind} | {labels} | {doc} |" for name, kind, labels, doc in runtime_metric_rows()]
    lines += ["", "Beside them `/metrics` has the [metrics of each source](configuration.md#metrics)."]
    return filled("http-api", paths=paths, rest=lines)


def _http_app() -> Any:
    from framework.runtime.api import make_app  # noqa: PLC0415
    from framework.runtime.options import WorkerHttpSection  # noqa: PLC0415
    from framework.runtime.source_program import Kinds  # noqa: PLC0415
    from framework.runtime.state import StateFolder  # noqa: PLC0415
    from framework.runtime.worker import Worker  # noqa: PLC0415

    kinds = Kinds("s3_source", S3SourceTask)
    worker = Worker(Path("conf.d"), StateFolder(Path("state")), kinds, lambda task, path: load(path, task.config_class))
    return make_app(worker, WorkerHttpSection())


def http_errors() -> Mapping[int, str]:
    """Return the statuses of errors and their meanings."""
    from framework.runtime.api import ERRORS  # noqa: PLC0415 - for this page only

    return ERRORS


def runtime_metric_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield the metrics under the names of Iggy's runtime."""
    from framework.runtime.metrics import reference_rows  # noqa: PLC0415 - for this page only

    yield from reference_rows()


def _http_row(method: str, path: str, operation: Mapping[str, Any]) -> str:
    meaning = " ".join(operation["description"].split())
    good = next(status for status in operation["responses"] if status.startswith("2"))
    content = operation["responses"][good].get("content", {})
    answer = _http_type(content.get("application/json", {}).get("schema", {})) or ("text" if content else "")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    query = [f"`{one['name']}`" for one in operation.get("parameters", []) if one["in"] == "query"]
    sent = ", ".join(filter(None, [_http_type(body), *query]))
    return f"| `{method.upper()} {path}` | {' '.join(filter(None, [good, answer]))} | {sent} | {meaning} |"


def _http_type(schema: Mapping[str, Any]) -> str:
    """Return a type in words: the name of a document, `list of ...`, `text`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_http_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if schema.get("type") == "array":
        return f"list of {_http_type(schema.get('items', {}))}"
    names = {"string": "text", "integer": "whole number", "boolean": "true or false", "null": "null"}
    return names.get(schema.get("type", ""), schema.get("type", ""))


def _http_document(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield from ["| field | type | meaning |", "| --- | --- | --- |"]
    required = schema.get("required", [])
    for field, kind in schema["properties"].items():
        optional = "" if field in required else " (optional)"
        yield f"| `{field}` | {_http_type(kind)}{optional} | {kind.get('description', '')} |"
    yield ""


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/errors.md": errors_page,
    "docs/reference/contracts.md": contracts_page,
    "docs/reference/command-line.md": command_page,
    "docs/reference/configuration.md": configuration_page,
    "docs/reference/transforms.md": transforms_page,
    "docs/reference/s3-source.schema.json": lambda: schema_text("s3_source", S3SourceConfig),
    "docs/reference/gcs-source.schema.json": lambda: schema_text("gcs_source", GcsSourceConfig),
    "docs/reference/http-api.md": http_page,
}


def main(arguments: list[str] | None = None) -> int:
    """Writes the pages, or with `--check` names the stale ones."""
    parser = argparse.ArgumentParser("python docs/generate.py", description="The reference pages, from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is stale")
    check = parser.parse_args(arguments).check
    stale = False
    for name, page in PAGES.items():
        path, text = ROOT / name, page().rstrip("\n") + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale = True
        sys.stdout.write(f"{name}: {'stale' if check else 'written'}\n")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
