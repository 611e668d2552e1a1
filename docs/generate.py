"""The reference pages that are written from the code: errors, contracts, command line.

    python docs/generate.py             writes them, and configuration.md
    python docs/generate.py --check     names those that are not what the code says; exit code 1 then

`tests/unit/docs/test_docs.py` fails when a page is stale, or when an error, a method or a command is missing from it.
"""
# ruff: noqa: INP001  a script beside the pages, not a package

from __future__ import annotations

import argparse
import ast
import inspect
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
from framework.cli.reference import reference_page  # noqa: E402
from framework.discovery.feed import ObjectFeed  # noqa: E402
from framework.iterator import AbstractSourceRecordIterator  # noqa: E402
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey  # noqa: E402
from framework.offsets.manager import OffsetManager, OffsetStore  # noqa: E402
from framework.pipeline.producer import Producer  # noqa: E402
from framework.store import ListPage, ObjectStore  # noqa: E402
from framework.task import AbstractSourceTask, SourceContext  # noqa: E402
from framework.task.object_store import StoreSourceTask  # noqa: E402
from framework.testing import kit  # noqa: E402, F401  # it knows every law
from framework.testing.kit.law import LAWS  # noqa: E402
from framework.testing.rig import SourceRig  # noqa: E402
from framework.transformer import ObjectInput, ReadStream, Transformer  # noqa: E402
from s3_source.demo import demo  # noqa: E402
from s3_source.task import S3SourceTask  # noqa: E402

_WRITTEN_BY = "<!-- Written by `python docs/generate.py`. Change the code, not this page. -->"

# ---- errors.md

ADVICE: Mapping[str, str] = {
    "SourceError": "Catch this one to catch all that the framework raises on purpose.",
    "RetriableError": "Nothing, when it is rare: calls are tried again by themselves. When it ends a run, the budget "
    "was used up: look at the other side, then start again.",
    "ThrottledError": "Lower `[input] prefetch_objects`, or raise the `retry_` numbers of the store's section.",
    "StoreUnavailableError": "Check `endpoint`, the network and the proxy; then start again. A continuous run that was at "
    "work waits by itself for five minutes.",
    "SparkUnavailableError": "Check `[spark] master`, and that the cluster has room; then start again.",
    "IggyUnavailableError": "Check that the server runs and that `[iggy] url` is right. A source that was at work "
    "reconnects by itself for five minutes.",
    "UnknownOutcomeError": "Nothing: the engine recovers, and looks in the topic for what is there. With a `Producer` "
    "of your own: recover before you send again.",
    "SkippableError": "Mend the object, or let the source go on without it: `[errors] tolerance`.",
    "RecordError": 'Mend the object, or set `tolerance = "skip_record"`.',
    "RecordTooLargeError": "Raise `[input] max_record_bytes` if it is lower than the limit of 64,000,000 bytes; else the "
    "record cannot be stored whole.",
    "ObjectError": "Mend or remove the object, or set a tolerance: then its rest is left out, and counted.",
    "CorruptObjectError": "Check that `[input] format` and `compression` fit the object; then as above.",
    "TruncatedObjectError": "The object was probably not written whole: write it again.",
    "ObjectNotFoundError": "Nothing: such an object is left out and counted.",
    "ObjectChangedError": "Nothing: the new version is found by the next pass.",
    "ObjectArchivedError": "Nothing: such an object is left out and counted. To have it read once it is restored, set "
    '`[discovery] archived = "wait"`.',
    "ObjectDeniedError": "Allow reading it (`s3:GetObject`, `kms:Decrypt`, its tags or owner), or set a tolerance: then it is "
    "left out, and counted. With more than ten in a row the source stops: then it is the source that may not read.",
    "FatalError": "Do what the message says, then start again.",
    "ConfigError": "Correct every line that it lists. The program exits with code 2.",
    "CredentialsError": "Set credentials in the store's section, or give them to the default chain of its library.",
    "AccessDeniedError": "Allow listing the bucket and reading its objects to the identity that is used.",
    "BucketNotFoundError": "Check the bucket's name, `region` and `endpoint`.",
    "ListingError": "The store lists in a way that cannot be trusted; the message says what was seen.",
    "KeyListError": "Do what the message says: supply the whole list again, or correct the row that it names. Nothing of a "
    "file that cannot be used was skipped: started again, the source reads the list from its beginning.",
    "IggyAuthError": "Check user, password or token in `[iggy] url`.",
    "IggyTopicError": "Make the topic as the configuration says, change the configuration, or name another topic.",
    "IggyProtocolError": "Use a server of version 0.9.",
    "PositionError": (
        "The message names the ways out. `offsets reset --all` reads everything again, `offsets accept-data-loss` goes on "
        "behind what the topics hold; see [positions by hand](../guides/positions-by-hand.md)."
    ),
    "PositionMismatchError": (
        "Set `[input]` back to what it was, or read again what the message names: `offsets reset --key`, `--prefix` or `--all`."
    ),
    "SourceTakenOverError": (
        "Nothing, when the other instance was started on purpose. Else stop that one: the message names host and process."
    ),
    "SourceRunningError": "Stop the other instance. If it is dead, try again in a minute.",
    "TooManySkippedError": "Look at the object that it names. Is `[input] format` right? Then mend it; if it is right, raise the "
    "limit that the message names, or leave the object out with `[discovery] exclude`.",
    "ReaderFailedError": "Look at its cause (`__cause__`): that is the error to act on.",
    "TaskClosedError": "Make a new task or iterator: each is started once, and not used after its end.",
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
        "All of them stand in `framework.errors`. The program writes the message to stderr as one sentence and exits with the",
        "code of the error: 1 try again, 2 configuration, 3 a person must act. How bad records and objects are passed over is",
        "told in [bad data](../guides/bad-data.md).",
        "",
    ]
    for cls in error_classes():
        lines += [
            f"## {cls.__name__}",
            "",
            *_bases(cls),
            *rendered(cls.__doc__),
            "",
            f"**What to do.** {ADVICE[cls.__name__]}",
            "",
            f"**Exit code.** {_exit_code(cls)}",
            "",
        ]
    return "\n".join(lines)


