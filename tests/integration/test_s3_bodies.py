"""What S3-compatible stores and what lies before them do to bodies: unpack, compress, announce no length, mix versions."""

import base64
import gzip
import http.server
import threading
import zlib

import pytest

from framework.errors import (
    CorruptObjectError,
    FatalError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from framework.model.objects import NativeObject
from framework.storage.prefetch import Prefetcher
from framework.storage.resuming_stream import StoreInput
from framework.storage.retry import RetryPolicy
from s3_source.client import S3Store
from s3_source.config import S3Config
from tests.support.reading import drain

LINES = b"".join(b'{"n":%d}\n' % number for number in range(2000))
PACKED = gzip.compress(LINES, mtime=0)
ETAG = "0123456789abcdef0123456789abcdef"


class Server:
    """One object, answered as `answer` says: request headers -> (status, headers, body, how it is framed)."""

    def __init__(self, answer):
        outer = self
        self.seen = []
        self.connections = self.length = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                outer.connections += 1
                super().setup()

            def do_GET(self):
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.seen.append(headers)
                status, more, body, framing = answer(headers, len(outer.seen))
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                if framing.startswith("chunked"):
                    self.send_header("Transfer-Encoding", "chunked")
                    if framing == "chunked, with a length":
                        self.send_header("Content-Length", str(outer.length))
                    self.end_headers()
                    for start in range(0, len(body), 1000):
                        part = body[start : start + 1000]
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    if framing == "chunked, cut":
                        self.close_connection = True
                    else:
                        self.wfile.write(b"0\r\n\r\n")
                elif framing == "broken":
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body[: len(body) // 3])
                    self.close_connection = True
                elif framing == "until closed":
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(body)
                    self.close_connection = True
                else:
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                """A client that went away is no news here."""

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def store(self):
        port = self.server.server_address[1]
        return S3Store(
            S3Config(
                bucket="bkt",
                endpoint=f"http://127.0.0.1:{port}",
                region="us-east-1",
                access_key_id="test-access",
                secret_access_key="test-secret",
            )
        )

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def serving():
    """Starts a server; gives it and a store that reads from it."""
    made = []

    def start(answer):
        server = Server(answer)
        store = server.store()
        made.extend((store, server))
        return server, store

    yield start
    for one in made:
        one.close()


def listed(size, etag=ETAG, modified_ms=1_700_000_000_000):
    return NativeObject(
        scheme="s3", bucket="bkt", key="k", size=size, version=f"{etag}@{modified_ms}", modified_ms=modified_ms
    )


def nothing_is_under_way(store):
    for _ in range(200):
        if not store._http.connections:
            return True
        threading.Event().wait(0.05)
    return False


def read_all(store, native, size=700):
    return drain(StoreInput(store, native, RetryPolicy().without_waiting()).open(), size)


WARM = pytest.mark.parametrize("reads", [1, 3], ids=["through-boto3", "short-way"])


@WARM
@pytest.mark.parametrize("framing", ["chunked", "until closed"])
@pytest.mark.parametrize("etag", [ETAG, f"W/{ETAG}"])
def test_a_body_that_goes_on_behind_its_listed_length_is_never_cut(serving, reads, framing, etag):
    def unpacking(_headers, _number):
        return 200, {"ETag": etag}, LINES, framing

    _, store = serving(unpacking)
    for _ in range(reads):
        with pytest.raises(ObjectError, match=r"s3://bkt/k.*Content-Encoding: gzip") as caught:
            read_all(store, listed(len(PACKED)))
        assert not isinstance(caught.value, ObjectChangedError)


@WARM
@pytest.mark.parametrize("etag", [ETAG, f"W/{ETAG}"])
def test_an_object_that_comes_unpacked_to_less_bytes_is_that_objects_error(serving, reads, etag):
    """Packed bytes that are longer than the content, from what answers every request with the whole."""
    less = b'{"n":1}\n'
    packed = gzip.compress(less, mtime=0)

    _, store = serving(lambda *_: (200, {"ETag": etag}, less, "chunked"))
    for _ in range(reads):
        with pytest.raises(ObjectError, match=r"s3://bkt/k.*Content-Encoding: gzip") as caught:
            read_all(store, listed(len(packed)), size=3)
        assert not isinstance(caught.value, ObjectChangedError)


@pytest.mark.parametrize("etag", [ETAG, ""], ids=["listed-etag", "no-listed-etag"])
@pytest.mark.parametrize("size", [len(PACKED), len(LINES)])
def test_a_body_without_version_and_length_is_none_of_the_object(serving, etag, size):
    _, store = serving(lambda *_: (200, {}, LINES, "chunked"))
    with pytest.raises(
        StoreUnavailableError, match=rf"s3://bkt/k: .* no version .* no bytes, listed are {size}: .*s3\.proxy"
    ):
        read_all(store, listed(size, etag))


@WARM
def test_a_weak_etag_without_a_length_is_another_content_even_of_the_same_size(serving, reads):
    _, store = serving(lambda *_: (200, {"ETag": f"W/{ETAG}"}, LINES, "chunked"))
    for _ in range(reads):
        with pytest.raises(ObjectError, match=rf"ETag W/{ETAG}.*Content-Encoding: gzip"):
            read_all(store, listed(len(LINES)))


@WARM
def test_a_store_that_unpacks_for_who_does_not_accept_gzip_gives_what_is_stored(serving, reads):
    # Cloudflare R2, and Google's S3 interface
    def answer(headers, _number):
        if "gzip" in headers.get("accept-encoding", ""):
            return 200, {"ETag": ETAG, "Content-Encoding": "gzip"}, PACKED, "length"
        return 200, {"ETag": f"W/{ETAG}"}, LINES, "chunked"

    server, store = serving(answer)
    for _ in range(reads):
        assert read_all(store, listed(len(PACKED))) == PACKED
    assert len(server.seen) == reads + 1  # how it answers is found out once
    assert all("accept-encoding" not in headers["authorization"] for headers in server.seen)  # proxies change it


@WARM
def test_a_store_that_unpacks_without_a_sign_of_it_gives_what_is_stored(serving, reads):
    def answer(headers, _number):
        if "gzip" in headers.get("accept-encoding", ""):
            return 200, {"ETag": ETAG, "Content-Encoding": "gzip"}, PACKED, "length"
        return 200, {"ETag": ETAG}, LINES, "chunked"

    server, store = serving(answer)
    for _ in range(reads):
        assert read_all(store, listed(len(PACKED))) == PACKED
    assert len(server.seen) == reads + 1


@WARM
def test_what_compresses_on_the_way_is_not_taken_for_the_object(serving, reads):
    def answer(headers, _number):
        if "gzip" in headers.get("accept-encoding", ""):
            return 200, {"ETag": f"W/{ETAG}", "Content-Encoding": "gzip"}, PACKED, "chunked"
        return 200, {"ETag": ETAG}, LINES, "chunked"

    _, store = serving(answer)
    for _ in range(reads):
        assert read_all(store, listed(len(LINES))) == LINES


@pytest.mark.parametrize("code", ["SlowDown", "ServiceUnavailable"])
def test_a_refusal_while_the_encoding_is_found_out_decides_nothing(serving, code):
    def unpacks(headers, number):
        if number == 2:
            return 503, {}, f"<Error><Code>{code}</Code></Error>".encode(), "whole"
        if headers.get("accept-encoding") == "gzip":
            return 200, {"ETag": ETAG, "Content-Encoding": "gzip"}, PACKED, "whole"
        return 200, {"ETag": f"W/{ETAG}"}, LINES, "chunked"

    _, store = serving(unpacks)
    for _ in range(2):
        assert read_all(store, listed(len(PACKED))) == PACKED


def fetched_ahead(store, *natives):
    """What a reader gets of objects that are all requested before the first answer is read."""
    ahead = Prefetcher(objects=len(natives), max_bytes=1 << 20)
    sources = [StoreInput(store, native, RetryPolicy().without_waiting()) for native in natives]
    try:
        return [drain(one.open(), 700) for one in [ahead.fetch(source, 0, None) for source in sources]]
    finally:
        ahead.close()


def test_objects_requested_ahead_are_asked_for_again_too_when_they_come_unpacked(serving):
    def answer(headers, _number):
        if "gzip" in headers.get("accept-encoding", ""):
            return 200, {"ETag": ETAG, "Content-Encoding": "gzip"}, PACKED, "length"
        return 200, {"ETag": f"W/{ETAG}"}, LINES, "chunked"

    server, store = serving(answer)
    assert fetched_ahead(store, *[listed(len(PACKED))] * 6) == [PACKED] * 6
    assert len(server.seen) <= 12


@WARM
@pytest.mark.parametrize(
    "sign", [{"ETag": f"W/{ETAG}"}, {"ETag": ETAG, "x-goog-stored-content-encoding": "gzip"}], ids=["weak", "stored"]
)
def test_an_object_without_a_length_decides_nothing_for_those_that_come_unpacked(serving, reads, sign):
    plain = "plain"

    def answer(headers, _number):
        if headers.get("if-match") == f'"{plain}"':
            return 200, {"ETag": plain}, LINES, "chunked"
        if "gzip" in headers.get("accept-encoding", ""):
            return 200, {"ETag": ETAG, "Content-Encoding": "gzip"}, PACKED, "length"
        return 200, sign, LINES, "chunked"

    _, store = serving(answer)
    for _ in range(reads):
        assert read_all(store, listed(len(LINES), plain)) == LINES
        assert read_all(store, listed(len(PACKED))) == PACKED
        assert read_all(store, listed(len(LINES), plain)) == LINES


@pytest.mark.parametrize("names", [("ETag",), ("ETag", "Last-Modified"), ("Last-Modified",)], ids="+".join)
def test_a_store_that_ignores_conditions_does_not_mix_versions_that_were_listed_without_an_etag(serving, names):
    forms = [
        {"ETag": '"old"', "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"},
        {"ETag": '"new"', "Last-Modified": "Tue, 14 Nov 2023 22:13:21 GMT"},
    ]

    def answer(headers, number):
        first = number == 1
        start = int(headers["range"][6:].split("-")[0]) if "range" in headers else 0
        said = {name: forms[not first][name] for name in names}
        if not first:
            said["Content-Range"] = f"bytes {start}-{len(LINES) - 1}/{len(LINES)}"
        return (200, said, LINES, "broken") if first else (206, said, LINES[start:], "length")

    _, store = serving(answer)
    with pytest.raises(ObjectChangedError):
        read_all(store, listed(len(LINES), ""))


STALE = ["RequestTimeTooSkewed", "RequestExpired", "ExpiredToken"]


@pytest.mark.parametrize("code", STALE)
def test_a_request_made_ahead_that_waited_too_long_is_signed_again(serving, code):
    def answer(_headers, number):
        if number == 1:
            return 403, {}, f"<Error><Code>{code}</Code></Error>".encode(), "whole"
        return 200, {"ETag": ETAG}, LINES, "whole"

    server, store = serving(answer)
    ahead = Prefetcher(objects=4, max_bytes=1 << 20)
    fetched = ahead.fetch(StoreInput(store, listed(len(LINES)), RetryPolicy().without_waiting()), 0, None)
    assert drain(fetched.open(), 700) == LINES
    assert len(server.seen) == 2
    ahead.close()


def test_keys_that_expired_are_an_error_after_two_tries(serving):
    server, store = serving(lambda *_: (403, {}, b"<Error><Code>ExpiredToken</Code></Error>", "whole"))
    ahead = Prefetcher(objects=4, max_bytes=1 << 20)
    fetched = ahead.fetch(StoreInput(store, listed(len(LINES)), RetryPolicy().without_waiting()), 0, None)
    with pytest.raises(FatalError, match="s3://bkt/k: the temporary keys"):
        fetched.open()
    assert len(server.seen) == 2
    ahead.close()


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "RequestExpired"])
def test_a_clock_that_is_set_after_some_refusals_loses_nothing(serving, code):
    def answer(_headers, number):
        if number <= 3:
            return 403, {}, f"<Error><Code>{code}</Code></Error>".encode(), "whole"
        return 200, {"ETag": ETAG}, LINES, "whole"

    server, store = serving(answer)
    ahead = Prefetcher(objects=4, max_bytes=1 << 20)
    fetched = ahead.fetch(StoreInput(store, listed(len(LINES)), RetryPolicy().without_waiting()), 0, None)
    assert drain(fetched.open(), 700) == LINES
    assert len(server.seen) == 4
    ahead.close()


