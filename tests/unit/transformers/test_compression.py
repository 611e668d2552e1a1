"""Every outer compression: several members, cuts, rubbish, padding, bounded pieces."""

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import CorruptObjectError, ObjectError, TruncatedObjectError
from framework.transformer import InputOptions
from tests.support.packing import PACK, Dribble
from transformers import make_transformer
from transformers.compression import UnpackedStream, detect_compression
from transformers.local_inputs import BytesInput

PACKED = [name for name in PACK if name != "none"]
TEXT = b"".join(b"%d some text\n" % number for number in range(307))


def unpack(source, compression="auto"):
    stream = UnpackedStream(source, InputOptions(compression=compression))
    return b"".join(iter(stream.read_some, b""))


@pytest.mark.parametrize("step", [1, 2, 7, 1000, 10**9])
@pytest.mark.parametrize("name", PACK)
def test_unpacks_whatever_the_reads_are(name, step):
    for chosen in (name, "auto"):
        assert unpack(Dribble(PACK[name](TEXT), step=step), chosen) == TEXT


@pytest.mark.parametrize("compression", ["none", "auto"])
def test_plain_bytes_come_in_the_sizes_asked_for(compression):
    stream = UnpackedStream(Dribble(TEXT, step=100), InputOptions(compression=compression))
    sizes = [len(piece) for piece in iter(lambda: stream.read_about(250), b"")]
    assert sizes == [250] * (len(TEXT) // 250) + [len(TEXT) % 250]


@pytest.mark.parametrize("name", PACKED)
def test_several_members_are_one_stream(name):
    packed = PACK[name](TEXT) + PACK[name](b"") + PACK[name](b"x") + PACK[name](TEXT[::-1])
    for step in (1, 13, 10**9):
        assert unpack(Dribble(packed, step=step)) == TEXT + b"x" + TEXT[::-1]


@given(data=st.binary(max_size=3000), parts=st.integers(1, 4), step=st.integers(1, 64), name=st.sampled_from(PACKED))
@settings(max_examples=60, deadline=None)
def test_any_bytes_come_back(data, parts, step, name):
    size = len(data) // parts + 1
    packed = b"".join(PACK[name](data[at : at + size]) for at in range(0, max(1, len(data)), size))
    assert unpack(Dribble(packed, step=step), name) == data


@pytest.mark.parametrize("name", [name for name in PACKED if name != "snappy"])
def test_a_cut_at_any_byte_is_an_error(name):
    packed = PACK[name](TEXT[:300])
    for end in range(1, len(packed)):
        with pytest.raises(TruncatedObjectError, match="cut short"):
            unpack(BytesInput(packed[:end], f"a.{name}"), name)
        with pytest.raises(TruncatedObjectError, match="cut short"):
            unpack(BytesInput(packed[:end], "a" + {"gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", "xz": ".xz"}[name]))


def test_a_cut_of_framed_snappy_is_an_error_but_between_chunks():
    packed = PACK["snappy"](TEXT)
    clean = [end for end in range(1, len(packed)) if _ends_cleanly(packed[:end], "snappy")]
    assert clean == [10]  # behind the stream identifier, before the only chunk


def _ends_cleanly(data, name):
    try:
        unpack(BytesInput(data), name)
    except TruncatedObjectError:
        return False
    return True


@pytest.mark.parametrize("name", PACKED)
def test_rubbish_behind_the_end_is_an_error_after_the_data(name):
    for rubbish in (b"hello world", b"\x01", b"\0\0\0x", PACK["none"](TEXT)):
        stream = UnpackedStream(Dribble(PACK[name](TEXT) + rubbish, step=100), InputOptions(compression=name))
        out = []
        with pytest.raises(CorruptObjectError):
            out.extend(iter(stream.read_some, b""))
        assert b"".join(out) == TEXT


@pytest.mark.parametrize("name", ["gzip", "zstd", "bzip2", "xz"])
@pytest.mark.parametrize("rubbish", [b"\n", b"\0\n", b"abc"])
def test_short_rubbish_behind_the_end_is_not_called_a_cut(name, rubbish):
    with pytest.raises(CorruptObjectError, match=f"behind the end of the {name} data") as caught:
        unpack(Dribble(PACK[name](TEXT) + rubbish, step=1), name)
    assert not isinstance(caught.value, TruncatedObjectError)


def test_zero_bytes_are_padding_where_the_format_has_it():
    assert unpack(BytesInput(PACK["gzip"](TEXT) + b"\0" * 513)) == TEXT
    assert unpack(Dribble(PACK["xz"](TEXT) + b"\0" * 8, step=1)) == TEXT
    for packed in (PACK["xz"](TEXT) + b"\0" * 3, PACK["bzip2"](TEXT) + b"\0" * 4, PACK["zstd"](TEXT) + b"\0" * 4):
        with pytest.raises(CorruptObjectError):
            unpack(BytesInput(packed))


@pytest.mark.parametrize("name", PACKED)
def test_damage_is_an_error(name):
    packed = bytearray(PACK[name](bytes(random.Random(1).randbytes(5000))))
    packed[len(packed) // 2] ^= 0x55
    with pytest.raises(CorruptObjectError):
        unpack(BytesInput(bytes(packed)), name)


@pytest.mark.parametrize("name", PACKED)
def test_what_is_not_packed_so_is_an_error_that_names_the_option(name):
    with pytest.raises(CorruptObjectError, match=r"input\.compression"):
        unpack(BytesInput(TEXT), name)
    with pytest.raises(CorruptObjectError):
        unpack(BytesInput(b"z"), name)


@pytest.mark.parametrize("name", PACKED)
def test_pieces_stay_small_however_much_is_packed(name):
    packed = PACK[name](b"\0" * 50_000_000)
    stream = UnpackedStream(BytesInput(packed), InputOptions(compression=name))
    sizes = [len(piece) for piece in iter(stream.read_some, b"")]
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= 1 << 20


def test_zstd_frames_of_every_header():
    out = io.BytesIO()
    for options in ({"write_content_size": False}, {"write_checksum": True}, {"level": 19}):
        with zstandard.ZstdCompressor(**options).stream_writer(out, closefd=False) as writer:
            writer.write(TEXT * 500)
    skippable = b"\x5f\x2a\x4d\x18\x05\0\0\0hello"
    assert unpack(Dribble(skippable + out.getvalue() + skippable, step=5000)) == TEXT * 1500


def test_magic_bytes_win_over_the_suffix():
    assert unpack(BytesInput(TEXT, "a.gz")) == TEXT
    assert unpack(BytesInput(PACK["zstd"](TEXT), "a.gz")) == TEXT
    assert unpack(BytesInput(PACK["gzip"](TEXT), "a.txt")) == TEXT
    assert detect_compression(b"\x1f", "a.gz") == "gzip"
    assert detect_compression(b"\x1f", "a.txt") == "none"


def test_an_error_of_the_stream_is_passed_on_as_it_is():
    class Broken(BytesInput):
        def open(self, start=0, end=None):
            stream = super().open(start, end)

            class Stream:
                def read(self, size, /):
                    data = stream.read(min(size, 40))
                    if not data:
                        raise ConnectionResetError("gone")
                    return data

                close = stream.close

            return Stream()

    for pack in PACK.values():
        with pytest.raises(ConnectionResetError):
            unpack(Broken(pack(TEXT)))


def error_of(data, key="memory", compression="auto", **options):
    with pytest.raises(CorruptObjectError) as caught:
        list(make_transformer(InputOptions(compression=compression, **options)).records(BytesInput(data, key)))
    return str(caught.value)


def test_xz_padding_may_stand_between_two_streams():
    one = PACK["xz"](TEXT)
    for step in (1, 3, 10**9):
        assert unpack(Dribble(one + bytes(8) + one + bytes(4), step=step)) == TEXT * 2
        for wrong in (one + bytes(6) + one, one + bytes(8) + b"x", one + bytes(4) + one[:30]):
            with pytest.raises(CorruptObjectError):
                unpack(Dribble(wrong, step=step))
    with pytest.raises(CorruptObjectError):
        unpack(BytesInput(PACK["gzip"](TEXT) + bytes(8) + PACK["gzip"](TEXT)))


def xz_with_dictionary(code):
    data = bytearray(lzma.compress(TEXT, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}]))
    assert data[12:17] == b"\x02\x00\x21\x01\x16"  # the block's header: LZMA2, a dictionary of 8 MiB
    data[16] = code
    data[20:24] = zlib.crc32(bytes(data[12:20])).to_bytes(4, "little")
    assert lzma.decompress(bytes(data)) == TEXT
    return bytes(data)


