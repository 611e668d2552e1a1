"""Iggy over QUIC and WebSocket: the whole program on a real server; the embedded one speaks TCP only, and that is told."""

import os

import pytest

from framework.config.iggy_address import IggyAddress
from framework.errors import IggyAuthError, IggyUnavailableError
from framework.iggy.connection import IggyConnection
from tests.integration.program_rig import (
    SERVERS,
    OwnServer,
    Program,
    check_exactly,
    json_lines,
    jsonl,
    wait_for_count,
    wait_until,
)

TRANSPORTS = ("quic", "websocket")
REAL = [(transport, tasks) for transport in TRANSPORTS for tasks in (1, 2)] if "real" in SERVERS else []


@pytest.fixture
def bucket(bucket_of):
    return bucket_of("moto")


@pytest.fixture
def server(tmp_path):
    own = OwnServer(tmp_path / "own", SERVERS[-1])
    yield own.start()
    own.kill()


@pytest.fixture
def program(tmp_path, bucket, server, stream_name):
    made = Program(tmp_path, bucket, server.url, stream_name)
    yield made
    made.close()


def fill(bucket, prefix, objects=4, count=3000):
    expected = {f"{prefix}/{n}.jsonl": json_lines(f"{prefix}{n}", count + n) for n in range(objects)}
    for key, payloads in expected.items():
        bucket.put(key, jsonl(payloads))
    return expected


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_port_that_speaks_tcp_only_is_unavailable_soon(server, transport):
    scheme = IggyAddress.parse(server.url_of(transport)).scheme
    address = IggyAddress.parse(f"{scheme}://iggy:iggy@127.0.0.1:{server.port}")
    with pytest.raises(IggyUnavailableError, match="did not answer"):
        IggyConnection(address, connect_timeout_seconds=1).connect()


def test_quic_to_a_server_with_its_own_certificate_names_the_option(server):
    url = server.url_of("quic").partition("?")[0]
    with pytest.raises(IggyUnavailableError, match=r"set validate_certificate = false in \[iggy\.tls\]"):
        IggyConnection(IggyAddress.parse(url), connect_timeout_seconds=1).connect()


@pytest.mark.parametrize(("transport", "tasks"), [("tcp", 1), *REAL])
def test_a_kill_of_the_source_and_one_of_the_server(program, bucket, server, transport, tasks):
    program.configure(
        iggy={"url": server.url_of(transport), "batch_length": 300, "request_timeout": 5}, runner={"tasks_max": tasks}
    )
    assert program.run("check").code == 0
    expected = fill(bucket, "a")
    running = program.start()
    wait_for_count(program, 2000, running)
    running.kill()
    running = program.start()
    wait_for_count(program, 5000, running)
    server.kill()
    server.start()
    expected |= fill(bucket, "b")
    total = sum(map(len, expected.values()))
    wait_until(lambda: running.process.poll() is not None or program.count() >= total)
    assert running.stop(within=40).code == 0
    assert "sent 0 records" in program.once().err
    check_exactly(program.messages(), expected)


@pytest.mark.parametrize("transport", ["tcp", *(TRANSPORTS if REAL else ())])
def test_wrong_credentials_are_told_as_that(server, transport):
    url = server.url_of(transport).replace("iggy:iggy@", "iggy:wrong@")
    with pytest.raises(IggyAuthError, match='does not accept user "iggy"'):
        IggyConnection(IggyAddress.parse(url), connect_timeout_seconds=5).connect()


@pytest.mark.parametrize("transport", ["tcp", *(TRANSPORTS if REAL else ())])
def test_requests_of_megabytes_and_parts_of_an_address(program, bucket, server, transport):
    address = IggyAddress.parse(server.url_of(transport))
    tls = {"validate_certificate": False} if transport == "quic" else {}
    program.configure(
        iggy={"url": None, "address": address.server, "transport": transport, "username": "iggy", "password": "iggy"},
        input={"max_record_bytes": "32MB"},
    )
    environment = {f"IGGY_SOURCE__IGGY__TLS__{name.upper()}": str(value).lower() for name, value in tls.items()}
    payloads = [b'{"pad":"%s"}' % (b"x" * size) for size in (9_000_000, 3, 2_500_000, 15_000_000)]
    bucket.put("large.jsonl", jsonl(payloads))
    ended = program.start("--once", environment=environment).wait()
    assert ended.code == 0, ended.err
    check_exactly(program.messages(), {"large.jsonl": payloads})


def test_the_real_server_is_the_one_that_is_named():
    assert bool(REAL) == bool(os.environ.get("IGGY_SERVER_BINARY"))
