"""What one small object costs: a bare pool of boto3 `get_object` calls against `S3Store.open`, on SeaweedFS.

    python benchmarks/s3_get_cpu.py [--objects 5000] [--rounds 3]

Rounds are interleaved; the best of each is shown. CPU is that of this process, so of the client alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config

from framework.storage.resuming_stream import StoreInput
from framework.testing.servers.seaweedfs import SeaweedFs
from s3_source import S3Config, S3Store

THREADS = (8, 16, 32)
CONTENT = b"0123" * 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SeaweedFs.start(folder) as server:
        bare = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            config=Config(max_pool_connections=64),
        )
        bare.create_bucket(Bucket="small")
        with ThreadPoolExecutor(16) as pool:
            list(
                pool.map(
                    lambda number: bare.put_object(Bucket="small", Key=f"k/{number:06}", Body=CONTENT),
                    range(given.objects),
                )
            )
        store = S3Store(
            S3Config(
                bucket="small",
                endpoint=server.endpoint,
                region="us-east-1",
                access_key_id=server.access_key,
                secret_access_key=server.secret_key,
            )
        )
        natives = list(store.list_all())

        def plain(native):
            return bare.get_object(Bucket="small", Key=native.key)["Body"].read()

        def ours(native):
            stream = store.open(native)
            data = stream.read(262_144)
            stream.close()
            return data

        def resuming(native):
            stream = StoreInput(store, native).open()
            data = stream.read(262_144)
            stream.close()
            return data

        kinds = {"boto3 get_object": plain, "S3Store.open": ours, "StoreInput.open": resuming}
        print(f"{given.objects} objects of 1 KiB, best of {given.rounds} interleaved rounds")
        for threads in THREADS:
            best = dict.fromkeys(kinds, (0.0, 0.0))
            for _ in range(given.rounds):
                for name, fn in kinds.items():
                    with ThreadPoolExecutor(threads) as pool:
                        cpu, wall = time.process_time(), time.perf_counter()
                        total = sum(map(len, pool.map(fn, natives)))
                        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                    assert total == 1024 * len(natives)
                    best[name] = max(best[name], (len(natives) / wall, cpu / len(natives) * 1e6))
            base = best["boto3 get_object"][0]
            for name, (rate, micros) in best.items():
                print(
                    f"{threads:3} threads  {name:18} {rate:7.0f} GET/s  {rate / base:5.2f} x  {micros:6.0f} us CPU/GET"
                )
        store.close()
        bare.close()


if __name__ == "__main__":
    main()
