"""What is bad leaves nothing behind: neither a record nor an object that is skipped stays in memory until cycles are looked for.

Python looks for them after tens of thousands of new objects, so some thousand bad records or objects could stay, each with
what their frames hold: blocks of lines, an unpacked window, the pages of a file.
"""

import collections
import gc
import gzip
import io
import logging

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.errors import ObjectError, RecordError, drop_tracebacks
from framework.testing.kit.crash import Bench, CrashPoint
from tests.conformance.rigs import MemoryRig

LINE = b'{"a":1}\n'
LINES = LINE * 50


def avro():
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}, [{"a": 1}] * 99)
    return file.getvalue()


def parquet():
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1] * 99}), file)
    return file.getvalue()


CASES = {
    "line": ("jsonl", LINES + b"{bad\n" + LINES, {}),
    "line that is not UTF-8": ("jsonl", LINES + b'"\xff"\n' + LINES, {}),
    "line that is nested": ("jsonl", LINES + b"[" * 5000 + b"\n" + LINES, {}),
    "line that is too long": ("jsonl", LINES + b"9" * 5000 + b"\n" + LINES, {"max_record_bytes": 1000}),
    "row": ("csv", b"a,b\n" + b"1,2\n" * 50 + b"1,2,3\n" + b"1,2\n", {}),
    "record of a transform": ("text", LINES + b"\xff\n" + LINES, {"transforms": [{"type": "json"}]}),
    "array": ("json", b"[" + b'{"a":1},' * 50, {}),
    "Avro": ("avro", avro()[:-20], {}),
    "Parquet": ("parquet", parquet()[:-20], {}),
    "gzip that is cut": ("jsonl", gzip.compress(LINES * 99)[:-20], {"compression": "gzip"}),
    "gzip": ("jsonl", gzip.compress(LINES * 99)[:30] + b"\xff" * 30, {"compression": "gzip"}),
}


def frames_left(objects, input_format, data, options):
    """The functions whose frames a run leaves to the search for cycles, with their numbers."""
    rig = MemoryRig()
    for number in range(objects):
        rig.store.put(f"k{number:03}", data)
    limits = {"tolerance": "skip_object", "max_bad_records": 1000, "dead_letter_topic": "dead", "linger_time": 0.0}
    logging.disable()  # a test keeps what is logged, with its errors
    gc.collect()
    gc.freeze()  # what other tests left alive need not be searched again
    gc.disable()
    try:
        Bench(rig, format=input_format, **limits, **options).live(CrashPoint(None))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return collections.Counter(one.f_code.co_name for one in gc.garbage if type(one).__name__ == "frame")
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("case", CASES)
def test_bad_data_leaves_no_frames_behind(case):
    few, many = frames_left(2, *CASES[case]), frames_left(8, *CASES[case])
    assert many - few == {}


def test_the_tracebacks_of_all_causes_are_dropped_also_in_a_circle():
    def raised(error):
        with pytest.raises(type(error)) as found:
            raise error
        return found.value

    first, second, third = raised(ValueError("1")), raised(RecordError("2")), ObjectError("3")
    third.__cause__, second.__context__, first.__cause__ = second, first, second
    assert first.__traceback__ is not None
    drop_tracebacks(third)
    assert [one.__traceback__ for one in (first, second, third)] == [None] * 3
