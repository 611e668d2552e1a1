"""The bodies of replies that describe streams, topics, clients and the server."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from typing import TYPE_CHECKING

from framework.iggy import protocol
from framework.iggy.embedded import fields, options
from framework.iggy.embedded.fields import encode_name, encode_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from framework.iggy.embedded.catalog import Catalog, Stream, Topic
    from framework.iggy.embedded.options import Option

SERVER_VERSION = "0.9.0+embedded"
SERVER_SEMVER = 9_000  # 0.9.0 as major * 10^6 + minor * 10^3 + patch

_STREAM = struct.Struct("<IQIQQ")
_TOPIC = struct.Struct("<IQIQBQQQ")
_GROUP = struct.Struct("<III")
_PARTITION = struct.Struct("<IQIQQQ")
_STATS = struct.Struct("<IffQQQQQQQQIIIIQII")
_NODE = struct.Struct("<HHHHBB")
_TCP = 1
_ROOT_USER = 0


def stream_body(stream: Stream) -> bytes:
    """Return a stream's own fields."""
    partitions = [partition for topic in stream.topics.values() for partition in topic.partitions]
    size, messages = sum(p.size for p in partitions), sum(p.messages for p in partitions)
    fixed = _STREAM.pack(stream.number, stream.created_at, len(stream.topics), size, messages)
    return fixed + encode_name(stream.name) + _block(stream.options)


def stream_details_body(stream: Stream) -> bytes:
    """Return a stream's fields and its topics'."""
    return stream_body(stream) + b"".join(topic_body(topic) for topic in stream.topics.values())


def group_body(topic: Topic, number: int) -> bytes:
    """Return a consumer group: it has no members."""
    return _GROUP.pack(number, len(topic.partitions), 0) + encode_name(topic.groups[number])


def topic_body(topic: Topic) -> bytes:
    """Return a topic's own fields with its options, those given and those derived from defaults."""
    fixed = _TOPIC.pack(
        topic.number,
        topic.created_at,
        len(topic.partitions),
        options.number(topic.options, "message_expiry"),
        options.compression_code(topic.options),
        options.number(topic.options, "max_topic_size"),
        sum(partition.size for partition in topic.partitions),
        sum(partition.messages for partition in topic.partitions),
    )
    return fixed + encode_name(topic.name) + _block(topic.options) + _block(options.derived(topic.options))


def topic_details_body(topic: Topic) -> bytes:
    """Return a topic's fields and its partitions'."""
    return topic_body(topic) + b"".join(
        _PARTITION.pack(p.number, p.created_at, p.segments, p.current_offset, p.size, p.messages)
        for p in topic.partitions
    )


def option_catalog_body(scope: int) -> bytes:
    """Return the description of the options that a topic (scope 1) may carry; other scopes have none."""
    entries = options.DEFAULTS.items() if scope == 1 else ()
    parts = [fields.U32.pack(len(entries))]
    for key, (kind, value) in entries:
        parts += (encode_name(key), bytes((kind,)), fields.U32.pack(len(value)), value, encode_text(""))
    return b"".join(parts)


def client_body(number: int, address: str) -> bytes:
    """Return one connected client's fields; it is in no consumer group."""
    fixed = struct.pack("<IIB", number, _ROOT_USER, _TCP)
    return fixed + encode_text(address) + fields.U32.pack(0)


def login_body(session: int) -> bytes:
    """Return what a successful login answers."""
    fixed = struct.pack("<IQI", _ROOT_USER, session, protocol.PROTOCOL_VERSION)
    return fixed + encode_name(SERVER_VERSION)


def cluster_body(host: str, port: int) -> bytes:
    """Return the description of a cluster of one healthy leader: this server."""
    node = encode_text("embedded") + encode_text(host) + _NODE.pack(port, 0, 0, 0, 0, 0)
    return encode_text("embedded") + fields.U32.pack(1) + node


def stats_body(catalog: Catalog, folder: Path, clients: int, started_at: float) -> bytes:
    """Return the server's statistics. What would cost work to know (CPU shares, I/O counts) is zero."""
    with catalog.lock:
        streams = list(catalog.streams.values())
        partitions = list(catalog.partitions())
    usage, system = resource.getrusage(resource.RUSAGE_SELF), os.uname()
    disk = os.statvfs(folder)
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    numbers = _STATS.pack(
        os.getpid(),
        0.0,
        0.0,
        usage.ru_maxrss * 1024,
        page * pages,
        page * os.sysconf("SC_AVPHYS_PAGES"),
        int((time.time() - started_at) * 1e6),
        int(started_at * 1e6),
        0,
        0,
        sum(partition.size for partition in partitions),
        len(streams),
        sum(len(stream.topics) for stream in streams),
        len(partitions),
        sum(partition.segments for partition in partitions),
        sum(partition.messages for partition in partitions),
        clients,
        0,
    )
    texts = (socket.gethostname(), system.sysname, system.release, system.version, SERVER_VERSION)
    tail = struct.pack("<IIIQQ", SERVER_SEMVER, 0, 1, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)
    return numbers + b"".join(map(encode_text, texts)) + tail


def _block(entries: Iterable[Option]) -> bytes:
    block = fields.encode_options(entries)
    return fields.U32.pack(len(block)) + block
