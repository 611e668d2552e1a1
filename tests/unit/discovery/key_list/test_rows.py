"""Supplied lists as text and as CSV: which keys they name, exactly, and what is refused."""

import gzip
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.discovery.key_list.rows import csv_rows, text_rows, unpacked
from framework.errors import KeyListError
from framework.storage.timestamps import milliseconds
from tests.support.inventory import percent, quoted

ODD = [
    "plain",
    " leading and trailing ",
    "a+b",
    "a%2Fb",
    "100%",
    "quote\"comma,apostrophe'",
    "tab\tand\\",
    "日本/ü",
    "\U0001f6eb",
    "\uffff\U0010ffff",
    "#no comment",
    "\x01\x7f",
    " ",
]
WITH_LINE_ENDS = ["line\nbreak", "\r", "carriage\rreturn", "both\r\n", "\n"]

keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


def of_text(content, **options):
    return [row.key for row in text_rows(io.BytesIO(content), "keys.txt", **options)]


def of_csv(content, *, bucket="lake", **options):
    if isinstance(content, str):
        content = content.encode()
    return list(csv_rows(io.BytesIO(content), "keys.csv", bucket=bucket, **options))


# ---- text


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_line_is_a_key_exactly_as_it_stands(end, closed):
    content = end.join(ODD) + (end if closed else "")
    assert of_text(content.encode()) == ODD


def test_empty_lines_and_a_byte_order_mark_are_no_keys():
    assert of_text(b"\xef\xbb\xbfa\n\n\r\n\nb\n\n") == ["a", "b"]
    assert of_text(b"") == of_text(b"\xef\xbb\xbf") == of_text(b"\r\n") == []


def test_a_row_knows_its_line():
    rows = list(text_rows(io.BytesIO(b"a\n\nb\n"), "keys.txt"))
    assert [row.place for row in rows] == ["keys.txt, row 1", "keys.txt, row 3"]


def test_text_may_be_url_encoded_which_makes_line_breaks_possible():
    content = "\n".join(map(percent, ODD + WITH_LINE_ENDS)).encode()
    assert of_text(content, encoded=True) == ODD + WITH_LINE_ENDS


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\n\xff\xfe\n", "keys.txt, row 2: no UTF-8"),
        (b"a\nb\n" + b"x" * 1025 + b"\n", "keys.txt, row 3: longer than a key can be"),
        ("é".encode() * 513, "row 1: longer than a key can be"),
        (b"\x00" * 100_000, "longer than a key can be"),
    ],
)
def test_what_is_no_list_of_keys_is_refused(content, said):
    with pytest.raises(KeyListError, match=said):
        of_text(content)


def test_the_longest_keys_are_read():
    longest = ["k" * 1024, "é" * 512, "\U0001f6eb" * 256]
    assert of_text("\n".join(longest).encode()) == longest
    encoded = "\n".join(map(percent, longest)).encode()
    assert of_text(encoded, encoded=True) == longest


def test_memory_is_bounded_by_the_line_not_by_the_file():
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    with pytest.raises(KeyListError, match="longer than a key"):
        list(text_rows(io.BufferedReader(Endless()), "keys.txt"))


@given(st.lists(keys.filter(lambda key: "\n" not in key and not key.endswith("\r") and not key.startswith("\ufeff"))))
def test_any_keys_without_line_breaks_come_back_from_text(some):
    assert of_text("".join(f"{key}\n" for key in some).encode()) == some


# ---- CSV


def test_a_header_names_the_columns_in_any_order_and_case():
    rows = of_csv(
        "owner,Last_Modified,E-Tag,KEY,Size,versionId,bucket\n"
        'me,2024-05-31T12:00:00.250Z,"""abc""",a b,17,v9,lake\n'
        "me,,,b+%41,,,\n"
    )
    first, second = rows
    assert (first.key, first.size, first.etag, first.bucket) == ("a b", 17, "abc", "lake")
    assert first.modified_ms == 1_717_156_800_250
    assert (second.key, second.size, second.etag, second.modified_ms) == ("b+%41", None, "", None)
    assert second.latest
    assert not second.delete_marker
    assert second.place == "keys.csv, row 3"


@pytest.mark.parametrize(
    "moment", ["2024-05-31T12:00:00Z", "2024-05-31T14:00:00+02:00", "2024-05-31 12:00:00.000", "2024-05-31T12:00:00"]
)
def test_times_are_read_in_the_usual_forms_and_mean_utc(moment):
    (row,) = of_csv(f"key,last_modified\na,{moment}\n")
    assert row.modified_ms == 1_717_156_800_000


def test_a_date_is_its_first_moment():
    (row,) = of_csv("key,last_modified\na,2024-05-31\n")
    assert row.modified_ms == 1_717_113_600_000


def test_an_endless_name_of_a_column_is_cut_in_an_error():
    with pytest.raises(KeyListError) as caught:
        of_csv(f"key,size{'-' * 15_000}\na,x\n")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "moment", ["2024-05-31T12:00:00.123900Z", "2024-05-31T12:00:00.123900+00:00", "2024-05-31T14:00:00.123900+02:00"]
)
def test_a_list_means_the_same_millisecond_as_a_listing(moment):
    """It is part of an object's version."""
    (row,) = of_csv(f"key,last_modified\na,{moment}\n")
    assert row.modified_ms == milliseconds("2024-05-31T12:00:00.123900Z") == 1_717_156_800_123


