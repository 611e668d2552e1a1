"""What a message costs: the official client's own loop against the framework's producer, on the same server.

    python benchmarks/iggy_send.py iggy://iggy:iggy@127.0.0.1:8090
    python benchmarks/iggy_send.py                                    starts the embedded development server

Both send the same payloads with the same three headers (bucket, key, version) to one partition of a persisted topic, a
new one each round. The official loop is what its documentation shows: a list of `SendMessage`, then `send_messages`,
with `nodelay` on and two batch lengths. Rounds are interleaved; printed are medians: wall time and this process's CPU
time (all threads) per message. The server's own CPU is not counted, but where it shares the cores it shows in the wall
time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from framework.config.iggy_address import IggyAddress
from framework.iggy.connection import IggyConnection
from framework.iggy.producer import IggyProducer
from framework.iggy.topics import ensure_topic
from framework.model.batches import RecordBatch
from framework.model.header_encoding import provenance
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry

STREAM = f"bench-{os.getpid()}"
NATIVE = NativeObject(
    scheme="s3",
    bucket="lake-bucket",
    key="events/2026/01/01/part-00001.jsonl",
    size=1,
    version="d41d8cd98f00b204e9800998ecf8427e@1795244658772",
)


async def official(address: IggyAddress, topic: str, payloads: list[bytes], batch: int) -> tuple[float, float]:
    """Seconds of wall and of CPU for the bare loop."""
    import apache_iggy as iggy

    client = iggy.IggyClient(
        iggy.TcpConfig(
            server_address=address.server,
            auto_login=iggy.AutoLogin.username_password(address.user, address.password or ""),
            nodelay=True,
        )
    )
    await client.connect()
    headers = provenance(NATIVE)
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(payloads), batch):
        messages = [
            iggy.SendMessage(payload, headers, number)
            for number, payload in enumerate(payloads[start : start + batch], start + 1)
        ]
        await client.send_messages(STREAM, topic, 0, messages)
    return time.perf_counter() - wall, time.process_time() - cpu


def ours(address: IggyAddress, topic: str, payloads: list[bytes], batch: int) -> tuple[float, float]:
    """Seconds of wall and of CPU for the framework's producer."""
    topic_partition = TopicPartition(topic, 0)
    with IggyProducer(IggyConnection(address).connect(), stream=STREAM, source="bench") as producer:
        producer.send(topic_partition, [])  # nothing, but asks nothing either
        wall, cpu = time.perf_counter(), time.process_time()
        last = None
        for start in range(0, len(payloads), batch):
            part = payloads[start : start + batch]
            last = producer.send(
                topic_partition,
                [
                    RecordBatch(
                        native=NATIVE,
                        topic_partition=topic_partition,
                        first_record=start + 1,
                        payloads=part,
                        size_bytes=0,
                        entry=OffsetManagerEntry.start(NATIVE, topic_partition),
                    )
                ],
            )
        assert last is not None
        anchor = last.result().anchor
        assert anchor is not None
        assert anchor.offset == len(payloads) - 1
        return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="an Iggy server; the embedded one when left out")
    parser.add_argument("--messages", type=int, default=200_000, help="per round")
    parser.add_argument("--bytes", type=int, default=200, help="mean payload; lengths vary by a tenth")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if arguments.url is None:
            from framework.iggy.embedded.launcher import EmbeddedServer

            folder = stack.enter_context(tempfile.TemporaryDirectory())
            server = stack.enter_context(EmbeddedServer.start(Path(folder)))
            address = IggyAddress.parse(server.url)
        else:
            address = IggyAddress.parse(arguments.url)
        run(address, arguments.messages, arguments.bytes, arguments.rounds)


def run(address: IggyAddress, count: int, size: int, rounds: int) -> None:
    chance = random.Random(1)
    payloads = [chance.randbytes(size - size // 10 + chance.randrange(size // 5 + 1)) for _ in range(count)]
    variants = [
        ("official client, batch 1000", lambda topic: asyncio.run(official(address, topic, payloads, 1000))),
        ("official client, batch 5000", lambda topic: asyncio.run(official(address, topic, payloads, 5000))),
        ("framework, batch 1000", lambda topic: ours(address, topic, payloads, 1000)),
        ("framework, batch 5000", lambda topic: ours(address, topic, payloads, 5000)),
    ]
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in variants}
    with IggyConnection(address) as admin:
        print(f"server {admin.server_version()}, {count:,} messages of {size} bytes a round, {rounds} rounds")
        for number in range(rounds + 1):
            for place, (name, go) in enumerate(variants):
                topic = f"round-{number}-{place}"
                ensure_topic(admin, STREAM, topic, 1)
                took = go(topic)
                if number:  # the first round warms up
                    seen[name].append(took)
    for name, _ in variants:
        wall = statistics.median(one for one, _ in seen[name]) / count
        cpu = statistics.median(one for _, one in seen[name]) / count
        print(f"{name:30} {1 / wall:10,.0f} msg/s   {cpu * 1e6:6.2f} us CPU/msg   {wall * 1e6:6.2f} us wall/msg")


if __name__ == "__main__":
    main()
