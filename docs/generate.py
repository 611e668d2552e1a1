"""The reference pages that are written from the code: errors, contracts, command line, HTTP API.

    python docs/generate.py             writes them, and configuration.md
    python docs/generate.py --check     names the stale pages; exit code 1 if there are any

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script's own folder is what Python puts there

import typer.main  # noqa: E402

from framework import errors  # noqa: E402
from framework.cli.app import make_app  # noqa: E402
from framework.cli.config import schema_text  # noqa: E402
from framework.cli.reference import reference_page, transforms_page  # noqa: E402
from framework.discovery.feed import ObjectFeed  # noqa: E402
from framework.iterator import AbstractSourceRecordIterator  # noqa: E402
from framework.model.batches import SkippedRecord  # noqa: E402
from framework.model.objects import NativeObject, ResumePoint  # noqa: E402
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey  # noqa: E402
from framework.offsets.manager import OffsetManager  # noqa: E402
from framework.offsets.store import OffsetStore  # noqa: E402
from framework.offsets.table import PositionTable  # noqa: E402
from framework.pipeline.producer import Producer  # noqa: E402
from framework.store import ListPage, ObjectStore  # noqa: E402
from framework.task import AbstractSourceTask, SourceContext  # noqa: E402
from framework.task.object_store import StoreSourceTask  # noqa: E402
from framework.testing import kit  # noqa: E402, F401  # it knows every law
from framework.testing.kit.law import LAWS  # noqa: E402
from framework.testing.rig import SourceRig  # noqa: E402
from framework.transform import Transform, TransformBatch, TransformContext  # noqa: E402
from framework.transformer import ObjectInput, PayloadBatch, ReadStream, Transformer  # noqa: E402
from gcs_source.task import GcsSourceConfig  # noqa: E402
from s3_source.demo import demo  # noqa: E402
from s3_source.task import S3SourceConfig, S3SourceTask  # noqa: E402

_WRITTEN_BY = "<!-- Written by `python docs/generate.py`. Change the code, not this page. -->"

# ---- errors.md

ADVICE: Mapping[str, str] = {
    "SourceError": "Catch it to catch every error that the framework raises on purpose.",
    "RetriableError": "Nothing if it is rare: calls are retried. If it ends a run, the retries are used up: check the other "
    "side, then start again.",
    "ThrottledError": "Lower `[input] prefetch_objects`, or raise the `retry_` options of the store's section.",
    "StoreUnavailableError": "Check `endpoint`, the network and the proxy, then start again. A continuous run that has worked "
    "before waits for five minutes.",
    "SparkUnavailableError": "Check `[spark] master`, and that the cluster has free cores, then start again.",
    "IggyUnavailableError": "Check that the server runs and that `[iggy] url` is right. A source that has worked before "
    "reconnects for five minutes.",
    "UnknownOutcomeError": "Nothing: the engine recovers and reads in the topic what is stored. With your own `Producer`: "
    "recover before you send again.",
    "SkippableError": "Correct the object, or let the source skip it: `[errors] tolerance`.",
    "RecordError": 'Correct the object, or set `tolerance = "skip_record"`.',
    "RecordTransformError": 'Correct the object or the transform, or set `tolerance = "skip_record"`; then '
    "`dead-letter replay` applies the transforms again.",
    "RecordTooLargeError": "Raise `[input] max_record_bytes` if it is below the limit of 64,000,000 bytes; otherwise Iggy "
    "cannot store the record.",
    "ObjectError": "Correct or remove the object, or set a tolerance: then its rest is skipped and counted.",
    "CorruptObjectError": "Check that `[input] format` and `compression` fit the object; then as for `ObjectError`.",
    "TruncatedObjectError": "Write the object again: it was probably not written whole.",
    "ObjectNotFoundError": "Nothing: the object is counted as deleted.",
    "ObjectChangedError": "Nothing: the next listing shows the new version.",
    "ObjectArchivedError": "Nothing: the object is skipped and counted. To read it once it is restored, set "
    '`[discovery] archived = "wait"` and delete its position (`offsets reset --key`).',
    "ObjectDeniedError": "Allow reading it (`s3:GetObject`, `kms:Decrypt`, its tags or owner), or set a tolerance: then it is "
    "skipped and counted. After more than ten in a row the source stops: it lacks permissions itself.",
    "FatalError": "Do what the message says, then start again.",
    "ConfigError": "Correct every line that the message lists. The program exits with code 2.",
    "CredentialsError": "Set credentials in the store's section, or where its library looks for them by default.",
    "AccessDeniedError": "Allow the identity to list the bucket and to read its objects.",
    "BucketNotFoundError": "Check the bucket's name, `region` and `endpoint`.",
    "ListingError": "Do what the message says: the store's listing contradicts itself.",
    "KeyListError": "Do what the message says: supply the whole list again, or correct the row that it names. The "
    "next start reads the list from its beginning; nothing is skipped.",
    "IggyAuthError": "Check user, password or token in `[iggy] url`.",
    "IggyTopicError": "Create the topic as configured, change the configuration, or name another topic.",
    "IggyProtocolError": "Use a server of version 0.9.",
    "PositionError": (
        "The message names the ways out. `offsets reset --all` sends everything again; **`offsets accept-data-loss` does not "
        "send records again that positions call done**. See [positions by hand](../guides/positions-by-hand.md)."
    ),
    "PositionMismatchError": (
        "Restore the options of `[input]`, or send again what the message names: `offsets reset --key`, `--prefix` or `--all`."
    ),
    "SourceTakenOverError": (
        "Nothing if you started the other instance on purpose. Otherwise stop it: the message names its host and process."
    ),
    "SourceRunningError": "Stop the other instance. If its machine is dead, try again in a minute.",
    "StoreContractError": "Correct the code of the source where the message points; map each vendor error to a class of this "
    "page. A source that is not yours: report it. The failing call may work at the next start.",
    "FormatContractError": "Correct the code of the format, as [write a format](../guides/write-a-format.md) "
    "describes it, then start again: nothing wrong was sent.",
    "TransformContractError": "Correct the transform that the message names: it may change and drop records, and nothing else.",
    "TooManySkippedError": "Look at the object that it names. If `[input] format` is wrong, correct it. If it is right, raise "
    "the limit that the message names, or filter the object with `[discovery] exclude`.",
    "ReaderFailedError": "Look at its cause (`__cause__`), which is the error to act on.",
    "TaskClosedError": "Create a new task or iterator: each starts once and is not used after its end.",
    "NotAcknowledgedError": "Commit what a producer returned, once each, in the order of the confirmations.",
}
"""What to do about each error; an error without advice here cannot be written."""


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
    for cls in error_classes():
        lines += [
            f"## {cls.__name__}",
            "",
            *rendered(cls.__doc__),
            "",
            f"**What to do.** {ADVICE[cls.__name__]} Exit code: {_exit_code(cls)}.",
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

_CONTRACTS_HEAD = f"""\
# Contracts

