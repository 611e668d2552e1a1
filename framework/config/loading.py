"""Loads a TOML file as a frozen configuration; raises one error with all mistakes of the file.

A root class has a field for each section; a section class has an `option()` for each key. Either may have
a method `validate_options(self) -> Iterable[str]` for conflicts between its options. It yields ends of
sentences that begin with `[section] `, or whole sentences on the root. It also runs when other parts of
the file are wrong. It ends quietly when it uses a value that could not be parsed, so a mistake is never
reported twice.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import attrs

from framework.config.option import Option, options_of
from framework.config.substitution import Substitution
from framework.config.values import InvalidValueError, SubstitutedText, strict_converter
from framework.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_MAX_SHOWN = 60
_CONVERTER = strict_converter()
_SHORTEST_MASKED = 4
"""Shorter secrets are not masked inside sentences: masking every `a` would make the sentence unreadable."""


class ConfigWarning(FutureWarning):
    """A former name of an option, a choice or a command: it still works, and a later version will reject it."""


def load_config(path: str | Path, cls: type[T], *, environment: Mapping[str, str] | None = None) -> T:
    """Return the configuration in a TOML file.

    Args:
        path: the file.
        cls: the root class.
        environment: variables for `${env:NAME}`; by default those of the process.

    Raises:
        ConfigError: the file cannot be read, is not TOML (with line and column), or has mistakes: all of
            them.
    """
    origin = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise ConfigError(f"the configuration file cannot be read: {reason}", origin=origin) from None
    try:
        mapping = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8 text; a TOML file must be", origin=origin) from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"not valid TOML: {exc}{_toml_hint(data.decode('utf-8-sig'), exc)}", origin=origin) from None
    return structure(mapping, cls, origin=origin, environment=environment)


def _toml_hint(text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return the probable correction of a line. It shows no value, which may be a secret."""
    found = re.search(r"\(at line (\d+)", str(error))
    lines = text.splitlines()
    line = lines[int(found[1]) - 1].strip() if found is not None and int(found[1]) <= len(lines) else ""
    name = line.partition("=")[0].strip()
    if re.match(r"[\w.-]+\s*:(\s|$)", line):
        return "; this looks like YAML: TOML writes a section as [name], and an option as name = value"
    if re.fullmatch(r"[\w-]+(\.[\w-]+)+", name):
        return (
            f'; this looks like a .properties file: TOML writes sections as [name], and texts in quotes, {name} = "..."'
        )
    if "=" in line and re.fullmatch(r"[\w-]+", name):
        return f'; a text stands in quotes: {name} = "..."'
    return ""


