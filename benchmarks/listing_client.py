"""What a listed key costs the whole client: socket, signature, parser, planner and iterator, for both sources.

    python benchmarks/listing_client.py                      2 million keys, pages of 1,000: keys per CPU second
    python benchmarks/listing_client.py --keys 200000        a short run
    python benchmarks/listing_client.py --calls 1 4 64       calls at once (`list_concurrency`); else 1 and the default

The server is a process of its own, whose CPU is not counted. It answers as AWS and Google do: S3's XML with the elements of
objects written since checksums are the default, Google's JSON indented, and packed with gzip where the client takes that.
The client is what a source makes: its task's iterator over `S3Store` or `GcsStore`. Counted is the CPU of its process, all
threads, from before the store is made until after it is closed; the libraries are loaded before. Not in it: TLS, and what is
done with an object once it is listed. Seen beside other work: S3 134,000 with one call at once and 117,000 with the default, GCS
184,000 and 149,000, with a token 174,000 and 163,000.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import ClassVar
from urllib.parse import parse_qsl, quote, urlsplit

import attrs
import boto3  # noqa: F401 - loaded before the clock starts
import google.cloud.storage  # noqa: F401
from google.oauth2.credentials import Credentials
from typing_extensions import override

from framework.config.format_registry import make_transformer
from framework.config.loading import structure
from framework.iterator.store_iterator import StoreRecordIterator
from framework.store import ObjectStore
from gcs_source.client import GcsStore
from gcs_source.task import GcsSourceConfig
from s3_source.client import S3Store
from s3_source.task import S3SourceConfig

BUCKET, PREFIX, DAYS = "lake", "events/", 28
FIRST_BYTES = 1000


@attrs.frozen
class Keys:
    """So many keys in order, none of them kept: each is made from its number."""

    count: int

    def key(self, number: int) -> str:
        """The key of that number, 0, 1, 2 ..."""
        day, part = divmod(number, -(-self.count // DAYS))
        return f"{PREFIX}2026/01/{day + 1:02d}/part-{part:06d}.jsonl.gz"

    def page(self, prefix: str, start: int, most: int, end: int) -> tuple[range, bool]:
        """The numbers of a page that begins at `start` or behind, and whether more follow."""
        numbers = range(self.count)
        first = max(start, bisect_left(numbers, prefix, key=self.key))
        end = min(end, bisect_left(numbers, f"{prefix}\U0010ffff", key=self.key))
        last = max(first, min(first + most, end))
        return range(first, last), last < end

    def behind(self, key: str) -> int:
        """The number of the first key behind that one."""
        return bisect_right(range(self.count), key, key=self.key)

    def from_(self, key: str) -> int:
        """The number of that key, or of the first one behind it."""
        return bisect_left(range(self.count), key, key=self.key)

    def s3(self, asked: dict[str, str]) -> bytes:
        """ListObjectsV2: the page behind `start-after`, or behind the token."""
        prefix, most = asked.pop("prefix", ""), int(asked.pop("max-keys", "1000"))
        token, after = asked.pop("continuation-token", None), asked.pop("start-after", "")
        if asked != {"list-type": "2", "encoding-type": "url"}:
            raise ValueError(f"asked for more: {sorted(asked)}")
        start = int(token) if token is not None else self.behind(after) if after else 0
        numbers, more = self.page(prefix, start, most, self.count)
        items = "".join(
            f"<Contents><Key>{self.key(number)}</Key>"
            f"<LastModified>2026-01-{number % 28 + 1:02d}T{number % 24:02d}:{number % 60:02d}:05.000Z</LastModified>"
            f"<ETag>&quot;{number:032x}&quot;</ETag><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>"
            f"<ChecksumType>FULL_OBJECT</ChecksumType><Size>{FIRST_BYTES + number}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for number in numbers
        )
        token = f"<NextContinuationToken>{numbers.stop}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{quote(prefix)}</Prefix>{token}<KeyCount>{len(numbers)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{items}</ListBucketResult>"
        ).encode()

    def gcs(self, asked: dict[str, str]) -> bytes:
        """Objects: list. `startOffset` is inclusive, `endOffset` exclusive, an item shows the fields that are asked for."""
        prefix, most = asked.pop("prefix", ""), int(asked.pop("maxResults", "1000"))
        token, begin, end = asked.pop("pageToken", None), asked.pop("startOffset", ""), asked.pop("endOffset", None)
        indent = None if asked.pop("prettyPrint", "true") == "false" else 2
        if asked != {"fields": "kind,nextPageToken,items(name,size,generation,timeCreated,storageClass)"}:
            raise ValueError(f"asked for other fields, or for more: {asked}")
        start = int(token) if token is not None else self.from_(begin)
        numbers, more = self.page(prefix, start, most, self.count if end is None else self.from_(end))
        items = [
            {
                "name": self.key(number),
                "generation": str(1_767_225_600_000_000 + number),
                "storageClass": "STANDARD",
                "size": str(FIRST_BYTES + number),
                "timeCreated": f"2026-01-{number % 28 + 1:02d}T{number % 24:02d}:{number % 60:02d}:05.123Z",
            }
            for number in numbers
        ]
        answer = {"kind": "storage#objects"} | ({"nextPageToken": str(numbers.stop)} if more else {})
        return json.dumps({**answer, "items": items} if items else answer, indent=indent).encode()

    def answer(self, target: str) -> bytes:
        """The body for a path with its query.

        Raises:
            ValueError: it asks for something that a listing of ours does not ask for.
        """
        url = urlsplit(target)
        asked = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.path == f"/{BUCKET}":
            return self.s3(asked)
        if url.path == f"/storage/v1/b/{BUCKET}/o":
            return self.gcs(asked)
        raise ValueError(f"no listing: {target}")


def make_server(count: int) -> ThreadingHTTPServer:
    """A server for both listings on a free port of its own."""
    keys = Keys(count)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            try:
                status, body = 200, keys.answer(self.path)
            except ValueError as error:
                status, body = 400, str(error).encode()
            self.send_response(status)
            if "gzip" in self.headers.get("Accept-Encoding", "") and body[:1] == b"{":
                pack = zlib.compressobj(1, wbits=31)
                body = pack.compress(body) + pack.flush()
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, *_: object) -> None:
            """Not a word."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    return Server(("127.0.0.1", 0), Handler)


