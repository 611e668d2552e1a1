"""Where a configuration comes from: its file, included files, environment variables, and `--set`.

Each source of values is a layer; later layers win, option by option:

    include = [...] of the file, in order, < the file < IGGY_SOURCE__SECTION__OPTION < --set section.option=value

A table option (`[spark] conf`) is merged name by name; every other value replaces the earlier one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from framework.config.files import read_text
from framework.config.option import (
    Moment,
    Option,
    bare_type,
    is_table,
    nearest,
    options_of,
    sections_of,
    union_members,
)
from framework.config.substitution import refers_to
from framework.config.values import is_unicode, with_texts
from framework.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT_PREFIX = "IGGY_SOURCE__"
_NEAR_PREFIX = "IGGY_SOURCE_"
INCLUDE = "include"
MAX_BYTES = 1024 * 1024
"""A longer file is no configuration."""

_MAX_FILES = 100

OptionPath = tuple[str, ...]
"""`("iggy", "tls", "ca_file")`; one name more for an entry of a table."""


@attrs.frozen(kw_only=True)
class Layer:
    """Values of one origin.

    Attributes:
        origin: the file, the variable, or `--set section.option`; empty for the configuration file itself.
        values: sections and options, nested as in TOML.
    """

    origin: str
    values: Mapping[str, object] = attrs.field(repr=False)  # as written, passwords too


@attrs.frozen(kw_only=True)
class Merged:
    """The values of all layers.

    Attributes:
        values: sections and options, nested as in TOML.
        origins: the origin of each value.
    """

    values: dict[str, object] = attrs.field(repr=False)
    origins: dict[OptionPath, str]

    def origins_of(self, path: OptionPath) -> list[str]:
        """Return the distinct origins of an option, or of everything in a section; empty when nothing is given."""
        found = (origin for place, origin in self.origins.items() if place[: len(path)] == path)
        return list(dict.fromkeys(found))


def merge(layers: Sequence[Layer]) -> Merged:
    """Return the values of all layers; later layers win."""
    values: dict[str, object] = {}
    origins: dict[OptionPath, str] = {}
    for layer in layers:
        values = _merged(values, layer.values)
        for path in _paths(layer.values):
            origins.pop(path, None)  # the last origin stands last
            origins[path] = layer.origin
    left = set(_paths(values))
    return Merged(values=values, origins={path: origin for path, origin in origins.items() if path in left})


def _merged(lower: Mapping[str, object], upper: Mapping[str, object]) -> dict[str, object]:
    found = dict(lower)
    for name, value in upper.items():
        before = lower.get(name)
        if isinstance(value, Mapping):
            found[name] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            found[name] = value
    return found


def _paths(values: Mapping[str, object], place: OptionPath = ()) -> Iterator[OptionPath]:
    """Yield the paths of values that are no tables."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _paths(value, (*place, name))
        else:
            yield (*place, name)


def value_at(mapping: Mapping[str, Any], path: Iterable[str]) -> Any:
    """Return the value at a path of nested tables; None when there is none."""
    found: Any = mapping
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


# ---- files


def file_layers(
    path: str | Path, files: list[Path] | None = None, *, content: Mapping[str, Any] | None = None
) -> list[Layer]:
    """Return the layers of a file: what it includes, in order, then the file itself.

    Args:
        path: the file.
        files: receives each file that is read, this one first; after an error the last one is at fault.
        content: what stands in the file; by default it is read.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or includes itself.
    """
    return list(_file_layers(Path(path), (), [] if files is None else files, content))


def _file_layers(
    path: Path, chain: tuple[Path, ...], files: list[Path], content: Mapping[str, Any] | None = None
) -> Iterator[Layer]:
    if len(files) == _MAX_FILES:
        raise ConfigError(f"include: more than {_MAX_FILES} files are included", origin=str(chain[0]))
    files.append(path)
    values = read_toml(path, may_wait=not chain) if content is None else dict(content)
    for name in _included(values.pop(INCLUDE, []), path):
        target = path.parent / name
        if os.path.realpath(target) in map(os.path.realpath, (*chain, path)):  # of links in a circle, `resolve` raises
            way = " -> ".join(str(known) for known in (*chain, path, target))
            raise ConfigError(f"include: a file must not include itself: {way}", origin=str(path))
        try:
            yield from _file_layers(target, (*chain, path), files)
        except ConfigError as exc:
            if exc.origin == str(target):
                raise ConfigError([f"{text} (included by {path})" for text in exc.mistakes], origin=exc.origin) from exc
            raise
    yield Layer(origin=str(path) if chain else "", values=values)


