"""A connection to an Iggy server: plain calls, each with a time limit, and errors that say what to do.

What it puts right (all observed with apache-iggy 0.9.0): Nagle's delay of 44 ms a send (`nodelay`); calls that wait for
ever while the server is away (limits of our own); a reconnection that hides a restart in which acknowledged messages
were lost (switched off: a connection that broke stays broken, the layers above make a new one and recover); errors
without names.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from typing_extensions import Self, override

from framework.config.iggy_address import IggyAddress
from framework.errors import (
    ConfigError,
    IggyAuthError,
    IggyProtocolError,
    IggyTopicError,
    IggyUnavailableError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.iggy import protocol, wire
from framework.iggy.errors_map import Answer, answer_of
from framework.iggy.login import check_process, open_client
from framework.iggy.loop import background_loop
from framework.iggy.request_queue import RequestQueue, Start
from framework.iggy.rights import Right, hidden_stream, missing_rights
from framework.iggy.send_connection import SendConnection
from framework.iggy.values import (
    ConnectedClient,
    ObjectName,
    PartitionInfo,
    StoredMessage,
    TopicInfo,
    place_of,
)

if TYPE_CHECKING:
    import apache_iggy

T = TypeVar("T")
Offset = int | Literal["last"]
_GRACE_SECONDS = 5.0

_too_many: dict[tuple[str, str, str, int], int] = {}
"""Server, stream, topic and partition -> half of the messages that the last poll without an answer in time had asked for."""


class IggyConnection:
    """One logged-in connection. Threads may share it; its requests go out one by one, in the order of the calls.

    Records may go over a second one (`open_sending`), which ends with this one.

    After a break, a missed time limit or a send that failed it is dead for good: that call, those waiting behind it and
    every later one raise. A send that was under way raises `UnknownOutcomeError`, everything else, and a send whose topic
    is gone, `IggyUnavailableError`. Any other refusal (a topic that does not exist) leaves it alive.

    Args:
        address: a real server, or an embedded one that is running (`framework.iggy.embedded.launcher`).
        connect_timeout_seconds: for resolving, connecting and logging in together.
        call_timeout_seconds: for each request, from the moment it goes out.
    """

    _sending: SendConnection | None = None

    def __init__(
        self, address: IggyAddress, *, connect_timeout_seconds: float = 10, call_timeout_seconds: float = 30
    ) -> None:
        self.address = address
        self.connect_timeout_seconds = connect_timeout_seconds
        self.call_timeout_seconds = call_timeout_seconds
        self._pid = os.getpid()
        self._opening: Future[tuple[apache_iggy.IggyClient, str]] | None = None
        self._ip = ""
        self._requests: RequestQueue | None = None
        self._begun: tuple[tuple[Future[int], Collection[ObjectName]], ...] = ()
        self._closed = False

    @override
    def __repr__(self) -> str:
        return f"IggyConnection({self.address}{', closed' if self._closed else ''})"

    # ---- life

    def connect(self) -> Self:
        """Connect and log in.

        Raises:
            IggyUnavailableError: no answer at the address within the limit, or before `close`.
            IggyAuthError: wrong user, password or token.
            IggyProtocolError: the server speaks another version.
            ConfigError: an `embedded:` address, which has to be started first.
            FatalError: this process was forked from one that had made a connection.
        """
        check_process()
        if self.address.embedded_path is not None:
            raise ConfigError(f"{self.address} is no server's address: start it with framework.iggy.embedded.launcher")
        if self._closed or self._requests is not None:
            raise TaskClosedError("a connection to Iggy is made once; make another one")
        loop = background_loop()
        opening = asyncio.run_coroutine_threadsafe(_open(self.address, self.connect_timeout_seconds), loop)
        self._opening = opening
        if self._closed:  # by another thread, which did not see the attempt yet
            opening.cancel()
        try:
            client, self._ip = opening.result(self.connect_timeout_seconds + _GRACE_SECONDS)
        except (CancelledError, FutureTimeoutError) as error:  # a process that stood still may see its own limit first
            raise IggyUnavailableError(
                f"connect: Iggy at {self.address.server} did not answer in time, or the connection was closed before it was open"
            ) from error
        finally:
            opening.cancel()
            self._opening = None  # it knows the client, whose last reference closes the connection
        self._requests = RequestQueue(
            client,
            loop,
            server=self.address.server,
            login=self.address.login,
            timeout_seconds=self.call_timeout_seconds,
        )
        if self._closed:  # by another thread, which did not see the requests yet
            self._requests.stop("it was closed")
        return self

    def open_sending(self) -> None:
        """Open the connection beside this one that sends records from now on: over TCP without TLS, to a single server.

        Called before a claim, which names both. Elsewhere, without this call, and where the server does not tell how many
        there are, the official client sends them: it finds the leader of a cluster.

        Raises:
            IggyUnavailableError, IggyAuthError, IggyProtocolError: no connection, or no login.
        """
        requests = self._requests
        if self.address.transport != "tcp" or self.address.tls or requests is None:
            return
        try:
            nodes = self._command("ask for the servers", protocol.CLUSTER_METADATA, b"", wire.parse_node_count)
        except (IggyAuthError, IggyProtocolError):
            return
        if nodes > 1:
            return
        sending = self._sending = SendConnection(
            self.address,
            self._ip,
            connect_timeout_seconds=self.connect_timeout_seconds,
            timeout_seconds=self.call_timeout_seconds,
            on_end=requests.stop,
        )
        if self._closed:  # by another thread, which did not see it yet
            sending.close()
        try:
            sending.open(background_loop())
        except BaseException:
            self._sending = None
            raise

    def close(self) -> None:
        """Close the connection without waiting for its opening, or for requests in progress. Idempotent, thread-safe."""
        was_closed, self._closed = self._closed, True
        if was_closed or self._pid != os.getpid():
            return
        opening = self._opening
        if opening is not None:
            opening.cancel()
        if self._requests is not None:
            self._requests.stop("it was closed")
        if self._sending is not None:
            self._sending.close()

    def __enter__(self) -> Self:
        return self if self._requests is not None else self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the server and its clients

    def server_version(self) -> str:
        """The server's version, as `0.9.0`. Needs the permission to read servers (`IggyAuthError` without it)."""
        return self._call(
            "ask for the server's version",
            lambda client: client.get_stats(),
            lambda stats: str(stats.iggy_server_version),
        )

    def own_clients(self) -> tuple[ConnectedClient, ...]:
        """Return this connection as the server lists it, and behind it the one that sends records, if there is one."""
        return (self.own_client(), *(() if self._sending is None else (self._sending.client,)))

    def own_client(self) -> ConnectedClient:
        """Return this connection as the server lists it."""
        return self._command("ask for the own client id", protocol.GET_ME, b"", wire.parse_own_client)

    def clients(self) -> tuple[ConnectedClient, ...]:
        """Return every client connected to the server."""
        return self._command("list the clients", protocol.GET_CLIENTS, b"", wire.parse_clients)

    def missing_rights(self, stream: str, topics: Iterable[Right]) -> list[str] | None:
        """Return the permissions that the user lacks for a source, in words; None when the server does not tell.

        Asks for the user's own permissions, which needs none; changes nothing.

        Args:
            stream: its name; it need not exist.
            topics: what is done with which topic.
        """
        number = self.own_client().user_id
        try:
            permissions: apache_iggy.Permissions | None = self._call(
                "ask for the user's permissions",
                lambda client: client.get_user(number),
                lambda details: details.permissions if details is not None else None,
            )
        except (IggyAuthError, IggyProtocolError, IggyTopicError):
            return None
        if permissions is None:
            return None
        try:
            stream_id = self._call(
                f'look up stream "{stream}"',
                lambda client: client.get_stream(stream),
                lambda details: details.id if details is not None else None,
            )
        except IggyAuthError:
            stream_id = hidden_stream(permissions)
            if stream_id is None:
                return None
        return missing_rights(permissions, stream_id, topics)

    # ---- streams and topics

    def ensure_stream(self, stream: str) -> None:
        """Create the stream if it is missing."""
        wire.encode_name(stream)
        what = f'make stream "{stream}"'
        if self._call(f'look up stream "{stream}"', lambda client: client.get_stream(stream), bool):
            return
        self._create(what, lambda client: client.create_stream(stream))

    def get_topic(self, stream: str, topic: str) -> TopicInfo | None:
        """The topic as it is now, or None when it or its stream is missing."""
        for name in (stream, topic):
            wire.encode_name(name)
        finish = functools.partial(_topic_info, stream)
        return self._call(
            f'look up topic "{topic}" of stream "{stream}"', lambda client: client.get_topic(stream, topic), finish
        )

    def topic_names(self, stream: str) -> list[str]:
        """The names of a stream's topics, sorted; none when the stream is missing."""
        wire.encode_name(stream)
        return self._call(
            f'list the topics of stream "{stream}"',
            lambda client: client.get_topics(stream),
            lambda topics: sorted(topic.name for topic in topics),
        )

    def create_topic(self, stream: str, topic: str, partitions: int, *, segment_bytes: int | None = None) -> None:
        """Create a topic that keeps confirmed messages: persisted, saved one by one, no expiry, no size limit.

        An existing one counts as made: the reply to an earlier try may have been lost.

        Args:
            stream: must exist.
            topic: its name, which `get_topic` has checked.
            partitions: 1 to 1000.
            segment_bytes: size of a file; the server's default when left out.
        """

        def start(client: apache_iggy.IggyClient) -> Awaitable[None]:
            from apache_iggy import Durability, IggyExpiry, MaxTopicSize  # noqa: PLC0415  (loaded when used)

            return client.create_topic(
                stream,
                topic,
                partitions,
                message_expiry=IggyExpiry.NeverExpire(),
                max_topic_size=MaxTopicSize.Unlimited(),
                segment_size=segment_bytes,
                durability=Durability.PERSISTED,
                messages_required_to_save=1,
            )

        self._create(f'make topic "{topic}" in stream "{stream}"', start)

    def delete_segments(self, stream: str, topic: str, partition: int, count: int) -> None:
        """Delete the `count` oldest sealed segments of a partition; the one being written always stays."""
        self._command(
            f"delete segments of {place_of(stream, topic, partition)}",
            protocol.DELETE_SEGMENTS,
            wire.encode_delete_segments(stream, topic, partition, count),
            _nothing,
        )

    # ---- messages

    def submit_send(
        self, stream: str, topic: str, partition: int, body: bytes | bytearray, objects: Iterable[ObjectName] = ()
    ) -> Future[int]:
        """Send a body made by `wire.encode_send`. The future holds the offset of its first message.

        It is stored after all that was sent before and after the beginnings of its objects, or not at all.

        Args:
            stream: for messages, like the next two.
            topic: its name.
            partition: counted from 0.
            body: all messages.
            objects: those whose records are in it; looked at only while beginnings have no answer.
        """
        what = f"send to {place_of(stream, topic, partition)}"
        finish = functools.partial(self._offset_of, what)
        sending = self._sending
        if sending is None:
            return self._submit(what, _send(body), finish, sending=True)
        requests = self._live_requests(what)
        if unanswered := [(append, begun) for append, begun in self._begun if not append.done()]:
            sent = set(objects)
            appends = [append for append, begun in unanswered if not sent.isdisjoint(begun)]
            if wait(appends, requests.longest_wait_seconds + _GRACE_SECONDS).not_done:
                # the loop's thread is gone: the interpreter is ending
                raise IggyUnavailableError(
                    f"{what}: not sent, the append of the position of an object was not answered"
                )
        requests.check(what)
        return sending.submit(what, body, finish)

    def _offset_of(self, what: str, reply: bytes) -> int:
        """Return the offset in the answer to a send.

        Raises:
            UnknownOutcomeError: there is none: whether it is behind what was stored before is not known.
        """
        offset = wire.parse_base_offset(bytes(reply))
        if offset is None:
            raise UnknownOutcomeError(f"{what}: Iggy at {self.address.server} does not say where it stored it; recover")
        return offset

    def pull(self, seconds: float | None) -> None:
        """Complete the send under way, if its answer comes within so many seconds and nothing else completes it."""
        if self._sending is not None:
            self._sending.pull(seconds)

    def send_raw(self, stream: str, topic: str, partition: int, body: bytes | bytearray) -> int:
        """Call `submit_send` and wait."""
        return self.wait(self.submit_send(stream, topic, partition, body))

    def submit_append(
        self,
        stream: str,
        topic: str,
        partition: int,
        payload: bytes,
        *,
        on_stored: Callable[[int], None] | None = None,
        begins: Collection[ObjectName] = (),
    ) -> Future[int]:
        """Send a message with a random id, not for the hot path. The future holds the offset.

        After a failure, later submissions are not sent.

        Args:
            stream: its name.
            topic: its name.
            partition: counted from 0.
            payload: 1 byte or more.
            on_stored: called with the offset in the background loop's thread, before any later request of this
                connection is sent. A callback of the future may run after the answers to those.
            begins: objects whose records must not be stored before this message: their sends wait for it. One thread at a
                time gives any.
        """
        segment = wire.Segment(
            id_high=secrets.randbits(64),
            split_number=secrets.randbits(24),
            first_record=secrets.randbits(40),
            payloads=[payload],
        )
        body = wire.encode_send(stream, topic, partition, [segment])
        what = f"send to {place_of(stream, topic, partition)}"

        def finish(reply: bytes) -> int:
            offset = self._offset_of(what, reply)
            if on_stored is not None:
                on_stored(offset)
            return offset

        append = self._submit(what, _send(body), finish, sending=True)
        if begins:
            self._begun = (*(one for one in self._begun if not one[0].done()), (append, begins))
        return append

    def ensure_group(self, stream: str, topic: str, group: str) -> None:
        """Create a consumer group if it is missing.

        Raises:
            IggyAuthError, IggyProtocolError: this user may not, or the server has no groups.
        """
        what = f'make consumer group "{group}" of topic "{topic}", stream "{stream}"'
        self._create(what, lambda client: client.create_consumer_group(stream, topic, group))

    def has_group(self, stream: str, topic: str, group: str) -> bool:
        """Return whether a topic has a consumer group of that name."""
        what = f'look up consumer group "{group}" of topic "{topic}", stream "{stream}"'
        return self._call(what, lambda client: client.get_consumer_group(stream, topic, group), bool)

    def join_group(self, stream: str, topic: str, group: str) -> None:
        """Join a consumer group, which is created if it is missing.

        A real server drops a member 61 seconds after it fell silent, and no other silent connection, ever.

        Raises:
            IggyProtocolError, IggyAuthError: the server has no groups (the embedded one), or this user may not join one.
        """
        self.ensure_group(stream, topic, group)
        what = f'join consumer group "{group}" of topic "{topic}", stream "{stream}"'
        self._call(what, lambda client: client.join_consumer_group(stream, topic, group), _nothing)
        if self._sending is not None:
            self._sending.join_group(what, stream, topic, group)

    def poll(self, stream: str, topic: str, partition: int, *, offset: Offset, count: int) -> list[StoredMessage]:
        """Messages of one partition, in order; none beyond the end. Stores no consumer offset.

        The answer to a poll that failed may have been too large for its time limit. So each later poll of the partition, of
        any connection of this process, asks at most for half as many, until one has reached the end.

        Args:
            stream: its name.
            topic: its name.
            partition: counted from 0.
            offset: where to begin (when retention dropped it, the first message left answers), or `"last"` for the last
                `count` messages.
            count: at most so many.
        """

        def ask(client: apache_iggy.IggyClient) -> Awaitable[list[apache_iggy.ReceiveMessage]]:
            from apache_iggy import Consumer, PollingStrategy  # noqa: PLC0415  (loaded when used)

            strategy: PollingStrategy = PollingStrategy.Last()
            if offset != "last":
                strategy = PollingStrategy.Offset(offset)
            return client.poll_messages(
                stream,
                topic,
                consumer=Consumer.Single(1),
                polling_strategy=strategy,
                count=count,
                auto_commit=False,
                partition_id=partition,
            )

        for name in (stream, topic):
            wire.encode_name(name)
        place = self.address.server, stream, topic, partition
        count = min(count, _too_many.get(place, count))
        try:
            found = self._call(f"read {place_of(stream, topic, partition)}", ask, _stored_messages)
        except IggyUnavailableError as error:
            if count > 1 and isinstance(error.__cause__, TimeoutError):  # a large answer takes its time
                _too_many[place] = count // 2
            raise
        if not found:
            _too_many.pop(place, None)
        return found

    def polled_end(self, stream: str, topic: str, partition: int) -> int:
        """Return the offset of a partition's last message, as a poll answers it.

        0 without messages, and where the server cannot read the partition: then its answer to any poll looks like that of
        an empty partition.
        """
        return self._command(
            f"read {place_of(stream, topic, partition)}",
            protocol.POLL,
            wire.encode_poll_behind_end(stream, topic, partition),
            wire.parse_polled_end,
        )

    # ---- requests

    def _command(self, what: str, code: int, body: bytes, parse: Callable[[bytes], T]) -> T:
        return self._call(
            what, lambda client: client.send_binary_request(code, body), lambda reply: parse(bytes(reply))
        )

    def _create(self, what: str, start: Start) -> None:
        try:
            self._call(what, start, _nothing)
        except IggyTopicError as error:
            if error.__cause__ is None or answer_of(error.__cause__) is not Answer.EXISTS:
                raise

    def _call(self, what: str, start: Start, finish: Callable[..., T]) -> T:
        return self.wait(self._submit(what, start, finish))

    def wait(self, future: Future[T]) -> T:
        """The answer to a request of this connection; every request has a time limit."""
        limit = self._requests.longest_wait_seconds if self._requests is not None else 0
        try:
            return future.result(limit + _GRACE_SECONDS)
        except FutureTimeoutError as error:  # the loop's thread is gone: the interpreter is ending
            raise UnknownOutcomeError(
                f"Iggy at {self.address.server}: no answer, and no time limit ended it"
            ) from error

    def _submit(self, what: str, start: Start, finish: Callable[..., T], *, sending: bool = False) -> Future[T]:
        return self._live_requests(what).submit(what, start, finish, sending=sending)

    def _live_requests(self, what: str) -> RequestQueue:
        check_process(self._pid)
        if self._closed or self._requests is None:
            state = "was closed" if self._closed else "was not made yet"
            raise TaskClosedError(f"{what}: this connection to Iggy at {self.address.server} {state}")
        return self._requests