def _exit_code(cls: type[errors.SourceError]) -> str:
    if cls is errors.ReaderFailedError:
        return "That of its cause."
    return f"{cls.exit_code}."


def _bases(cls: type) -> list[str]:
    names = [f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} `{base.__name__}`" for base in cls.__bases__]
    sentence = " and ".join(names)
    return [f"{sentence[0].upper()}{sentence[1:]}.", ""] if cls is not errors.SourceError else []


# ---- contracts.md

CONTRACTS: tuple[type, ...] = (
    AbstractSourceTask,
    AbstractSourceRecordIterator,
    SourceContext,
    StoreSourceTask,
    ObjectStore,
    ListPage,
    Transformer,
    ObjectInput,
    ReadStream,
    ObjectFeed,
    OffsetManager,
    OffsetManagerEntry,
    OffsetManagerKey,
    OffsetStore,
    Producer,
    SourceRig,
)
"""The classes that authors subclass, fill or call, in the order of the page."""

_CONTRACTS_HEAD = f"""\
# Contracts

{_WRITTEN_BY}

What an author of a source, a format or a store writes, and what the framework gives. Methods marked **abstract** must be
written; the others have a default. Names that begin with `_` are the framework's own. How the pieces work together is told
in [architecture](../development/architecture.md), how to write a source in [write a source](../guides/write-a-source.md).
"""


def methods_of(cls: type) -> Iterator[tuple[str, Any, bool]]:
    """Name, function and whether it is abstract, of every public method that the class itself defines."""
    is_protocol = bool(getattr(cls, "_is_protocol", False))
    abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        function = function.fget if isinstance(function, property) else function
        if inspect.isfunction(function) and not name.startswith("_"):
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
        methods = sorted(methods_of(cls), key=lambda found: not found[2])
        for name, value, is_abstract in methods:
            mark = " (abstract)" if is_abstract else ""
            lines += [f"### {cls.__name__}.{name}{mark}", "", "```python", signature(value), "```", ""]
            lines += [*rendered(inspect.getdoc(_function(value))), ""]
    return "\n".join([*lines, *_laws()])


