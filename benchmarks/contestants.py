"""What is measured against what. Each contestant lives in a process of its own and is asked round after round.

    ours    the engine of the program, one task, from the listing to the last saved position
    bare    the official client's loop; the decoder's loop; a pool of boto3 GETs

The functions here run in those processes. What they need is loaded at their first round, which is not counted.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import attrs
from typing_extensions import override

from benchmarks.data import BUCKET, Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from framework.config.iggy_address import IggyAddress

P = ParamSpec("P")
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Run:
    """One run.

    Attributes:
        records: how many.
        objects: how many, where objects are counted.
        wall_seconds: from the first byte asked for to the last confirmation.
        cpu_seconds: of the process meanwhile, all threads.
        start_seconds: what came before and after: clients made, connecting, recovery, closing.
    """

    records: int
    objects: int = 0
    wall_seconds: float
    cpu_seconds: float
    start_seconds: float = 0.0

    @property
    def records_per_second(self) -> float:
        """Records over the wall time."""
        return self.records / self.wall_seconds

    @property
    def objects_per_second(self) -> float:
        """Objects over the wall time."""
        return self.objects / self.wall_seconds


class Contestant:
    """A process that does one thing after the other."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a function there and return what it returned, or raise what it raised."""
        return self._pool.submit(work, *arguments, **options).result()


@contextmanager
def contestant() -> Iterator[Contestant]:
    """A fresh process, ended afterwards."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield Contestant(pool)


@contextmanager
def _timed() -> Iterator[list[float]]:
    gc.collect()
    took: list[float] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield took
    took += [time.perf_counter() - wall, time.process_time() - cpu]


# ---- ours


def ours(props: dict[str, Any]) -> Run:
    """One run of the engine as `--once` runs it, without the command line around it.

    The clock runs from the task's start, before its first listing, to its stop, when the last position is saved. The S3
    client is made before, as the bare loops' clients are: that takes boto3 some 70 ms, once in a process's life.
    """
    from framework.engine.local import LocalEngine
    from framework.engine.process_setup import set_up_process
    from framework.task.store_task import StoreSourceTask
    from gcs_source.task import GcsSourceTask
    from s3_source.task import S3SourceTask

    source: type[StoreSourceTask] = GcsSourceTask if "gcs" in props else S3SourceTask
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    class TimedTask(source):  # type: ignore[misc, valid-type]
        @override
        def start(self, props: Any, **options: Any) -> None:
            self.open_store(self.bucket_config(props))
            gc.collect()
            mark()
            super().start(props, **options)

        @override
        def stop(self) -> None:
            mark()
            super().stop()

    set_up_process()  # both as the program does at its start
    engine = LocalEngine(TimedTask, source().configure(props), once=True)
    began = time.perf_counter()
    progress = engine.run()
    ended = time.perf_counter()
    (started, cpu_before), (stopped, cpu_after) = marks
    return Run(
        records=progress.records + progress.records_filtered,
        objects=progress.objects,
        wall_seconds=stopped - started,
        cpu_seconds=cpu_after - cpu_before,
        start_seconds=ended - began - (stopped - started),
    )


def transform(kind: str) -> Run:
    """Our transformer alone, over the objects in memory: what the format costs, without S3 and Iggy."""
    from framework.config.format_registry import make_transformer
    from framework.model.batches import SkippedRecord
    from framework.transformer import InputOptions
    from transformers.local_inputs import BytesInput

    transformer = make_transformer(InputOptions(format=kind))
    count = 0
    with _timed() as took:
        for number, data in enumerate(_objects):
            for run in transformer.read(BytesInput(data, f"{number}.{kind}")):
                assert not isinstance(run, SkippedRecord)
                count += len(run.payloads)
    return Run(records=count, wall_seconds=took[0], cpu_seconds=took[1])


# ---- the bare loops

_objects: list[bytes] = []
_payloads: list[bytes] = []


def load(store: Store, prefix: str, kind: str) -> None:
    """Fetch the objects into memory, and make the payloads of JSON lines."""
    client = store.client()
    keys = _keys(client, prefix)
    _objects[:] = [client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys]
    client.close()
    if kind == "jsonl":
        _payloads[:] = [line for data in _objects for line in data.splitlines()]


def hold(objects: int, lines: int) -> None:
    """Make the payloads of objects of JSON lines, without a store."""
    from benchmarks.data import encode, rows

    _payloads[:] = [line for number in range(objects) for line in encode("jsonl", rows(number, lines)).splitlines()]


def _keys(client: S3Client, prefix: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def check_same(kind: str) -> None:
    """Raise unless our format and every bare loop make the same bytes of the first object."""
    from framework.config.format_registry import make_transformer
    from framework.transformer import InputOptions
    from transformers.local_inputs import BytesInput

    transformer = make_transformer(InputOptions(format=kind))
    expected = list(transformer.records(BytesInput(_objects[0], f"0.{kind}")))
    for decode in _DECODERS[kind]:
        if decode(_objects[0]) != expected:
            raise RuntimeError(f"{decode.__name__} makes other JSON than the format {kind}")


def bare_send(url: str, stream: str, topic: str, batch: int) -> Run:
    """The official client's own loop, as its documentation shows it, over payloads that are in a list already."""
    from framework.config.iggy_address import IggyAddress

    return asyncio.run(_bare_send(IggyAddress.parse(url), stream, topic, batch))