def test_without_a_header_two_or_three_columns_are_a_batch_operations_manifest():
    rows = of_csv("lake,a%20b+c%2Bd\nlake,%E6%97%A5\n")
    assert [(row.bucket, row.key) for row in rows] == [("lake", "a b c+d"), ("lake", "日")]
    (row,) = of_csv("lake,a%2Fb,v7\n")
    assert row.key == "a/b"


def test_without_a_header_one_column_is_keys_as_they_stand():
    assert [row.key for row in of_csv('a%2Fb\n"x,y"\n\nc+d\n')] == ["a%2Fb", "x,y", "c+d"]


def test_an_object_called_key_in_a_manifest_is_no_header():
    assert [row.key for row in of_csv("lake,key\nlake,other\n")] == ["key", "other"]


def test_the_encoding_can_be_said():
    assert [row.key for row in of_csv("lake,a%20b\n", encoded=False)] == ["a%20b"]
    assert [row.key for row in of_csv("key\na%20b\n", encoded=True)] == ["a b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("key,size\na,1\nb\n", "keys.csv, row 3: 1 fields where 2"),
        ("key,size\na,-1\n", "keys.csv, row 2: its size is no number of bytes"),
        (f"key,size\na,{'9' * 5000}\n", "keys.csv, row 2: its size is no number of bytes"),
        ("key,size\na,1.5\n", "row 2: its size is no number of bytes"),
        (
            "key,last_modified\na,yesterday\n",
            "row 2: its last_modified is no timestamp, such as 2024-05-31T12:00:00.000Z",
        ),
        ("key,is_latest\na,maybe\n", "row 2: its is_latest is no boolean"),
        ("key,size\n,1\n", "row 2: the key is empty"),
        ("a,b,c,d\n", "4 columns and no header"),
        ('key\n"a\n', "behind row 1: no CSV"),
        ('key\n"a"b\n', "behind row 1: no CSV"),
        (b"key\n\xff\n", "no UTF-8"),
        ("lake,%FF\n", 'row 1: the URL-encoded key is no UTF-8.*keys_encoding = "none"'),
        (f"key\n{'x' * 1025}\n", "row 2: longer than a key"),
    ],
)
def test_rows_without_sense_are_refused_with_their_place(content, said):
    with pytest.raises(KeyListError, match=said):
        of_csv(content)


def test_an_empty_csv_names_nothing():
    assert of_csv("") == of_csv("\n\n") == of_csv("key\n") == []


@given(st.lists(keys, min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans())
@example(ODD + WITH_LINE_ENDS, "\r\n", True)
@example(["key", "lake"], "\n", False)
def test_any_keys_come_back_from_csv(some, end, encoded):
    """Quoted by hand, so that the oracle shares nothing with the reader."""
    form = percent if encoded else str
    with_header = "".join(quoted(field) + end for field in ["key", *map(form, some)])
    assert [row.key for row in of_csv(with_header, encoded=encoded)] == some
    batch = "".join(f"{quoted('lake')},{quoted(percent(key))}{end}" for key in some)
    assert [row.key for row in of_csv(batch)] == some


# ---- gzip


@pytest.mark.parametrize("name", ["keys.txt.gz", "keys.csv.GZ", "KEYS.Gz"])
def test_a_packed_list_is_unpacked_by_its_name(name):
    content = b"a\nb\n"
    with unpacked(io.BytesIO(gzip.compress(content)), name) as file:
        assert file.read() == content
    with unpacked(io.BytesIO(content), "keys.txt") as file:
        assert file.read() == content


def test_a_packed_list_cut_anywhere_is_an_error_not_a_shorter_list():
    packed = gzip.compress("".join(f"object-{n * n}\n" for n in range(200)).encode())
    for cut in range(1, len(packed)):
        with (
            pytest.raises(KeyListError, match=r"keys\.gz: its gzip data are broken or cut short"),
            unpacked(io.BytesIO(packed[:cut]), "keys.gz") as file,
        ):
            list(text_rows(file, "keys.gz"))


class Endless(io.RawIOBase):
    """A line, or a quoted field of lines, without an end."""

    def __init__(self, begin, more):
        self.begin, self.more, self.given = begin, more, 0

    def readable(self):
        return True

    def readinto(self, buffer):
        data, self.begin = (self.begin or self.more)[: len(buffer)], b""
        buffer[: len(data)] = data
        self.given += len(data)
        assert self.given < 1_000_000, "it goes on reading"
        return len(data)


@pytest.mark.parametrize(
    ("begin", "more"), [(b"key\na\n", b"x" * 1000), (b'key\n"', b"x\n" * 500), (b"key\n", b"a," * 500)]
)
def test_a_row_of_csv_without_an_end_is_refused(begin, more):
    with pytest.raises(KeyListError, match=r"keys\.csv, row \d: longer than 16384 characters"):
        list(csv_rows(io.BufferedReader(Endless(begin, more)), "keys.csv", bucket="lake"))
    assert len(list(csv_rows(io.BytesIO(b"key\n" + b"a\n\n" * 20_000), "keys.csv", bucket="lake"))) == 20_000
