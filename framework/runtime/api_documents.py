"""The documents of the HTTP API: those of Iggy's connector runtime, and those of Kafka Connect.

Field names and types are those of `core/connectors/sdk/src/api.rs` and `core/connectors/runtime/src/api` of Apache
Iggy, so that its clients read them. Fields of our own are optional for such a client.
"""
# ruff: noqa: D101  each class is the document that its name says; pydantic reads the annotations at run time

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from framework.model.message_ids import MAX_RECORD
from framework.model.text import unicode_text
from framework.runtime.configuration import Configuration, shown
from framework.runtime.managed_source import ManagedSource, Status
from framework.runtime.metrics import counters_of
from framework.runtime.state import PAUSED, RUNNING

ConnectState = Literal["RUNNING", "PAUSED", "STOPPED", "FAILED", "RESTARTING"]

IGGY_TRANSFORMS = frozenset(
    {
        *("add_fields", "delete_fields", "filter_fields", "update_fields"),
        *("avro_convert", "proto_convert", "flat_buffer_convert", "unwrap_envelope"),
    }
)
"""The names of `TransformType` in Iggy's connector SDK (0.9.0), which its API answers with."""

_SCHEMAS = {
    "avro": "json", "csv": "json", "json": "json", "jsonl": "json", "parquet": "json", "text": "text"
}  # fmt: skip
_BATCH_LENGTH, _LINGER_TIME = 10_000, "5ms"

MAX_KEY_CHARACTERS = 1024
"""A key of a store has at most as many bytes."""

_KEY = r"^[^\x00]*$"


class ErrorAnswer(BaseModel):
    """An error of the paths that Iggy's runtime has."""

    code: str
    reason: str


class ConnectError(BaseModel):
    """An error of the paths that Kafka Connect has."""

    error_code: int
    message: str


class Health(BaseModel):
    status: Literal["healthy"] = "healthy"


class LastError(BaseModel):
    message: str
    timestamp: int = Field(description="Microseconds since 1970.")


class RefusedConfig(BaseModel):
    version: int
    file: str
    message: str = Field(description="All its mistakes.")


class SourceInfo(BaseModel):
    id: int
    key: str
    name: str
    path: str = Field(description="The program that runs the source.")
    enabled: bool
    status: Status
    last_error: LastError | None = None
    plugin_config_format: str | None = None
    file: str = Field(description="The file of the configuration that runs, or is to run.")
    refused_config: RefusedConfig | None = Field(
        default=None,
        description="The active configuration, while it has a mistake and the former one runs on, which the other fields show.",
    )
    restarts: int = Field(description="Times that the source was started again after a failure.")


class Stream(BaseModel):
    stream: str
    topic: str
    schema_: str = Field(alias="schema")
    avro_schema_json: str | None = None
    avro_schema_path: str | None = None
    batch_length: int | None = None
    linger_time: str | None = None


class SourceDetails(SourceInfo):
    streams: list[Stream]


class SourceConfig(BaseModel):
    key: str
    enabled: bool
    version: int
    name: str
    path: str
    transforms: dict[str, Any] | None = None
    streams: list[Stream]
    plugin_config_format: str | None = None
    plugin_config: dict[str, Any] | None = Field(description="The sections of the configuration, secrets masked.")
    verbose: bool = False
    benchmark: bool = False
    active: bool


class Transform(BaseModel):
    type: str
    config: dict[str, Any]


class NewConfig(BaseModel):
    """A new configuration version."""

    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool = True
    name: str = Field("", max_length=200)
    path: str = Field("", description="As in the active version, or empty.")
    transforms: dict[str, Any] | None = Field(None, description="As plugin_config says, or absent.")
    streams: list[dict[str, Any]] | None = Field(None, description="As plugin_config says, or absent.")
    plugin_config_format: Literal["json", "yaml", "toml", "text"] | None = None
    plugin_config: dict[str, Any] = Field(description="The sections of the configuration, as in its TOML file.")
    verbose: Literal[False] = False
    benchmark: Literal[False] = False


