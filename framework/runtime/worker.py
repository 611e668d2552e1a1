"""A worker: its folder, its kept state, its supervisor, and what the HTTP API asks of them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from framework.config.format_registry import DISTRIBUTION
from framework.config.layers import file_layers, merge, value_at
from framework.config.loading import CONNECTOR_KEY, CONNECTOR_OPTIONS
from framework.config.masked_view import MASK, has_mask, plain, shown_mapping
from framework.config.option import options_of, sections_of
from framework.config.toml_text import table_lines, toml_name, toml_value
from framework.errors import ConfigError
from framework.model.text import unicode_text
from framework.runtime.children import ChildProcess
from framework.runtime.commands import CommandError, run_command
from framework.runtime.configuration import Configuration, Load, read_configuration, shown, without_logins
from framework.runtime.folder import ConfigFolder
from framework.runtime.state import StateFolder
from framework.runtime.supervisor import BusyError, Start, Supervisor, UnknownVersionError

if TYPE_CHECKING:
    from framework.runtime.api_documents import NewConfig, OffsetChange, Validation
    from framework.runtime.source_program import Kind, Kinds

TAKE_OVER = "--take-over"
MAX_OFFSETS = 1000
"""Maximum number of positions in an answer."""


@attrs.define(eq=False, repr=False, slots=False)
class Worker:
    """Everything that a worker has, below its HTTP port.

    Args:
        path: the folder of configuration files, or the file of a single source.
        state: what survives a restart; open.
        kinds: the sources that can run here.
        load: checks a file as the program does.
        arguments: of the program, after the configuration: `--once`. Of the first process alone: `--take-over`.
        settings: overrides of the command line, for a single source; `load` applies them, too.
        single: the end of the one source is the end of the program.
        start: starts a process; the real one by default.
        command: runs a command of a source's program.

    Attributes:
        kinds: as given.
    """

    _path: Path
    _state: StateFolder
    kinds: Kinds
    _load: Load
    _arguments: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    _settings: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    _single: bool = attrs.field(default=False, kw_only=True)
    _starts: Start | None = attrs.field(default=None, kw_only=True, alias="start")
    _command: Callable[..., list[bytes]] = attrs.field(default=run_command, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.id = unicode_text(f"{socket.gethostname()}:{self._path}")
        self.version = own_version()
        folder, start = ConfigFolder(self._path, self._read), self._starts or self._start
        self.supervisor = Supervisor(folder, self._state, start, self._read_version, single=self._single)

    def _read(self, path: Path, key: str = "") -> Configuration:
        return read_configuration(path, self.kinds, self._load, key=key, settings=self._settings)

    def _start(self, configuration: Configuration, ended: Callable[[], None]) -> ChildProcess:
        with configuration.content_file() as content:
            child = ChildProcess([*configuration.command(), *self._arguments], configuration.key, ended, content)
        # whoever runs when this one is resumed or restarted was started later, and nothing says that it must end
        self._arguments = tuple(argument for argument in self._arguments if argument != TAKE_OVER)
        return child

    def _read_version(self, key: str, version: int) -> Configuration:
        path = self._state.versions(key).get(version)
        if path is None:
            raise UnknownVersionError(key, version)
        return attrs.evolve(self._read(path, key), version=version)  # a wrong one may not tell its own number

    # ---- configurations

    def create(self, key: str, new: NewConfig) -> Configuration:
        """Store a configuration version, fully checked. It is not active yet.

        Raises:
            ConfigError: it has mistakes.
            UnknownSourceError: there is no source with that key.
            BusyError: it has as many stored versions as are kept.
            OSError: it cannot be stored.
        """
        content = new.plugin_config
        mistakes = [
            f"plugin_config.{name}: belongs beside plugin_config" for name in CONNECTOR_OPTIONS if name in content
        ]
        mistakes += [
            f"plugin_config.{place}: {MASK} stands for a secret: send it, or ${{env:NAME}}"
            for place in has_mask(content)
        ]
        _check_values(content)
        with self._named() as path:
            layers = file_layers(path, content=content)
            whole = merge(layers).values  # included files say, too, what kind of source it is, and whose
            kind = self.kinds.of(whole)
            mistakes += _contradictions(new, shown_mapping(content, sections_of(kind.config_class)), kind)
            mistakes += self._name_mistakes(key, whole)
            if mistakes:
                raise ConfigError(mistakes)
            self._load(kind.task_class, path, layers)

        def data(version: int) -> bytes:
            # the name of a file that does not name its source is no key that a file may have
            own_key = {"key": key} if CONNECTOR_KEY.fullmatch(key) else {}
            head = {"type": "source", **own_key, "enabled": new.enabled, "version": version, "name": new.name or key}
            return _toml({**head, **content})

        return self.supervisor.add_version(key, data)

    @contextlib.contextmanager
    def _named(self) -> Iterator[Path]:
        """Yield a path for a configuration that is in no file: what it includes is looked for beside it.

        Raises:
            ConfigError: raised inside; it names an included file, and not this path.
        """
        path = self._state.path / "plugin_config"
        try:
            yield path
        except ConfigError as error:
            place = f"{error.origin}: " if error.origin not in {"", str(path)} else ""
            raise ConfigError(
                [f"{place}{text}".replace(str(path), "plugin_config") for text in error.mistakes]
            ) from error

    def _name_mistakes(self, key: str, content: Mapping[str, Any]) -> list[str]:
        """Check the source's name: its positions belong to it, and no other source may have it."""
        section = content.get("source")
        name = section.get("name") if isinstance(section, dict) else None
        with self.supervisor.source(key) as source, self.supervisor.locked() as sources:
            own = source.file.source
            others = {other.file.source: other.file.key for other in sources if other is not source}
        if not isinstance(name, str):  # the loader says what is wrong with it
            return []
        if not own and name in others:
            return [f'[source] name = "{name}": is that of the source {others[name]}']
        if own not in {"", name}:
            return [f'[source] name = "{name}": must be that of the file; under another name it starts from nothing']
        return []

    def validate(self, kind: Kind, content: Mapping[str, Any]) -> Validation:
        """Return a check of a configuration, option by option, as Kafka Connect words it.

        Raises:
            ConfigError: it has text that is no Unicode.
        """
        from framework.runtime.api_documents import (  # noqa: PLC0415 - they need pydantic
            OptionCheck,
            OptionDefinition,
            OptionValue,
            Validation,
        )

        _check_values(content, nulls=False)
        mistakes: tuple[str, ...] = ()
        try:
            _check_values(content)
            with self._named() as path:
                self._load(kind.task_class, path, file_layers(path, content=content))
        except ConfigError as error:
            mistakes = error.mistakes
        sections = sections_of(kind.config_class)
        view = shown_mapping(content, sections)
        view = without_logins(view) if mistakes else view
        errors: dict[str, list[str]] = defaultdict(list)
        for mistake in mistakes:
            errors[_place(mistake)].append(mistake)
        checks: list[OptionCheck] = []
        for section, cls in sections.items():
            for option in options_of(cls):
                name = f"{section}.{option.name}"
                definition = OptionDefinition(
                    name=name,
                    type=option.type_text,
                    required=option.required,
                    default_value=None if option.required else plain(option.default),
                    documentation=option.doc,
                    group=section,
                )
                value = OptionValue(
                    name=name,
                    value=value_at(view, name.split(".")),
                    recommended_values=list(option.choices or ()),
                    errors=errors.pop(name, []),
                )
                checks.append(OptionCheck(definition=definition, value=value))
        for place, texts in errors.items():  # what is no option
            unknown = OptionDefinition(name=place, type="", required=False, documentation="", group="")
            checks.append(OptionCheck(definition=unknown, value=OptionValue(name=place, errors=texts)))
        return Validation(name=kind.program, error_count=len(mistakes), groups=list(sections), configs=checks)

    # ---- offsets

    def offsets(self, key: str) -> list[dict[str, Any]]:
        """Return the first positions of a source as partition and offset.

        Raises:
            UnknownSourceError: there is none.
            BusyError: its configuration is wrong.
            CommandError: they cannot be read.
        """
        with self.supervisor.source(key) as source:
            configuration = source.active
        _check_right(configuration)
        rows = self._command(configuration, ["offsets", "export"], max_lines=MAX_OFFSETS)
        return [_offset(json.loads(row)) for row in rows]

    def change_offsets(self, key: str, changes: list[OffsetChange] | None) -> str:
        """Reset or set positions of a stopped source, one after the other; return what happened.

        Args:
            key: the key of the source.
            changes: the changes; None to reset everything.

        Raises:
            UnknownSourceError: there is none.
            BusyError: it is not stopped, or its configuration is wrong.
            ConfigError: a change names no objects, or none that can be set.
            CommandError: a change failed; says which of several. Those before it are done.
        """
        commands = [["reset", "--all"]] if changes is None else [_command_of(change) for change in changes]
        lines: list[bytes] = []
        with self.supervisor.while_stopped(key) as configuration:
            _check_right(configuration)
            _check_buckets(configuration, changes or ())
            for number, command in enumerate(commands, 1):
                try:
                    lines += self._command(configuration, ["offsets", *command, "--yes"])
                except CommandError as error:
                    if len(commands) == 1:
                        raise
                    done = "those before it are done" if number > 1 else "nothing was changed"
                    which = f"change {number} of {len(commands)}, {done}"
                    raise CommandError(error.exit_code, f"{which}: {error.message}") from error
        return "; ".join(line.decode(errors="replace") for line in lines)

    def plugin_config(self, key: str, form: str | None) -> tuple[str, bytes]:
        """Return the sections of the active configuration in a format, with its media type. JSON is YAML, too.

        Raises:
            UnknownSourceError: there is none.
        """
        with self.supervisor.source(key) as source:
            content = shown(source.active)
        if form in {None, "toml"}:
            return "application/toml", _toml(content)
        kinds = {"json": "application/json", "yaml": "application/yaml", "text": "text/plain"}
        return kinds[str(form)], orjson.dumps(content)


