"""Generates the page docs/reference/configuration.md from the options themselves.

    python -m framework.cli.reference --write      writes the page
    python -m framework.cli.reference              prints it

A test fails when the page differs from this module's output.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from framework.config.loading import limits_text
from framework.config.option import Option, options_of, sections_of
from framework.config.sections import SourceCommonConfig
from framework.config.toml_text import default_text
from framework.config.transforms import SHIPPED, transform_class
from framework.config.values import is_list, table_class
from framework.engine.metrics import reference_rows
from framework.transforms.values import KeyPattern, ValuePattern

PAGE = Path("docs/reference/configuration.md")
STORE_SECTIONS = {"s3": "s3_source.config:S3Config", "gcs": "gcs_source.config:GcsConfig"}
"""Section -> class, `module:name`, of the stores that ship; others document theirs with `section_text`."""

_HEAD = """\
# Configuration

<!-- Written by `python -m framework.cli.reference --write`. Change the options in the code, not this page. -->

A configuration is one TOML file. Unknown sections and options are errors that name the nearest known one, and every
mistake of a file is reported at once, with its place. Nothing is converted by guess: `"5"` is no number.

**Text from elsewhere.** `${env:NAME}` in any text is replaced by an environment variable, `${file:PATH}` by a file's
content without its last line break; `$${` is a plain `${`. Text brought in this way is never shown in a message. It may
also stand for a number or for true and false: `tasks_max = "${env:TASKS}"`.

**Durations** are text such as `"10ms"`, `"5s"`, `"2m"`, `"24h"`, `"7d"`, or a number of seconds. **Sizes** are text
such as `"16MiB"`, `"4MB"`, or a whole number of bytes. **Dates** are TOML dates or text such as
`"2024-05-31T12:00:00Z"`, in UTC when they name no zone.

## Where a value comes from

An option has the value of the first of these that gives one:

| origin | form |
| --- | --- |
| the command line | `--set section.option=value`; may be repeated, the last one wins |
| the environment | `IGGY_SOURCE__SECTION__OPTION=value`, such as `IGGY_SOURCE__S3__BUCKET` or `IGGY_SOURCE__IGGY__TLS__CA_FILE` |
| the file | `option = value` below `[section]` |
| included files | `include = ["common.toml"]` above the first section |
| the default | below |

**Overrides.** The value of a text option is taken as it is: `--set s3.bucket=lake`, without quotes. So are dates. The value
of any other option is written as in TOML: `4`, `true`, `["a", "b"]`, `{ "spark.executor.memory" = "2g" }`; durations and
sizes need no quotes: `5s`, `16MiB`. `--set spark.conf.spark.executor.memory=2g` sets a single entry of a table. References
work in `--set`; the value of a variable is literal. A variable that begins with `IGGY_SOURCE__` and names no option is an
error. **Other users of the machine can see a command line**: pass secrets by the environment or by a file.

**Includes.** Paths are relative to the including file. Of several files, a later one wins. Tables (`[spark.conf]`) are merged
entry by entry; any other value replaces the earlier one. A file must not include itself.

A mistake in a value from elsewhere names its origin: `[s3] bucket = "": must not be empty (from IGGY_SOURCE__S3__BUCKET)`.
`config show` prints the result with the origin of each value; see [Write a configuration](../guides/write-a-configuration.md).

The smallest file for S3:

```toml
[source]
name = "orders"

[s3]
bucket = "lake"

[input]
format = "jsonl"

[iggy]
url = "iggy://user:password@localhost:8090"
stream = "lake"
topic = "orders"
```
"""


_TRANSFORMS_TEXT = """\
## `[[transforms]]`

What happens to each record between its format and Iggy, in the order of the file: see [transforms](transforms.md).
"""


def reference_page() -> str:
    """Return the whole page, in Markdown."""
    common = dict(sections_of(SourceCommonConfig))
    ordered: dict[str, type] = {"source": common.pop("source")}
    for name, path in STORE_SECTIONS.items():
        module, _, attribute = path.partition(":")
        ordered[name] = getattr(importlib.import_module(module), attribute)
    ordered |= common
    first, *others = STORE_SECTIONS
    texts = (
        section_text(name, cls, like=(first, ordered[first]) if name in others else None)
        for name, cls in ordered.items()
    )
    return "\n".join([_HEAD, *texts, _TRANSFORMS_TEXT, _metrics_text()])


def _metrics_text() -> str:
    lines = ["### Metrics", "", "| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{name}` | {kind} | {labels} | {doc} |" for name, kind, labels, doc in reference_rows()]
    return "\n".join([*lines, ""])


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
    cells = (f"`{option.name}`", _kind(option), _default(option), _meaning(option))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(option: Option) -> str:
    choices = option.metadata.choices
    if choices is not None:
        return _alternatives(choices)
    limits = limits_text(option)
    unit = "" if option.type_text in {"duration", "size"} else option.metadata.unit
    text = ", ".join(filter(None, (f"{option.type_text} of {unit}" if unit else option.type_text, limits)))
    return f"{text}, secret" if option.metadata.secret else text


def _alternatives(choices: Iterable[str]) -> str:
    return ", ".join(f'`"{choice}"`' for choice in choices)


def _default(option: Option) -> str:
    if option.required:
        return "required"
    return "" if option.default is None else f"`{default_text(option)}`"


def _meaning(option: Option) -> str:
    return " ".join(option.metadata.doc.split())


_TRANSFORMS_HEAD = """\
# Transforms

<!-- Written by `python docs/generate.py`. Change the options in the code, not this page. -->

Each entry of `[[transforms]]` has a `type`, its own options, and `enabled` (`true` by default). They apply in the order of the
file. [Transform records](../guides/transform-records.md) has an example of each, and the rules that all follow.
"""


def transforms_page() -> str:
    """Return the page of the shipped transforms, in Markdown."""
    lines = [_TRANSFORMS_HEAD]
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
    return "\n".join(lines)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser("python -m framework.cli.reference", description="The options, as a page.")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    if parser.parse_args(arguments).write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(reference_page(), encoding="utf-8")
    else:
        sys.stdout.write(reference_page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
