"""An S3 store that is not the bottleneck: objects of a few bodies, answered from memory by one asyncio process.

It checks nothing, not even signatures: what it costs is a third of what a GET of a small object costs its client. With a
delay, each answer waits that long, while others go on.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import email.utils
import hashlib
import multiprocessing
import re
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from urllib.parse import parse_qsl

from typing_extensions import override

from benchmarks.data import BUCKET, SUFFIX, Store, encode, rows

BODIES = 40
"""Maximum number of bodies that differ."""

_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)
_ITEM = (
    "<Contents><Key>{key}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>&quot;{etag}&quot;</ETag>"
    "<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


class _Bucket:
    """The answers. Objects have one of a few bodies in turn."""

    def __init__(self, kind: str, objects: int, lines: int) -> None:
        self.keys = [f"{prefix_of(kind)}{number:07}.{SUFFIX[kind]}" for number in range(objects)]
        self.bodies = [encode(kind, rows(number, lines)) for number in range(min(objects, BODIES))]
        self.etags = [hashlib.md5(body).hexdigest() for body in self.bodies]
        self.whole = [
            _head("200 OK", etag, len(body)) + body for body, etag in zip(self.bodies, self.etags, strict=True)
        ]
        self.number = slice(-8 - len(SUFFIX[kind]), -1 - len(SUFFIX[kind]))

    def answer(self, head: bytes) -> bytes:
        """The answer to a request."""
        target = head.split(b" ", 2)[1]
        if b"list-type=2" in target:
            return self.page(target.partition(b"?")[2].decode())
        which = int(target.partition(b"?")[0][self.number]) % len(self.bodies)
        asked = _RANGE.search(head)
        return self.part(which, asked) if asked else self.whole[which]

    def part(self, which: int, asked: re.Match[bytes]) -> bytes:
        """A range of an object: from one byte to another, from one to the end, or the last so many."""
        body = self.bodies[which]
        first, last = asked[1], asked[2]
        start = int(first) if first else max(0, len(body) - int(last))
        end = min(len(body), int(last) + 1) if first and last else len(body)
        span = f"Content-Range: bytes {start}-{end - 1}/{len(body)}\r\n"
        return _head("206 Partial Content", self.etags[which], end - start, span) + body[start:end]

    def page(self, query: str) -> bytes:
        """A page of the listing."""
        asked = dict(parse_qsl(query))
        prefix = asked.get("prefix", "")
        after = asked.get("continuation-token") or asked.get("start-after", "")
        start = max(bisect.bisect_right(self.keys, after), bisect.bisect_left(self.keys, prefix))
        last = bisect.bisect_left(self.keys, prefix + chr(sys.maxunicode))
        end = max(start, min(last, start + int(asked.get("max-keys", "1000"))))
        more = end < last
        items = "".join(self.item(number) for number in range(start, end))
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

    def item(self, number: int) -> str:
        """An object in a page."""
        which = number % len(self.bodies)
        return _ITEM.format(key=self.keys[number], etag=self.etags[which], size=len(self.bodies[which]))


def _head(status: str, etag: str, size: int, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nx-amz-id-2: {'a' * 76}\r\nx-amz-request-id: 0123456789ABCDEF\r\n"
        f"Date: Sun, 22 Nov 2026 13:00:00 GMT\r\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        f'ETag: "{etag}"\r\nAccept-Ranges: bytes\r\n{more}Content-Type: application/octet-stream\r\n'
        f"Content-Length: {size}\r\nServer: AmazonS3\r\n\r\n"
    ).encode()


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
            answer = self.bucket.answer(head)
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self.transport.write, answer)
            else:
                self.transport.write(answer)


def _serve(kind: str, objects: int, lines: int, delay: float, tell: Connection) -> None:
    async def run() -> None:
        bucket = _Bucket(kind, objects, lines)
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(bucket, delay), "127.0.0.1", 0, backlog=1024
        )
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def prefix_of(kind: str) -> str:
    """Return the prefix of the objects' keys."""
    return f"{kind}/"


@contextlib.contextmanager
def responding(kind: str, objects: int, lines: int, *, delay_seconds: float = 0.0) -> Iterator[Store]:
    """A store with so many objects of so many rows, in a process of its own.

    They lie in `benchmarks.data.BUCKET` below `prefix_of(kind)`.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(kind, objects, lines, delay_seconds, theirs), daemon=True)
    process.start()
    try:
        yield Store(
            endpoint=f"http://127.0.0.1:{ours.recv()}", access_key=f"{BUCKET}-key", secret_key=f"{BUCKET}-secret"
        )
    finally:
        process.terminate()
        process.join()
