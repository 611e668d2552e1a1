"""A TCP proxy that waits before each answer's first byte, in a process of its own.

An answer is what the server sends after something came from the client. Its first bytes are passed on no sooner than the
delay after the request; what follows is passed on at once. It knows nothing of HTTP, so requests of one connection must
not overlap; those of boto3 do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from typing_extensions import override


class _Side(asyncio.Protocol):
    """One end of a connection; the client's end is made first, and makes the other."""

    def __init__(self, target: tuple[str, int], delay: float, other: _Side | None = None) -> None:
        self.target = target
        self.delay = delay
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []
        self.is_client = other is None
        self.asked_at = 0.0
        self.held: list[bytes] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.is_client:
            loop = asyncio.get_running_loop()
            self.task = loop.create_task(self.connect(loop))
        else:
            assert self.other is not None
            for data in self.other.early:
                transport.write(data)

    async def connect(self, loop: asyncio.AbstractEventLoop) -> None:
        server = _Side(self.target, self.delay, self)
        await loop.create_connection(lambda: server, *self.target)
        self.other = server

    @override
    def data_received(self, data: bytes) -> None:
        if self.is_client:
            self.asked_at = asyncio.get_running_loop().time()
            if self.other is None or self.other.transport is None:
                self.early.append(data)
            else:
                self.other.transport.write(data)
            return
        assert self.other is not None
        if self.held is not None:
            self.held.append(data)
        elif self.delay and self.other.asked_at:
            self.held = [data]
            due, self.other.asked_at = self.other.asked_at + self.delay, 0.0
            asyncio.get_running_loop().call_at(due, self.release)
        elif self.other.transport is not None:
            self.other.transport.write(data)

    def release(self) -> None:
        held, self.held = self.held or [], None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(b"".join(held))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.held:
            self.release()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


def _serve(target: tuple[str, int], delay: float, tell: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Side(target, delay), "127.0.0.1", 0, backlog=256
        )
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


@contextlib.contextmanager
def delaying(endpoint: str, delay_seconds: float) -> Iterator[str]:
    """The address of a proxy before `http://host:port`."""
    parts = urlsplit(endpoint)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=((parts.hostname, parts.port), delay_seconds, theirs), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()