def test_an_encoding_nobody_asked_for_is_another_content(serving):
    _, store = serving(lambda *_: (200, {"ETag": ETAG, "Content-Encoding": "br"}, PACKED, "chunked"))
    with pytest.raises(ObjectError, match="encoding br"):
        read_all(store, listed(len(LINES)))


def test_an_encoding_that_is_stored_is_left_alone(serving):
    _, store = serving(lambda *_: (200, {"ETag": ETAG, "Content-Encoding": "gzip"}, PACKED, "length"))
    assert read_all(store, listed(len(PACKED))) == PACKED


def test_the_beginning_of_a_body_of_unknown_length_is_not_taken(serving):
    _, store = serving(lambda *_: (200, {"ETag": ETAG}, LINES, "chunked"))
    with pytest.raises(ObjectError, match="unknown length"):
        store.open(listed(len(PACKED)), 0, 100)


@pytest.mark.parametrize("size", [len(LINES), 8_000_000])
def test_the_rest_of_an_object_whose_beginning_was_asked_for_is_not_waited_for(serving, size):
    """A proxy that ignores ranges sends it all: more than a window holds would stay in memory, with its connection."""
    _, store = serving(lambda *_: (200, {"ETag": ETAG}, b"x" * size, "length"))
    for _ in range(3):
        stream = store.open(listed(size), 0, 100)
        assert drain(stream, 700) == b"x" * 100
        stream.close()
    assert nothing_is_under_way(store)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("body", [LINES, LINES * 100], ids=["short", "long"])