def _check_right(configuration: Configuration) -> None:
    if configuration.mistake:
        raise BusyError(configuration.mistake)


def _check_buckets(configuration: Configuration, changes: Iterable[OffsetChange]) -> None:
    """Refuse to change an object of another bucket than the one that is read; a bucket by reference is not known here.

    Raises:
        ConfigError: a change names one.
    """
    section = configuration.mapping.get(configuration.kind.name) if configuration.kind is not None else None
    bucket = section.get("bucket") if isinstance(section, Mapping) else None
    if not isinstance(bucket, str) or "${" in bucket:
        return
    for change in changes:
        named = change.partition.bucket
        if named is not None and named != bucket:
            raise ConfigError(
                f'partition.bucket: "{named}" is not the bucket of this source, which is "{bucket}"; leave it out to choose '
                f"by the key alone"
            )


def _contradictions(new: NewConfig, view: Mapping[str, Any], kind: Kind) -> list[str]:
    """Return where the fields of Iggy's connectors say other things than the sections that count."""
    from framework.runtime.api_documents import streams_of, transforms_of  # noqa: PLC0415 - they need pydantic

    mistakes = []
    if new.path not in {"", kind.program}:
        mistakes.append(f'path: must be "{kind.program}", or empty')
    if new.streams and new.streams != [stream.model_dump(by_alias=True) for stream in streams_of(view)]:
        mistakes.append("streams: says other things than plugin_config.iggy, which counts; leave streams out")
    transforms = {item.type: item.config for item in transforms_of(view)}
    if new.transforms and new.transforms != transforms:
        mistakes.append("transforms: says other things than plugin_config.transforms, which counts; leave it out")
    return mistakes


