"""The format by the key's suffix, behind the suffix of a compression: `events.jsonl.gz` is `jsonl`.

| suffix | format |
| --- | --- |
| `.jsonl` `.ndjson` `.jsonlines` | `jsonl` |
| `.json` | `json`: one array. Objects of JSON Lines under this name need `input.format = "jsonl"` |
| `.csv` | `csv` |
| `.avro` | `avro` |
| `.parquet` `.pq` | `parquet` |
| `.txt` `.text` `.log` | `text` |

Writers of Parquet and Avro put the name of an inner codec before the suffix (`part-0.snappy.parquet`); that says
nothing about an outer compression and is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
from typing_extensions import override

from framework.errors import ObjectError
from framework.model.objects import ResumePoint
from framework.model.splits import Split
from framework.transformer import BatchLimits, InputOptions, ObjectInput, PayloadBatch, Transformer
from transformers.batches import CSV_OPTIONS, SHARED_MODULES, Runs, numbering_of
from transformers.compression import SUFFIXES as COMPRESSION_SUFFIXES
from transformers.compression import unsupported_compression
from transformers.lines import LineTransformer

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".avro": "avro",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".text": "text",
    ".log": "text",
}

_SENT_UNCHANGED = {"json", "jsonl", "text"}
"""Formats without columns."""


def format_of_key(key: str) -> str | None:
    """The format that the key's suffix names, or None."""
    name = key.lower().rsplit("/", 1)[-1]
    for suffix in COMPRESSION_SUFFIXES:
        if name.endswith(suffix):
            name = name[: -len(suffix)]
            break
    return next((found for suffix, found in SUFFIXES.items() if name.endswith(suffix)), None)


class AutoTransformer(Transformer):
    """Each object by the format that its key names."""

    name: ClassVar[str] = "auto"
    reads_columns: ClassVar[bool] = True
    max_whole_bytes: ClassVar[int] = LineTransformer.max_whole_bytes
    # those of all formats
    needs_modules: ClassVar[tuple[str, ...]] = (*SHARED_MODULES, "arro3.io", "fastavro", "polars", "pyarrow")

    def __init__(self, options: InputOptions) -> None:
        self.options = options
        self._made: dict[str, Transformer] = {}

    @override
    def numbering_options(self) -> Mapping[str, str]:
        """All that any of the formats depends on, since which one it is differs from key to key."""
        return numbering_of(self.name, self.options, CSV_OPTIONS)

    @override
    def read(
        self, source: ObjectInput, *, skip: int = 0, mark: ResumePoint | None = None, limits: BatchLimits | None = None
    ) -> Runs:
        yield from self._choose(source).read(source, skip=skip, mark=mark, limits=limits)

    @override
    def read_whole(self, data: bytes, *, key: str, limits: BatchLimits) -> PayloadBatch | None:
        found = format_of_key(key)
        if found is None or self.options.columns:  # `read` refuses those that have none
            return None
        return self._made_for(found).read_whole(data, key=key, limits=limits)

    @override
    def decode_record(self, raw: bytes, *, key: str) -> bytes:
        found = format_of_key(key)
        return (
            super().decode_record(raw, key=key) if found is None else self._made_for(found).decode_record(raw, key=key)
        )

    @override
    def prefetch_range(
        self, key: str, size: int, split: Split | None, mark: ResumePoint | None
    ) -> tuple[int, int | None] | None:
        found = format_of_key(key)
        return None if found is None else self._made_for(found).prefetch_range(key, size, split, mark)

    @override
    def can_split(self, key: str) -> bool:
        found = format_of_key(key)
        return found is not None and self._made_for(found).can_split(key)

    @override
    def read_split(
        self,
        source: ObjectInput,
        split: Split,
        *,
        skip: int = 0,
        mark: ResumePoint | None = None,
        limits: BatchLimits | None = None,
    ) -> Runs:
        yield from self._choose(source).read_split(source, split, skip=skip, mark=mark, limits=limits)

    def _choose(self, source: ObjectInput) -> Transformer:
        found = format_of_key(source.key)
        if found is None and (packed := unsupported_compression(source.key)) is not None:
            raise ObjectError(
                f"its name says {packed}, a compression that is not supported; unpack it, or set input.format to read it "
                "as it is",
                location=source.location,
            )
        if found is None:
            raise ObjectError(
                f"the name does not say which format this is (known suffixes: {', '.join(SUFFIXES)}, each also with "
                "that of a compression); set input.format",
                location=source.location,
            )
        transformer = self._made_for(found)
        if self.options.columns and not transformer.reads_columns:
            from framework.config.format_registry import NO_COLUMNS  # noqa: PLC0415 - it imports this package

            raise ObjectError(NO_COLUMNS.format(format=found), location=source.location)
        return transformer

    def _made_for(self, found: str) -> Transformer:
        if found not in self._made:
            from framework.config.format_registry import make_transformer  # noqa: PLC0415 - it imports this package

            columns = () if found in _SENT_UNCHANGED else self.options.columns
            # Two threads may both make one: either is as good.
            made = make_transformer(attrs.evolve(self.options, format=found, columns=columns))
            made.row_decoder = self.row_decoder
            self._made[found] = made
        return self._made[found]