def test_a_length_beside_chunks_is_not_believed(serving, ahead, body):
    """A proxy that unpacks may leave the length of the packed object; the chunks decide, and go on behind it."""
    server, store = serving(lambda *_: (200, {"ETag": ETAG}, body, "chunked, with a length"))
    server.length = 1000
    prefetcher = Prefetcher(objects=1, max_bytes=1 << 20)
    source = StoreInput(store, listed(1000), RetryPolicy().without_waiting())
    taken = prefetcher.fetch(source, 0) if ahead else source
    with pytest.raises(ObjectError, match="more than its 1000 bytes came"):
        drain(taken.open(), 700)
    prefetcher.close()
    assert nothing_is_under_way(store)
    server.length = len(body)
    assert drain(StoreInput(store, listed(len(body)), RetryPolicy().without_waiting()).open(), 700_000) == body


@pytest.mark.parametrize("end", [1000, 3000])
def test_a_body_that_is_cut_where_the_listed_length_ends_is_not_known_to_end_there(serving, end):
    def answer(headers, number):
        if number <= 2:  # without a length it is asked for again the other way
            return 200, {"ETag": ETAG}, LINES[:end], "chunked, cut"
        return 200, {"ETag": ETAG}, LINES, "chunked"

    _, store = serving(answer)
    with pytest.raises(ObjectError, match=f"more than its {end} bytes came"):
        read_all(store, listed(end), size=5000)
    _, store = serving(lambda *_: (200, {"ETag": ETAG}, LINES[:end], "chunked, cut"))
    with pytest.raises(StoreUnavailableError, match=rf"s3://bkt/k: .* before the body did, .* after {end} bytes"):
        read_all(store, listed(end), size=5000)