def zstd_with_window(log):
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=log, enable_ldm=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(TEXT) + packer.flush()


LARGE_WINDOWS = {
    "xz": (xz_with_dictionary(36), 1 << 30),
    "xz at the limit": (xz_with_dictionary(31), 192 << 20),
    "zstd --long=28": (zstd_with_window(28), 1 << 28),
    "zstd --long=31": (zstd_with_window(31), 1 << 31),
}


@pytest.mark.parametrize("name", LARGE_WINDOWS)
def test_a_window_that_is_too_large_is_named_and_can_be_allowed(name):
    data, window = LARGE_WINDOWS[name]
    for options in ({}, {"max_window_bytes": window // 2}):
        message = error_of(data, format="text", **options)
        assert f"input.max_window_bytes ({options.get('max_window_bytes', 1 << 27)}" in message
    allowed = InputOptions(format="text", max_window_bytes=window)
    assert b"\n".join(make_transformer(allowed).records(BytesInput(data))) + b"\n" == TEXT


def test_a_window_that_no_decoder_takes_is_named():
    data = bytearray(zstd_with_window(20))
    data[5] = 22 << 3  # 4 GiB
    message = error_of(bytes(data), format="text")
    assert "needs a window of more than 2147483648 bytes, the most that input.max_window_bytes can be" in message


def test_a_window_within_the_default_is_read():
    for data in (zstd_with_window(27), xz_with_dictionary(30)):
        assert unpack(BytesInput(data)) == TEXT


def test_short_memory_for_a_window_is_not_the_objects_fault(monkeypatch):
    class Short:
        def __init__(self, **_):
            pass

        def decompressobj(self):
            return self

        def decompress(self, _):
            raise zstandard.ZstdError("zstd decompress error: Allocation error : not enough memory")

    monkeypatch.setattr(zstandard, "ZstdDecompressor", Short)
    with pytest.raises(MemoryError, match="memory://memory, record 1"):
        list(make_transformer(InputOptions(format="text")).records(BytesInput(zstd_with_window(20))))


def test_a_dictionary_that_zstd_needs_is_named():
    samples = [b"%d some text %d" % (n, n * n) * 20 for n in range(500)]
    dictionary = zstandard.train_dictionary(8000, samples)
    packed = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)
    assert f"a dictionary (number {dictionary.dict_id()})" in error_of(packed, format="text")
    packed = zstandard.ZstdCompressor(dict_data=dictionary, write_dict_id=False).compress(TEXT)
    assert "a dictionary that it does not name" in error_of(packed, format="text")


def test_chunks_of_snappy_are_no_longer_than_they_can_be():
    head = b"\xff\x06\x00\x00sNaPpY"
    assert "damaged" in error_of(head + b"\x00\xff\xff\xff" + bytes(0xFFFFFF), format="text")
    assert "damaged" in error_of(head + b"\x01\xff\xff\x01" + bytes(0x1FFFF), format="text")


def tar_of(data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        file = tarfile.TarInfo("a.log")
        file.size = len(data)
        archive.addfile(file, io.BytesIO(data))
    return out.getvalue()


HADOOP_SNAPPY = (len(TEXT)).to_bytes(4, "big") + b"\0\0\x10\0" + bytes(cramjam.snappy.compress_raw(TEXT))
FOREIGN = {
    ".lz4": (bytes(cramjam.lz4.compress(TEXT)), "lz4"),
    ".br": (bytes(cramjam.brotli.compress(TEXT)), "brotli"),
    ".zip": (b"PK\x03\x04\x14\0\0\0\x08\0" + zlib.compress(TEXT)[2:-4], "zip"),
    ".deflate": (zlib.compress(TEXT), "deflate"),
    ".zlib": (zlib.compress(TEXT), "zlib"),
    ".tar": (tar_of(TEXT), "tar"),
    ".snappy": (HADOOP_SNAPPY, "framed form"),
    ".gz": (zlib.compress(TEXT), "another form"),
}


@pytest.mark.parametrize("suffix", FOREIGN)
def test_packed_bytes_are_never_records_of_text(suffix):
    data, named = FOREIGN[suffix]
    for name in ("text", "jsonl", "csv", "json"):
        assert named in error_of(data, "a." + name + suffix, format=name)
    # what the bytes say is right: text under such a name is text, and `bytes` takes everything
    assert len(list(make_transformer(InputOptions(format="text")).records(BytesInput(TEXT, "a" + suffix)))) == 307
    (whole,) = make_transformer(InputOptions(format="bytes", whole_object=True)).records(BytesInput(data, "a" + suffix))
    assert whole == data
    assert not make_transformer(InputOptions(format="text")).can_split("a.log" + suffix)


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".tar.gz", gzip.compress),
        (".tgz", gzip.compress),
        (".TAR.ZST", zstandard.compress),
        (".tbz2", bz2.compress),
        (".tar.xz", lzma.compress),
    ],
)
def test_an_archive_inside_a_compression_is_never_records_of_text(suffix, pack):
    key = f"a{suffix}"
    for name in ("text", "jsonl", "csv", "json"):
        assert "an archive of files" in error_of(pack(tar_of(TEXT)), key, format=name)
        slow = Dribble(pack(tar_of(TEXT)), key)
        with pytest.raises(CorruptObjectError, match="an archive of files"):
            list(make_transformer(InputOptions(format=name)).records(slow))
    for text in (TEXT, b"short\n", b""):  # what the bytes say is right
        records = make_transformer(InputOptions(format="text")).records(BytesInput(pack(text), key))
        assert list(records) == text.splitlines()


def test_auto_names_a_compression_that_is_not_supported():
    with pytest.raises(ObjectError, match="lz4, a compression that is not supported"):
        list(make_transformer(InputOptions()).records(BytesInput(b"x", "a.jsonl.lz4")))


def test_a_library_that_cannot_be_loaded_is_not_the_objects_fault(monkeypatch):
    def failing(_):
        raise ImportError("lib.so: failed to map segment from shared object")

    packed = PACK["snappy"](TEXT)
    monkeypatch.setattr(cramjam.snappy, "decompress", failing)
    with pytest.raises(ImportError, match="failed to map segment"):
        list(make_transformer(InputOptions(format="text", compression="snappy")).records(BytesInput(packed)))
