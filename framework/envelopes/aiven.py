"""Records as Aiven's sinks for S3 and GCS write them.

    {"key":"k1","value":{"name":"John"},"offset":1232155,"timestamp":"2020-01-01T00:00:01Z","headers":[{"key":"a","value":"b"}]}

`format.output.fields` chooses the members; `format.output.type` the form: `jsonl` and `json` as above; `avro` and `parquet`
with the time in milliseconds and the headers as a map; `csv`, the default, without names and in the order of
`format.output.fields`: set `envelope_columns` to it. Its keys, headers and (unless the value's encoding is `none`) values are
base64. With `format.output.envelope=false` a record is the value alone: that is the envelope `confluent`.

What the form loses: topic and partition, which only the object's name has; the fields that were not chosen; the types of keys
and values where JSON has no such type; in `avro` and `parquet` all but one of several headers with one name.
"""

from framework.envelopes.layout import Layout

LAYOUT = Layout(payload="value", headers="headers", timestamp="timestamp", key="key")
