"""A connection to an Iggy server, with a time limit on every call: the one place that makes an official client.

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
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar

import attrs
from typing_extensions import Self, override

from framework.errors import (
    ConfigError,
    IggyProtocolError,
    IggyTopicError,
    IggyUnavailableError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.ids import MAX_RECORD, MAX_SHARE
from framework.iggy import wire
from framework.iggy.address import IggyAddress
from framework.iggy.errors_map import Answer, after_fork, answer_of, classify
from framework.iggy.headers import encode_headers
from framework.iggy.loop import background_loop
from framework.iggy.values import Confirmation, ConnectedClient, PartitionInfo, StoredMessage, TopicInfo

if TYPE_CHECKING:
    import apache_iggy

T = TypeVar("T")
Offset = int | Literal["first", "last"]
_MAX_PARTITIONS = 1000


@attrs.define(eq=False)
class _Call:
    """One request, from its submission to its end. Touched by the loop's thread only, but for `future`."""

    what: str
    start: Callable[[apache_iggy.IggyClient], Awaitable[object]]
    finish: Callable[[object], object]
    sending: bool
    future: Future[object] = attrs.field(factory=Future)
    timer: asyncio.TimerHandle | None = None
    inner: asyncio.Future[object] | None = None


class IggyConnection:
    """One logged-in connection. Threads may share it; its requests go out one by one, in the order of the calls.

    After a break or a missed time limit it is dead for good: that call and every later one raise. A send that was under
    way raises `UnknownOutcomeError`, everything else `IggyUnavailableError`. A refusal (a topic that does not exist)
    leaves it alive.

    Args:
        address: a real server, or an embedded one that is running (`framework.iggy.embedded`).
        connect_timeout_seconds: for resolving, connecting and logging in together.
        call_timeout_seconds: for each request, from the moment it goes out.
    """

    def __init__(
        self, address: IggyAddress, *, connect_timeout_seconds: float = 10, call_timeout_seconds: float = 30
    ) -> None:
        self.address = address
        self.connect_timeout_seconds = connect_timeout_seconds
        self.call_timeout_seconds = call_timeout_seconds
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._client: apache_iggy.IggyClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: str | None = None
        self._closed = False
        self._waiting: deque[_Call] = deque()
        self._current: _Call | None = None

    @override
    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._failure else "open" if self._client else "new"
        return f"IggyConnection({self.address}, {state})"

    # ---- life

    def connect(self) -> Self:
        """Connects and logs in.

        Raises:
            IggyUnavailableError: nobody answers at the address within the limit.
            IggyAuthError: wrong user, password or token.
            IggyProtocolError: the server speaks another version.
            ConfigError: an `embedded:` address, which has to be started first.
        """
        self._check_process()
        if self.address.embedded_path is not None:
            raise ConfigError(f"{self.address} is no server's address: start it with framework.iggy.embedded")
        if self._closed or self._client is not None:
            raise TaskClosedError("a connection to Iggy is made once; make another one")
        self._loop = background_loop()
        opening = asyncio.run_coroutine_threadsafe(self._open(), self._loop)
        try:
            self._client = opening.result(self.connect_timeout_seconds + 5)
        except BaseException:
            opening.cancel()
            raise
        return self

    def close(self) -> None:
        """Gives the connection up without waiting for what is under way. May be called twice."""
        self._closed = True
        if self._loop is not None and self._pid == os.getpid():
            self._loop.call_soon_threadsafe(self._die, "it was closed")
        self._client = None

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self._client is not None and self._failure is None and not self._closed

    def __enter__(self) -> Self:
        return self if self._client is not None else self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- the server and its clients

    def server_version(self) -> str:
        """The server's version, as `0.9.0`. Needs the permission to read servers (`IggyAuthError` without it)."""

        def version(stats: apache_iggy.Stats) -> str:
            return stats.iggy_server_version

        return self._call("ask for the server's version", lambda client: client.get_stats(), version)

    def own_client(self) -> ConnectedClient:
        """This connection as the server lists it."""
        clients = self._command("ask for the own client id", wire.OWN_CLIENT, b"", wire.parse_clients)
        if len(clients) != 1:
            raise IggyProtocolError(f"Iggy at {self.address.server} named {len(clients)} clients for one connection")
        return clients[0]

    def own_client_id(self) -> int:
        """This connection's number at the server."""
        return self.own_client().client_id

    def clients(self) -> tuple[ConnectedClient, ...]:
        """Every client connected to the server."""
        return self._command("list the clients", wire.ALL_CLIENTS, b"", wire.parse_clients)

    def client_ids(self) -> frozenset[int]:
        """The numbers of every client connected to the server."""
        return frozenset(client.client_id for client in self.clients())

    # ---- streams and topics

    def ensure_stream(self, stream: str) -> None:
        """Makes the stream when it is missing."""
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

    def create_topic(self, stream: str, topic: str, partitions: int, *, segment_bytes: int | None = None) -> None:
        """Makes a topic that keeps what it confirmed: persisted, saved message by message, no expiry, no size limit.

        An existing one counts as made: the reply to an earlier try may have been lost.

        Args:
            stream: must exist.
            topic: its name.
            partitions: 1 to 1000.
            segment_bytes: size of a file; the server's default when left out.
        """
        for name in (stream, topic):
            wire.encode_name(name)
        if not 1 <= partitions <= _MAX_PARTITIONS:
            raise ConfigError(f'topic "{topic}": 1 to {_MAX_PARTITIONS} partitions, not {partitions}')

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
        """Deletes the `count` oldest sealed segments of a partition; the one being written always stays."""
        self._command(
            f"delete segments of {_place(stream, topic, partition)}",
            wire.DELETE_SEGMENTS,
            wire.encode_delete_segments(stream, topic, partition, count),
            _nothing,
        )

    # ---- messages

    def submit_send(self, stream: str, topic: str, partition: int, body: bytes) -> Future[tuple[Confirmation, ...]]:
        """Sends a body made by `wire.encode_send`; the names are for messages. The future holds the confirmations."""
        return self._submit(
            f"send to {_place(stream, topic, partition)}",
            lambda client: client.send_binary_request(wire.SEND_MESSAGES, body),
            lambda reply: wire.parse_confirmations(bytes(reply)),
            sending=True,
        )

    def submit_messages(
        self, stream: str, topic: str, partition: int, messages: list[apache_iggy.SendMessage]
    ) -> Future[tuple[Confirmation, ...]]:
        """Sends the official client's own messages: the slow way, for servers whose layout we do not know."""

        def confirmations(response: apache_iggy.SendMessagesResponse) -> tuple[Confirmation, ...]:
            return tuple(
                Confirmation(one.stream_id, one.topic_id, one.partition_id, one.base_offset)
                for one in response.confirmations
            )

        return self._submit(
            f"send to {_place(stream, topic, partition)}",
            lambda client: client.send_messages(stream, topic, partition, messages),
            confirmations,
            sending=True,
        )

    def send_raw(self, stream: str, topic: str, partition: int, body: bytes) -> tuple[Confirmation, ...]:
        """`submit_send`, and waits."""
        return self._wait(self.submit_send(stream, topic, partition, body))

    def append(
        self,
        stream: str,
        topic: str,
        partition: int,
        payload: bytes,
        *,
        message_id: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Stores one message and waits: for the log of positions and the like, not for the hot path.

        Args:
            stream: its name.
            topic: its name.
            partition: counted from 0.
            payload: 1 byte or more.
            message_id: 128 bits; random when left out.
            headers: text each.

        Returns:
            The message's offset.

        Raises:
            UnknownOutcomeError: the connection broke, or the server does not tell where it stored the message.
        """
        number = secrets.randbits(128) if message_id is None else message_id
        segment = wire.Segment(
            id_high=number >> 64,
            share=number >> 40 & MAX_SHARE,
            first_record=number & MAX_RECORD,
            payloads=[payload],
            headers=encode_headers(headers or {}),
        )
        confirmed = self.send_raw(stream, topic, partition, wire.encode_send(stream, topic, partition, [segment]))
        if not confirmed:
            raise UnknownOutcomeError(
                f"send to {_place(stream, topic, partition)}: Iggy at {self.address.server} does not tell the offset"
            )
        return confirmed[0].base_offset

    def poll(self, stream: str, topic: str, partition: int, *, offset: Offset, count: int) -> list[StoredMessage]:
        """Messages of one partition, in order; none beyond the end. Stores no consumer offset.

        Args:
            stream: its name.
            topic: its name.
            partition: counted from 0.
            offset: where to begin (when retention dropped it, the first message left answers), `"first"`, or `"last"`
                for the last `count` messages.
            count: at most so many.
        """

        def ask(client: apache_iggy.IggyClient) -> Awaitable[list[apache_iggy.ReceiveMessage]]:
            from apache_iggy import Consumer, PollingStrategy  # noqa: PLC0415  (loaded when used)

            strategy: PollingStrategy
            if isinstance(offset, int):
                strategy = PollingStrategy.Offset(offset)
            else:
                strategy = PollingStrategy.First() if offset == "first" else PollingStrategy.Last()
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
        return self._call(f"read {_place(stream, topic, partition)}", ask, _stored_messages)

    # ---- requests, in the caller's thread

    def _command(self, what: str, code: int, body: bytes, parse: Callable[[bytes], T]) -> T:
        return self._call(
            what, lambda client: client.send_binary_request(code, body), lambda reply: parse(bytes(reply))
        )

    def _create(self, what: str, start: Callable[[apache_iggy.IggyClient], Awaitable[None]]) -> None:
        try:
            self._call(what, start, _nothing)
        except IggyTopicError as error:
            if error.__cause__ is None or answer_of(error.__cause__) is not Answer.EXISTS:
                raise

    def _call(
        self,
        what: str,
        start: Callable[[apache_iggy.IggyClient], Awaitable[object]],
        finish: Callable[..., T],
    ) -> T:
        return self._wait(self._submit(what, start, finish))

    def _wait(self, future: Future[T]) -> T:
        return future.result()

    def _submit(
        self,
        what: str,
        start: Callable[[apache_iggy.IggyClient], Awaitable[object]],
        finish: Callable[..., T],
        *,
        sending: bool = False,
    ) -> Future[T]:
        self._check_process()
        if self._closed:
            raise TaskClosedError(f"{what}: this connection to Iggy at {self.address.server} was closed")
        if self._loop is None or self._client is None:
            raise TaskClosedError(f"{what}: this connection to Iggy at {self.address.server} was not made yet")
        if self._failure is not None:
            raise self._not_sent(what)
        call = _Call(what, start, finish, sending)
        self._loop.call_soon_threadsafe(self._enqueue, call)
        return call.future  # type: ignore[return-value]  # finish gives the T

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise after_fork(self._pid, os.getpid())

    def _not_sent(self, what: str) -> IggyUnavailableError:
        return IggyUnavailableError(
            f"{what}: not sent, the connection to Iggy at {self.address.server} is gone ({self._failure})"
        )

    # ---- requests, in the loop's thread

    async def _open(self) -> apache_iggy.IggyClient:
        import apache_iggy as iggy  # noqa: PLC0415  (23 MB, and threads of its own)

        address = self.address
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.connect_timeout_seconds
        what = "connect"
        try:
            found = await asyncio.wait_for(
                loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM), self.connect_timeout_seconds
            )
        except (OSError, asyncio.TimeoutError) as error:
            raise IggyUnavailableError(f"{what}: the name of Iggy's host {address.host} was not resolved") from error
        if address.token is not None:
            login = iggy.AutoLogin.personal_access_token(address.token)
        else:
            login = iggy.AutoLogin.username_password(address.user, address.password or "")
        failure: BaseException = TimeoutError("no address")
        for ip in dict.fromkeys(str(entry[4][0]) for entry in found):
            try:
                config = iggy.TcpConfig(
                    server_address=f"[{ip}]:{address.port}" if ":" in ip else f"{ip}:{address.port}",
                    auto_login=login,
                    reconnection=iggy.TcpReconnectionConfig(enabled=False),
                    heartbeat_interval=timedelta(seconds=5),
                    tls_enabled=address.tls,
                    tls_domain=(address.tls_domain or address.host) if address.tls else None,
                    tls_ca_file=address.tls_ca_file,
                    nodelay=True,
                )
                client = iggy.IggyClient(config)
                await asyncio.wait_for(client.connect(), max(0.01, deadline - loop.time()))
            except asyncio.TimeoutError:
                failure = TimeoutError(f"no answer within {self.connect_timeout_seconds:g} s")
                break
            except Exception as error:  # noqa: BLE001  (classified below)
                failure = error
                if answer_of(error) is not Answer.BROKEN:
                    break
            else:
                return client
        raise classify(failure, what, server=address.server, login=address.login) from failure

    def _enqueue(self, call: _Call) -> None:
        self._waiting.append(call)
        self._pump()

    def _pump(self) -> None:
        """Starts the next request. One at a time: two at once inside the client may change places."""
        while self._current is None and self._waiting:
            call = self._waiting.popleft()
            client = self._client
            if self._failure is not None or client is None:
                _resolve(call.future, self._not_sent(call.what))
                continue
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                inner = asyncio.ensure_future(call.start(client))
            except Exception as error:  # noqa: BLE001  (bad arguments, refused before anything was sent)
                _resolve(call.future, self._classified(error, call))
                continue
            self._current = call
            call.inner = inner
            call.timer = inner.get_loop().call_later(self.call_timeout_seconds, self._expire, call)
            inner.add_done_callback(functools.partial(self._done, call))

    def _done(self, call: _Call, inner: asyncio.Future[object]) -> None:
        if self._current is not call:
            if not inner.cancelled():
                inner.exception()  # late news of a call given up; looked at, so that asyncio does not complain
            return
        self._current = None
        if call.timer is not None:
            call.timer.cancel()
        error = asyncio.CancelledError("cancelled") if inner.cancelled() else inner.exception()
        if error is None:
            try:
                result = call.finish(inner.result())
            except Exception as wrong:  # noqa: BLE001  (goes to the caller)
                _resolve(call.future, wrong)
            else:
                call.future.set_result(result)
            self._pump()
            return
        if answer_of(error) is Answer.BROKEN:
            self._die(str(error))
        _resolve(call.future, self._classified(error, call))
        self._pump()

    def _expire(self, call: _Call) -> None:
        if self._current is call:
            self._die(f"no answer within {self.call_timeout_seconds:g} s")

    def _die(self, reason: str) -> None:
        """The end: the client is dropped, what is under way and what waits fails."""
        if self._failure is None:
            self._failure = reason
        self._client = None
        call, self._current = self._current, None
        if call is not None:
            if call.timer is not None:
                call.timer.cancel()
            if call.inner is not None:
                call.inner.cancel()
            _resolve(call.future, self._classified(TimeoutError(reason), call))
        self._pump()

    def _classified(self, error: BaseException, call: _Call) -> Exception:
        made = classify(error, call.what, server=self.address.server, login=self.address.login, sending=call.sending)
        made.__cause__ = error
        return made


def _resolve(future: Future[object], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _nothing(_answer: object) -> None:
    return None


def _place(stream: str, topic: str, partition: int) -> str:
    return f'topic "{topic}", partition {partition}, of stream "{stream}"'


def _topic_info(stream: str, details: apache_iggy.TopicDetails | None) -> TopicInfo | None:
    if details is None:
        return None
    options = {**details.derived_options.to_scalar_dict(), **details.options.to_scalar_dict()}
    return TopicInfo(
        stream=stream,
        name=details.name,
        id=details.id,
        created_at=details.created_at,
        partitions=tuple(
            PartitionInfo(
                id=one.id,
                current_offset=one.current_offset,
                messages_count=one.messages_count,
                segments_count=one.segments_count,
            )
            for one in sorted(details.partitions, key=lambda one: one.id)
        ),
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
        stored.append(StoredMessage(message.offset(), message.id(), message.payload(), plain, message.timestamp()))
    return stored


__all__ = ["IggyConnection", "Offset", "UnknownOutcomeError"]
