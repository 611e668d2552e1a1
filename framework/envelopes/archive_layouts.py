"""The layouts in which sinks archive records, and what each form loses."""

from __future__ import annotations

from collections.abc import Mapping

from framework.envelopes.layout import Layout

IGGY_S3_SINK = Layout(
    payload="payload", headers="headers", timestamp="timestamp", topic="topic", partition="partition_id"
)
"""Records as the S3 sink of Iggy's own connector runtime writes them.

    {"offset":42,"timestamp":"2026-03-16T14:02:31Z","stream":"logs","topic":"api","partition_id":1,"headers":{...},"payload":{...}}

A line of a `.jsonl` object, or an element of the array of a `.json` object. The members from `offset` to `partition_id` are
there with the sink's `include_metadata` (its default), `headers` with its `include_headers`. `.bin` objects (`raw`) have no
borders between their records: nothing can divide them.

What the form loses:

- The time is the server's, when it stored the message, in whole seconds. The time of origin is not archived.
- The message id, the checksum, and the offset as the server's own.
- JSON is parsed and written again: blanks are gone, members are in the order of their names, of two members with one
  name one is left, and a number is the shortest text of its double when it is no 64-bit integer.
- A header's name that is not text; the width of a number; whether a string was a string or raw bytes in base64.
- With the schema `raw`, whether a string is JSON or base64, when it could be both.
"""

AIVEN = Layout(payload="value", headers="headers", timestamp="timestamp", key="key")
"""Records as Aiven's sinks for S3 and GCS write them.

    {"key":"k1","value":{"name":"John"},"offset":1232155,"timestamp":"2020-01-01T00:00:01Z","headers":[{"key":"a","value":"b"}]}

`format.output.fields` chooses the members; `format.output.type` the form: `jsonl` and `json` as above; `avro` and `parquet`
with the time in milliseconds and the headers as a map; `csv`, the default, without names and in the order of
`format.output.fields`: set `envelope_columns` to it. Its keys, headers and (unless the value's encoding is `none`) values are
base64. With `format.output.envelope=false` a record is the value alone: that is the envelope `confluent`.

What the form loses: topic and partition, which only the object's name has; the fields that were not chosen; the types of keys
and values where JSON has no such type; in `avro` and `parquet` all but one of several headers with one name.
"""

CONFLUENT = Layout()
"""Records as Confluent's S3 sink writes them, and other sinks that write the value alone.

    {"name":"John"}

`JsonFormat` writes a JSON value a line, `ByteArrayFormat` the value and a line end, the other formats rows. The object is named
`topics/TOPIC/partition=P/TOPIC+P+OFFSET.EXT`, so topic, partition and order come back by the name.

What the form loses: the time; headers and keys, which the sink writes into objects of their own (`.headers`, `.keys`), and
only with `store.kafka.headers` and `store.kafka.keys`. This envelope does not read those.
"""

LAYOUTS: Mapping[str, Layout] = {"iggy-s3-sink": IGGY_S3_SINK, "aiven": AIVEN, "confluent": CONFLUENT}
"""Value of `input.envelope` -> the layout; that of `custom` is in the options."""