def serve(count: int, told: Connection) -> None:
    """Serve until the process ends; tell its address first."""
    server = make_server(count)
    told.send(f"http://127.0.0.1:{server.server_port}")
    server.serve_forever()


@contextmanager
def serving(count: int) -> Iterator[str]:
    """The address of a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    told, telling = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(count, telling), daemon=True)
    process.start()
    telling.close()
    try:
        yield told.recv()
    finally:
        process.kill()
        process.join()


@attrs.frozen(kw_only=True)
class Client:
    """One way to list: a store with an identity."""

    section: str
    identity: Mapping[str, object]
    token: str = ""

    _kinds: ClassVar = {
        "s3": (S3SourceConfig, S3Store),
        "gcs": (GcsSourceConfig, GcsStore),
    }

    def list_all(self, address: str, calls: int | None = None) -> tuple[int, int, int]:
        """Keys and bytes that one pass of the source shows, and the requests it took; `calls` at once, or the default."""
        config_class, store_class = self._kinds[self.section]
        config = structure(
            {
                "source": {"name": "bench"},
                self.section: {"bucket": BUCKET, "prefix": PREFIX, "endpoint": address, **self.identity},
                "discovery": {} if calls is None else {"list_concurrency": calls},
                "input": {"format": "jsonl"},
                "iggy": {"url": "embedded:unused", "stream": "bench", "topic": "bench"},
            },
            config_class,
        )
        bucket = getattr(config, self.section)
        store: ObjectStore = store_class(bucket, *([Credentials(self.token)] if self.token else []))
        store.order_is_documented = store.ends_are_reliable = True  # as at the vendor's own address
        store.bounds_pages = self.section == "gcs"
        iterator = StoreRecordIterator(
            config,
            make_transformer(config.input.options()),
            store=store,
            policy=bucket.retry_policy,
            prefixes=bucket.all_prefixes,
            page_size=bucket.page_size,
        )
        found = found_bytes = 0
        try:
            for native in iterator.get_native_item_stream(None):
                found += 1
                found_bytes += native.size
            return found, found_bytes, iterator.statistics.list_requests
        finally:
            iterator.close()
            store.close()


CLIENTS = {
    "S3, static keys": Client(
        section="s3", identity={"region": "us-east-1", "access_key_id": "bench", "secret_access_key": "bench"}
    ),
    "GCS, no identity": Client(section="gcs", identity={"anonymous": True}),
    "GCS, a token": Client(section="gcs", identity={}, token="bench"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--calls", type=int, nargs="+", default=[1, None], help="calls at once")
    given = parser.parse_args()
    count: int = given.keys
    print("| client | calls at once | keys | requests | CPU s | keys per CPU second |")
    print("|---|---|---|---|---|---|", flush=True)
    with serving(count) as address:
        for name, client in CLIENTS.items():
            for calls in given.calls:
                began = time.process_time()
                found, found_bytes, requests = client.list_all(address, calls)
                seconds = time.process_time() - began
                if (found, found_bytes) != (count, count * FIRST_BYTES + count * (count - 1) // 2):
                    raise SystemExit(f"{name}: {found:,} keys of {found_bytes:,} bytes, not {count:,}")
                print(
                    f"| {name} | {calls or 'default'} | {found:,} | {requests:,} | {seconds:.1f} | {count / seconds:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