def _toml(content: Mapping[str, Any]) -> bytes:
    """Return a configuration as TOML: a table for each section, inline tables below."""
    _check_values(content)
    lines = [
        f"{toml_name(name)} = {toml_value(value)}" for name, value in content.items() if not isinstance(value, dict)
    ]
    for section, options in content.items():
        if isinstance(options, dict):
            lines += table_lines(f"[{toml_name(section)}]", options)
    return "\n".join([*lines, ""]).encode()


def _check_values(content: Mapping[str, Any], *, nulls: bool = True) -> None:
    """Refuse values that JSON has and TOML does not: null, and half of a pair of surrogates.

    Raises:
        ConfigError: with the place of each.
    """
    mistakes = [text for is_null, text in _foreign_values(content, "") if nulls or not is_null]
    if mistakes:
        raise ConfigError(mistakes)


def _foreign_values(value: object, place: str) -> Iterator[tuple[bool, str]]:
    """Yield whether a value is null, and its mistake."""
    if value is None:
        yield True, f"{place}: null is no value; leave it out"
    elif isinstance(value, str):
        if unicode_text(value) != value:
            yield False, f"{place}: is no Unicode text: a \\u escape in it is half of a pair"
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _foreign_values(name, unicode_text(f"{place}.{name}".lstrip(".")))
            yield from _foreign_values(inner, unicode_text(f"{place}.{name}".lstrip(".")))
    elif isinstance(value, list):
        for inner in value:
            yield from _foreign_values(inner, place)


def _place(mistake: str) -> str:
    """Return the option that a mistake names: `[s3] bucket: missing` is about `s3.bucket`."""
    section, _, rest = mistake.removeprefix("[").partition("]")
    if not mistake.startswith("["):
        return mistake.partition(":")[0].partition(" ")[0]
    name = rest.strip().partition(":")[0].partition(" ")[0]
    return f"{section}.{name}" if name else section


def _offset(row: dict[str, Any]) -> dict[str, Any]:
    names = ("bucket", "key", "share", "part")
    row = {name: unicode_text(value) if isinstance(value, str) else value for name, value in row.items()}
    return {
        "partition": {name: row[name] for name in names if name in row},
        "offset": {name: value for name, value in row.items() if name not in names},
    }


def _command_of(change: OffsetChange) -> list[str]:
    partition, offset = change.partition, change.offset
    if (partition.key is None) == (partition.prefix is None):
        raise ConfigError("partition: give either key or prefix")
    choice = f"--key={partition.key}" if partition.key is not None else f"--prefix={partition.prefix}"
    if offset is None:
        return ["reset", choice]
    if partition.key is None:
        raise ConfigError("partition: a prefix can only be reset, with offset = null; a position is set by its key")
    if partition.share is not None or partition.part is not None:
        raise ConfigError("partition: an object that is read in splits or parts can only be reset, with offset = null")
    value = "--done" if offset.records is None else f"--records={offset.records}"
    return ["set", choice, value, *([] if offset.version is None else [f"--version={offset.version}"])]


def own_version() -> str:
    """Return the version of the installed package; 0.0.0 in a source tree that is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return "0.0.0"
