"""One JSON array: elements as they were, whatever the pieces are, and what is wrong with it."""

import json
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import CorruptObjectError, RecordError, RecordTooLargeError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.transformer import BatchLimits, InputOptions
from tests.support.examples import examples
from transformers import BytesInput, make_transformer


def flat(runs):
    out = []
    for run in runs:
        if isinstance(run, SkippedRecord):
            out.append((run.record_number, type(run.error)))
        else:
            assert run.size_bytes == sum(map(len, run.payloads))
            out += enumerate(run.payloads, run.first_record)
    assert [number for number, _ in out] == list(range(out[0][0], out[0][0] + len(out))) if out else True
    return out


def read(data, skip=0, piece=2_000_000, **options):
    transformer = make_transformer(InputOptions(format="json", **options))
    return flat(transformer.read(BytesInput(data), skip=skip, limits=BatchLimits(size_bytes=piece)))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["},{", '"', "\\", "],[", "]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "a", "é", '"']), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


CUT = b'[{"k": 84005, "b": "%b"},{"k": "x\\"y", "c": [1, "%b"]}]' % (b"z" * 200, b"z" * 30)


def test_an_array_cut_anywhere_is_said_to_have_no_end_whatever_the_pieces_are():
    for cut in range(1, len(CUT)):
        for piece in (3, 7, 64, 2_000_000):
            with pytest.raises(TruncatedObjectError, match="the JSON array has no end: the object was cut short"):
                read(CUT[:cut], piece=piece, max_record_bytes=10)


@given(
    elements=st.lists(values, max_size=8),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    piece=st.integers(1, 60),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n\n", " : ")]),
)
@settings(max_examples=examples(300), deadline=None)
@example(elements=[{"id": [{"id": 1}, {"id": 2}]}] * 7, indent=None, ascii_only=True, piece=17, separators=(",", ":"))
def test_elements_come_as_they_were(elements, indent, ascii_only, piece, separators):
    def dump(value):
        return json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=separators).encode()

    data = b" [ " + b" , ".join(map(dump, elements)) + b"\n] \n"
    expected = list(enumerate(map(dump, elements), 1))
    assert read(data, piece=piece) == read(data) == expected
    whole = dump(elements)
    assert [json.loads(payload) for _, payload in read(whole, piece=piece)] == elements
    for skip in (1, 3, len(elements)):
        assert read(data, piece=piece, skip=skip) == expected[skip:]


@pytest.mark.parametrize("piece", [1, 7, 40, 2_000_000])
def test_whitespace_around_an_element_is_no_part_of_it(piece):
    gap = b" \n" * 40
    assert read(b"[%b]" % gap, piece=piece, max_record_bytes=20) == []
    data = b'[%b1%b,%b{"a":2}%b,NaN,%b"\\ud800"%b,%b" "%b]' % ((gap,) * 8)
    good, bad = [(1, b"1"), (2, b'{"a":2}')], [(3, RecordError), (4, RecordError)]
    assert read(data, piece=piece, max_record_bytes=20) == [*good, *bad, (5, b'" "')]
    with pytest.raises(CorruptObjectError):
        read(b"[1,1%b2]" % gap, piece=piece, max_record_bytes=20)


@pytest.mark.parametrize("piece", [1, 7, 40, 2_000_000])
def test_of_an_element_that_is_too_long_the_same_beginning_is_kept(piece):
    data = b'[1,{"a":"' + b"x" * 300 + b'"},2]'
    transformer = make_transformer(InputOptions(format="json", max_record_bytes=20))
    runs = transformer.read(BytesInput(data), limits=BatchLimits(size_bytes=piece))
    (skipped,) = [run for run in runs if isinstance(run, SkippedRecord)]
    assert (skipped.raw, skipped.length) == (data[3:-3], len(data[3:-3]))


EXAMPLE = json.dumps(
    [{"id": n, "t": 'é,]}{["\\', "n": [1.5, None, True, {"id": n}]} for n in range(4)], ensure_ascii=False
)


@pytest.mark.parametrize("piece", [1, 11, 2_000_000])
def test_a_cut_at_any_byte_gives_what_was_whole_and_an_error(piece):
    data = EXAMPLE.encode()
    everything = [payload for _, payload in read(data)]
    transformer = make_transformer(InputOptions(format="json", compression="none"))
    for end in range(1, len(data)):
        runs, got = transformer.read(BytesInput(data[:end]), limits=BatchLimits(size_bytes=piece)), []
        with pytest.raises(TruncatedObjectError, match="record") as caught:
            got.extend(payload for run in runs for payload in run.payloads)
        assert got == everything[: len(got)]
        assert caught.value.record_number == len(got) + 1


@pytest.mark.parametrize("piece", [1, 5, 100])
@pytest.mark.parametrize(
    ("data", "good"),
    [
        (b"{}", 0), (b"plain text", 0), (b"[1,]", 1), (b"[,1]", 0), (b"[1 2]", 0), (b"[1]]", 1), (b"[1][2]", 1),
        (b"[1,tru]", 1), (b"[1,{a:1}]", 1), (b'[1,"\x01"]', 1), (b'[1,"\\x"]', 1), (b"[1}", 0), (b"[01]", 0), (b"[1] x", 1),
        (b"\0\0\0\0", 0), (b"[1,2\0]", 1),
    ],
)  # fmt: skip
def test_what_is_no_array_is_an_error(data, good, piece):
    transformer = make_transformer(InputOptions(format="json", compression="none"))
    got = []
    with pytest.raises(CorruptObjectError) as caught:
        got.extend(transformer.records(BytesInput(data, "k")))
    assert len(got) == good
    assert caught.value.record_number == good + 1
    with pytest.raises(CorruptObjectError):
        read(data, piece=piece)


