"""Loads a TOML file as a frozen configuration; raises one error with all mistakes of the file.

A root class has a field for each section; a section class has an `option()` for each key. Either may have
a method `validate_options(self) -> Iterable[str]` for conflicts between its options. It yields ends of
sentences that begin with `[section] `, or whole sentences on the root. It also runs when other parts of
the file are wrong. It ends quietly when it uses a value that could not be parsed, so a mistake is never
reported twice.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import attrs

from framework.config.layers import (
    INCLUDE,
    Layer,
    Merged,
    environment_layers,
    file_layers,
    merge,
    setting_layers,
    value_at,
)
from framework.config.message_masking import masked, secret_parts, without_pieces
from framework.config.option import (
    Option,
    is_list,
    is_table,
    nearest,
    options_of,
    sections_of,
    subsections_of,
    table_class,
)
from framework.config.plugins import named_failure
from framework.config.substitution import Substitution
from framework.config.transform_registry import NOT_SHIPPED, TRANSFORMS, TransformConfig, transform_class
from framework.config.value_limits import check_limits
from framework.config.values import InvalidValueError, SubstitutedText, converted, flat_table, texts_in, with_texts
from framework.errors import ConfigError
from framework.model.text import counted

T = TypeVar("T")

_MAX_SHOWN = 60
MAX_MISTAKES = 100
"""Mistakes in the values that are named: a file of a megabyte that is something else has tens of thousands."""

CONNECTOR_OPTIONS: Mapping[str, type] = {"type": str, "key": str, "enabled": bool, "version": int, "name": str}
"""Options before the first section, as connector files of Iggy have them. A worker reads them; other commands check them."""

_CONNECTOR_TYPES = {str: "a text", bool: "true or false", int: "a whole number"}
CONNECTOR_KEY = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


class ConfigWarning(FutureWarning):
    """A former name of an option, a choice or a command, which a later version will reject; a variable that seems misspelt."""


@attrs.frozen(kw_only=True)
class Loaded(Generic[T]):
    """A configuration, and the place where each of its values was given.

    Attributes:
        config: the configuration.
        merged: the values of all layers as they were written, with their origins.
    """

    config: T
    merged: Merged


def load_config(
    path: str | Path | None, cls: type[T], *, environment: Mapping[str, str] | None = None, settings: Sequence[str] = ()
) -> T:
    """Return the configuration in a TOML file, with its includes and overrides.

    Args:
        path: the file; None for overrides alone.
        cls: the root class.
        environment: variables for `${env:NAME}` and overrides; by default those of the process.
        settings: overrides, `section.option=value`.

    Raises:
        ConfigError: the file cannot be read, is not TOML (with line and column), or has mistakes: all of
            them.
    """
    return load(path, cls, environment=environment, settings=settings).config


def load(
    path: str | Path | None,
    cls: type[T],
    *,
    environment: Mapping[str, str] | None = None,
    settings: Sequence[str] = (),
    may_wait: bool = True,
    layers: Sequence[Layer] | None = None,
) -> Loaded[T]:
    """Return the configuration and the origins of its values, as `load_config` does.

    Args:
        path: the file; None for overrides alone.
        cls: the root class.
        environment: variables for `${env:NAME}` and overrides; by default those of the process.
        settings: overrides, `section.option=value`.
        may_wait: whether `${file:PATH}` may be a pipe, which is waited for.
        layers: those of the file, if it has been read already.

    Raises:
        ConfigError: as for `load_config`.
    """
    environment = os.environ if environment is None else environment
    overrides: list[str] = []
    given = layers if layers is not None else file_layers(path) if path is not None else ()
    set_here = setting_layers(settings, cls, overrides.append)
    of_variables = environment_layers(environment, cls, [*given, *set_here], overrides.append, _warn)
    layers = [*given, *of_variables, *set_here]
    return _Reading(cls, environment, may_wait=may_wait).load(layers, origin=str(path or ""), overrides=overrides)


def _warn(text: str) -> None:
    warnings.warn(text, ConfigWarning, stacklevel=2)


def structure(
    mapping: Mapping[str, object], cls: type[T], *, origin: str = "", environment: Mapping[str, str] | None = None
) -> T:
    """Return the configuration in a mapping of sections, `{"source": {"name": "orders"}, ...}`. No overrides apply.

    Raises:
        ConfigError: with all mistakes, or it is no mapping.
    """
    given: object = mapping
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"a configuration is a mapping of sections, not {type(given).__name__}; of a file it is "
            f"framework.config.loading.load_config(path, {cls.__name__})"
        )
    loaded: Loaded[T] = _Reading(cls, environment).load([Layer(origin="", values=mapping)], origin=origin)
    return loaded.config


def noted(mistake: str, merged: Merged) -> str:
    """Return a mistake with the origins of the options that it names, unless all are in the file itself."""
    found: dict[str, list[str]] = {}
    for section, names in re.findall(r"\[([\w.]+)\](?: ([\w.]+(?:, [\w.]+)*)|(?=:))", mistake):
        for name in names.split(", "):
            option, _, entry = name.partition(".")
            path = (*section.split("."), *filter(None, (option, entry)))
            origins = merged.origins_of(path) or merged.origins_of((*section.split("."), *name.split(".")))
            if origins:
                found[f"[{section}] {name}".rstrip()] = origins
    if mistake.startswith("transforms"):
        found["transforms"] = merged.origins_of(("transforms",))
    if not any(map(any, found.values())):
        return mistake
    notes = {place: ", ".join(filter(None, origins)) for place, origins in found.items()}
    if len(notes) == 1:
        return f"{mistake} (from {next(iter(notes.values()))})"
    return f"{mistake} ({', '.join(f'{place} from {origin}' for place, origin in notes.items() if origin)})"


class _UnusableError(BaseException):
    """A check used a value that could not be parsed; its mistake is already reported.

    No Exception: a check that catches all of these would report another one.
    """


class _Unusable:
    """Placeholder of a value that could not be parsed. Any use of it ends the check that uses it."""

    def _touched(self, *_arguments: object) -> Any:
        raise _UnusableError

    __getattr__ = __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _touched
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __str__ = __repr__ = __format__ = _touched
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __int__ = __float__ = __index__ = _touched


_UNUSABLE: Any = _Unusable()
_ABOVE_SECTIONS = {
    INCLUDE: "to include a file, write include above the first section",
    "transforms": "begin each transform with a line [[transforms]], or write the list above the first section",
}
"""What stands beside the sections -> advice for one that was written inside a section."""


class _Reading:
    """State of loading a configuration: its mistakes so far, and the secrets that no message may show."""

    def __init__(self, cls: type, environment: Mapping[str, str] | None, *, may_wait: bool = True) -> None:
        self._cls = cls
        self._sections = sections_of(cls)
        self._mistakes: list[str] = []
        self._substitution = Substitution(environment, may_wait=may_wait)
        self._secrets = self._substitution.secrets  # and those of secret options
        # place of an option -> its values with text from elsewhere
        self._brought_in: dict[str, list[SubstitutedText]] = {}

    def load(self, layers: Sequence[Layer], *, origin: str, overrides: Sequence[str] = ()) -> Loaded[Any]:
        """Return the configuration in these layers.

        Args:
            layers: the values.
            origin: the file, for the error.
            overrides: mistakes of overrides, which are named last.

        Raises:
            ConfigError: with all mistakes.
        """
        merged = merge([self._current_names(layer) for layer in layers])
        of_names, self._mistakes = self._mistakes, []
        config = self._root(merged.values)
        more = len(self._mistakes) - MAX_MISTAKES
        mistakes = [*of_names, *(noted(mistake, merged) for mistake in self._mistakes[:MAX_MISTAKES]), *overrides]
        if more > 0:
            mistakes.append(f"... and at least {counted(more, 'more mistake')}")
        if mistakes:
            raise ConfigError([masked(mistake, self._secrets, self._cls) for mistake in mistakes], origin=origin)
        return Loaded(config=config, merged=merged)

    def _root(self, mapping: Mapping[str, object]) -> Any:
        known = subsections_of(self._cls)
        mapping = self._without_connector_options(mapping)
        lists = {"transforms": TransformConfig} if "transforms" in attrs.fields_dict(self._cls) else {}
        self._unknown(mapping, {**known, **lists}, place="", advice=getattr(self._cls, "unknown_sections", ""))
        values = {name: self._transforms(mapping.get(name, [])) for name in lists}
        return self._checked(self._cls, values | self._inner(mapping, self._cls, place=""), place="")

    def _without_connector_options(self, mapping: Mapping[str, object]) -> Mapping[str, object]:
        for name, kind in CONNECTOR_OPTIONS.items():
            if name in mapping and type(mapping[name]) is not kind:
                self._mistakes.append(f"{name}: must be {_CONNECTOR_TYPES[kind]}, before the first section")
        if isinstance(mapping.get("type"), str) and mapping["type"] != "source":
            self._mistakes.append(f'type = "{mapping["type"]}": must be "source"')
        key, version = mapping.get("key"), mapping.get("version")
        if isinstance(key, str) and not CONNECTOR_KEY.fullmatch(key):
            self._mistakes.append(f'key = "{key}": may hold only letters, digits, ".", "_" and "-", at most 100')
        if isinstance(version, int) and version < 0:
            self._mistakes.append(f"version = {version}: must be at least 0")
        return {name: value for name, value in mapping.items() if name not in CONNECTOR_OPTIONS}

    def _inner(self, mapping: Mapping[str, object], cls: type, *, place: str) -> dict[str, Any]:
        """Return the sections directly inside a section or the root, by the names of their fields."""
        values: dict[str, Any] = {}
        for name, section in subsections_of(cls).items():
            # A section that is not there is an empty one: its required options are then named as missing.
            content = mapping.get(name, {})
            path = f"{place}{name}"
            if isinstance(content, Mapping):
                values[name] = self._made(content, section, f"[{path}] ")
            else:
                self._mistakes.append(f"{path}: must be a section, [{path}]")
                values[name] = _UNUSABLE
        return values

    def _made(self, given: Mapping[str, object], cls: type[T], place: str) -> T:
        """Return a section, or a table inside a list.

        Args:
            given: its options.
            cls: its class.
            place: where it is, in messages: `[iggy] `, `transforms[0].`.
        """
        options = {option.name: option for option in options_of(cls)}
        self._unknown(given, {**options, **subsections_of(cls)}, place=place)
        values: dict[str, Any] = {}
        for option in options.values():
            if option.name in given:
                values[option.name] = self._option(given[option.name], option, place)
            elif option.required:
                self._mistakes.append(f"{place}{option.name}: missing")
                values[option.name] = _UNUSABLE
        return self._checked(cls, values | self._inner(given, cls, place=f"{place.strip('[] ')}."), place=place)

    def _transforms(self, entries: object) -> Any:
        """Return the entries of `[[transforms]]`, each with the options of its type."""
        if not isinstance(entries, (list, tuple)):
            self._mistakes.append(
                'transforms: must be a list: write [[transforms]], then type = "add_fields" or another'
            )
            return _UNUSABLE
        found: list[TransformConfig] = []
        for number, entry in enumerate(entries):
            if len(self._mistakes) > MAX_MISTAKES:  # to look for an unknown type takes some hundredths of a second
                return _UNUSABLE
            if (made := self._transform(entry, f"transforms[{number}]")) is not None:
                found.append(made)
        return tuple(found)

    def _transform(self, entry: object, place: str) -> TransformConfig | None:
        if not isinstance(entry, Mapping):
            self._mistakes.append(f"{place}: must be a table")
            return None
        name = entry.get("type")
        if not isinstance(name, str):
            self._mistakes.append(f"{place}.type: missing; known are {', '.join(TRANSFORMS.names())}")
            return None
        enabled = entry.get("enabled", True)
        if not isinstance(enabled, bool):
            self._mistakes.append(f"{place}.enabled: must be true or false")
        try:
            options_class = transform_class(name).options_class
        except KeyError:
            self._mistakes.append(f'{place}.type = "{name}": {NOT_SHIPPED.get(name) or TRANSFORMS.unknown(name)}')
            return None
        except ConfigError as exc:
            self._mistakes.extend(f"{place}.type: {mistake}" for mistake in exc.mistakes)
            return None
        content = {key: value for key, value in entry.items() if key not in {"type", "enabled"}}
        options: object = self._table(content, options_class, f"{place}.")
        return TransformConfig(type=name, enabled=bool(enabled), options=options, place=f"{place} ({name})")

    def _table(self, content: object, cls: type[T], place: str) -> T:
        """Return a table inside a list, by the options of its class; `place` ends with a dot.

        A class may have `FLAGS`: names of options that can be written as a text in place of the table.
        """
        flags: tuple[str, ...] = getattr(cls, "FLAGS", ())
        if isinstance(content, str) and content in flags:
            content = {content: True}
        if not isinstance(content, Mapping):
            guess = nearest(content, flags) if isinstance(content, str) else None
            advice = f'; did you mean "{guess}"?' if guess else f", such as {_example(cls)}"
            self._mistakes.append(f"{place[:-1]}: must be a table{advice}")
            return cast("T", _UNUSABLE)
        return self._made(content, cls, place)

    def _tables(self, value: object, option: Option, place: str) -> Any:
        """Return the value of an option that is a table, or a list of tables."""
        kind = table_class(option.type)
        assert kind is not None
        if not is_list(option.type):
            return self._table(value, kind, f"{place}{option.name}.")
        if not isinstance(value, (list, tuple)):
            self._mistakes.append(f"{place}{option.name}: must be a list of tables, such as [{_example(kind)}]")
            return _UNUSABLE
        found: tuple[object, ...] = tuple(
            self._table(item, kind, f"{place}{option.name}[{at}].") for at, item in enumerate(value)
        )
        try:
            check_limits(found, option)
        except InvalidValueError as mistake:
            self._mistakes.append(f"{place}{option.name}: {mistake}")
        return found

    def _option(self, value: object, option: Option, place: str) -> Any:
        if table_class(option.type) is not None:
            return self._tables(value, option, place)
        known = len(self._mistakes)
        value = self._substituted(value, f"{place}{option.name}")
        if len(self._mistakes) > known:
            return _UNUSABLE
        if texts := [text for text in texts_in(value) if isinstance(text, SubstitutedText)]:
            self._brought_in[f"{place}{option.name}"] = texts
        if option.secret and isinstance(value, str):
            self._secrets.update(secret_parts(str(value)))
        try:
            result = converted(value, option.type)
            if isinstance(result, str) and (current := option.former_values.get(result)):
                _warn(f'{place}{option.name} = "{result}": now called "{current}".')
                result = current
            check_limits(result, option)
        except InvalidValueError as mistake:
            self._mistakes.append(f"{place}{option.name}{_shown(value, option)}: {mistake}")
            return _UNUSABLE
        return result

    def _substituted(self, value: object, place: str) -> object:
        if isinstance(value, str):
            return self._substitution.apply(value, lambda mistake: self._mistakes.append(f"{place}: {mistake}"))
        if isinstance(value, list):
            return [self._substituted(item, place) for item in value]
        if isinstance(value, dict):
            return {name: self._substituted(item, f"{place}.{name}") for name, item in value.items()}
        return value

    def _current_names(self, layer: Layer) -> Layer:
        """Return the layer with every former name of an option replaced by the current one."""
        known = len(self._mistakes)
        values = merge([layer]).values  # a copy
        for name, section in self._sections.items():
            content = value_at(values, name.split("."))
            if isinstance(content, dict):
                self._rename(content, options_of(section), f"[{name}] ")
        if layer.origin:
            self._mistakes[known:] = [f"{mistake} (from {layer.origin})" for mistake in self._mistakes[known:]]
        return Layer(origin=layer.origin, values=values)

    def _rename(self, given: dict[str, object], options: Iterable[Option], place: str) -> None:
        for option in options:
            for former, advice in option.former_names.items():
                if former not in given:
                    continue
                value = given.pop(former)
                if option.name in given:
                    self._mistakes.append(f"{place}{former}: a former name of {option.name}, which is there too")
                    continue
                _warn(f"{place}{former}: now called {option.name}. {advice}".rstrip())
                given[option.name] = value
            content = given.get(option.name)
            if is_table(option.type) and isinstance(content, dict):
                given[option.name] = flat_table(content)

    def _unknown(
        self, given: Mapping[str, object], known: Mapping[str, object], *, place: str, advice: str = ""
    ) -> None:
        """Report the names that are not known; with this advice, if no name is similar."""
        for name in given:
            if name in known:
                continue
            what, shown = ("option", name) if place else ("section", f"[{name}]")
            guess = nearest(name, known)
            owners = [
                f"[{own}]" for own, cls in self._sections.items() if name in {option.name for option in options_of(cls)}
            ]
            if name in _ABOVE_SECTIONS and place.startswith("["):
                way = _ABOVE_SECTIONS[name]
            elif guess is not None:
                form = guess if place else f"[[{guess}]]" if guess == "transforms" else f"[{guess}]"
                way = f"did you mean {form}?"
            elif len(owners) in {1, 2}:
                way = f"{name} belongs to {' or '.join(owners)}"
            elif advice:
                way = advice
            # a name with a dot would be looked for in a package, which is imported for it
            elif not place and name.isidentifier() and importlib.util.find_spec(f"{name}_source") is not None:
                way = f"it belongs to another program: python -m {name}_source"
            else:
                way = f"known are {', '.join(known)}" if known else "there are none here"
            self._mistakes.append(f"{place}{shown}: unknown {what}; {way}")

    def _checked(self, cls: type[T], values: Mapping[str, Any], *, place: str) -> T:
        made: T = _UNUSABLE
        prefix = f"{place.strip('[] ')}." if place else ""  # sections may say `s3.bucket: ...`, for use without a file
        author = f"validate_options of {cls.__module__}.{cls.__qualname__}"
        try:
            with named_failure(author):
                made = cls(**values)
                check: Callable[[], Any] = getattr(made, "validate_options", tuple)
                found = check()
                if not isinstance(found, Iterable):
                    found = f"{author} returned {found!r}; it must yield a text for each mistake"
                for mistake in [found] if isinstance(found, str) else found:
                    self._report_found(f"{place}{str(mistake).removeprefix(prefix)}")
        except _UnusableError:
            pass  # the value it touched has its own mistake, reported before
        except ConfigError as exc:
            # written in C, `re` looks at the type of the stand-in, not at what it does
            if not (self._mistakes and isinstance(exc.__cause__, TypeError)):
                for mistake in exc.mistakes:
                    self._report_found(f"{place}{mistake}")
        return made

    def _report_found(self, mistake: str) -> None:
        """Report the mistake that a check found, without pieces of text from elsewhere; those past the limit are only counted."""
        shown = len(self._mistakes) < MAX_MISTAKES
        self._mistakes.append(without_pieces(mistake, self._brought_in, self._cls) if shown else mistake)


def _example(cls: type) -> str:
    """Return how a table of that class is written: `{ key = ..., value = ... }`."""
    options = options_of(cls)
    shown = [option.name for option in options if option.required] or [option.name for option in options[:1]]
    return f"{{ {', '.join(f'{name} = ...' for name in shown)} }}"


def _shown(value: object, option: Option) -> str:
    """Return ` = "many"`, shortened; `***` for a secret, and for text from elsewhere."""
    if option.secret or isinstance(value, SubstitutedText):
        return " = ***"
    visible = with_texts(value, lambda text: "***" if isinstance(text, SubstitutedText) else text)
    text = json.dumps(visible, default=str, ensure_ascii=False)
    return f" = {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}"