async def _bare_send(address: IggyAddress, stream: str, topic: str, batch: int) -> Run:
    import apache_iggy as iggy

    from framework.model.header_encoding import provenance
    from framework.model.objects import NativeObject

    client = await connect(address)
    version = "d41d8cd98f00b204e9800998ecf8427e@1795244658772"
    headers = provenance(NativeObject(scheme="s3", bucket=BUCKET, key="jsonl/00001.jsonl", size=1, version=version))
    with _timed() as took:
        for start in range(0, len(_payloads), batch):
            messages = [
                iggy.SendMessage(payload, headers, number)
                for number, payload in enumerate(_payloads[start : start + batch], start + 1)
            ]
            await client.send_messages(stream, topic, 0, messages)
    return Run(records=len(_payloads), wall_seconds=took[0], cpu_seconds=took[1])


async def connect(address: IggyAddress) -> Any:
    import apache_iggy as iggy

    login = iggy.AutoLogin.username_password(address.user, address.password or "")
    client = iggy.IggyClient(iggy.TcpConfig(server_address=address.server, auto_login=login, nodelay=True))
    await client.connect()
    return client


def make_topic(url: str, stream: str, topic: str) -> None:
    """A topic with one partition, as the framework makes them: its options cost the server something."""
    from framework.config.iggy_address import IggyAddress
    from framework.iggy.connection import IggyConnection
    from framework.iggy.topics import ensure_topic

    with IggyConnection(IggyAddress.parse(url)) as connection:
        ensure_topic(connection, stream, topic, 1)


def drop_stream(url: str, stream: str) -> None:
    """Delete a stream with its topics, so that no round finds the disk fuller than the one before."""
    from framework.config.iggy_address import IggyAddress

    async def drop() -> None:
        client = await connect(IggyAddress.parse(url))
        await client.delete_stream(stream)

    asyncio.run(drop())


def bare_decode(kind: str, way: int) -> Run:
    """Decoding from memory to a list of JSON payloads and nothing else, one of the ways we know."""
    decode = _DECODERS[kind][way]
    with _timed() as took:
        count = sum(len(decode(data)) for data in _objects)
    return Run(records=count, wall_seconds=took[0], cpu_seconds=took[1])


def ways(kind: str) -> int:
    """Return how many bare loops there are."""
    return len(_DECODERS[kind])


def _avro(data: bytes) -> list[bytes]:
    import fastavro
    import orjson

    return list(map(orjson.dumps, fastavro.reader(io.BytesIO(data))))


def _csv(data: bytes) -> list[bytes]:
    import csv

    import orjson

    reader = csv.reader(io.StringIO(data.decode(), newline=""))
    return list(map(orjson.dumps, map(dict, map(zip, repeat(next(reader)), reader))))


def _csv_arrow(data: bytes) -> list[bytes]:
    import orjson
    import pyarrow as pa
    from pyarrow import csv

    head = data[: data.index(b"\n")].decode().split(",")
    as_text = csv.ConvertOptions(column_types=dict.fromkeys(head, pa.string()))
    return list(map(orjson.dumps, csv.read_csv(io.BytesIO(data), convert_options=as_text).to_pylist()))


def _parquet(data: bytes) -> list[bytes]:
    import orjson
    import pyarrow.parquet as pq

    return list(map(orjson.dumps, pq.read_table(io.BytesIO(data)).to_pylist()))


def _parquet_columns(data: bytes) -> list[bytes]:
    import orjson
    import pyarrow.parquet as pq

    out: list[bytes] = []
    for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches(batch_size=5000):
        columns = [column.to_pylist() for column in batch.columns]
        out += map(orjson.dumps, map(dict, map(zip, repeat(batch.schema.names), zip(*columns, strict=True))))
    return out


_DECODERS: dict[str, list[Callable[[bytes], list[bytes]]]] = {
    "avro": [_avro],
    "csv": [_csv, _csv_arrow],
    "parquet": [_parquet, _parquet_columns],
}


def bare_pool(store: Store, prefix: str, threads: int) -> Run:
    """Plain GETs from a pool of threads, of keys that are known already."""
    client = store.client()
    keys = _keys(client, prefix)
    with ThreadPoolExecutor(threads) as pool, _timed() as took:
        list(pool.map(lambda key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read(), keys))
    client.close()
    return Run(records=0, objects=len(keys), wall_seconds=took[0], cpu_seconds=took[1])


def bare_get(store: Store, prefix: str, records: int, threads: int = 2) -> Run:
    """Plain GETs, as fast as the standard library goes: whole objects into a buffer, and nothing is done with them."""
    client = store.client()
    keys = _keys(client, prefix)
    client.close()

    def fetch(part: list[str]) -> None:
        connection = http.client.HTTPConnection(store.endpoint.removeprefix("http://"))
        buffer = bytearray(1 << 20)
        for key in part:
            connection.request("GET", f"/{BUCKET}/{key}")
            answer = connection.getresponse()
            while answer.readinto(buffer):
                pass
        connection.close()

    with ThreadPoolExecutor(threads) as pool, _timed() as took:
        list(pool.map(fetch, [keys[number::threads] for number in range(threads)]))
    return Run(records=records, objects=len(keys), wall_seconds=took[0], cpu_seconds=took[1])


def bare_blobs(endpoint: str, prefix: str, threads: int) -> Run:
    """The same with google-cloud-storage."""
    import requests
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.mount("http://", HTTPAdapter(pool_maxsize=threads))
    client = Client(
        project="bench",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": endpoint},
        _http=session,
    )
    blobs = list(client.list_blobs(BUCKET, prefix=prefix))
    with ThreadPoolExecutor(threads) as pool, _timed() as took:
        list(pool.map(lambda blob: blob.download_as_bytes(checksum=None), blobs))
    client.close()
    return Run(records=0, objects=len(blobs), wall_seconds=took[0], cpu_seconds=took[1])
