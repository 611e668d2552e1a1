"""Exceptions of a format's own code: each is one of the object, with its place, but for what the object is not to blame for."""

import errno

import pytest

from framework.errors import (
    CorruptObjectError,
    FormatContractError,
    ObjectChangedError,
    ObjectError,
    RecordError,
    TruncatedObjectError,
)
from framework.model.batches import SkippedRecord
from framework.model.objects import ResumePoint
from framework.model.payloads import PayloadColumn
from framework.transformer import InputOptions, PayloadBatch, guarded
from transformers import BytesInput, make_transformer


def failing(error, closed=None):
    def records():
        try:
            yield PayloadBatch(first_record=4, payloads=[b"a", b"b"], size_bytes=2)
            yield SkippedRecord(record_number=6, error=RecordError("bad"))
            raise error
        finally:
            if closed is not None:
                closed.append(True)

    return records


@pytest.mark.parametrize(
    "error", [KeyError("x"), RecursionError(), ZeroDivisionError(), OSError("no number"), AssertionError()]
)
def test_an_exception_of_the_formats_code_is_one_of_the_object(error):
    got = []
    with pytest.raises(CorruptObjectError, match=type(error).__name__) as caught:
        got.extend(guarded(failing(error), "s3://b/k", 3, of=None))
    assert len(got) == 2
    assert (caught.value.location, caught.value.record_number, caught.value.__cause__) == ("s3://b/k", 7, error)


@pytest.mark.parametrize("error", [
    ImportError("fastavro"),
    RuntimeError("can't start new thread"),
    OSError(errno.ENOSPC, "no space"),
    TruncatedObjectError("cut", location="s3://b/k"),
    ObjectChangedError("changed", location="s3://b/k"),
])  # fmt: skip
def test_what_says_nothing_about_the_format_stays_what_it_is(error):
    with pytest.raises(type(error)) as caught:
        list(guarded(failing(error), "s3://b/k", 3, of=None))
    assert caught.value is error


def test_an_object_that_a_stream_finds_cut_is_named_with_its_record():
    with pytest.raises(TruncatedObjectError, match=r"^s3://b/k, record 7: cut"):
        list(guarded(failing(TruncatedObjectError("cut", location="s3://b/k")), "s3://b/k", 3, of=None))


def test_short_memory_is_not_damage_and_names_the_object():
    with pytest.raises(MemoryError, match=r"s3://b/k, record 7: there is not enough memory"):
        list(guarded(failing(MemoryError()), "s3://b/k", 3, of=None))


@pytest.mark.parametrize(("text", "told"), [("malloc of size 1024 failed", " (malloc of size 1024 failed)"), ("", "")])
def test_short_memory_is_told_once_also_by_a_format_that_tells_it_itself(text, told):
    def read():
        return guarded(failing(MemoryError(text)), "s3://b/k", 3, of=None)

    with pytest.raises(MemoryError) as caught:
        list(guarded(read, "s3://b/k", 3, of=None))
    assert str(caught.value) == f"s3://b/k, record 7: there is not enough memory to read it{told}"


def test_it_closes_what_it_reads():
    closed = []
    iterator = guarded(failing(KeyError(), closed), "s3://b/k", 3, of=None)
    next(iterator)
    iterator.close()
    assert closed == [True]


def test_an_exception_of_the_call_itself_is_one_of_the_object_too():
    def read():
        raise KeyError("secret")

    with pytest.raises(CorruptObjectError, match=rf"KeyError.*\({__name__}, line \d+, in read\)") as caught:
        list(guarded(read, "s3://b/k", 3, of=None))
    assert caught.value.record_number == 4
    assert "secret" not in str(caught.value)


class Format:
    """What the message names."""


def batch(first=4, payloads=(b"a", b"b"), size_bytes=2, mark=None):
    return PayloadBatch(first_record=first, payloads=payloads, size_bytes=size_bytes, mark=mark)


def skipped(number=4, error=None, raw=b""):
    return SkippedRecord(record_number=number, error=error or RecordError("bad"), raw=raw)


@pytest.mark.parametrize(
    ("runs", "mistake"),
    [
        (None, "read returned NoneType"),
        ([b"a"], "record 4: read yielded bytes, not a PayloadBatch"),
        ([RecordError("bad")], "record 4: read yielded RecordError"),
        ([batch(1)], "record 4: read yielded record 1 where record 4 comes next"),
        ([batch(), batch()], "record 6: read yielded record 4 where record 6 comes next"),
        ([batch(), batch(7)], "record 6: read yielded record 7 where"),
        ([batch(4.0)], "record 4: read yielded record 4.0 where"),
        ([skipped(3)], "record 4: read yielded record 3 where"),
        ([skipped(), batch(4)], "record 5: read yielded record 4 where"),
        ([skipped(), skipped()], "record 5: read yielded record 4 where"),
        ([batch(payloads=["a", "b"])], "its payload is str, not bytes"),
        ([batch(payloads=(b"a" for _ in "a"))], "its payloads are generator, not a list"),
        ([batch(payloads="ab")], "its payload is str, not bytes"),
        ([batch(payloads=[], size_bytes=0)], "its batch has no payloads"),
        ([batch(size_bytes=0)], "size_bytes of its batch is 0"),
        ([batch(size_bytes=None)], "size_bytes of its batch is None"),
        ([batch(mark=ResumePoint(6, 9))], "ends with record 5"),
        ([batch(mark=9)], "the mark of its batch is 9"),
        ([skipped(error=ValueError("bad"))], "record 4: its error is ValueError, not a RecordError"),
        ([skipped(raw="bad")], "its bytes are str, not bytes"),
    ],
)
def test_a_format_that_breaks_its_contract_is_named_and_nothing_wrong_goes_on(runs, mistake):
    got = []
    with pytest.raises(FormatContractError) as caught:
        got.extend(guarded(lambda: runs, "s3://b/k", 3, of=Format()))
    assert mistake in str(caught.value)
    assert f"s3://b/k: the format {__name__}.Format is defective" in str(caught.value)
    assert got == (runs or [])[: len(got)]
    assert len(got) < len(runs or [0])


