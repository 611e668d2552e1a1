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

from framework.envelopes.layout import Layout

LAYOUT = Layout(payload="payload", headers="headers", timestamp="timestamp", topic="topic", partition="partition_id")
