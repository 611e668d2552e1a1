"""The head of an answer: headers are found by name as if all lines had been split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.storage.http.head import HttpHead

NAMES = ["etag", "ETag", "x-amz-checksum-crc32", "X-Amz-ID", "x-amz-id", "date", "", " etag", "etag ", "x", "\xc0-\xb5"]
VALUES = ["", " 1", "  two words \t", '"e:f"', "a, b", "\xe4\xdf\xff", "etag: 7", "HTTP/1.1 404 no"]
LINES = st.lists(
    st.one_of(
        st.builds("{}:{}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)),
        st.sampled_from(["no colon", " folded", "a\rb: c"]),
    ),
    max_size=8,
)
ENDS = st.sampled_from(["\r\n", "\n"])


def split_lines(head: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in head.split("\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            name, value = name.lower(), value.strip()
            found[name] = f"{found[name]}, {value}" if found.get(name, value) != value else value
    return found


@given(lines=LINES, end=ENDS, ended=st.booleans())
def test_headers_are_those_of_all_lines_split(lines, end, ended):
    raw = [f"{line}{end}".encode("latin-1") for line in ["HTTP/1.1 200 OK", *lines]]
    if not ended:
        raw[-1] = raw[-1].rstrip()
    head, expected = HttpHead(raw), split_lines(b"".join(raw).decode("latin-1"))
    assert (head.status, head.headers) == (200, expected)


def test_the_last_head_counts():
    lines = [b"HTTP/1.1 200 Connected\r\n", b"ETag: p\r\n", b"\r\n", b"HTTP/1.1 100 Go on\r\n", b"\r\n"]
    head = HttpHead([*lines, b"HTTP/1.1 404 Not Found\r\n", b"ETag: e\r\n", b"etag: f\r\n", b"\r\n"])
    assert (head.status, head.headers) == (404, {"etag": "e, f"})


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("trailers", [[], [b"ETag: t", b"x-more: t"], [b"ETag: t", b""]])
def test_trailers_behind_the_body_are_no_headers(end, trailers):
    """They come in the same way: whether they have come when the head is read is chance."""
    lines = [line + end for line in [b"HTTP/1.1 200 OK", b"ETag: e", b"", *trailers]]
    head = HttpHead(lines)
    assert (head.status, head.headers, head.is_whole) == (200, {"etag": "e"}, True)
    assert not HttpHead(lines[:2]).is_whole


def test_a_header_that_is_there_twice_with_one_value_has_that_value():
    lines = [b'ETag: "e"\r\n', b"x-goog-hash: crc32c=a\r\n", b'etag: "e" \r\n', b"X-Goog-Hash: md5=b\r\n"]
    head = HttpHead([b"HTTP/1.1 200 OK\r\n", *lines, b"\r\n"])
    assert head.headers == {"etag": '"e"', "x-goog-hash": "crc32c=a, md5=b"}


@pytest.mark.parametrize("status", [b"9" * 5000, b"\xb2\xb2\xb2", b"20", b""])
def test_a_status_that_is_none_is_zero_and_no_error_in_the_thread_of_all_requests(status):
    assert HttpHead([b"HTTP/1.1 " + status + b" OK\r\n"]).status == 0


def test_without_lines_there_is_no_status_and_no_header():
    head = HttpHead([])
    assert (head.status, head.headers) == (0, {})
