"""Bytes as they are: chunks of a fixed size, or the whole object as one record.

The numbers depend on `chunk_size`: positions of another chunk size are not valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import ClassVar

from typing_extensions import override

from framework.model.objects import ResumePoint
from framework.transformer import ObjectInput
from transformers.batches import RunBuilder, Runs, ShippedTransformer, keep_part, too_large
from transformers.compression import PIECE_BYTES, UnpackedStream


class BytesTransformer(ShippedTransformer):
    """Chunks of `chunk_size` bytes; the last may be shorter."""

    name: ClassVar[str] = "bytes"

    @override
    def numbering_options(self) -> Mapping[str, str]:
        size = "object" if self.options.whole_object else str(self.options.chunk_size)
        return {"format": self.name, "compression": self.options.compression, "chunk_size": size}

    @override
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        if self.options.whole_object:
            yield from self._whole(source, skip, builder)
        else:
            yield from self._chunks(source, skip, mark, builder)

    def _chunks(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        size = self.options.chunk_size
        start = 0
        if mark is not None and mark.record <= skip:
            # A mark says that nothing packs the object; then the place of any record is known.
            start = skip * size
            if start >= source.size:
                return
        stream = UnpackedStream(source, self.options, start=start)
        drop = skip * size - start
        # A whole number of chunks, and no more than a run may hold.
        at_once = max(1, min(PIECE_BYTES, builder.limits.size_bytes, builder.limits.records * size) // size) * size
        with closing(stream):
            rest = b""
            while piece := stream.read_about(at_once - len(rest)):
                if drop:
                    cut = min(drop, len(piece))
                    drop -= cut
                    piece = piece[cut:]
                data = rest + piece if rest else piece
                whole = len(data) // size * size
                if whole:
                    chunks = [data[at : at + size] for at in range(0, whole, size)]
                    yield from self._add(chunks, whole, stream, builder)
                rest = data[whole:]
            if rest:
                yield from self._add([rest], len(rest), stream, builder)

    def _add(self, chunks: list[bytes], size: int, stream: UnpackedStream, builder: RunBuilder) -> Runs:
        if self.options.chunk_size > self.options.max_record_bytes:
            for chunk in chunks:
                if len(chunk) <= self.options.max_record_bytes:
                    yield from builder.add([chunk], len(chunk))
                else:
                    yield from builder.bad(too_large(self.options.max_record_bytes), chunk, len(chunk))
            return
        if not stream.packed:
            builder.border((builder.next_record - 1) * self.options.chunk_size, overhead=0)
        yield from builder.add(chunks, size)

    def _whole(self, source: ObjectInput, skip: int, builder: RunBuilder) -> Runs:
        if skip:
            return
        limit = self.options.max_record_bytes
        stream = UnpackedStream(source, self.options)
        with closing(stream):
            parts: list[bytes] = []
            size = 0
            while piece := stream.read_some():
                # Read to the end even when it is too long: only then it is known to be whole.
                keep_part(parts, piece, size, limit)
                size += len(piece)
            if size > limit:
                yield from builder.bad(too_large(limit), b"".join(parts), size)
            elif parts:
                yield from builder.add([b"".join(parts)], size)