{_WRITTEN_BY}

The classes that authors of sources, formats, transforms and stores subclass, fill or call. **Abstract** methods are required; the
others have a default. Methods that only the framework calls are not listed.
[Architecture](../concepts/architecture.md) shows how the classes work together,
[write a source](../guides/write-a-source.md) how to use them.
"""


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
        _CONTRACTS_HEAD,
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
    return "\n".join([*lines, *_laws()])


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


_LAWS_HEAD = """\
## Laws

`from framework.testing.kit import check, check_all, check_transform, ConformanceLaws`

What every [tested source](../guides/write-a-source.md#prove-it) keeps. A law is skipped, and reported as skipped, if the rig
lacks its capabilities. A transform is tested by
[`check_transform(make, payloads)`](../guides/transform-records.md#write-your-own).

| law | says | tries | needs |
| --- | --- | --- | --- |"""


def _laws() -> list[str]:
    """Every law of the conformance kit, in the order of their letters in the house style."""
    rows = [_LAWS_HEAD]
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

_COMMAND_HEAD = f"""\
# Command line

{_WRITTEN_BY}

`python -m s3_source` is the program of the S3 source, and `python -m gcs_source` of the GCS source. Every source has the
same commands; `demo` only if it ships one. Logs and the progress bar go to stderr, results to stdout.

| exit code | meaning |
| --- | --- |
| 0 | done; or a run without `--once` was stopped on request (SIGINT, SIGTERM) |
| 1 | try again: Iggy, the store or Spark was unavailable, another instance runs, `--once` was interrupted, or stdout is full |
| 2 | configuration: mistakes in the file or on the command line |
| 3 | a person must act: credentials, permissions, a missing topic or bucket, a bad object |
| 130 | a command, or a run that had not begun, was interrupted (SIGINT) |

Let a supervisor restart after 1, not after 2 and 3: see [systemd](../guides/run-under-systemd.md) and
[Kubernetes](../guides/run-on-kubernetes.md). [Errors](errors.md) has the code of each error.

The last line on stderr says what failed, where, and what to do. With `[log] format = "json"` it is a JSON object of level
`error`, with `error` (the class) and `exit_code`. An unexpected error names its class, and the file with the traceback (under
`TMPDIR`); in a JSON log the traceback is the field `traceback`.

On Ctrl-C, SIGINT or SIGTERM a run saves its positions and ends within 5 seconds. A second signal ends it at once; nothing is
lost then either ([delivery](../concepts/delivery.md)).
"""


def command_page() -> str:
    """docs/reference/command-line.md."""
    root: Any = typer.main.get_command(make_app("s3_source", S3SourceTask, demo=demo))
    lines = [_COMMAND_HEAD, "## `python -m s3_source --config FILE [--once]`", ""]
    lines += [_sentence(root.callback.__doc__ or ""), "", *_options(root)]
    for name, command in _commands(root):
        lines += [f"## `python -m s3_source {name}`", "", _sentence(command.help or ""), "", *_options(command)]
        lines += _COMMAND_NOTES.get(name, [])
    lines += _SERVER_NOTES
    return "\n".join(lines)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, `offsets show`."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


_COMMAND_NOTES = {
    "plan": [
        "Lists once, and decides about each object as a run does. It counts at least one GET request per object or split;",
        "Parquet takes more. The default prices are those of Amazon S3 Standard in us-east-1, read in the same region. If a run",
        "could not start (no bucket, no permission, a purged topic, positions of other options), the exit code is that of a run.",
        "",
    ],
    "status": [
        "Only reads, so it may run beside the source. The lag is the number of listed objects that are not done, and costs the",
        "LIST requests of a listing; `--no-list` omits it. The exit code is 0 if the status could be read, even if no instance",
        "runs.",
        "",
    ],
    "convert": [
        "A table at the end, in comments, says for each property which option it became, or why it has none. Values of secrets",
        "are not copied. Warnings name what you must still correct. See",
        "[coming from Kafka Connect](../guides/write-a-configuration.md#coming-from-kafka-connect).",
        "",
    ],
    "config init": [
        "The file has every option, its meaning and its default; what you must set is at the top of each section.",
        "",
    ],
    "config show": [
        "Includes, environment variables and `--set` are applied. A secret is `***`; a value that is a reference is shown as the",
        "reference. Exit code 2 if the configuration has mistakes.",
        "",
    ],
    "config schema": [
        "A JSON schema, draft 7; [s3-source.schema.json](s3-source.schema.json) and",
        "[gcs-source.schema.json](gcs-source.schema.json) are its results.",
        "[Write a configuration](../guides/write-a-configuration.md) shows how editors use it.",
        "",
    ],
    "offsets show": [
        "Only reads, so it may run beside the source. Records sent since the last save are missing.",
        "",
    ],
    "offsets export": [
        "[Positions by hand](../guides/positions-by-hand.md) explains the fields. Later versions may add fields.",
        "",
    ],
    "offsets reset": [
        "Stop the source first. The command shows how many objects and records will be sent again, and asks. Exit code 1 if you",
        "decline or the source runs; 2 without a terminal and without `--yes`. See",
        "[positions by hand](../guides/positions-by-hand.md).",
        "",
    ],
    "offsets accept-data-loss": [
        "One of the two ways out after a purge; see",
        "[positions by hand](../guides/positions-by-hand.md#after-topics-or-the-configuration-changed).",
        "",
    ],
    "dead-letter show": [
        "Only reads, so it may run beside the source. The number of a dead letter is its offset in the topic. See",
        "[bad data](../guides/bad-data.md).",
        "",
    ],
    "dead-letter replay": [
        "Exit code 3 if records are still bad, 1 if the source runs. You can repeat it, even after a kill: nothing is sent twice.",
        "",
    ],
    "check": [
        "Sends and creates nothing. `records` is about the first records of the first chosen object, decoded and transformed:",
        'what is wrong with them is a warning. With the engine `"spark"` it starts a Spark application and ends it. Exit code 0',
        "if every line begins with `ok` or `warn`; if a line begins with `FAIL`, the exit code of a run.",
        "",
    ],
    "read": [
        "Reads one partition after the other, each to its current end. A line has `topic`, `partition`, `offset`, `id` (32",
        "hexadecimal digits), `timestamp_us`, the origin (`bucket`, `key`, `version`), `record`, and `payload`: JSON unchanged,",
        "other text as a string, bytes that are not UTF-8 as `payload_base64`. JSON with more than a million commas and",
        "brackets is shown as a string. See [messages](iggy-messages.md).",
        "",
    ],
    "demo": [
        "Needs `pip install '.[demo]'` in a checkout of this project; `make demo` does both.",
        "",
    ],
}

_SERVER_NOTES = [
    "## `python -m framework.iggy.embedded PATH`",
    "",
    "The embedded server, for development; loopback only. `--port N` (8090; 0: any free port), `--host`, `--username`",
    "(`iggy`), `--no-sync` (faster; messages survive `kill -9` but not a power cut), `--owned` (ends with its parent process).",
    "The password is the variable `IGGY_EMBEDDED_PASSWORD`, else the random one in the folder's file `password`, which only you",
    "can read. Exit codes: 0 stopped, 1 failed, 2 usage, 3 the folder is in use.",
    "",
    "## `python -m framework.cli.reference`",
    "",
    "Prints the page [configuration](configuration.md); `--write` writes it.",
    "",
]


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

_HTTP_HEAD = """\
The API of a [worker](../guides/run-many-sources.md), and of a single source with
`[http]`. Paths, fields and metrics are those of Iggy's connector runtime, verbs Kafka
Connect's. Programs find them at `/openapi.json`.

Each request except `/` and `/health` sends the key in the header `api-key`, if one is
configured. Bodies are JSON. Secrets are shown as `***`.
"""

_HTTP_STATES = """\
## States

| asked for | process | `status` of `/sources` | `state` of Kafka Connect |
| --- | --- | --- | --- |
| run | starts | `starting` | `RESTARTING` |
| run | runs | `running` | `RUNNING` |
| run | failed with exit code 1 or by a signal | `error`, then started again | `RESTARTING` |
| run | failed with exit code 2 or 3 | `error`, until a change or a restart | `FAILED` |
| pause | stops, then none | `stopping`, `stopped` | `RUNNING`, then `PAUSED` |
| stop | stops, then none | `stopping`, `stopped` | `RUNNING`, then `STOPPED` |
| `enabled = false` | none | `stopped` | `STOPPED` |

A paused source has no process, and resumes where it stopped. Only a stopped source lets you
change its offsets.
"""


def http_page() -> str:
    """Return docs/reference/http-api.md."""
    app = _http_app()
    described = app.openapi()
    lines = ["# HTTP API", "", _WRITTEN_BY, "", _HTTP_HEAD, ""]
    connect = ("/connectors", "/connector-plugins")
    for title, ours in (("Paths of Iggy's connector runtime", False), ("Verbs of Kafka Connect", True)):
        lines += [f"## {title}", "", "| request | answer | body | meaning |", "| --- | --- | --- | --- |"]
        for path, methods in described["paths"].items():
            if path.startswith(connect) is ours:
                lines += [_http_row(method, path, operation) for method, operation in methods.items()]
        lines.append("")
    lines += [_HTTP_STATES, "## Errors", "", "| status | meaning |", "| --- | --- |"]
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
    return "\n".join(lines)


def _http_app() -> Any:
    from framework.config.loading import load  # noqa: PLC0415 - for this page only
    from framework.runtime.api import make_app  # noqa: PLC0415
    from framework.runtime.kinds import Kinds  # noqa: PLC0415
    from framework.runtime.options import WorkerHttpSection  # noqa: PLC0415
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
    "docs/reference/configuration.md": reference_page,
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
