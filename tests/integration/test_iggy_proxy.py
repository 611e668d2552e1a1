"""The proxy breaks a request where it is told to: what the server has then, and what the client is told."""

import asyncio
import socket

import pytest

from tests.integration import program_rig
from tests.integration.iggy_rig import SendMessage, connect, connect_with_topic, eventually, poll, run
from tests.integration.program_rig import OwnServer
from tests.support.iggy_proxy import HEAD, IggyProxy, WireFault


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = OwnServer(tmp_path_factory.mktemp("wire") / "iggy").start()
    yield made
    made.kill()


@pytest.fixture
def proxy(server):
    with IggyProxy(server.port) as made:
        yield made


def url_of(proxy):
    return f"iggy://iggy:iggy@127.0.0.1:{proxy.port}"


def send_through(server, proxy, stream_name, fault):
    """Whether a send was told to have worked, and what the topic holds."""

    async def work():
        await connect_with_topic(server.url, stream_name)
        client = await connect(url_of(proxy))
        other = await connect(server.url)

        async def is_stored():
            return bool(await poll(other, stream_name))

        proxy.arm(fault)
        sending = asyncio.ensure_future(client.send_messages(stream_name, "t", 0, [SendMessage("one")]))
        if fault.kind == "late":
            await eventually(is_stored)
        else:
            await asyncio.wait([sending], timeout=30)
            assert sending.done(), "a connection that was cut told nobody"
        told = sending.done() and sending.exception() is None
        if not sending.done():
            sending.cancel()
        await asyncio.sleep(0.05)  # a request under way may still be stored
        return told, await poll(other, stream_name)

    return run(work())


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("kind", "is_stored"),
    [("before", False), ("half-request", False), ("stored", True), ("half-reply", True), ("late", True)],
)
def test_a_send_is_broken_where_it_is_told(server, proxy, stream_name, kind, is_stored, reset):
    told, stored = send_through(server, proxy, stream_name, WireFault(kind=kind, seconds=60.0, reset=reset))
    assert not told
    assert bool(stored) == is_stored
    assert proxy.disarm()


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_half_is_never_whole(server, proxy, stream_name, part):
    assert send_through(server, proxy, stream_name, WireFault(kind="half-request", part=part)) == (False, [])


def test_without_a_fault_it_passes_everything_on(server, proxy, stream_name):
    fault = WireFault(kind="before", skip=1)
    assert send_through(server, proxy, stream_name, fault) == (True, [(0, "one")])
    assert not proxy.disarm()


def test_every_request_may_be_meant(server, proxy, stream_name):
    async def work():
        await connect_with_topic(server.url, stream_name)
        client = await connect(url_of(proxy))
        proxy.arm(WireFault(kind="stored", sends_only=False))
        with pytest.raises(RuntimeError):
            await poll(client, stream_name)

    run(work())
    assert proxy.disarm()


def test_closing_ends_a_connection_that_takes_nothing_any_more():
    """Its end stayed open, with what it had not taken, until the collector came."""
    size = 30_000_000
    head = bytearray(HEAD)
    head[48:52] = size.to_bytes(4, "little")
    request = bytearray(HEAD)
    request[48:52] = HEAD.to_bytes(4, "little")
    with socket.create_server(("127.0.0.1", 0)) as server, IggyProxy(server.getsockname()[1]) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
            client.sendall(request)
            peer, _ = server.accept()
            with peer:
                peer.recv(HEAD, socket.MSG_WAITALL)
                peer.sendall(head + bytes(size - HEAD))
                assert client.recv(1, socket.MSG_PEEK)  # what it passes on has begun to come
                sockets = [end.get_extra_info("socket") for end in proxy._ends]
                proxy.close()
        assert [one.fileno() for one in sockets] == [-1, -1]


def test_a_server_that_does_not_answer_in_time_is_ended(tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("it never became true")

    monkeypatch.setattr(program_rig, "wait_until", never)
    server = OwnServer(tmp_path / "iggy")
    with pytest.raises(AssertionError, match="never became"):
        server.start()
    left = server._process.returncode is None
    server.kill()
    assert not left
