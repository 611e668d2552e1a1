"""Formats by name and by suffix, bytes, and every format through every outer compression."""

import importlib.metadata
import io
import json
import pickle
import subprocess
import sys
import types
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.config.format_registry import FORMATS, make_transformer
from framework.errors import ConfigError, ObjectChangedError, ObjectError, ObjectNotFoundError, RecordTooLargeError
from framework.model.batches import SkippedRecord
from framework.model.objects import ResumePoint
from framework.transformer import BatchLimits, InputOptions
from tests.support.packing import PACK, Dribble
from transformers import SHIPPED_FORMATS, BytesInput, LocalFileInput
from transformers.compression import SUFFIXES as COMPRESSION_SUFFIXES
from transformers.text import TextTransformer

RECORDS = [{"id": f"{n}", "name": f"näme {n}" * (n % 5)} for n in range(103)]
PAYLOADS = [json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() for record in RECORDS]


def avro():
    out = io.BytesIO()
    fields = [{"name": name, "type": "string"} for name in ("id", "name")]
    fastavro.writer(out, {"type": "record", "name": "R", "fields": fields}, RECORDS, sync_interval=300)
    return out.getvalue()


def parquet():
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS), out, row_group_size=17)
    return out.getvalue()


def csv():
    return "".join(
        f"{record['id']},{record['name']}\r\n" for record in [{"id": "id", "name": "name"}, *RECORDS]
    ).encode()


WRITERS = {
    "jsonl": lambda: b"\n".join(PAYLOADS),
    "text": lambda: b"\n".join(PAYLOADS) + b"\n",
    "json": lambda: b"[" + b",\n".join(PAYLOADS) + b"]",
    "csv": csv,
    "avro": avro,
    "parquet": parquet,
}
SUFFIX = {"jsonl": ".jsonl", "text": ".log", "json": ".JSON", "csv": ".csv", "avro": ".avro", "parquet": ".parquet"}
PACKED_SUFFIX = {"none": "", "gzip": ".gz", "zstd": ".zst", "snappy": ".snappy", "bzip2": ".bz2", "xz": ".xz"}


def read(source, skip=0, mark=None, limits=None, **options):
    out = []
    for run in make_transformer(InputOptions(**options)).read(source, skip=skip, mark=mark, limits=limits):
        if isinstance(run, SkippedRecord):
            out.append((run.record_number, type(run.error)))
        else:
            assert run.size_bytes == sum(map(len, run.payloads))
            out += enumerate(run.payloads, run.first_record)
    return out


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_through_every_compression(name, packed):
    data = PACK[packed](WRITERS[name]())
    expected = list(enumerate(PAYLOADS, 1))
    limits = BatchLimits(records=7, size_bytes=1000)
    assert read(BytesInput(data), format=name, compression=packed) == expected
    assert read(Dribble(data, step=97), format=name, limits=limits) == expected
    key = "a b/+%2F//😀" + SUFFIX[name] + PACKED_SUFFIX[packed]
    for skip in (0, 1, 17, 50, 102, 103, 104):
        assert read(BytesInput(data, key), skip=skip, limits=limits) == expected[skip:]


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("name", WRITERS)
def test_marks_are_kept_or_left_out(name, packed):
    data = PACK[packed](WRITERS[name]())
    transformer = make_transformer(InputOptions(format=name))
    runs = list(transformer.read(BytesInput(data), limits=BatchLimits(records=7, size_bytes=300)))
    marks = [run.mark for run in runs if run.mark is not None]
    assert (packed == "none" and name in {"jsonl", "text", "avro"}) == bool(marks)
    assert all(mark.record <= run.first_record + len(run.payloads) - 1 for run, mark in zip(runs, marks, strict=False))