class ActiveVersion(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=0, le=2**63 - 1)


class ConnectorStats(BaseModel):
    key: str
    name: str
    connector_type: Literal["source"] = "source"
    version: str
    version_semver: int | None = None
    status: Status
    enabled: bool
    messages_produced: int
    messages_sent: int
    messages_filtered: int
    errors: int


class RuntimeStats(BaseModel):
    connectors_runtime_version: str
    connectors_runtime_version_semver: int | None = None
    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: int
    total_memory: int
    available_memory: int
    run_time: int
    start_time: int
    sources_total: int
    sources_running: int
    sinks_total: int = 0
    sinks_running: int = 0
    connectors: list[ConnectorStats]


class ConnectorState(BaseModel):
    state: ConnectState
    worker_id: str


class TaskState(ConnectorState):
    id: int
    trace: str | None = None


class ConnectorStatus(BaseModel):
    name: str
    connector: ConnectorState
    tasks: list[TaskState]
    type: Literal["source"] = "source"


class ConnectorOffset(BaseModel):
    partition: dict[str, Any]
    offset: dict[str, Any] | None


class ConnectorOffsets(BaseModel):
    offsets: list[ConnectorOffset]


class OffsetPartition(BaseModel):
    """What to change: the object of a key; for a reset also all objects whose keys begin so."""

    model_config = ConfigDict(extra="forbid", strict=True)

    bucket: str | None = Field(None, description="As the answers name it; another one is refused.")
    key: str | None = Field(None, max_length=MAX_KEY_CHARACTERS, pattern=_KEY)
    prefix: str | None = Field(None, max_length=MAX_KEY_CHARACTERS, pattern=_KEY)
    share: int | None = Field(None, description="Accepted as the answers name it; an object is reset with all splits.")
    part: int | None = Field(None, description="Accepted as the answers name it; an object is reset with all parts.")


class OffsetValue(BaseModel):
    """A position: either `records` or `done`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    records: int | None = Field(
        None, ge=0, le=MAX_RECORD, description="So many records count as sent: the source goes on behind them."
    )
    done: Literal[True] | None = Field(None, description="Nothing more of the object is read.")
    version: str | None = Field(
        None, max_length=MAX_KEY_CHARACTERS, pattern=_KEY, description="Refuse unless the position is of this version."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> OffsetValue:
        if (self.records is None) is (self.done is None):
            raise PydanticCustomError("one_of_both", "give either records or done")
        return self


class OffsetChange(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    partition: OffsetPartition
    offset: OffsetValue | None = Field(description="null: reset, the source reads from the first record again.")


class OffsetChanges(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    offsets: list[OffsetChange] = Field(min_length=1, max_length=100)


class Message(BaseModel):
    message: str


class OptionDefinition(BaseModel):
    name: str
    type: str
    required: bool
    default_value: Any = None
    documentation: str
    group: str


class OptionValue(BaseModel):
    name: str
    value: Any = None
    recommended_values: list[str] = []
    errors: list[str] = []
    visible: bool = True


class OptionCheck(BaseModel):
    definition: OptionDefinition
    value: OptionValue


class Validation(BaseModel):
    name: str
    error_count: int
    groups: list[str]
    configs: list[OptionCheck]


def info_of(source: ManagedSource) -> SourceInfo:
    """Return a source as `/sources` shows it."""
    described, active, error = source.described, source.active, source.last_error
    refused = RefusedConfig(version=active.version, file=unicode_text(str(active.path)), message=active.mistake)
    return SourceInfo(
        id=source.id,
        key=source.key,
        name=described.label or source.key,
        path=_program(described),
        enabled=described.enabled,
        status=source.status,
        last_error=LastError(message=error.message, timestamp=error.timestamp) if error is not None else None,
        plugin_config_format="toml",
        file=unicode_text(str(described.path)),
        refused_config=refused if active is not described else None,
        restarts=source.restarts,
    )


def config_of(configuration: Configuration, *, active: bool) -> SourceConfig:
    """Return a configuration version, secrets masked."""
    content = shown(configuration)
    return SourceConfig(
        key=configuration.key,
        enabled=configuration.enabled,
        version=configuration.version,
        name=configuration.label or configuration.key,
        path=_program(configuration),
        transforms={item.type: item.config for item in transforms_of(content)} or None,
        streams=streams_of(content),
        plugin_config_format="toml",
        plugin_config=content,
        active=active,
    )


def _program(configuration: Configuration) -> str:
    return configuration.kind.program if configuration.kind is not None else ""


def streams_of(content: Mapping[str, Any]) -> list[Stream]:
    """Return the stream that a configuration writes, in the form of Iggy's connectors."""
    iggy, source = content.get("iggy"), content.get("input")
    if not isinstance(iggy, dict) or not isinstance(source, dict):
        return []
    batch_length = iggy.get("batch_length", _BATCH_LENGTH)
    return [
        Stream(
            stream=str(iggy.get("stream", "")),
            topic=str(iggy.get("topic", "")),
            schema=_SCHEMAS.get(str(source.get("format")), "raw"),
            batch_length=batch_length if isinstance(batch_length, int) and batch_length >= 0 else None,
            linger_time=str(iggy.get("linger_time", _LINGER_TIME)),
        )
    ]