def test_chunked_answers_keep_their_connection(serving):
    server, store = serving(lambda *_: (200, {"ETag": ETAG}, LINES, "chunked"))
    for _ in range(20):
        assert read_all(store, listed(len(LINES))) == LINES
    assert server.connections <= 4  # the first ones find out how the store answers


@pytest.mark.parametrize("tells", [("etag",), ("last-modified",), ("etag", "last-modified")], ids="+".join)
def test_two_versions_are_not_mixed_when_the_listing_tells_no_etag(serving, tells):
    old, new = b"a" * 9000, b"b" * 9000
    heads = {
        1: {"etag": '"old"', "last-modified": "Tue, 14 Nov 2023 22:13:20 GMT"},
        2: {"etag": '"new"', "last-modified": "Tue, 14 Nov 2023 22:13:20 GMT"},
    }

    def answer(headers, number):
        version = 1 if number == 1 else 2
        head = {name: value for name, value in heads[version].items() if name in tells}
        if version == 1:
            return 200, head, old, "broken"
        if headers.get("if-match", '"new"') != '"new"' or "if-unmodified-since" in headers:
            return 412, head, b"<Error><Code>PreconditionFailed</Code></Error>", "length"
        start = int(headers["range"].removeprefix("bytes=").partition("-")[0])
        head["Content-Range"] = f"bytes {start}-8999/9000"
        return 206, head, new[start:], "length"

    _, store = serving(answer)
    with pytest.raises(ObjectChangedError) as caught:
        read_all(store, listed(9000, etag=""))
    assert caught.value.in_place  # a listing may show the new content in the same version