def structure(
    mapping: Mapping[str, object], cls: type[T], *, origin: str = "", environment: Mapping[str, str] | None = None
) -> T:
    """Return the configuration in a mapping of sections, `{"source": {"name": "orders"}, ...}`.

    Raises:
        ConfigError: with all mistakes.
    """
    reading = _Reading(environment)
    config = reading.root(mapping, cls)
    if reading.mistakes:
        raise ConfigError([reading.masked(mistake) for mistake in reading.mistakes], origin=origin)
    return config


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name; None when none is similar."""
    lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


class _UnusableError(Exception):
    """A check used a value that could not be parsed; its mistake is already reported."""


class _Unusable:
    """Placeholder of a value that could not be parsed. Any use of it ends the check that uses it."""

    def _touched(self, *_arguments: object) -> Any:
        raise _UnusableError

    __getattr__ = __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _touched
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __str__ = __repr__ = __format__ = _touched
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __int__ = __float__ = __index__ = _touched


_UNUSABLE: Any = _Unusable()


class _Reading:
    """State of loading a configuration: its mistakes so far, and the secrets that no message may show."""

    def __init__(self, environment: Mapping[str, str] | None) -> None:
        self.mistakes: list[str] = []
        self._substitution = Substitution(environment)
        self._secrets: set[str] = set()
        self._owners: dict[str, str] = {}
        self._words: frozenset[str] = frozenset()

    def root(self, mapping: Mapping[str, object], cls: type[T]) -> T:
        sections = sections_of(cls)
        kind: type = cls
        self._words = _own_words(kind)
        self._owners = {option.name: name for name, section in sections.items() for option in options_of(section)}
        self._unknown(mapping, sections, place="")
        values: dict[str, Any] = {}
        for name, section in sections.items():
            # A section that is not there is an empty one: its required options are then named as missing.
            content = mapping.get(name, {})
            if isinstance(content, Mapping):
                values[name] = self._section(content, section, name)
            else:
                self.mistakes.append(f"{name}: must be a section, [{name}]")
                values[name] = _UNUSABLE
        return self._checked(cls, values, place="")

    def _section(self, mapping: Mapping[str, object], cls: type[T], name: str) -> T:
        place = f"[{name}] "
        options = {option.name: option for option in options_of(cls)}
        given = self._renamed(mapping, options, place)
        self._unknown(given, options, place=place)
        values = {option.name: self._option(given, option, place) for option in options.values()}
        return self._checked(cls, values, place=place)

    def _option(self, given: Mapping[str, object], option: Option, place: str) -> Any:
        if option.name not in given:
            if option.required:
                self.mistakes.append(f"{place}{option.name}: missing")
                return _UNUSABLE
            return option.default
        known = len(self.mistakes)
        value = self._substituted(given[option.name], f"{place}{option.name}")
        if len(self.mistakes) > known:
            return _UNUSABLE
        if option.metadata.secret and isinstance(value, str):
            self._secrets.update(_secret_parts(str(value)))
        try:
            result = _CONVERTER.structure(value, option.type)
            result = _current_value(result, option, place)
            _check_limits(result, option)
        except InvalidValueError as mistake:
            self.mistakes.append(f"{place}{option.name}{_shown(value, option)}: {mistake}")
            return _UNUSABLE
        return result

    def _substituted(self, value: object, place: str) -> object:
        if isinstance(value, str):
            return self._substitution.apply(value, lambda mistake: self.mistakes.append(f"{place}: {mistake}"))
        if isinstance(value, list):
            return [self._substituted(item, place) for item in value]
        if isinstance(value, dict):
            return {name: self._substituted(item, f"{place}.{name}") for name, item in value.items()}
        return value

    def _renamed(self, mapping: Mapping[str, object], options: Mapping[str, Option], place: str) -> dict[str, object]:
        given = dict(mapping)
        for option in options.values():
            for former, advice in option.metadata.former_names.items():
                if former not in given:
                    continue
                value = given.pop(former)
                if option.name in given:
                    self.mistakes.append(f"{place}{former}: a former name of {option.name}, which is there too")
                    continue
                text = f"{place}{former}: now called {option.name}. {advice}".rstrip()
                warnings.warn(text, ConfigWarning, stacklevel=2)
                given[option.name] = value
        return given

    def _unknown(self, given: Mapping[str, object], known: Mapping[str, object], *, place: str) -> None:
        for name in given:
            if name in known:
                continue
            what, shown = ("option", name) if place else ("section", f"[{name}]")
            guess = nearest(name, known)
            if guess is not None:
                advice = f"did you mean {guess if place else f'[{guess}]'}?"
            elif name in self._owners:
                advice = f"{name} belongs to [{self._owners[name]}]"
            elif not place and importlib.util.find_spec(f"{name}_source") is not None:
                advice = f"it belongs to another program: python -m {name}_source"
            else:
                advice = f"known are {', '.join(known)}"
            self.mistakes.append(f"{place}{shown}: unknown {what}; {advice}")

    def _checked(self, cls: type[T], values: Mapping[str, Any], *, place: str) -> T:
        made: T = _UNUSABLE
        prefix = f"{place.strip('[] ')}." if place else ""  # sections may say `s3.bucket: ...`, for use without a file
        try:
            made = cls(**values)
            check: Callable[[], Iterable[str]] | None = getattr(made, "validate_options", None)
            for mistake in check() if check is not None else ():
                self.mistakes.append(f"{place}{mistake.removeprefix(prefix)}")
        except _UnusableError:
            pass  # the value it touched has its own mistake, reported before
        except TypeError:
            if not self.mistakes:  # written in C, `re` looks at the type of the stand-in, not at what it does
                raise
        except ConfigError as exc:
            self.mistakes.extend(f"{place}{mistake}" for mistake in exc.mistakes)
        return made

    def masked(self, mistake: str) -> str:
        """Return the sentence without substituted text and without values of secret options.

        A secret that is also a word of the message itself, such as Iggy's default password `iggy`, is not
        masked: that would reveal it.
        """
        secrets = self._secrets | self._substitution.secrets
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_MASKED and secret not in self._words:
                mistake = mistake.replace(secret, "***")
        return mistake


def sections_of(cls: type) -> dict[str, type]:
    """Return the sections of a root class: field name, which is the section's name in the file, and class."""
    return dict(_sections(cls))