def _included(value: object, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name and "\0" not in name for name in value):
        raise ConfigError(
            'include: must be a list of files above the first section, as in include = ["common.toml"]',
            origin=str(path),
        )
    return value


def read_toml(path: Path, *, may_wait: bool = True) -> dict[str, Any]:
    """Return the content of a TOML file.

    Args:
        path: the file.
        may_wait: whether it may be a pipe, which is waited for.

    Raises:
        ConfigError: it cannot be read, is longer than 1 MiB, or is not TOML (with line and column).
    """
    origin = str(path)
    try:
        text = read_text(path, MAX_BYTES, may_wait=may_wait)
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise ConfigError(f"the configuration file cannot be read: {reason}", origin=origin) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"not valid TOML: {exc}{_toml_hint(text, exc)}", origin=origin) from None
    except ValueError:  # int() of some thousand digits
        raise ConfigError("not valid TOML: a number has more digits than any number may have", origin=origin) from None
    except RecursionError:
        raise ConfigError("not valid TOML: values are nested too deep", origin=origin) from None


_OPTION = r"[\w-]+\s*="
_TOML_HINTS = (
    ("Cannot declare", ".*", "the section {line} stands twice"),
    ("", r"\{.*", "this looks like JSON: TOML writes a section as [name], and an option as name = value"),
    ("", r"[\w.-]+\s*:(\s.*)?", "this looks like YAML: TOML writes a section as [name], and an option as name = value"),
    (
        "",
        r"[\w-]+(\.[\w-]+)+\s*=.*",
        (
            'this looks like a .properties file: TOML writes sections as [name], and texts in quotes, {name} = "..."; '
            "the command convert translates the properties of a Kafka connector"
        ),
    ),
    ("Cannot overwrite", f"{_OPTION}.*", "{name} stands twice, or is a value and a table"),
    (
        "",
        rf"{_OPTION}\s*[\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb].*",
        'quotes must be straight: {name} = "..."',
    ),
    ("Illegal character", rf'{_OPTION}\s*"[^"]*', 'the closing quote is missing: {name} = "..."'),
    ("", f"{_OPTION}.*", 'a text stands in quotes: {name} = "..."'),
)
"""Beginning of the parser's error, form of the line -> the probable correction, of which the first counts."""