def test_an_element_that_json_forbids_is_one_bad_record():
    data = b'[1,NaN,"\\ud800","\xff",-Infinity,{"a":"\xff"},2]'
    for piece in (1, 9, 1000):
        assert read(data, piece=piece) == [(1, b"1"), *((n, RecordError) for n in range(2, 7)), (7, b"2")]


@pytest.mark.parametrize("data", [b"", b" \n", b"[]", b" [ ]\n", b"\xef\xbb\xbf[]", b"\xef\xbb\xbf"])
def test_nothing_inside_is_no_record(data):
    assert read(data) == read(data, piece=1) == []


def test_an_element_that_is_too_long_is_skipped():
    giant = b'{"a":"' + b'\\"],' * 20_000 + b'","b":[[1,2],{}]}'
    data = b"[1, " + giant + b" ,2," + giant + b"]"
    for piece in (1000, 33_333, 10**6):
        got = read(data, piece=piece, max_record_bytes=50_000)
        assert got == [(1, b"1"), (2, RecordTooLargeError), (3, b"2"), (4, RecordTooLargeError)]
        assert read(data, piece=piece, max_record_bytes=50_000, skip=2) == got[2:]
        assert read(data, piece=piece) == [(1, b"1"), (2, giant), (3, b"2"), (4, giant)]


def test_memory_does_not_follow_the_size():
    class Endless(BytesInput):
        def open(self, start=0, end=None):
            block = b",".join(b'{"id":%d,"items":[{"id":1},{"id":2}]}' % n for n in range(20_000))

            class Stream:
                left = 12

                def read(self, size, /):
                    self.left -= 1
                    if self.left < 0:
                        return b""
                    return (b"[" if self.left == 11 else b",") + block + (b"]" if self.left == 0 else b"")

                def close(self):
                    pass

            return Stream()

    source = Endless(b"x")
    tracemalloc.start()
    try:
        runs = make_transformer(InputOptions(format="json", compression="none")).read(source)
        assert sum(len(run.payloads) for run in runs) == 240_000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


LONG = b'{"k":"' + b'a]},\\"[{' * 330_000 + b'","l":[' + b"{},[]," * 50_000 + b"1.5e3]}"


@pytest.mark.parametrize("long", [LONG, b"[" + LONG + b"]", b'"' + b"\\\\x\xc3\xa9" * 600_000 + b'"', b"1" * 3_000_000])
def test_long_elements_are_cut_by_their_brackets_and_quotes(long):
    assert len(long) > 2_200_000
    small = [b'{"a":%d}' % n for n in range(300)]
    elements = [*small, long, b"7", long, *small]
    for between in (b",", b" ,\n "):
        data = b" [ " + between.join(elements) + b" ] "
        for step, skip in ((10**9, 0), (77_777, 301), (10**9, 302)):
            assert [value for _, value in read(data, skip=skip, piece=step)] == elements[skip:]


@pytest.mark.parametrize(("first", "second"), [(b'{"a":"x"y"}', b'{"a":"x"y"}'), (b'{"a":[1}', b'{"a":1]}')])
@pytest.mark.parametrize("is_twice", [False, True])
def test_an_element_that_is_none_takes_no_neighbours_with_it(first, second, is_twice):
    good = b",".join(b'{"a":"%d"}' % number for number in range(20_000))
    data = b"[" + b",".join([good, first, good, *([second, good] if is_twice else [])]) + b"]"
    with pytest.raises(CorruptObjectError, match="an element of the JSON array is not JSON"):
        read(data, piece=50_000, max_record_bytes=100_000)


def test_an_array_that_begins_with_a_comma_is_refused():
    with pytest.raises(CorruptObjectError, match="an element of the JSON array is not JSON"):
        read(b"[," + b",".join([b'{"a":1}'] * 5_000) + b"]")


def test_long_elements_that_are_none_end_the_array():
    def error_of(data, skip=0):
        with pytest.raises(CorruptObjectError) as caught:
            read(data, skip=skip)
        return str(caught.value)

    for wrong in (LONG[:-1] + b"x}", LONG + b" 5", b'{"a":NaN,"s":"' + b"x" * 6_000_000 + b'"}'):
        for skip in (0, 1):
            message = error_of(b"[1," + wrong + b",3]", skip)
            assert "record 2: " in message
            assert "JSON array" in message
    assert read(b'[1,{"k":"\xff' + LONG[6:] + b",3]")[1][1] is RecordError
    assert read(b"[" + b" " * 3_000_000 + b"]") == []
    assert "not JSON" in error_of(b"[1," + b" " * 3_000_000 + b"]")
    assert "not JSON" in error_of(b"[1," + b" " * 3_000_000 + b",2]")


def test_a_long_string_may_be_cut_behind_a_backslash():
    long = b'"' + b'\\"' * 1_200_000 + b'"'
    for shift in (0, 1):
        data = b"[" + b" " * shift + long + b",1]"
        assert [value for _, value in read(data, piece=100_000)] == [long, b"1"]


def test_a_long_element_is_not_made_into_values_to_see_that_it_is_json(monkeypatch):
    """They took 40 times its memory, and a third of a second for each element over 2 MiB."""
    monkeypatch.setattr("transformers.json_array._LONG_BYTES", 100)
    monkeypatch.setattr("transformers.json_array._scan", None)
    element = b'{"a": [1, "' + b"x" * 1000 + b'", {"b": null}]}'
    data = b"[1, " + element + b", " + element + b"]"
    runs = make_transformer(InputOptions(format="json")).read(BytesInput(data), limits=BatchLimits(size_bytes=50))
    assert [payload for run in runs for payload in run.payloads] == [b"1", element, element]