@pytest.mark.parametrize("conditions", [True, False], ids=["412", "ignored"])
def test_what_replaced_an_object_without_a_listed_etag_can_be_read(serving, conditions):
    def answer(headers, number):
        if number == 1:
            return 200, {"etag": '"old"'}, b"a" * 9000, "broken"
        if conditions and headers.get("if-match", '"new"') != '"new"':
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>", "length"
        if "range" not in headers:
            return 200, {"etag": '"new"'}, b"b" * 9000, "length"
        start = int(headers["range"].removeprefix("bytes=").partition("-")[0])
        return 206, {"etag": '"new"', "Content-Range": f"bytes {start}-8999/9000"}, b"b" * (9000 - start), "length"

    _, store = serving(answer)
    with pytest.raises(ObjectChangedError) as caught:
        read_all(store, listed(9000, etag=""))
    assert caught.value.in_place
    assert read_all(store, listed(9000, etag="")) == b"b" * 9000


@pytest.mark.parametrize("ignored", [1, 2, 99])
def test_a_read_is_resumed_although_some_answers_are_the_whole_object(serving, ignored):
    def answer(headers, number):
        if number == 1:
            return 200, {"ETag": ETAG}, LINES, "broken"
        if number <= 1 + ignored:
            return 200, {"ETag": ETAG}, LINES, "length"
        start = int(headers["range"].removeprefix("bytes=").partition("-")[0])
        more = {"ETag": ETAG, "Content-Range": f"bytes {start}-{len(LINES) - 1}/{len(LINES)}"}
        return 206, more, LINES[start:], "length"

    server, store = serving(answer)
    if ignored < 99:
        assert read_all(store, listed(len(LINES))) == LINES
        assert len(server.seen) == 2 + ignored
        return
    with pytest.raises(StoreUnavailableError, match=r"the whole object; when that .* must answer ranges \(gave up"):
        read_all(store, listed(len(LINES)))


def test_a_listed_object_that_was_overwritten_is_not_changed_in_place(serving):
    _, store = serving(lambda *_: (412, {}, b"<Error><Code>PreconditionFailed</Code></Error>", "length"))
    for native in listed(9000), listed(9000, etag=""):
        with pytest.raises(ObjectChangedError) as caught:
            read_all(store, native)
        assert not caught.value.in_place


def test_without_an_etag_the_time_is_compared_with_the_listed_one(serving):
    _, store = serving(lambda *_: (200, {"Last-Modified": "Tue, 14 Nov 2023 22:13:25 GMT"}, LINES, "length"))
    with pytest.raises(ObjectChangedError, match="last modified"):
        read_all(store, listed(len(LINES), etag=""))