def _toml_hint(text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return the probable correction of a line. It shows no value, which may be a secret."""
    found = re.search(r"\(at line (\d+)", str(error))
    lines = text.splitlines()
    line = lines[int(found[1]) - 1].strip() if found is not None and int(found[1]) <= len(lines) else ""
    for beginning, form, hint in _TOML_HINTS:
        if str(error).startswith(beginning) and re.fullmatch(form, line):
            return f"; {hint.format(line=line, name=line.partition('=')[0].strip())}"
    return ""


# ---- overrides


def environment_layers(
    environment: Mapping[str, str],
    cls: type,
    others: Sequence[Layer],
    report: Callable[[str], None],
    warn: Callable[[str], None],
) -> list[Layer]:
    """Return a layer for each variable `IGGY_SOURCE__SECTION__OPTION`, in the order of their names.

    Variables that were meant for an option and name none are named, also in another form: `IGGY_SOURCE_S3_BUCKET`. One that
    the configuration refers to is left alone, and so is one in another form that resembles no option: Kubernetes sets
    `IGGY_SOURCE_SERVICE_HOST` for a service of the name iggy-source.

    Args:
        environment: all variables.
        cls: the root class.
        others: the values of files and of `--set`.
        report: receives a sentence for each whose value is not UTF-8, and for each that names no option and begins with
            `IGGY_SOURCE__`, or differs from an option's variable in underscores or case only.
        warn: receives a sentence for each other one that begins with `IGGY_SOURCE_` and resembles an option's variable.
    """
    layers: list[Layer] = []
    names = _variables(cls)
    right = {_letters(f"{ENVIRONMENT_PREFIX}{name}"): name for name in names}
    for variable in sorted(environment):
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        if rest != variable and rest in names:
            if not is_unicode(environment[variable]):
                report(f"{variable}: the value of this environment variable is not UTF-8 text")
                continue
            path, option = names[rest]
            value = override_value(environment[variable], option)
            value = with_texts(value, lambda text: text.replace("${", "$${"))  # a variable is meant as it is
            layers.append(Layer(origin=variable, values=_nested(path, value)))
            continue
        if not _letters(variable).startswith(_letters(ENVIRONMENT_PREFIX)):
            continue
        if any(refers_to(layer.values, variable) for layer in others):
            continue
        same = right.get(_letters(variable))
        guess = same or nearest(rest.removeprefix(_NEAR_PREFIX), names)
        mistake = f"{variable}: this environment variable names no option"
        advice = f"did you mean {ENVIRONMENT_PREFIX}{guess}?"
        if same is not None or rest != variable:
            form = f"{ENVIRONMENT_PREFIX}SECTION__OPTION"
            report(f"{mistake}; {advice if guess else _advice(rest.lower().split('__'), cls, form)}")
        elif guess is not None and variable.startswith(_NEAR_PREFIX):
            warn(f"{mistake} and is ignored; {advice}")
    return layers


def _letters(variable: str) -> str:
    return variable.replace("_", "").upper()


def setting_layers(settings: Sequence[str], cls: type, report: Callable[[str], None]) -> list[Layer]:
    """Return a layer for each `section.option=value`, in the order of the command line.

    Args:
        settings: the values of `--set`.
        cls: the root class.
        report: receives a sentence for each that names no option, or is not UTF-8. No sentence contains a value.
    """
    names = {".".join(path): (path, option) for path, option in _options(cls).items()}
    layers: list[Layer] = []
    for setting in settings:
        name, mark, text = setting.partition("=")
        name = name.strip()
        if not mark:
            report(f"--set {name}: the value is missing: --set section.option=value")
            continue
        origin = f"--set {name}"
        if not is_unicode(setting):
            report(f"{origin}: not UTF-8 text; section, option and value must be")
            continue
        if name in names:
            path, option = names[name]
            layers.append(Layer(origin=origin, values=_nested(path, override_value(text, option))))
            continue
        table = next(
            (
                path
                for known, (path, option) in names.items()
                if is_table(option.type) and name.startswith(f"{known}.") and name != f"{known}."
            ),
            None,
        )
        if table is not None:
            entry = name[len(".".join(table)) + 1 :]
            layers.append(Layer(origin=origin, values=_nested((*table, entry), text)))
            continue
        guess = nearest(name, names)
        advice = (
            f"did you mean --set {guess}?" if guess else _advice(name.split("."), cls, "--set section.option=value")
        )
        report(f"{origin}: unknown option; {advice}")
    return layers


def _advice(parts: Sequence[str], cls: type, form: str) -> str:
    """Return what to do about an override that resembles no option."""
    sections = sections_of(cls)
    name = parts[0].partition("[")[0]
    if name not in sections and name in attrs.fields_dict(cls):
        return f"{name} can only be given in a file"
    if len(parts) > 1 and name not in sections:
        return f"known sections are {', '.join(sections)}"
    return f"the form is {form}"


def override_value(text: str, option: Option) -> object:
    """Return the value of an override: the text itself for text and dates, otherwise its value in TOML.

    Text that is not TOML stays text: `5s` and `16MiB` need no quotes.
    """
    if _takes_text(option.type):
        return text
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or too many digits or brackets for a value
        return text
    return found["value"] if list(found) == ["value"] else text


def _takes_text(kind: Any) -> bool:
    kind = bare_type(kind)
    members = union_members(kind)
    return all(map(_takes_text, members)) if members else kind is str or kind == Moment


def _options(cls: type) -> dict[OptionPath, Option]:
    """Return every option of a root class by its path, also under its former names."""
    found: dict[OptionPath, Option] = {}
    for section, kind in sections_of(cls).items():
        for option in options_of(kind):
            for name in (option.name, *option.former_names):
                path = (*section.split("."), name)
                found[path] = option
    return found


def _variables(cls: type) -> dict[str, tuple[OptionPath, Option]]:
    """Return every option with its path, by the name of its variable behind the prefix: `S3__BUCKET`."""
    return {"__".join(path).upper(): (path, option) for path, option in _options(cls).items()}


def _nested(path: OptionPath, value: object) -> dict[str, object]:
    first, *rest = path
    return {first: _nested(tuple(rest), value) if rest else value}
