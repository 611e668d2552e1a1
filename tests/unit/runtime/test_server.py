"""The port of the HTTP API with TLS: clients that only begin hold neither its places nor the descriptors of the worker."""

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import anyio
import pytest

from framework.config.http_sections import HttpTlsSection
from framework.errors import ConfigError
from framework.runtime.options import WorkerHttpSection
from framework.runtime.server import KEY_SHOWN, MAX_CLIENTS, ApiServer


async def answer(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"healthy"})


def make_files(folder):
    certificate, private = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", private, "-out", certificate], check=True, capture_output=True)
    return certificate, private


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("tls"))


def section(certificate, private):
    tls = HttpTlsSection(enabled=True, cert_file=str(certificate), key_file=str(private))
    return WorkerHttpSection(address="127.0.0.1:0", tls=tls)


@pytest.fixture
def port(files):
    with ApiServer(answer, section(*files)) as server:
        yield server.port


@pytest.fixture
def trusting(files):
    return ssl.create_default_context(cafile=files[0])


def ask(port, context):
    with contextlib.closing(http.client.HTTPSConnection("localhost", port, timeout=20, context=context)) as line:
        line.request("GET", "/health")
        return line.getresponse().status


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_address_is_a_url_also_with_ipv6(files):
    with ApiServer(answer, section(*files)) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
    with ApiServer(answer, WorkerHttpSection(address="[::1]:0")) as server:
        assert server.url == f"http://[::1]:{server.port}"


def test_silent_clients_with_tls_take_no_place_of_others(port, trusting):
    with contextlib.ExitStack() as lines:
        for _ in range(2 * MAX_CLIENTS):
            plain = lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            lines.enter_context(trusting.wrap_socket(plain, server_hostname="localhost"))
        assert ask(port, trusting) == 200


def test_connections_that_only_begin_tls_hold_few_descriptors(port, trusting):
    before, count = descriptors(), 4 * MAX_CLIENTS
    with contextlib.ExitStack() as lines:
        for _ in range(count):
            lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        assert ask(port, trusting) == 200
        assert descriptors() <= before + count + 2 * MAX_CLIENTS


def test_a_client_with_the_key_whose_answer_is_made_is_not_dropped_for_silent_ones():
    began, ready = threading.Semaphore(0), threading.Event()

    async def slow(scope, _receive, send):
        scope["state"][KEY_SHOWN] = True
        began.release()
        await anyio.to_thread.run_sync(ready.wait, 20)
        await answer(scope, _receive, send)

    with ApiServer(slow, WorkerHttpSection(address="127.0.0.1:0")) as server, contextlib.ExitStack() as lines:

        def connect():
            return lines.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))

        oldest = connect()
        oldest.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert began.acquire(timeout=20)
        for _ in range(MAX_CLIENTS):
            newest = connect()
        newest.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert began.acquire(timeout=20)  # so all have been accepted
        ready.set()
        for line in (newest, oldest):
            assert line.recv(15) == b"HTTP/1.1 200 OK"


def test_requests_without_the_key_take_no_place_of_a_new_client():
    """Such as those of a client that reads none of its answers."""
    began, ready = threading.Semaphore(0), threading.Event()

    async def slow(scope, _receive, send):
        if scope["path"] == "/slow":
            began.release()
            await anyio.to_thread.run_sync(ready.wait, 20)
        await answer(scope, _receive, send)

    with ApiServer(slow, WorkerHttpSection(address="127.0.0.1:0")) as server, contextlib.ExitStack() as lines:
        for path in [*[b"/slow"] * MAX_CLIENTS, b"/"]:
            line = lines.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            line.sendall(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
            assert path == b"/" or began.acquire(timeout=20)
        try:
            assert line.recv(15) == b"HTTP/1.1 200 OK"
        finally:
            ready.set()


def test_clients_without_the_key_write_no_lines_into_the_log(caplog):
    caplog.set_level("DEBUG")
    with ApiServer(answer, WorkerHttpSection(address="127.0.0.1:0")) as server:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as line:
                line.sendall(b"nonsense\r\n\r\n")
                assert line.recv(100).startswith(b"HTTP/1.1 400")
    assert not [record for record in caplog.records if "nvalid" in record.getMessage()]


def test_a_private_key_with_a_pass_phrase_is_refused_without_a_question(files, tmp_path):
    certificate, private = files
    locked = tmp_path / "locked.pem"
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:secret", "-in", private, "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(
        ConfigError, match=r"\[http.tls\] key_file: .*locked.pem needs a pass phrase: name a key without"
    ):
        ApiServer(answer, section(certificate, locked))


def test_a_pipe_in_place_of_a_key_is_refused_and_not_waited_for(files, tmp_path):
    certificate, _ = files
    os.mkfifo(tmp_path / "key.pem")
    with pytest.raises(ConfigError, match=r"key_file: .*key\.pem cannot be read: it is a pipe, not a file"):
        ApiServer(answer, section(certificate, tmp_path / "key.pem"))


def test_a_key_in_place_of_the_certificate_is_named(files):
    certificate, private = files
    with pytest.raises(ConfigError, match="must be a certificate and its private key, both PEM"):
        ApiServer(answer, section(private, certificate))


def test_a_renewed_certificate_is_taken_once_both_of_its_files_fit(files, tmp_path, caplog):
    caplog.set_level("INFO")
    used = [shutil.copy(file, tmp_path / f"used-{file.name}") for file in files]
    (tmp_path / "new").mkdir()
    renewed = make_files(tmp_path / "new")
    before, after = (ssl.create_default_context(cafile=pair[0]) for pair in (files, renewed))
    with ApiServer(answer, section(*used)) as server:
        assert ask(server.port, before) == 200
        shutil.copy(renewed[0], used[0])
        for _ in range(2):  # its key is not there yet
            assert ask(server.port, before) == 200
        shutil.copy(renewed[1], used[1])
        assert ask(server.port, after) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(server.port, before)
        used[1].unlink()
        assert ask(server.port, after) == 200
    said = [record.getMessage() for record in caplog.records if "certificate" in record.getMessage()]
    assert [line.split(":")[0].split(" from ")[0] for line in said] == [
        "the new certificate is not taken, the former one stays",
        "a new certificate was taken",
        "the new certificate is not taken, the former one stays",
    ]
