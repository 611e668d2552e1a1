"""The kit on formats whose splits follow blocks: Avro, and Parquet with row groups of two rows."""

import io
import json

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.testing.kit import ConformanceLaws
from framework.testing.rig import Capability
from tests.conformance.rigs import MemoryRig


class BlocksRig(MemoryRig):
    """The reference with a format of blocks. A bad record of these has no bytes of its own."""

    capabilities = frozenset(MemoryRig.capabilities) - {Capability.BAD_RECORDS}
    crash_pairs = 5
    examples = 5
    form: str

    def make_task(self, options):
        return super().make_task({"format": self.form} | options)


class AvroRig(BlocksRig):
    form = "avro"

    def encode(self, records):
        rows = [json.loads(record) for record in records]
        kinds = {name: "string" if isinstance(value, str) else "long" for row in rows for name, value in row.items()}
        fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
        out = io.BytesIO()
        schema = {"type": "record", "name": "Row", "fields": fields}
        fastavro.writer(out, schema, rows, codec="deflate", sync_interval=30)
        return out.getvalue()


class ParquetRig(BlocksRig):
    form = "parquet"

    def encode(self, records):
        out = io.BytesIO()
        rows = [json.loads(record) for record in records]
        table = pa.Table.from_pylist(rows) if rows else pa.table({"n": pa.array([], pa.int64())})
        rows_at_once = 2 if len(rows) < 100 else 5000  # law I3 has a large object, which is not one of footer alone
        pq.write_table(
            table, out, row_group_size=rows_at_once, compression="none", use_dictionary=False, write_statistics=False
        )
        return out.getvalue()


class TestAvro(ConformanceLaws):
    @pytest.fixture
    def rig(self):
        return AvroRig()


class TestParquet(ConformanceLaws):
    @pytest.fixture
    def rig(self):
        return ParquetRig()