@functools.cache
def _sections(cls: type) -> dict[str, type]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in attrs.fields(cls)}


@functools.cache
def _own_words(cls: type) -> frozenset[str]:
    """Return the words of sections, options and their documentation."""
    texts = ["iggy embedded tcp user password host token address localhost"]
    for name, section in sections_of(cls).items():
        texts.append(name)
        texts += [f"{option.name} {option.metadata.doc}" for option in options_of(section)]
    return frozenset(re.findall(r"\w+", " ".join(texts)))


def _secret_parts(value: str) -> Iterator[str]:
    """Return the parts of a secret option's value to mask: for an address, the login before the `@`, and a token."""
    scheme, mark, rest = value.partition("://")
    if not mark:
        if not scheme.startswith("embedded:"):
            yield value
        return
    login, at, _ = rest.rpartition("@")
    if at:
        yield value
        yield login
        yield login.partition(":")[2]
    if "token=" in rest:
        yield value
        yield rest.partition("token=")[2].partition("&")[0]


def _current_value(value: object, option: Option, place: str) -> object:
    """Return the value under its current name."""
    current = option.metadata.former_values.get(value) if isinstance(value, str) else None
    if current is None:
        return value
    warnings.warn(f'{place}{option.name} = "{value}": now called "{current}".', ConfigWarning, stacklevel=2)
    return current


def _check_limits(value: object, option: Option) -> None:
    metadata = option.metadata
    if value is None:
        return
    if metadata.choices is not None:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in metadata.choices:
                guess = nearest(str(item), metadata.choices)
                advice = f'; did you mean "{guess}"?' if guess else ""
                allowed = " or ".join(f'"{choice}"' for choice in metadata.choices)
                raise InvalidValueError(f"must be {allowed}{advice}")
    amount = len(value) if isinstance(value, (str, tuple)) else value
    if not isinstance(amount, (int, float)) or isinstance(amount, bool):
        return
    low, high = metadata.minimum, metadata.maximum
    if (low is not None and amount < low) or (high is not None and amount > high):
        limits = limits_text(option)
        raise InvalidValueError("must not be empty" if limits == "not empty" else f"must be {limits}")


def limits_text(option: Option) -> str:
    """Return the range of an option in words: `at least 1`, `1 to 1000`, `at most 5 s`; empty without a range."""
    low, high = option.metadata.minimum, option.metadata.maximum
    unit = {"duration": " s", "size": " B", "text": " characters"}.get(option.type_text, "")
    if option.type_text.startswith("list"):
        unit = " items"
    if low == 1 and high is None and option.type_text == "text":
        return "not empty"
    if low is not None and high is not None:
        return f"{_number(low)} to {_number(high)}{unit}"
    if low is not None:
        return f"at least {_number(low)}{unit}"
    return f"at most {_number(high)}{unit}" if high is not None else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _shown(value: object, option: Option) -> str:
    """Return ` = "many"`, shortened; `***` for a secret."""
    if option.metadata.secret or isinstance(value, SubstitutedText):
        return " = ***"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return f" = {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}"
