"""Topics as sinks archive them: what Iggy's S3 sink, Aiven's and Confluent's write, and under which keys."""

import base64
import io
import json
import random
from collections import defaultdict
from datetime import datetime, timezone

import attrs
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000
START = 1_710_597_600 * SECOND  # 2024-03-16T14:00:00Z


@attrs.frozen(kw_only=True)
class Archived:
    """A message of the topic that was archived.

    Attributes:
        value: what its payload holds as JSON.
        headers: by name; texts, truth values and numbers.
        time_us: when the server stored it.
    """

    topic: str
    partition: int
    offset: int
    value: object
    headers: dict
    time_us: int

    @property
    def payload(self):
        return compact(self.value)


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()


def archived_topic(topic, partitions, count, *, seed=1):
    """Messages of a topic over some hours, in their order: `{partition: [Archived]}`."""
    chance = random.Random(seed)
    found = defaultdict(list)
    time_us = START
    for number in range(count):
        partition = chance.randrange(partitions)
        time_us += chance.randrange(20 * SECOND)
        value = chance.choice(
            [
                {"id": number, "name": "é" * chance.randrange(5), "tags": ["a\nb", None, 1.5]},
                number,
                [number, True],
                f"text {number}",
            ]
        )
        headers = {"trace": f"t{number % 7}", "attempt": number % 3, "ok": True} if number % 4 else {}
        found[partition].append(
            Archived(
                topic=topic,
                partition=partition,
                offset=len(found[partition]),
                value=value,
                headers=headers,
                time_us=time_us,
            )
        )
    return dict(found)


def rfc3339(time_us, *, milliseconds=False):
    moment = datetime.fromtimestamp(time_us // SECOND, timezone.utc)
    part = f".{time_us // 1000 % 1000:03d}" if milliseconds else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{part}Z"


def chunks(messages, most):
    for start in range(0, len(messages), most):
        yield messages[start : start + most]


def iggy_line(message, *, stream="src"):
    """A line of Iggy's S3 sink with `include_metadata` and `include_headers`."""
    line = {
        "offset": message.offset,
        "timestamp": rfc3339(message.time_us),
        "stream": stream,
        "topic": message.topic,
        "partition_id": message.partition,
    }
    if message.headers:
        line["headers"] = dict(sorted(message.headers.items()))
    head = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()
    return head[:-1] + b',"payload":' + message.payload + b"}"


def iggy_objects(partitions, *, per_object, prefix="archive", stream="src", array=False):
    """Yield (key, data) as Iggy's S3 sink writes them."""
    for messages in partitions.values():
        for part in chunks(messages, per_object):
            first = part[0]
            moment = datetime.fromtimestamp(first.time_us // SECOND, timezone.utc)
            lines = [iggy_line(message, stream=stream) for message in part]
            key = (
                f"{prefix}/{stream}/{first.topic}/{moment:%Y-%m-%d}/{moment:%H}/"
                f"{first.partition:05d}-{first.offset:020d}-{part[-1].offset:020d}.{'json' if array else 'jsonl'}"
            )
            yield key, b"[" + b",".join(lines) + b"]" if array else b"".join(line + b"\n" for line in lines)


IGGY_TEMPLATE = "archive/src/{{topic}}/{{key}}/{{partition}}-{{start_offset}}-{{timestamp}}.jsonl"


def aiven_lines(messages):
    """Lines of Aiven's sinks, with every field."""
    for message in messages:
        headers = [{"key": name, "value": value} for name, value in message.headers.items()]
        line = {"key": f"k{message.offset}", "offset": message.offset, "headers": headers}
        line["timestamp"] = rfc3339(message.time_us, milliseconds=True)
        yield compact(line)[:-1] + b',"value":' + message.payload + b"}"


def aiven_rows(messages):
    """Rows of Aiven's sinks in Avro and Parquet: values are texts, headers a map of texts."""
    for message in messages:
        yield {
            "key": f"k{message.offset}",
            "value": message.payload.decode(),
            "offset": message.offset,
            "timestamp": message.time_us // 1000,
            "headers": {name: str(value) for name, value in message.headers.items()},
        }


AVRO_SCHEMA = {
    "type": "record",
    "name": "connector_records",
    "namespace": "io.aiven.avro.output.schema",
    "fields": [
        {"name": "key", "type": "string"},
        {"name": "value", "type": "string"},
        {"name": "offset", "type": "long"},
        {"name": "timestamp", "type": "long"},
        {"name": "headers", "type": {"type": "map", "values": "string"}},
    ],
}


def aiven_data(messages, form):
    """The bytes of one object of Aiven's sinks."""
    if form == "jsonl":
        return b"\n".join(aiven_lines(messages))
    if form == "json":
        return b"[\n" + b",\n".join(aiven_lines(messages)) + b"\n]"
    if form == "csv":
        return b"\n".join(map(aiven_csv_row, messages))
    out = io.BytesIO()
    if form == "avro":
        fastavro.writer(out, fastavro.parse_schema(AVRO_SCHEMA), aiven_rows(messages))
    else:
        schema = pa.schema(
            {
                "key": pa.string(),
                "value": pa.string(),
                "offset": pa.int64(),
                "timestamp": pa.int64(),
                "headers": pa.map_(pa.string(), pa.string()),
            }
        )
        rows = [{**row, "headers": list(row["headers"].items())} for row in aiven_rows(messages)]
        pq.write_table(pa.Table.from_pylist(rows, schema), out)
    return out.getvalue()


def aiven_csv_row(message):
    """`key,value,offset,timestamp,headers` of one message."""

    def encoded(data):
        return base64.b64encode(data).decode()

    headers = "".join(
        f"{encoded(name.encode())}:{encoded(str(value).encode())};" for name, value in message.headers.items()
    )
    row = (
        encoded(b"k%d" % message.offset),
        encoded(message.payload),
        str(message.offset),
        str(message.time_us // 1000),
        headers,
    )
    return ",".join(row).encode()


def aiven_objects(partitions, form, *, per_object):
    """Yield (key, data) under the default template `{{topic}}-{{partition}}-{{start_offset}}`, whose offsets have no zeros."""
    for messages in partitions.values():
        for part in chunks(messages, per_object):
            yield f"{part[0].topic}-{part[0].partition}-{part[0].offset}", aiven_data(part, form)


AIVEN_TEMPLATE = "{{topic}}-{{partition}}-{{start_offset}}"


def confluent_objects(partitions, *, per_object):
    """Yield (key, data) as Confluent's S3 sink writes them with JsonFormat, and its objects of headers."""
    for messages in partitions.values():
        for part in chunks(messages, per_object):
            topic, partition = part[0].topic, part[0].partition
            name = f"topics/{topic}/partition={partition}/{topic}+{partition}+{part[0].offset:010d}"
            yield f"{name}.json", b"".join(message.payload + b"\n" for message in part)
            yield f"{name}.headers.json", b'{"headers":[]}\n' * len(part)


CONFLUENT_TEMPLATE = "topics/{{key}}/{{topic}}+{{partition}}+{{start_offset}}.json"
