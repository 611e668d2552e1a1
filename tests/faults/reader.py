"""What a topic holds, read with the official client alone.

Nothing of the product is imported here, nor in `checker`: a fault of the product must not be able to hide itself.
"""

import asyncio
import atexit
import re
import threading
import time
from dataclasses import dataclass

from apache_iggy import AutoLogin, Consumer, IggyClient, PollingStrategy, TcpConfig, TcpReconnectionConfig

# A thread of the client may still call into the loop while the interpreter ends, which would abort it.
atexit.register(time.sleep, 0.05)

POLL = 4000
CALL_SECONDS = 15.0


@dataclass(frozen=True)
class Stored:
    """A message of the topic."""

    partition: int
    offset: int
    id: int
    headers: dict
    payload: bytes


async def open_client(url):
    """A connection that never reconnects by itself: that would hide a server that lost messages."""
    user, password, address = re.fullmatch(r"iggy://([^:]+):([^@]+)@(.+)", url).groups()
    client = IggyClient(
        TcpConfig(
            server_address=address,
            auto_login=AutoLogin.username_password(user, password),
            nodelay=True,
            reconnection=TcpReconnectionConfig(enabled=False),
        )
    )
    await asyncio.wait_for(client.connect(), 5)
    return client


class Tap:
    """A connection of the checker's own to one topic, for as long as a chain of rounds lasts.

    Every call may raise `OSError` when the server is away; the next one connects anew. `close` may be called twice.
    """

    def __init__(self, url, stream, topic="records"):
        self.url = url
        self.stream = stream
        self.topic = topic
        self._client = None
        self._next = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap", daemon=True)
        self._thread.start()

    def count(self):
        """How many messages the topic holds; 0 while there is none."""
        found = self._call(self._topic)
        return 0 if found is None else found.messages_count

    def new(self):
        """What has been added since the last call, partition after partition."""
        return self._call(self._read)

    def everything(self):
        """All that the topic holds, from its beginning."""
        self.rewind()
        return self.new()

    def rewind(self):
        """What was read may be gone: the next `new` reads from the beginning."""
        self._next.clear()

    def make_topic(self, partitions):
        """The topic, made with whatever this server's defaults are."""
        self._call(lambda client: self._make(client, partitions))

    def close(self):
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._client = None

    def _call(self, work):
        async def connected():
            if self._client is None:
                self._client = await open_client(self.url)
            return await work(self._client)

        waiting = asyncio.run_coroutine_threadsafe(asyncio.wait_for(connected(), CALL_SECONDS), self._loop)
        try:
            return waiting.result()
        except (RuntimeError, TimeoutError, asyncio.TimeoutError) as error:
            self._client = None
            raise OSError(f"Iggy does not answer the checker: {error}") from error

    async def _topic(self, client):
        return await client.get_topic(self.stream, self.topic)

    async def _make(self, client, partitions):
        if await client.get_stream(self.stream) is None:
            await client.create_stream(self.stream)
        await client.create_topic(self.stream, self.topic, partitions)

    async def _read(self, client):
        found = await client.get_topic(self.stream, self.topic)
        if found is None:
            return []
        messages = []
        for partition in range(found.partitions_count):
            while batch := await self._poll(client, partition):
                messages += [
                    Stored(
                        partition=partition,
                        offset=one.offset(),
                        id=one.id(),
                        headers=headers.to_scalar_dict() if (headers := one.user_headers()) else {},
                        payload=bytes(one.payload()),
                    )
                    for one in batch
                ]
                self._next[partition] = batch[-1].offset() + 1
        return messages

    async def _poll(self, client, partition):
        return await client.poll_messages(
            self.stream,
            self.topic,
            consumer=Consumer.Single(1),
            polling_strategy=PollingStrategy.Offset(self._next.get(partition, 0)),
            count=POLL,
            auto_commit=False,
            partition_id=partition,
        )
