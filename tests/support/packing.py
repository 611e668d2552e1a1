"""What the tests of the formats share: writers of each compression, and a stream that dribbles."""

import bz2
import gzip
import lzma
import random

import cramjam
import zstandard

from transformers.local_inputs import BytesInput

PACK = {
    "none": lambda data: data,
    "gzip": lambda data: gzip.compress(data, 6),
    "zstd": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "snappy": lambda data: bytes(cramjam.snappy.compress(data)),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


class Dribble(BytesInput):
    """Hands out 1 to `step` bytes a read."""

    def __init__(self, data, key="memory", step=3):
        super().__init__(data, key)
        self.step = step

    def open(self, start=0, end=None):
        stream, numbers, step = super().open(start, end), random.Random(7), self.step

        class Stream:
            def read(self, size, /):
                return stream.read(min(size, numbers.randint(1, step)))

            def close(self):
                stream.close()

        return Stream()
