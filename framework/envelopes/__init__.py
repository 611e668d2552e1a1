"""Archived records back to messages: the forms in which sinks write a topic to a bucket.

    layout.py           the names and encodings of an archived record's fields; what an object's key says of them
    archive_layouts.py  the layouts of sinks, and what each form loses
    archived_headers.py archived headers -> the bytes of a message's headers
    encodings.py        archived payloads and times -> bytes and microseconds
    restore.py          the envelope as the first transform of a source: records -> payloads, headers, times
    options.py          its options

A format reads the objects: `jsonl`, `json`, `csv`, `avro` and `parquet` give JSON, `text` gives lines.
"""
