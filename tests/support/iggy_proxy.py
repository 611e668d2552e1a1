"""A proxy between a source and Iggy that knows where a request begins and ends, and breaks the one it is told to break.

The wire is lockstep: a frame of a request, a frame of a reply; bytes 48..51 of a frame hold its size, byte 176 of a request
the operation, and of a query bytes 196..199 its command. One fault is armed at a time and strikes once.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import weakref

import attrs

HEAD = 256
SEND = 160
QUERY = 2
POLL = struct.pack("<I", 100)
KINDS = ("before", "half-request", "stored", "half-reply", "late")


@attrs.frozen(kw_only=True)
class WireFault:
    """What goes wrong with one request.

    Attributes:
        kind: `before` cuts the connection before the server has any of it, `half-request` when the server has a part,
            `stored` when the server has answered and nothing of that has been passed on, `half-reply` when a part of the
            answer has, and `late` holds the answer back.
        skip: so many matching requests pass unharmed first.
        sends_only: whether only requests that send messages match (records, but positions, too), or every request.
        part: how much of the frame a half is, between 0 and 1.
        seconds: how long an answer is held back.
        reset: cuts by a reset (RST) rather than in an orderly way.
    """

    kind: str
    skip: int = 0
    sends_only: bool = True
    part: float = 0.5
    seconds: float = 0.0
    reset: bool = False


class IggyProxy:
    """Forwards to a server on loopback. Starts when made; `close` may be called twice.

    Attributes:
        port: where clients must go.
        fired: set when the armed fault has struck.
        blind: while true, every poll is answered as if the partition were empty: what a real server does when the part of
            it that holds the partition has failed.
    """

    def __init__(self, target_port):
        self.target_port = target_port
        self.fired = threading.Event()
        self.blind = False
        self._fault = None
        self._seen = 0
        self._lock = threading.Lock()
        self._ends = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="iggy-proxy", daemon=True)
        self._thread.start()
        self._server = self._on_loop(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]

    def arm(self, fault):
        """From now on; counting begins here."""
        with self._lock:
            self._fault, self._seen = fault, 0
            self.fired.clear()

    def disarm(self):
        """No fault; whether one had struck since it was armed."""
        with self._lock:
            self._fault = None
            return self.fired.is_set()

    def close(self):
        """Ends all connections and gives the port back."""
        if self._thread.is_alive():
            self._on_loop(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _on_loop(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self):
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=128)

    async def _end(self):
        self._server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}  # also one that has only just come in
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for end in self._ends:
            end.abort()  # what the other side does not take is not waited for
        await asyncio.sleep(0)  # then they are closed

    def _match(self, frame):
        with self._lock:
            fault = self._fault
            if fault is None or (fault.sends_only and frame[176] != SEND):
                return None
            self._seen += 1
            if self._seen <= fault.skip:
                return None
            self._fault = None
            self.fired.set()
            return fault

    async def _serve(self, reader, writer):
        ends = [writer]
        self._ends.add(writer.transport)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            ends.append(server_writer)
            self._ends.add(server_writer.transport)
            connection = _Connection(self, reader, writer, server_reader, server_writer)
            await connection.run()
        except OSError:
            pass  # the server is away, which its client learns by the end of the connection
        finally:
            for end in ends:
                end.close()


class _Connection:
    """Two directions; when one ends, so does the other."""

    def __init__(self, proxy, reader, writer, server_reader, server_writer):
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._server_reader, self._server_writer = server_reader, server_writer
        self._answer_fault = None
        self._polled = False

    async def run(self):
        ways = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._replies())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self):
        while (frame := await _read(self._reader)) is not None:
            fault = self._proxy._match(frame)
            if fault is not None and fault.kind in ("before", "half-request"):
                if fault.kind == "half-request":
                    await _write(self._server_writer, frame[: _cut(frame, fault)])
                self._break(fault)
                return
            self._answer_fault = fault
            self._polled = frame[176] == QUERY and frame[196:200] == POLL
            await _write(self._server_writer, frame)

    async def _replies(self):
        while (frame := await _read(self._server_reader)) is not None:
            fault, self._answer_fault = self._answer_fault, None
            if self._polled and self._proxy.blind:
                frame = frame[:48] + struct.pack("<I", HEAD + 16) + frame[52:HEAD] + frame[HEAD : HEAD + 4] + bytes(12)
            if fault is not None and fault.kind == "late":
                await asyncio.sleep(fault.seconds)
            elif fault is not None:
                if fault.kind == "half-reply":
                    await _write(self._writer, frame[: _cut(frame, fault)])
                self._break(fault)
                return
            await _write(self._writer, frame)

    def _break(self, fault):
        if fault.reset:
            for writer in (self._writer, self._server_writer):
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _cut(frame, fault):
    return min(len(frame) - 1, max(1, int(len(frame) * fault.part)))


async def _read(reader):
    """A whole frame, or None at the end of the connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        head = await reader.readexactly(HEAD)
        return head + await reader.readexactly(int.from_bytes(head[48:52], "little") - HEAD)
    return None


async def _write(writer, data):
    writer.write(data)
    with contextlib.suppress(OSError):
        await writer.drain()
