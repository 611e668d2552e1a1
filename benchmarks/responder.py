"""An S3 store that is not the bottleneck: objects that are all alike, answered from memory by one asyncio process.

It checks nothing, not even signatures: what it costs is a third of what a GET costs its client. With a delay, each answer
waits that long, while others go on.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import email.utils
import hashlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from urllib.parse import parse_qsl

from typing_extensions import override

from benchmarks.data import BUCKET, Store, encode, rows

_ITEM = (
    "<Contents><Key>{key}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>&quot;{etag}&quot;</ETag>"
    "<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


class _Bucket:
    """The answers."""

    def __init__(self, objects: int, lines: int) -> None:
        self.keys = [f"small/{number:07}.jsonl" for number in range(objects)]
        body = encode("jsonl", rows(0, lines))
        self.etag = hashlib.md5(body).hexdigest()
        self.size = len(body)
        head = (
            f"HTTP/1.1 200 OK\r\nx-amz-id-2: {'a' * 76}\r\nx-amz-request-id: 0123456789ABCDEF\r\n"
            f"Date: Sun, 22 Nov 2026 13:00:00 GMT\r\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
            f'ETag: "{self.etag}"\r\nAccept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\n'
            f"Content-Length: {self.size}\r\nServer: AmazonS3\r\n\r\n"
        )
        self.object = head.encode() + body

    def page(self, query: str) -> bytes:
        """A page of the listing."""
        asked = dict(parse_qsl(query))
        start = bisect.bisect_right(self.keys, asked.get("continuation-token") or asked.get("start-after", ""))
        end = min(len(self.keys), start + int(asked.get("max-keys", "1000")))
        more = end < len(self.keys)
        items = "".join(_ITEM.format(key=key, etag=self.etag, size=self.size) for key in self.keys[start:end])
        token = f"<NextContinuationToken>{self.keys[end - 1]}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<EncodingType>url</EncodingType><KeyCount>{end - start}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        ).encode()
        date = email.utils.formatdate(usegmt=True)
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nDate: {date}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class _Connection(asyncio.Protocol):
    """One connection: requests are answered in turn."""

    def __init__(self, bucket: _Bucket, delay: float) -> None:
        self.bucket = bucket
        self.delay = delay
        self.left = b""
        self.transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        *heads, self.left = (self.left + data).split(b"\r\n\r\n")
        for head in heads:
            query = head.split(b" ", 2)[1].partition(b"?")[2]
            answer = self.bucket.page(query.decode()) if b"list-type=2" in query else self.bucket.object
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self.transport.write, answer)
            else:
                self.transport.write(answer)


def _serve(objects: int, lines: int, delay: float, tell: Connection) -> None:
    async def run() -> None:
        bucket = _Bucket(objects, lines)
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(bucket, delay), "127.0.0.1", 0, backlog=1024
        )
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


@contextlib.contextmanager
def responding(objects: int, lines: int, delay_seconds: float) -> Iterator[Store]:
    """A store with so many objects of so many lines, in a process of its own. Its bucket is `benchmarks.data.BUCKET`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(objects, lines, delay_seconds, theirs), daemon=True)
    process.start()
    try:
        yield Store(
            endpoint=f"http://127.0.0.1:{ours.recv()}", access_key=f"{BUCKET}-key", secret_key=f"{BUCKET}-secret"
        )
    finally:
        process.terminate()
        process.join()