@pytest.mark.parametrize("packed", PACK)
def test_bytes_in_chunks(packed):
    content = bytes(range(256)) * 23 + bytes(112)
    assert len(content) == 6000
    data = PACK[packed](content)
    for size, count in ((4096, 2), (3000, 2), (4101, 2), (6000, 1), (6001, 1), (1, 6000), (7, 858)):
        expected = [(n + 1, content[n * size : n * size + size]) for n in range(count)]
        options = {"format": "bytes", "chunk_size": size}
        assert read(BytesInput(data), **options) == expected
        for limits in (BatchLimits(records=3), BatchLimits(records=1000, size_bytes=4500)):
            assert read(Dribble(data, step=997), limits=limits, **options) == expected
            runs = list(make_transformer(InputOptions(**options)).read(BytesInput(data), limits=limits))
            marks = {run.mark for run in runs}
            assert (marks == {None}) == (packed != "none")
            for skip in {0, 1, count // 2, count - 1, count, count + 1}:
                assert read(BytesInput(data), skip=skip, limits=limits, **options) == expected[skip:]
                for mark in marks - {None}:
                    if mark.record <= skip:
                        assert read(BytesInput(data), skip=skip, mark=mark, **options) == expected[skip:]


def test_bytes_whole_and_too_long():
    content = b"x" * 6000
    assert read(BytesInput(content), format="bytes", whole_object=True) == [(1, content)]
    assert read(Dribble(PACK["gzip"](content)), format="bytes", whole_object=True) == [(1, content)]
    assert read(BytesInput(content), format="bytes", whole_object=True, skip=1) == []
    options = {"format": "bytes", "max_record_bytes": 5999}
    assert read(BytesInput(content), whole_object=True, **options) == [(1, RecordTooLargeError)]
    assert read(BytesInput(content), chunk_size=6000, **options) == [(1, RecordTooLargeError)]
    assert read(BytesInput(content), chunk_size=5000, max_record_bytes=4000, format="bytes") == [
        (1, RecordTooLargeError),
        (2, b"x" * 1000),
    ]


def test_a_mark_of_bytes_saves_reading():
    opened = []

    class Watched(BytesInput):
        def open(self, start=0, end=None):
            opened.append(start)
            return super().open(start, end)

    assert read(Watched(b"abcdefgh"), format="bytes", chunk_size=3, skip=2, mark=ResumePoint(1, 3)) == [(3, b"gh")]
    assert opened == [6]


def test_a_suffix_that_says_nothing_is_an_error_that_says_what_to_set():
    for key in ("data/part-0", "a.jsonl/part", "a.gz", "a.bin"):
        with pytest.raises(ObjectError, match=r"input\.format") as caught:
            read(BytesInput(b"1", key))
        assert caught.value.location == f"memory://{key}"
    assert set(COMPRESSION_SUFFIXES.values()) | {"none"} == set(PACK)


def test_an_object_of_no_bytes_is_not_opened():
    class Shut(BytesInput):
        def open(self, start=0, end=None):
            raise AssertionError

    for name in (*WRITERS, "bytes"):
        assert read(Shut(b""), format=name) == []


@pytest.mark.parametrize("packed", [name for name in PACK if name != "none"])
@pytest.mark.parametrize("name", [*WRITERS, "bytes"])
def test_nothing_inside_a_compression_is_no_record(name, packed):
    assert read(BytesInput(PACK[packed](b"")), format=name, compression=packed) == []


@pytest.mark.parametrize("data", [b" ", b"\r\n\t \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("name", ["jsonl", "text", "json"])
def test_an_object_of_whitespace_alone_has_no_record(name, data):
    assert read(BytesInput(data), format=name) == []


def test_numbers_of_json_beyond_every_double_keep_their_digits():
    numbers = [b"1e9999", b"-123123e100000", b"0.4e0066999999999999999", b"123456789" * 40]
    expected = list(enumerate(numbers, 1))
    assert read(BytesInput(b"\n".join(numbers)), format="jsonl") == expected
    assert read(BytesInput(b"[" + b", ".join(numbers) + b"]"), format="json") == expected


def test_what_positions_depend_on():
    def depends(**options):
        return dict(make_transformer(InputOptions(**options)).numbering_options())

    assert depends(format="bytes") == {"format": "bytes", "compression": "auto", "chunk_size": "4096"}
    assert depends(format="bytes", whole_object=True)["chunk_size"] == "object"
    assert depends(format="csv", csv_delimiter=";")["csv_delimiter"] == ";"
    assert depends(format="avro", compression="gzip") == {"format": "avro"}
    assert depends(format="jsonl", validate=False) == depends(format="jsonl", max_record_bytes=5)
    for name in SHIPPED_FORMATS:
        found = depends(format=name)
        assert found["format"] == name
        assert all(isinstance(value, str) for value in found.values())


def test_a_name_that_is_not_known_names_the_nearest_and_all():
    with pytest.raises(ConfigError, match=r'input.format = "jsnl": unknown format; did you mean "jsonl"\?'):
        make_transformer(InputOptions(format="jsnl"))
    with pytest.raises(ConfigError, match="known are auto, avro, bytes, csv, json"):
        make_transformer(InputOptions(format="xml"))
    assert set(FORMATS.names()) >= set(SHIPPED_FORMATS)


def test_all_mistakes_come_at_once():
    options = InputOptions(
        format="xml", compression="zip", chunk_size=0, max_record_bytes=10**9, csv_delimiter=";;", csv_quote="\n"
    )
    with pytest.raises(ConfigError) as caught:
        make_transformer(options)
    assert len(caught.value.mistakes) == 6
    with pytest.raises(ConfigError, match="csv_quote"):
        make_transformer(InputOptions(format="csv", csv_quote=","))


def test_a_registered_format_is_found(monkeypatch):
    class Made(TextTransformer):
        pass

    module = types.ModuleType("formats_of_a_test")
    module.Made = Made
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entries = [
        importlib.metadata.EntryPoint(name, f"formats_of_a_test:{value}", "iggy_cloud_sources.transformers")
        for name, value in (("mine", "Made"), ("gone", "Gone"), ("no-callable", "__name__"), ("jsonl", "Gone"))
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    options = InputOptions(format="mine")
    assert make_transformer(options).options is options
    for name in ("gone", "no-callable"):
        with pytest.raises(ConfigError, match="formats_of_a_test"):
            make_transformer(InputOptions(format=name))
    assert "mine" in FORMATS.names()
    assert make_transformer(InputOptions(format="jsonl")).name == "jsonl"


class Defective(TextTransformer):
    """A format of an author; each test gives it a mistake."""

    def __init__(self, options):
        super().__init__(options)
        options_of = next(MISTAKES)
        if callable(options_of):
            options_of()
        self.numbering_options = lambda: next(options_of)


MISTAKES = iter(())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: {}["text"], r"failed with KeyError: 'text' \(.*, line \d+, in __init__\)"),
        (iter([None] * 2), "numbering_options returned None, not a mapping of text to text"),
        (iter([{"n": 3}] * 2), "returned {'n': 3}, not a mapping of text to text"),
        (iter([{"n": "1"}, {"n": "2"}]), "returned {'n': '1'} and then {'n': '2'}: it must never change"),
    ],
)
def test_a_registered_format_that_is_defective_is_named_before_the_run(monkeypatch, mistake, message):
    monkeypatch.setattr(f"{__name__}.MISTAKES", iter([mistake]))
    register(monkeypatch, "mine", "Defective")
    with pytest.raises(ConfigError, match=f"input.format: the format 'mine'.*{message}"):
        make_transformer(InputOptions(format="mine"))


def test_what_is_registered_must_make_a_transformer_and_its_module_may_fail(monkeypatch, tmp_path):
    register(monkeypatch, "mine", "register")
    monkeypatch.setattr(f"{__name__}.register", lambda options: options)
    with pytest.raises(ConfigError, match="'mine' is registered with something that made InputOptions"):
        make_transformer(InputOptions(format="mine"))
    (tmp_path / "format_with_a_slip.py").write_text("limit = int('many')\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = importlib.metadata.EntryPoint("mine", "format_with_a_slip:Any", "iggy_cloud_sources.transformers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(ConfigError, match="format_with_a_slip:Any and cannot be loaded: ValueError: invalid literal"):
        make_transformer(InputOptions(format="mine"))


def register(monkeypatch, name, attribute):
    """Make a format of this module the only registered one."""
    entry = importlib.metadata.EntryPoint(name, f"{__name__}:{attribute}", "iggy_cloud_sources.transformers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])


def test_a_shipped_format_is_known_without_a_look_at_what_is_installed(monkeypatch):
    looks = []

    def entry_points(group):
        looks.append(group)
        return [importlib.metadata.EntryPoint("mine", "formats_of_a_test:Made", group)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert all(callable(FORMATS.find(name, shown=name)) for name in SHIPPED_FORMATS)
    assert looks == []
    with pytest.raises(ConfigError, match="formats_of_a_test"):
        FORMATS.find("mine", shown="mine")
    with pytest.raises(KeyError):
        FORMATS.find("yours", shown="yours")
    assert len(looks) == 2


def test_the_wrong_package_of_the_same_name_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    with pytest.raises(ConfigError, match="machine-learning library of the same name"):
        make_transformer(InputOptions(format="jsonl"))


def test_the_shipped_formats_are_registered_as_entry_points_too():
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["iggy_cloud_sources.transformers"] == dict(SHIPPED_FORMATS)


def test_importing_the_package_loads_no_heavy_library():
    heavy = "pyarrow", "fastavro", "zstandard", "cramjam", "numpy"
    code = (
        "import sys, transformers; from framework.transformer import InputOptions\n"
        "for name in transformers.SHIPPED_FORMATS:\n"
        "    transformers.make_transformer(InputOptions(format=name))\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_transformers_can_be_sent_to_another_process():
    for name in SHIPPED_FORMATS:
        copy = pickle.loads(pickle.dumps(make_transformer(InputOptions(format=name))))
        if name in WRITERS:
            assert list(copy.records(BytesInput(WRITERS[name]()), skip=100)) == PAYLOADS[100:]


def test_files_on_disk(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(WRITERS["jsonl"]())
    source = LocalFileInput(path)
    assert [payload for _, payload in read(source)] == PAYLOADS
    path.write_bytes(b"1\n")
    with pytest.raises(ObjectChangedError):
        read(source)
    path.unlink()
    with pytest.raises(ObjectNotFoundError):
        read(source)


UTF16 = {
    "jsonl": '{"a":1}\n{"a":"\u0a0a"}\n',
    "text": "one\ntwo\n",
    "csv": "a,b\n1,2\n3,4\n",
    "json": '[{"a":1},2]',
}


WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("name", UTF16)
@pytest.mark.parametrize("step", [1, 10**9])
@pytest.mark.parametrize("packed", ["none", "gzip"])
@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_text_in_utf16_is_refused_and_sends_nothing_that_is_wrong(name, encoding, step, packed, mark):
    """Its lines would be divided in the middle of characters: text, and CSV without a header, came out as rubbish."""
    data = PACK[packed]((mark + UTF16[name]).encode(encoding))
    transformer = make_transformer(InputOptions(format=name, csv_header=False))
    got = []
    with pytest.raises(ObjectError, match=r"UTF-16 or UTF-32, which is not supp.*input\.format = .bytes.") as caught:
        got.extend(transformer.read(Dribble(data, step=step)))
    assert got == []
    assert caught.value.record_number == 1
    assert transformer.read_whole(data, key="a", limits=BatchLimits()) is None


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("step", [1, 10**9])
def test_text_in_utf16_is_noticed_by_its_first_characters_alone(encoding, step):
    transformer = make_transformer(InputOptions(format="text"))
    for text in ("Größe\tÑ\n\u4e0a\u0a0a\n", "id,name,\u4e0a\n", "1\r\n2\r\n", "1\n2\n"):
        with pytest.raises(ObjectError, match="UTF-16"):
            list(transformer.records(Dribble(text.encode(encoding), step=step)))


NO_UTF16 = {
    "zero bytes": b"\0" * 16 + b"\n",
    "short": b"a\0\n\0b\0",
    "two NULs": b"\0a\0b and more of it\n",
    "a NUL behind": b"a\0b\0c\0d\0e\0f\0g\0\0\0\n",
    "a byte more": b"a\0b\0c\0d\0\n",
    "numbers": b"".join(number.to_bytes(2, "little") for number in range(9)),
}


@pytest.mark.parametrize("name", NO_UTF16)
@pytest.mark.parametrize("step", [1, 10**9])
def test_text_with_nul_that_is_not_utf16_is_read(name, step):
    data = NO_UTF16[name]
    transformer = make_transformer(InputOptions(format="text"))
    expected = [line for line in data.split(b"\n") if line.strip()]
    assert list(transformer.records(Dribble(data, step=step))) == expected
    if (whole := transformer.read_whole(data, key="a", limits=BatchLimits())) is not None:
        assert list(whole.payloads) == expected


def test_records_before_a_cut_are_read_although_the_first_bytes_are_looked_at():
    cut = PACK["gzip"](b"1\n2\n")[:-3]
    got = []
    with pytest.raises(ObjectError, match="ends too early"):
        got.extend(make_transformer(InputOptions(format="text")).records(BytesInput(cut, "a.gz")))
    assert got == [b"1", b"2"]


@pytest.mark.parametrize("name", ["jsonl", "text"])
def test_the_last_bytes_of_an_object_are_read_whatever_the_mark_needs(name):
    odd = b"\xff" if name == "text" else b"5"
    for data, expected in ((b"5", [b"5"]), (odd, [odd]), (b"\n", []), (b"5\n6", [b"5", b"6"])):
        transformer = make_transformer(InputOptions(format=name))
        assert list(transformer.records(Dribble(data, step=1))) == expected


@pytest.mark.parametrize("inner", ["gzip", "zstd", "bzip2", "xz", "snappy"])
@pytest.mark.parametrize("name", ["jsonl", "text", "csv", "json"])
def test_text_that_is_packed_twice_is_refused(name, inner):
    """`text`, and CSV without a header, sent the packed bytes as lines."""
    packed = PACK[inner](b"[1,\n2]\n" * 50)  # once: gzip notes the second
    data = PACK["gzip"](packed)
    transformer = make_transformer(InputOptions(format=name, csv_header=False))
    got = []
    with pytest.raises(ObjectError, match=f"packed twice: inside of the gzip data there is {inner} data"):
        got.extend(transformer.read(BytesInput(data, "a.gz")))
    assert got == []
    whole = make_transformer(InputOptions(format="bytes", whole_object=True)).records(BytesInput(data, "a.gz"))
    assert list(whole) == [packed]


@pytest.mark.parametrize("inner", ["gzip", "zstd", "bzip2", "xz", "snappy"])
@pytest.mark.parametrize("outer", ["gzip", "zstd", "bzip2", "xz"])
def test_text_that_is_packed_twice_is_refused_also_in_small_members(inner, outer):
    """Each member is a piece: the first one alone does not show what is inside."""
    packed = PACK[inner](b"1\n" * 50)
    data = b"".join(PACK[outer](packed[at : at + 1]) for at in range(len(packed)))
    got = []
    with pytest.raises(ObjectError, match=f"packed twice: inside of the {outer} data there is {inner} data"):
        got.extend(make_transformer(InputOptions(format="text")).read(BytesInput(data, "a")))
    assert got == []


def test_what_a_name_says_is_checked_wherever_the_pieces_are_cut():
    data = b"text at first, " * 20 + bytes(range(256)) * 8
    for step in (10, 10**9):
        with pytest.raises(ObjectError, match="its name says brotli, and it is not supported"):
            list(make_transformer(InputOptions(format="text")).read(Dribble(data, "a.br", step=step)))
