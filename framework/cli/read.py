"""The command `read`: the records of a topic, one JSON line each."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framework.cli.config_file import ConfigOption, SetOption
from framework.cli.run import reached
from framework.cli.text import json_text
from framework.errors import EXIT_DONE, ConfigError, IggyTopicError, RecordError
from framework.model.json_limits import check_json

if TYPE_CHECKING:
    from framework.iggy.values import StoredMessage

# what a line says of its message; a header of such a name would stand in its place
_NOT_HEADERS = frozenset({"topic", "partition", "offset", "id", "timestamp_us", "record", "payload", "payload_base64"})


def read(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    topic: Annotated[str, typer.Option(help="A topic other than the configured one.")] = "",
    partition: Annotated[
        int | None, typer.Option(help="Only this partition.", min=0, max=2**32 - 1, show_default=False)
    ] = None,
    offset: Annotated[int, typer.Option(help="First offset to read in each partition.", min=0, max=2**64 - 1)] = 0,
    limit: Annotated[int, typer.Option(help="Maximum number of records; 0 = all.", min=0)] = 0,
) -> int:
    """Write the records of the topic to stdout. One JSON line each: place, provenance, payload."""
    from framework.discovery.routing import Router  # noqa: PLC0415
    from framework.iggy.reader import read_topic  # noqa: PLC0415

    options = context.obj.read(config, settings)
    name = topic or Router(options).fixed_topic
    if name is None:
        raise ConfigError("the topic comes from the objects' names: say which one to read with --topic NAME")
    with reached(options) as connection:
        info = connection.get_topic(options.iggy.stream, name)
        if info is None:
            advice = "check --topic" if topic else "run the source first"
            raise IggyTopicError(f'there is no topic "{name}" in stream "{options.iggy.stream}": {advice}')
        chosen = [found.id for found in info.partitions if partition in {None, found.id}]
        if not chosen:
            raise IggyTopicError(f'topic "{name}" has partitions 0 to {len(info.partitions) - 1}, no {partition}')
        messages = read_topic(connection, options.iggy.stream, name, chosen, start=offset)
        if not _write(name, messages, limit):
            where = f" from offset {offset:,} on" if offset else ""
            which = f"partition {partition} of topic" if partition is not None else "topic"
            sys.stderr.write(f'{which} "{name}" has no record{where}\n')
    return EXIT_DONE


def _write(topic: str, messages: Iterator[tuple[int, StoredMessage]], limit: int) -> bool:
    """Write the messages; return whether there are any."""
    out, number = sys.stdout.buffer, 0
    for number, (partition, message) in enumerate(messages, 1):
        line = as_json(topic, partition, message)
        try:
            text = json_text(line)
        except RecursionError:  # JSON of others that goes deeper than we can follow: as it is
            text = json_text({**line, "payload": message.payload.decode()})
        out.write(f"{text}\n".encode())
        if number == limit:
            break
    out.flush()
    return number > 0


def as_json(topic: str, partition: int, message: StoredMessage) -> dict[str, Any]:
    """Return a message as `read` writes it; headers with the name of one of its own fields are omitted.

    `{"topic", "partition", "offset", "id", "timestamp_us", "bucket", "key", "version", "record", "payload"}`, with `share`
    and `split_size` when the object was split. A payload that is not JSON is a string; bytes that are not UTF-8 are
    `"payload_base64"`.
    """
    import orjson  # noqa: PLC0415 - loads what a run does

    from framework.iggy.header_decoding import join_provenance, split_of  # noqa: PLC0415
    from framework.model.message_ids import parse_message_id  # noqa: PLC0415

    parts, provenance = parse_message_id(message.message_id), join_provenance(message.headers)
    split = split_of(provenance)
    splits = {"share": split.number, "split_size": split.split_size} if split is not None else {}
    line: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": message.offset,
        "id": f"{message.message_id:032x}",
        "timestamp_us": message.timestamp_us,
        **{name: value for name, value in provenance.items() if name not in _NOT_HEADERS},
        **splits,
        "record": parts.record,
    }
    try:
        check_json(message.payload)
        line["payload"] = orjson.loads(message.payload)
    except (RecordError, orjson.JSONDecodeError):
        try:
            line["payload"] = message.payload.decode()
        except UnicodeDecodeError:
            line["payload_base64"] = base64.b64encode(message.payload).decode()
    return line
