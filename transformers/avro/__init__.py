"""Avro object container files: `format` reads them."""

from transformers.avro.format import AvroTransformer

__all__ = ["AvroTransformer"]