async def _open(address: IggyAddress, timeout_seconds: float) -> tuple[apache_iggy.IggyClient, str]:
    """Call `open_client`. A failure that comes after the attempt was cancelled is not for asyncio's log."""
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return await open_client(address, timeout_seconds)


def _send(body: bytes | bytearray) -> Start:
    # the client takes a bytearray in one copy, as it does bytes; any other buffer it takes byte by byte
    return lambda client: client.send_binary_request(protocol.SEND, cast("bytes", body))


def _nothing(_answer: object) -> None:
    return None


def _topic_info(stream: str, details: apache_iggy.TopicDetails | None) -> TopicInfo | None:
    if details is None:
        return None
    options = {**details.derived_options.to_scalar_dict(), **details.options.to_scalar_dict()}
    # not of the options: an update stands there as it was sent, such as "1h"
    lifetime: timedelta | None = getattr(details.message_expiry, "duration", None)
    return TopicInfo(
        stream=stream,
        name=details.name,
        id=details.id,
        created_at=details.created_at,
        partitions=tuple(
            PartitionInfo(
                id=partition.id,
                current_offset=partition.current_offset,
                messages_count=partition.messages_count,
                segments_count=partition.segments_count,
            )
            for partition in sorted(details.partitions, key=lambda partition: partition.id)
        ),
        expiry_microseconds=lifetime // timedelta(microseconds=1) if lifetime is not None else None,
        max_bytes=getattr(details.max_topic_size, "bytes", None),
        options={str(name): value for name, value in options.items()},
    )


def _stored_messages(messages: list[apache_iggy.ReceiveMessage]) -> list[StoredMessage]:
    stored = []
    for message in messages:
        try:
            headers = message.user_headers()
            plain = {str(name): value for name, value in headers.to_scalar_dict().items()} if headers else {}
        except (ValueError, RuntimeError):
            plain = {}  # of others, and broken: none of ours
        stored.append(
            StoredMessage(
                message.offset(),
                message.id(),
                message.payload(),
                plain,
                message.timestamp(),
                message.origin_timestamp(),
            )
        )
    return stored
