"""The connection to Iggy breaks while a start recovers: it begins anew, as after any later break, and nothing is there twice."""

import itertools

import pytest

from tests.integration.program_rig import OwnServer, Program, check_exactly, json_lines, jsonl
from tests.support.iggy_proxy import IggyProxy, WireFault

LEAST = 15
"""Fewer requests than a start makes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = OwnServer(tmp_path_factory.mktemp("first") / "iggy").start()
    yield made
    made.kill()


@pytest.fixture
def proxy(server):
    with IggyProxy(server.port) as made:
        yield made


@pytest.fixture
def program(tmp_path, moto_bucket, server, proxy, stream_name):
    made = Program(tmp_path, moto_bucket, f"iggy://iggy:iggy@127.0.0.1:{proxy.port}", stream_name)
    yield made
    made.close()


def cut(program, proxy, bucket, fault):
    """A run that is cut once, if it makes so many requests; what it had to send, and whether it was cut."""
    key = f"{fault.kind}-{fault.skip}.jsonl"
    bucket.put(key, jsonl(json_lines(key, 3)))
    proxy.arm(fault)
    program.once()
    return {key: json_lines(key, 3)}, proxy.disarm()


@pytest.mark.parametrize(("kind", "step"), [("before", 4), ("stored", 3)])
def test_a_start_whose_recovery_is_cut_anywhere_goes_on(program, proxy, server, moto_bucket, kind, step):
    expected, struck = {}, True
    for skip in itertools.count(0, step):
        records, struck = cut(program, proxy, moto_bucket, WireFault(kind=kind, skip=skip, sends_only=False))
        expected |= records
        if not struck:
            break
    assert skip > LEAST
    check_exactly(program.messages(url=server.url), expected)


def test_a_start_of_several_processes_goes_on_too(program, proxy, server, moto_bucket):
    program.configure(runner={"tasks_max": 2})
    expected, struck = cut(program, proxy, moto_bucket, WireFault(kind="half-reply", skip=11, sends_only=False))
    assert struck
    check_exactly(program.messages(url=server.url), expected)


def test_iggy_that_is_restarted_while_a_start_recovers_is_waited_for(program, proxy, server, moto_bucket):
    """The server is away when the program connects the second time."""
    moto_bucket.put("a.jsonl", jsonl(json_lines("a", 20)))
    program.once()
    moto_bucket.put("b.jsonl", jsonl(json_lines("b", 20)))
    proxy.arm(WireFault(kind="late", skip=8, sends_only=False, seconds=60))
    running = program.start("--once")
    assert proxy.fired.wait(30)
    server.kill()
    running.wait_for("Iggy is away", seconds=30)
    server.start()
    ended = running.wait(60)
    assert ended.code == 0, ended.err
    expected = {f"{name}.jsonl": json_lines(name, 20) for name in "ab"}
    check_exactly(program.messages(url=server.url), expected)
