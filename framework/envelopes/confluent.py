"""Records as Confluent's S3 sink writes them, and other sinks that write the value alone.

    {"name":"John"}

`JsonFormat` writes a JSON value a line, `ByteArrayFormat` the value and a line end, the other formats rows. The object is named
`topics/TOPIC/partition=P/TOPIC+P+OFFSET.EXT`, so topic, partition and order come back by the name.

What the form loses: the time; headers and keys, which the sink writes into objects of their own (`.headers`, `.keys`), and
only with `store.kafka.headers` and `store.kafka.keys`. This envelope does not read those.
"""

from framework.envelopes.layout import Layout

LAYOUT = Layout()