def test_a_proxy_that_takes_etags_and_conditions_off_does_not_mix_versions(serving):
    def answer(headers, number):
        if number == 1:
            return 200, {"ETag": f'"{ETAG}"'}, b"a" * 9000, "broken"
        start = int(headers["range"].removeprefix("bytes=").partition("-")[0])
        later = {"Last-Modified": "Tue, 14 Nov 2023 22:13:25 GMT", "Content-Range": f"bytes {start}-8999/9000"}
        return 206, later, b"b" * (9000 - start), "length"

    _, store = serving(answer)
    with pytest.raises(ObjectChangedError, match="last modified"):
        read_all(store, listed(9000))


def page(items, root="ListBucketResult", prefix=""):
    declared = ' xmlns:ns2="urn:x"' if prefix else ""
    return (
        f"<{prefix}{root}{declared}><{prefix}IsTruncated>false</{prefix}IsTruncated>{items}</{prefix}{root}>"
    ).encode()


def test_a_store_that_lists_no_etag_is_named_once(serving, caplog):
    bare = item("k2").replace(f"<ETag>{ETAG}</ETag>", "")
    _, store = serving(lambda _, number: (200, {}, page(item("k") + (bare if number > 1 else "")), "length"))
    store.list_page()
    assert not caplog.records
    store.list_page()
    store.list_page()
    (record,) = caplog.records
    assert record.getMessage().startswith("s3://bkt/k2: listed without an ETag")
    assert "min_age" in record.getMessage()


def item(key):
    return (
        f"<Contents><Key>{key}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>{ETAG}</ETag><Size>5</Size>"
        f"</Contents>"
    )


def test_a_listing_in_another_namespace_is_read(serving):
    _, store = serving(lambda *_: (200, {}, page(item("k"), prefix="ns2:"), "length"))
    assert [native.key for native in store.list_page().objects] == ["k"]


def test_a_key_that_a_listing_cannot_show_is_a_failed_object_and_not_a_deleted_one(serving):
    # versitygw writes U+FFFD for what XML cannot hold, and ignores encoding-type=url
    def answer(headers, number):
        if number == 2:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>", "length"
        return 200, {}, page(item("a\ufffdb") if number == 1 else ""), "length"

    _, store = serving(answer)
    (native,) = store.list_page().objects
    with pytest.raises(ObjectError, match="Rename the object") as caught:
        store.open(native)
    assert not isinstance(caught.value, ObjectNotFoundError)
    assert caught.value.location == "s3://bkt/a\ufffdb"


CRC32 = base64.b64encode(zlib.crc32(LINES).to_bytes(4, "big")).decode()


@WARM
def test_the_checksum_of_the_whole_object_is_asked_for_and_compared(serving, reads):
    server, store = serving(lambda *_: (200, {"ETag": ETAG, "x-amz-checksum-crc32": CRC32}, LINES, "length"))
    for _ in range(reads):
        assert read_all(store, listed(len(LINES))) == LINES
    assert {one["x-amz-checksum-mode"] for one in server.seen} == {"ENABLED"}
    server, store = serving(
        lambda *_: (200, {"ETag": ETAG, "x-amz-checksum-crc32": CRC32}, LINES[:-2] + b"!\n", "length")
    )
    for _ in range(reads):
        with pytest.raises(CorruptObjectError, match=f"the store says {zlib.crc32(LINES):08x}"):
            read_all(store, listed(len(LINES)))


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-crc32": "AAAAAA==-3"},
        {"x-amz-checksum-sha256": "AAAA"},
    ],
)
def test_a_checksum_of_parts_or_of_another_kind_is_left_alone(serving, headers):
    _, store = serving(lambda *_: (200, {"ETag": ETAG, **headers}, LINES, "length"))
    assert read_all(store, listed(len(LINES))) == LINES


def test_a_part_of_an_object_is_read_without_its_checksum(serving):
    def answer(headers, _number):
        assert "x-amz-checksum-mode" not in headers
        more = {"ETag": ETAG, "Content-Range": f"bytes 5-9/{len(LINES)}", "x-amz-checksum-crc32": "AAAAAA=="}
        return 206, more, LINES[5:10], "length"

    _, store = serving(answer)
    for _ in range(3):
        assert drain(StoreInput(store, listed(len(LINES))).open(5, 10)) == LINES[5:10]
