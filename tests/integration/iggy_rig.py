"""The unmodified client against a server: connect, and raw requests in the wire's own words."""

import asyncio
import atexit
import re
import struct
import time

from apache_iggy import (
    AutoLogin,
    Consumer,
    IggyClient,
    PollingStrategy,
    SendMessage,
    TcpConfig,
    TcpReconnectionConfig,
)

# A thread of the client may still call into the loop while the interpreter ends, which would abort it.
atexit.register(time.sleep, 0.05)

READER = b"\x01\x01\x04" + struct.pack("<I", 1)


def run(work):
    """Run a coroutine to its end, within a minute."""
    return asyncio.run(asyncio.wait_for(work, 60))


async def connect(url, *, login=None):
    user, password, address = re.fullmatch(r"iggy://([^:]+):([^@]+)@(.+)", url).groups()
    client = IggyClient(
        TcpConfig(
            server_address=address,
            auto_login=login or AutoLogin.username_password(user, password),
            nodelay=True,
            reconnection=TcpReconnectionConfig(enabled=False),
        )
    )
    await asyncio.wait_for(client.connect(), 30)
    return client


async def connect_with_topic(url, stream, partitions=1, **options):
    client = await connect(url)
    await client.create_stream(stream)
    await client.create_topic(stream, "t", partitions, **options)
    return client


async def send(client, stream, payloads, partition=0):
    """Send text payloads to topic `t` and return the base offset."""
    response = await client.send_messages(stream, "t", partition, [SendMessage(payload) for payload in payloads])
    (confirmation,) = response.confirmations
    return confirmation.base_offset


async def poll(client, stream, strategy=None, **options):
    """Return (offset, payload) of the messages of one poll of topic `t`."""
    found = await poll_messages(client, stream, strategy, **options)
    return [(message.offset(), message.payload().decode()) for message in found]


async def poll_messages(client, stream, strategy=None, *, count=1000, partition=0, auto_commit=False, consumer=1):
    return await client.poll_messages(
        stream,
        "t",
        consumer=Consumer.Single(consumer),
        polling_strategy=strategy or PollingStrategy.Offset(0),
        count=count,
        auto_commit=auto_commit,
        partition_id=partition,
    )


def address_of(stream, partition=None):
    """Return the identifiers of a stream and its topic `t`, and a partition behind its flag when given."""
    raw = b"\x02" + bytes((len(stream),)) + stream.encode() + b"\x02\x01t"
    return raw if partition is None else raw + b"\x01" + struct.pack("<I", partition)


def send_body(stream, batch, count, partition=0):
    """Return the body of command 101 for an encoded batch."""
    metadata = address_of(stream) + b"\x02\x04" + struct.pack("<II", partition, count)
    return struct.pack("<I", len(metadata)) + metadata + bytes(batch)


async def eventually(check, seconds=30):
    """Await `check()` until it is true; the real server does some things a moment after it has answered."""
    deadline = time.monotonic() + seconds
    while not await check():
        assert time.monotonic() < deadline, "it never became true"
        await asyncio.sleep(0.01)