_LAWS_HEAD = """\
## Laws

`from framework.testing.kit import check, check_all, ConformanceLaws`

What a [source that proves itself](../guides/write-a-source.md#prove-it) keeps. A law whose capabilities the rig lacks is skipped,
and says so.

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

`python -m s3_source` is the program of the S3 source, `python -m gcs_source` that of the GCS source, with the same commands;
every source has the same one (`framework.cli.run`), and `demo` where it brings one. Log lines and the progress bar go to
stderr, results to stdout.

| exit code | meaning |
| --- | --- |
| 0 | done; or a run without `--once` was stopped as asked (SIGINT, SIGTERM) |
| 1 | try again: Iggy, the store or Spark was away, another instance still runs, or `--once` was interrupted |
| 2 | configuration: mistakes in the file or in the command itself |
| 3 | a person must act: credentials, permissions, a topic or bucket that is missing, a bad object |

A supervisor restarts after 1 and stops after 2 and 3: see [systemd](../guides/run-under-systemd.md) and
[Kubernetes](../guides/run-on-kubernetes.md). The code of each error stands in [errors](errors.md).

The last line on stderr says what failed, where, and what to do; with `[log] format = "json"` it is a JSON object of the level
`error`, with `error` (the class) and `exit_code`. An error that nobody expected is one sentence, too: it names the class, and
the file that holds the trace (below the folder for temporary files, `TMPDIR`). In a JSON log the trace is the field `traceback`.

A run that is told to stop (Ctrl-C, SIGINT, SIGTERM) ends within 5 seconds with its positions saved. A second signal ends it
at once; nothing is lost by that either, see [delivery](../concepts/delivery.md).
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
        "It lists once, and decides about each object as a run does. GET requests are at least one for each object or share;",
        "Parquet takes some more. The default prices are those of Amazon S3 Standard in us-east-1, read in the same region. The",
        "exit code is that of a run that could not begin either: no bucket, no permission, positions made with other options.",
        "",
    ],
    "status": [
        "Reads only: the source may run meanwhile. The lag is what a listing shows and is not done, and takes the LIST requests",
        "of a pass; `--no-list` leaves it out. Who runs: the claims in the log and the server's clients tell.",
        "Exit code 0 whenever it could be told, also while nothing runs.",
        "",
    ],
    "offsets show": [
        "Reads only: the source may run meanwhile. What it sent since its last save is not in it.",
        "",
    ],
    "offsets export": [
        "The fields are explained in [positions by hand](../guides/positions-by-hand.md); they only get more.",
        "",
    ],
    "offsets reset": [
        "The source must not be running. Says first how many objects and records will be sent again. Exit code 1 when the answer",
        "is no, or the source runs; 2 when there is no terminal to ask on and no `--yes`. See",
        "[positions by hand](../guides/positions-by-hand.md).",
        "",
    ],
    "offsets accept-data-loss": [
        "One of the two ways out after a purge; [positions](../concepts/positions.md) says what is told apart how.",
        "",
    ],
    "dead-letter show": [
        "Reads only: the source may run meanwhile. A letter's number is its offset in the dead letter topic. See",
        "[bad data](../guides/bad-data.md).",
        "",
    ],
    "dead-letter replay": [
        "Exit code 3 when letters stay because their records are still bad, 1 when the source runs. It can be repeated, also",
        "after it was killed: nothing is sent twice.",
        "",
    ],
    "check": [
        'It sends and makes nothing. With the engine `"spark"` it starts an application, and ends it. Exit code 0 when every line',
        "begins with `ok` or `warn`; when one begins with `FAIL`, the code with which a run would end.",
        "",
    ],
    "read": [
        "Partition after partition, each up to its end at that moment. A line holds `topic`, `partition`, `offset`, `id` (32",
        "hexadecimal digits), `timestamp_us`, the provenance (`bucket`, `key`, `version`), `record`, and `payload`: JSON as it",
        "is, other text as a string, and bytes that are no UTF-8 as `payload_base64`. See",
        "[messages](iggy-messages.md).",
        "",
    ],
    "demo": [
        "Its packages come with `pip install '.[demo]'` in a checkout of this project; `make demo` does all of it.",
        "",
    ],
}

_SERVER_NOTES = [
    "## `python -m framework.iggy.embedded PATH`",
    "",
    "The embedded server by itself, for development: loopback only. `--port N` (8090; 0 takes a free one), `--host`,",
    "`--username` (`iggy`), `--no-sync` (faster; messages survive `kill -9` but not a power cut), `--owned` (ends with its",
    "parent). The password is that of the variable `IGGY_EMBEDDED_PASSWORD`, or else the one in the folder's file",
    "`password`, which only you can read and which is made at random. Exit codes: 0 stopped, 1 failed, 2 usage, 3 the folder is",
    "in use.",
    "",
    "## `python -m framework.cli.reference`",
    "",
    "Prints the page [configuration](configuration.md); `--write` writes it.",
    "",
]


def _options(command: Any) -> list[str]:
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    lines += [
        f"| {_names(option)} | {_default(option)} | {_sentence(option.help)} |"
        for option in command.params
        if option.opts and not getattr(option, "hidden", False)
    ]
    return [*[line for line in lines if "--help" not in line], ""]


def _names(option: Any) -> str:
    value = "" if option.is_flag else f" {'FILE' if '--config' in option.opts else option.name.upper()}"
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def _default(option: Any) -> str:
    return "" if option.is_flag or option.default in {None, ""} else f"`{option.default}`"


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

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/errors.md": errors_page,
    "docs/reference/contracts.md": contracts_page,
    "docs/reference/command-line.md": command_page,
    "docs/reference/configuration.md": reference_page,
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
