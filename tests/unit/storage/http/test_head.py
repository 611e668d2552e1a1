"""The head of an answer: headers are found by name as if all lines had been split."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.model.objects import NativeObject
from framework.storage.http.head import HttpHead, pattern_of
from gcs_source.client import GcsStore
from gcs_source.config import GcsConfig
from s3_source.client import S3Store
from s3_source.config import S3Config

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
    for names in (["etag"], ["x-amz-id", "x-amz-checksum-crc32", "missing"], ["x", "etag", "d.te"]):
        assert head.named(pattern_of(*names)) == {name: expected[name] for name in names if name in expected}


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
    assert (head.status, head.headers, head.named(pattern_of("etag")), head.is_whole) == (
        200, {"etag": "e"}, {"etag": "e"}, True,
    )  # fmt: skip
    assert not HttpHead(lines[:2]).is_whole


def test_a_header_that_is_there_twice_with_one_value_has_that_value():
    lines = [b'ETag: "e"\r\n', b"x-goog-hash: crc32c=a\r\n", b'etag: "e" \r\n', b"X-Goog-Hash: md5=b\r\n"]
    head = HttpHead([b"HTTP/1.1 200 OK\r\n", *lines, b"\r\n"])
    assert head.headers == head.named(pattern_of("etag", "x-goog-hash")) == {
        "etag": '"e"', "x-goog-hash": "crc32c=a, md5=b",
    }  # fmt: skip


class AskedFor(dict):
    """Headers that record the names that are asked for."""

    def __init__(self, headers):
        super().__init__(headers)
        self.names = set()

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name):
        self.names.add(name)
        return super().__contains__(name)


@pytest.mark.parametrize("checksum", [{}, {"x-goog-hash": "md5=YQ=="}, {"x-amz-checksum-sha1": "YQ=="}])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_store_looks_only_at_headers_that_it_names(scheme, checksum):
    native = NativeObject(bucket="b", key="k", size=1, version="17" if scheme == "gs" else "17@0")
    config = S3Config(bucket="b", region="r", access_key_id="a", secret_access_key="s")
    store = S3Store(config) if scheme == "s3" else GcsStore(GcsConfig(bucket="b", anonymous=True))
    headers = AskedFor({"content-length": "1", "etag": '"17"', "x-goog-generation": "17"} | checksum)
    with closing(store):
        assert store.is_listed(native, headers, b"a")
    lines = [b"HTTP/1.1 200 OK\r\n", *(f"{name}: 1\r\n".encode() for name in headers.names)]
    assert HttpHead(lines).named(store.judged_headers).keys() == headers.names
    assert len(headers.names) > 2


@pytest.mark.parametrize("status", [b"9" * 5000, b"\xb2\xb2\xb2", b"20", b""])
def test_a_status_that_is_none_is_zero_and_no_error_in_the_thread_of_all_requests(status):
    assert HttpHead([b"HTTP/1.1 " + status + b" OK\r\n"]).status == 0


def test_without_lines_there_is_no_status_and_no_header():
    head = HttpHead([])
    assert (head.status, head.headers, head.named(pattern_of("etag"))) == (0, {}, {})
