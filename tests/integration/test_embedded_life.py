"""What only the embedded server promises: durability under kill -9, one owner, its launcher, its limits."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from apache_iggy import AutoLogin, PollingStrategy

from framework.config.iggy_address import IggyAddress
from framework.iggy.connection import IggyConnection
from framework.iggy.embedded import connection
from framework.iggy.embedded import launcher as embedded
from framework.iggy.embedded.launcher import EmbeddedServer, EmbeddedServerError
from framework.iggy.embedded.service import Service
from tests.integration.iggy_rig import connect, connect_with_topic, poll, poll_messages, run, send, send_body
from tests.support.iggy_batches import encode_batch
from tests.support.stopwatch import Stopwatch

ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "framework.iggy.embedded"]


@contextlib.contextmanager
def child(folder, *arguments, address="127.0.0.1"):
    """Start the server alone; yield its process and url."""
    process = subprocess.Popen(
        [*MODULE, str(folder), "--port", "0", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        line = process.stdout.readline().decode()
        assert "for development" in line, process.stderr.read().decode()
        served = json.loads((folder / "server.json").read_bytes())
        port = served["port"]
        assert f"{address}:{port}" in line
        yield process, f"iggy://iggy:{served['password']}@{address}:{port}"
    finally:
        process.kill()
        process.communicate()


def wait_until(check, seconds=30):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; only its parent has not looked yet.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_kill_9_under_load_loses_nothing_confirmed(tmp_path):
    confirmed = {0: {}, 1: {}}
    size = 37

    async def load(url, partition, enough):
        client, number = await connect(url), len(confirmed[partition])
        with contextlib.suppress(RuntimeError):
            while True:
                payloads = [b"%d/%d/%d" % (partition, number, i) + b"." * 150 for i in range(size)]
                body = send_body("s", encode_batch(payloads), size, partition)
                reply = bytes(await client.send_binary_request(101, body))
                (base,) = struct.unpack_from("<Q", reply, 16)
                confirmed[partition].update(zip(range(base, base + size), payloads, strict=True))
                number += 1
                enough()

    async def round_of(process, url, batches):
        left = batches

        def enough():
            nonlocal left
            left -= 1
            if not left:
                process.send_signal(signal.SIGKILL)

        await asyncio.gather(load(url, 0, enough), load(url, 1, enough))

    async def prepare(url):
        await connect_with_topic(url, "s", 2, segment_size=1 << 20)

    async def check(url):
        client = await connect(url)
        for partition, expected in confirmed.items():
            found, offset = {}, 0
            while batch := await poll_messages(
                client, "s", PollingStrategy.Offset(offset), count=5000, partition=partition
            ):
                found.update((message.offset(), message.payload()) for message in batch)
                offset = batch[-1].offset() + 1
            assert list(found) == list(range(len(found))), "no hole, no repeat"
            assert {offset: found.get(offset) for offset in expected} == expected
            # What was stored without a confirmation counts from here on, as it does for a source that looks.
            confirmed[partition] = found

    with child(tmp_path) as (_, url):
        run(prepare(url))
    for batches in (53, 97, 71):
        with child(tmp_path) as (process, url):
            run(round_of(process, url, batches))
            assert process.wait(30) == -signal.SIGKILL
        with child(tmp_path) as (_, url):
            run(check(url))
    assert min(map(len, confirmed.values())) > 30 * size


def test_what_was_stored_is_there_after_a_restart(tmp_path):
    async def store(url):
        client = await connect_with_topic(url, "s", 2)
        await send(client, "s", ["a", "b", "c"], partition=1)
        await poll(client, "s", PollingStrategy.Next(), count=2, partition=1, auto_commit=True)

    async def look(url):
        client = await connect(url)
        assert await poll(client, "s", PollingStrategy.Next(), partition=1) == [(2, "c")]
        assert (await client.get_topic("s", "t")).partitions_count == 2

    with EmbeddedServer.start(tmp_path) as server:
        run(store(server.url))
    with EmbeddedServer.start(tmp_path) as server:
        run(look(server.url))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_within_a_second(tmp_path, number):
    async def use(url, process):
        client = await connect_with_topic(url, "s")
        await send(client, "s", ["a"])
        began = Stopwatch()
        process.send_signal(number)
        process.wait(60)
        assert began.seconds < 1

    with child(tmp_path) as (process, url):
        run(use(url, process))
        assert process.returncode == 0
        assert process.stderr.read() == b""
        assert not (tmp_path / "server.json").exists()


def test_a_second_owner_is_refused_and_told_who_has_the_folder(tmp_path):
    with child(tmp_path) as (process, _):
        second = subprocess.run([*MODULE, str(tmp_path), "--port", "0"], cwd=ROOT, capture_output=True, text=True)
        assert second.returncode == 3
        assert f"process {process.pid} already" in second.stderr


def test_another_address_than_loopback_is_refused_with_a_sentence(tmp_path):
    refused = subprocess.run([*MODULE, str(tmp_path), "--host", "0.0.0.0"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "listens on this machine only" in refused.stderr


def test_a_damaged_folder_is_reported_by_the_launcher(tmp_path):
    (tmp_path / "catalog.json").write_text('{"format": 99}')
    with pytest.raises(EmbeddedServerError, match="format 99"):
        EmbeddedServer.start(tmp_path)


def test_the_launcher_works_from_any_folder_and_stops_twice(tmp_path, monkeypatch):
    (tmp_path / "framework").mkdir()
    (tmp_path / "framework" / "__init__.py").write_text("raise ImportError('the wrong framework')")
    monkeypatch.chdir(tmp_path)
    server = EmbeddedServer.start("data")
    pid = server.pid
    assert server.path == tmp_path / "data"
    assert server.url == f"iggy://iggy:{server.password}@{server.host}:{server.port}"
    assert server.password not in repr(server)
    server.stop()
    server.stop()
    assert not alive(pid)


def test_credentials_are_those_the_launcher_was_given(tmp_path):
    async def use(url):
        await connect(url)
        with pytest.raises(RuntimeError, match="Invalid credentials"):
            await connect(url, login=AutoLogin.username_password("iggy", "iggy"))

    with EmbeddedServer.start(tmp_path, username="ada", password="lovelace") as server:
        assert server.url.startswith("iggy://ada:lovelace@")
        assert b"lovelace" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        run(use(server.url))


def test_the_password_is_random_for_each_folder_and_kept_there(tmp_path):
    passwords = []
    for folder in ("a", "a", "b"):
        with EmbeddedServer.start(tmp_path / folder) as server:
            passwords.append(server.password)
            run(connect(server.url))
    first, again, other = passwords
    assert first == again != other
    assert len(first) == len(other) == 32
    kept = tmp_path / "a" / "password"
    assert kept.read_text() == f"{first}\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_whoever_joins_gets_the_credentials_that_the_server_was_started_with(tmp_path):
    with (
        EmbeddedServer.start(tmp_path, username="ada", password="l@ve/l?ce%") as owner,
        EmbeddedServer.start(tmp_path) as joined,
    ):
        assert (joined.owned, joined.url) == (False, owner.url)
        with IggyConnection(IggyAddress.parse(joined.url)) as opened:
            assert opened.own_client().client_id > 0


def test_a_client_without_the_password_neither_fills_memory_nor_stays_nor_keeps_the_server(tmp_path):
    def frame(code, body=b"", size=None):
        request = bytearray(256)
        struct.pack_into("<I", request, 48, 256 + len(body) if size is None else size)
        request[60], request[176] = 5, 2
        struct.pack_into("<I", request, 196, code)
        return bytes(request) + body

    with EmbeddedServer.start(tmp_path) as server:
        place = (server.host, server.port)
        with socket.create_connection(place, timeout=30) as peer:
            peer.sendall(frame(1, size=60_000_000))
            assert peer.recv(1) == b"", "dropped before anything is reserved"
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(200)]
            assert peers[0].recv(1) == b"", "the oldest is dropped"
            run(connect(server.url))
        with socket.create_connection(place, timeout=30) as peer:
            peer.sendall(frame(0x1EA5E, b"iggy"))
            assert len(peer.recv(256, socket.MSG_WAITALL)) == 256
            pid = server.pid
            server.stop()
            wait_until(lambda: not alive(pid), 5)


def test_a_client_that_never_logs_in_is_dropped(monkeypatch, tmp_path):
    monkeypatch.setattr(connection, "LOGIN_SECONDS", 0.3)
    ours, theirs = socket.socketpair()
    with ours, socket.create_server(("127.0.0.1", 0)) as listener:
        theirs.close()
        with socket.create_connection(listener.getsockname()) as client:
            served, _ = listener.accept()
            thread = threading.Thread(target=connection.Connection(served, 1, None, "u", "p").serve, daemon=True)
            thread.start()
            for _ in range(100):
                client.sendall(b"x")  # a byte now and then
                thread.join(0.05)
                if not thread.is_alive():
                    break
            assert not thread.is_alive()


def test_a_process_of_the_same_number_is_no_server(tmp_path):
    """After kill -9 the number may be given to another process, and the port to another user's: the lock is the proof."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        address = {"pid": os.getpid(), "host": "127.0.0.1", "port": port, "username": "iggy", "password": "p"}
        (tmp_path / "server.json").write_text(json.dumps(address))
        (tmp_path / "lock").write_text(f"{os.getpid()}\n")
        with EmbeddedServer.start(tmp_path) as server:
            assert server.owned
            assert server.port != port
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.parametrize("name", ["lock", "server.json.new", "password"])
def test_links_in_the_folder_are_not_followed(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    with pytest.raises(EmbeddedServerError):
        EmbeddedServer.start(folder)
    assert victim.read_text() == "precious"


def test_a_folder_that_others_may_write_is_closed_to_them(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    with EmbeddedServer.start(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        Service(tmp_path, username="ada").run("127.0.0.1", 0)


def test_it_listens_on_ipv6_too(tmp_path):
    with child(tmp_path, "--host", "::1", address="[::1]") as (_, url):
        run(connect(url))
        with EmbeddedServer.start(tmp_path) as joined:
            assert (joined.owned, joined.url) == (False, url)


def test_a_second_start_joins_and_keeps_the_server_until_it_stops(tmp_path):
    owner = EmbeddedServer.start(tmp_path)
    pid = owner.pid
    joined = EmbeddedServer.start(tmp_path)
    assert (joined.owned, joined.url) == (False, owner.url)
    owner.stop()
    run(connect(joined.url))
    assert alive(pid)
    began = time.monotonic()
    joined.stop()
    wait_until(lambda: not alive(pid))
    assert time.monotonic() - began > 0.5, "it waits a second for another client"


def test_the_server_ends_after_its_owner_was_killed_and_the_last_client_left(tmp_path):
    script = (
        "import sys, time; from framework.iggy.embedded.launcher import EmbeddedServer\n"
        "server = EmbeddedServer.start(sys.argv[1]); print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as owner:
        pid = int(owner.stdout.readline())
        port = json.loads((tmp_path / "server.json").read_bytes())["port"]
        with socket.create_connection(("127.0.0.1", port)) as client:
            owner.kill()
            owner.wait()
            client.settimeout(1.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert alive(pid)
        wait_until(lambda: not alive(pid))
    assert not (tmp_path / "server.json").exists()


def test_whoever_owns_or_joined_sees_that_the_server_has_ended(tmp_path):
    with EmbeddedServer.start(tmp_path) as owner, EmbeddedServer.start(tmp_path) as joined:
        assert (owner.has_ended(), joined.has_ended()) == (False, False)
        os.kill(owner.pid, signal.SIGKILL)
        wait_until(owner.has_ended)
        wait_until(joined.has_ended)


def test_of_many_starts_at_once_one_owns_and_the_others_join(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda _: EmbeddedServer.start(tmp_path), range(4)))
    assert sorted(server.owned for server in servers) == [False, False, False, True]
    assert len({server.url for server in servers}) == 1
    for server in sorted(servers, key=lambda server: server.owned):
        server.stop()


def test_a_server_that_hangs_while_starting_is_given_up(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "catalog.json")
    monkeypatch.setattr(embedded, "_READY_SECONDS", 0.3)
    with pytest.raises(EmbeddedServerError, match=r"not ready within 0.3 seconds"):
        EmbeddedServer.start(tmp_path)


def test_a_stale_address_file_of_a_killed_server_does_not_mislead(tmp_path):
    with child(tmp_path) as (process, _):
        process.kill()
        process.wait()
    assert (tmp_path / "server.json").exists()
    with EmbeddedServer.start(tmp_path) as server:
        assert server.owned
        run(connect(server.url))


def test_what_it_lacks_it_says(tmp_path):
    async def ask(url):
        client = await connect_with_topic(url, "s")
        for lacking in (
            client.get_users(),
            client.create_user("someone", "secret"),
            client.send_binary_request(102, b""),
        ):
            with pytest.raises(RuntimeError, match="Feature is unavailable"):
                await lacking
        assert (await client.get_stats()).iggy_server_version == "0.9.0+embedded"
        assert await poll(client, "s") == [], "the connection goes on"

    with EmbeddedServer.start(tmp_path) as server:
        run(ask(server.url))


def test_a_openedwithout_a_login_is_refused_everything_but_a_ping(tmp_path):
    def ask(peer, operation, code):
        request = bytearray(256)
        struct.pack_into("<I", request, 48, 256)
        request[60], request[176] = 5, operation
        struct.pack_into("<I", request, 196, code)
        peer.sendall(request)
        return struct.unpack_from("<I", peer.recv(256, socket.MSG_WAITALL), 216)[0]

    with (
        EmbeddedServer.start(tmp_path) as server,
        socket.create_connection((server.host, server.port), timeout=30) as peer,
    ):
        assert ask(peer, 2, 1) == 0
        for operation, code in ((2, 201), (2, 22), (2, 100), (128, 0), (160, 0), (161, 0)):
            assert ask(peer, operation, code) == 40


def test_a_wrong_checksum_drops_the_openedat_once(tmp_path):
    async def use(url):
        client = await connect_with_topic(url, "s")
        batch = encode_batch([b"abc"])
        batch[-1] ^= 1
        with pytest.raises(RuntimeError, match="Disconnected"):
            await client.send_binary_request(101, send_body("s", batch, 1))
        assert await poll(await connect(url), "s") == []

    with EmbeddedServer.start(tmp_path) as server:
        run(use(server.url))


def test_bytes_that_are_no_protocol_drop_only_their_own_connection(tmp_path):
    async def use(url):
        await connect(url)

    with child(tmp_path) as (process, url):
        port = int(url.rsplit(":", 1)[1])
        oversized = bytearray(256)
        struct.pack_into("<I", oversized, 48, 70_000_000)
        oversized[60] = 5
        for garbage in (b"GET / HTTP/1.1\r\n" + b"x" * 256, bytes(256), bytes(oversized)):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
                peer.sendall(garbage)
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(1) == b""
        run(use(url))
        process.terminate()
        _, said = process.communicate()
        assert said.decode().count("was dropped") == 3
