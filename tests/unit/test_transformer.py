"""Exceptions of a format's own code: each is one of the object, with its place, but for what the object is not to blame for."""

import errno

import pytest

from framework.errors import CorruptObjectError, ObjectChangedError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.transformer import InputOptions, PayloadBatch, guarded
from transformers import BytesInput, make_transformer
from transformers import batches as runs


def failing(error, closed=None):
    def records():
        try:
            yield PayloadBatch(first_record=4, payloads=[b"a", b"b"], size_bytes=2)
            yield SkippedRecord(record_number=6, error=error)
            raise error
        finally:
            if closed is not None:
                closed.append(True)

    return records()


@pytest.mark.parametrize(
    "error", [KeyError("x"), RecursionError(), ZeroDivisionError(), OSError("no number"), AssertionError()]
)
def test_an_exception_of_the_formats_code_is_one_of_the_object(error):
    got = []
    with pytest.raises(CorruptObjectError, match=type(error).__name__) as caught:
        got.extend(guarded(failing(error), "s3://b/k", 3))
    assert len(got) == 2
    assert (caught.value.location, caught.value.record_number, caught.value.__cause__) == ("s3://b/k", 7, error)


@pytest.mark.parametrize("error", [
    ImportError("fastavro"),
    OSError(errno.ENOSPC, "no space"),
    TruncatedObjectError("cut", location="s3://b/k"),
    ObjectChangedError("changed", location="s3://b/k"),
])  # fmt: skip
def test_what_says_nothing_about_the_format_stays_what_it_is(error):
    with pytest.raises(type(error)) as caught:
        list(guarded(failing(error), "s3://b/k", 3))
    assert caught.value is error


def test_short_memory_is_not_damage_and_names_the_object():
    with pytest.raises(MemoryError, match=r"s3://b/k, record 7: there is not enough memory"):
        list(guarded(failing(MemoryError()), "s3://b/k", 3))


def test_it_closes_what_it_reads():
    closed = []
    iterator = guarded(failing(KeyError(), closed), "s3://b/k", 3)
    next(iterator)
    iterator.close()
    assert closed == [True]


@pytest.mark.parametrize("packed", [False, True])
def test_an_object_that_unfolds_without_end_ends(monkeypatch, packed):
    monkeypatch.setattr(runs, "_FREE_EXPANSION_BYTES", 5000)
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
