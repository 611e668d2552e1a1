"""The formats that ship, one module each.

| `input.format` | module | a record is | goes out as |
| --- | --- | --- | --- |
| `jsonl` | `jsonl` | a line that is not blank | the line's bytes |
| `json` | `json_array` | an element of one JSON array | the element's bytes |
| `csv` | `csv_rows` | a row | JSON |
| `avro` | `avro` | a datum of an object container file | JSON |
| `parquet` | `parquet` | a row | JSON |
| `text` | `text` | a line that is not blank | the line's bytes |
| `bytes` | `chunks` | a chunk of `chunk_size` bytes, or the whole object | its bytes |
| `auto` | `auto` | by the key's suffix one of the others | as that one |

What JSON is made of which value is in docs/reference/record-json.md. Every format reads through every outer compression
(module `compression`). Vendor libraries are imported when a format that needs them reads its first object.

    from transformers import InputOptions, LocalFileInput, make_transformer

    for payload in make_transformer(InputOptions(format="jsonl")).records(LocalFileInput("events.jsonl.gz")):
        ...
"""

from __future__ import annotations

from collections.abc import Mapping

from framework.transformer import InputOptions, Transformer
from transformers.local_inputs import BytesInput, LocalFileInput

SHIPPED_FORMATS: Mapping[str, str] = {
    "auto": "transformers.auto:AutoTransformer",
    "avro": "transformers.avro.format:AvroTransformer",
    "bytes": "transformers.raw_bytes:BytesTransformer",
    "csv": "transformers.csv_rows:CsvTransformer",
    "json": "transformers.json_array:JsonArrayTransformer",
    "jsonl": "transformers.jsonl:JsonlTransformer",
    "parquet": "transformers.parquet.format:ParquetTransformer",
    "text": "transformers.text:TextTransformer",
}
"""Name -> `module:class`; also registered as entry points, for those who look there."""


def make_transformer(options: InputOptions) -> Transformer:
    """The transformer of `options.format`; see `framework.config.format_registry.make_transformer`."""
    from framework.config import format_registry  # noqa: PLC0415 - it imports this package

    return format_registry.make_transformer(options)


__all__ = ["SHIPPED_FORMATS", "BytesInput", "InputOptions", "LocalFileInput", "Transformer", "make_transformer"]