def test_what_the_contract_allows_goes_on():
    runs = [
        batch(mark=ResumePoint(3, 9)),
        skipped(6),
        batch(7, payloads=[bytearray(b"a"), memoryview(b"b")]),
    ]
    assert list(guarded(lambda: iter(runs), "s3://b/k", 3, of=Format())) == runs


@pytest.mark.parametrize(
    "payloads_in",
    [
        lambda buffer: [memoryview(buffer)[:1], memoryview(buffer)[2:3]],
        lambda buffer: [memoryview(buffer).toreadonly()[:1], b"b"],
        lambda buffer: [b"a", memoryview(buffer)[2:3]],
        lambda buffer: (memoryview(buffer)[:1], b"b"),
        lambda buffer: PayloadColumn(memoryview(buffer)),
        lambda buffer: PayloadColumn(memoryview(buffer).toreadonly()),
        lambda buffer: PayloadColumn(memoryview(buffer))[:2],
    ],
)
def test_a_format_may_use_its_buffer_again(payloads_in):
    """Batches wait in the queue while the format reads on."""
    buffer = bytearray(b"a\nb\n")

    def read():
        yield batch(4, payloads=payloads_in(buffer))
        buffer[:] = b"x\ny\n"
        yield batch(6, payloads=payloads_in(buffer))
        buffer[:] = b"!\n!\n"

    first, second = guarded(read, "s3://b/k", 3, of=Format())
    assert list(first.payloads) == [b"a", b"b"]
    assert list(second.payloads) in ([b"x", b"y"], [b"x", b"b"], [b"a", b"y"])
    assert {type(payload) for run in (first, second) for payload in run.payloads} == {bytes}


def test_a_format_may_use_its_list_again():
    def read():
        payloads = [b"a", b"b"]
        yield batch(4, payloads=payloads)
        payloads[:] = [b"x"]
        yield batch(6, payloads=payloads, size_bytes=1)
        payloads.clear()

    assert [run.payloads for run in guarded(read, "s3://b/k", 3, of=Format())] == [[b"a", b"b"], [b"x"]]


def test_the_bytes_of_a_bad_record_may_lie_in_a_buffer_that_is_used_again():
    def read():
        buffer = bytearray(b"bad")
        yield skipped(raw=memoryview(buffer))
        buffer[:] = b"new"

    assert [run.raw for run in guarded(read, "s3://b/k", 3, of=Format())] == [b"bad"]


def test_bytes_are_not_copied():
    payloads = [b"some bytes", b"more bytes"]
    block = PayloadColumn(b"a\nb\n")
    runs = [
        batch(4, payloads=payloads, size_bytes=20),
        batch(6, payloads=block),
        batch(8, payloads=block[:1], size_bytes=1),
    ]
    lists, column, part = guarded(lambda: iter(runs), "s3://b/k", 3, of=Format())
    assert all(mine is given for mine, given in zip(lists.payloads, payloads, strict=True))
    assert column.payloads is block
    assert part.payloads.data.obj is block.data


def test_a_payload_of_another_type_behind_good_ones_is_named():
    with pytest.raises(FormatContractError, match="record 4: a payload of its batch is int, not bytes"):
        list(guarded(lambda: iter([batch(payloads=[b"a", 5])]), "s3://b/k", 3, of=Format()))


@pytest.mark.parametrize("packed", [False, True])
def test_an_object_that_unfolds_without_end_ends(monkeypatch, packed):
    monkeypatch.setattr("transformers.compression.FREE_EXPANSION_BYTES", 5000)
    data = b"0\n" * 20_000
    options = {"format": "jsonl", "max_expansion": 20}
    source = BytesInput(data)
    if packed:
        import gzip

        source = BytesInput(gzip.compress(data))
    got = []
    with pytest.raises(CorruptObjectError, match=r"input\.max_expansion is 20") as caught:
        got.extend(make_transformer(InputOptions(**options)).records(source))
    assert caught.value.record_number == len(got) + 1
    options["max_expansion"] = 60 if not packed else 100_000
    assert len(list(make_transformer(InputOptions(**options)).records(source))) == 20_000
    options["max_expansion"] = 0
    assert len(list(make_transformer(InputOptions(**options)).records(source))) == 20_000


def test_an_error_without_a_place_names_object_and_record():
    """A format of one's own need not know where it reads."""

    def read():
        yield skipped(error=RecordError("why"))
        yield skipped(5, error=RecordError("which", location="s3://b/other", record_number=7))
        raise ObjectError("its end is missing", byte_offset=9)

    found = []
    with pytest.raises(ObjectError, match=r"^s3://b/k, record 6 \(byte 9\): its end is missing$"):
        found.extend(guarded(read, "s3://b/k", 3, of=None))
    assert [str(one.error) for one in found] == ["s3://b/k, record 4: why", "s3://b/other, record 7: which"]