def transforms_of(content: Mapping[str, Any]) -> list[Transform]:
    """Return the transforms of a configuration that Iggy's runtime knows too, in their order.

    A client with Iggy's types fails on any other name. `plugin_config` has all transforms.
    """
    found = content.get("transforms")
    return [
        Transform(type=item["type"], config={name: value for name, value in item.items() if name != "type"})
        for item in (found if isinstance(found, list) else [])
        if isinstance(item, dict) and isinstance(item.get("type"), str) and item["type"] in IGGY_TRANSFORMS
    ]


def stats_of(sources: list[ManagedSource], system: Mapping[str, Any], *, version: str) -> RuntimeStats:
    """Return the document of `/stats`."""
    return RuntimeStats(
        connectors_runtime_version=version,
        connectors_runtime_version_semver=semver(version),
        **system,
        sources_total=len(sources),
        sources_running=sum(source.status == "running" for source in sources),
        connectors=[
            ConnectorStats(
                key=source.key,
                name=source.described.label or source.key,
                connector_type="source",
                version=version,
                version_semver=semver(version),
                status=source.status,
                enabled=source.described.enabled,
                **counters_of(source),
            )
            for source in sources
        ],
    )


def semver(version: str) -> int | None:
    """Return `1.2.3` as 1002003 as Iggy does, which ignores what follows, such as `.dev0`; None for other forms."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)(?!\d)", version)
    if numbers is None:
        return None
    major, minor, patch = map(int, numbers.groups())
    return major * 1_000_000 + minor * 1000 + patch


def connect_state(source: ManagedSource) -> ConnectState:
    """Return the state of a source in the words of Kafka Connect."""
    if source.child is not None:  # also while it stops: its offsets cannot be changed yet
        return "RUNNING" if source.status == "running" or source.kept_state != RUNNING else "RESTARTING"
    if source.status in {"starting", "error"}:
        return "FAILED" if source.status == "error" and not source.retries else "RESTARTING"
    return "PAUSED" if source.kept_state == PAUSED else "STOPPED"


def connector_status(source: ManagedSource, worker_id: str) -> ConnectorStatus:
    """Return the document of `/connectors/{name}/status`."""
    state = connect_state(source)
    trace = source.last_error.message if source.last_error is not None else None
    return ConnectorStatus(
        name=source.key,
        connector=ConnectorState(state=state, worker_id=worker_id),
        tasks=[] if state == "STOPPED" else [TaskState(id=0, state=state, worker_id=worker_id, trace=trace)],
    )
