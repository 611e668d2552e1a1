"""Parquet files: `format` reads them."""

from transformers.parquet.format import ParquetTransformer

__all__ = ["ParquetTransformer"]
