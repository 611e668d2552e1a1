"""The connection between a job and its driver. Sockets of this machine, no waiting but for what surely comes."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from framework.engine.spark import stop_channel
from framework.engine.spark.stop_channel import MAX_STRANGERS, TOKEN_BYTES, StopChannel, held
from framework.errors import UnknownOutcomeError

SECONDS = 20


def wait_until(check):
    deadline = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def channel():
    made = StopChannel("127.0.0.1", "127.0.0.1")
    yield made
    made.close()


def test_jobs_hear_that_the_driver_closes_it(channel):
    broken = [threading.Event() for _ in range(3)]
    with (
        held(channel.address, broken[0].set),
        held(channel.address, broken[1].set),
        held(channel.address, broken[2].set),
    ):
        assert not any(one.is_set() for one in broken)
        channel.close()
        for one in broken:
            assert one.wait(SECONDS)
    channel.close()


@pytest.mark.parametrize("master", ["local", "local[4]"])
def test_jobs_of_a_local_master_need_no_name_of_this_machine(master):
    """A name that nothing resolves, or an address that a firewall closes, would end each of them."""
    conf = {"spark.driver.host": "nowhere.invalid", "spark.driver.bindAddress": "0.0.0.0"}
    made = StopChannel.of(SimpleNamespace(master=master, getConf=lambda: conf))
    broken = threading.Event()
    with held(made.address, broken.set):
        made.close()
        assert broken.wait(SECONDS)


def test_a_driver_with_addresses_of_both_kinds_listens_where_spark_does(monkeypatch):
    """Java takes the IPv4 address of a name, and so do executors whose machines know no other."""
    own = socket.getaddrinfo

    def both_kinds(host, port, *kinds, **options):
        first = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))] if host == "localhost" else []
        return [*first, *own(host, port, *kinds, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both_kinds)
    conf = {"spark.driver.host": "localhost"}
    with StopChannel.of(SimpleNamespace(master="spark://localhost", getConf=lambda: conf)) as made:
        assert made.address[0] == "localhost"
        assert made.server_address[0] == "127.0.0.1"


def test_a_job_that_ends_by_itself_hears_nothing(channel):
    broken, others = threading.Event(), threading.enumerate()
    with held(channel.address, broken.set):
        (watching,) = [one for one in threading.enumerate() if one.name == "job-stop" and one not in others]
    watching.join(SECONDS)
    assert not watching.is_alive()
    assert not broken.is_set()


def test_jobs_tell_of_a_store_that_does_not_answer(channel, monkeypatch):
    monkeypatch.setattr(stop_channel, "TELL_SECONDS", 0.01)
    away = threading.Event()
    broken = threading.Event()
    with held(channel.address, broken.set, store_away=away.is_set), held(channel.address, broken.set):
        assert channel.stores_away == 0
        away.set()
        wait_until(lambda: channel.stores_away == 1)
        away.clear()
        wait_until(lambda: channel.stores_away == 0)
        with held(channel.address, broken.set, store_away=lambda: True):
            wait_until(lambda: channel.stores_away == 1)
        wait_until(lambda: channel.stores_away == 0)  # its end is the end of what it told
    assert not broken.is_set()


def test_a_job_that_comes_after_the_end_does_not_begin(channel):
    channel.close()
    with pytest.raises(UnknownOutcomeError, match="is gone from 127"), held(channel.address, lambda: None):
        pytest.fail("it began")


def test_without_an_address_nothing_is_held():
    others = threading.enumerate()
    with held(None, lambda: pytest.fail("there is no channel")):
        assert not [one for one in threading.enumerate() if one.name == "job-stop" and one not in others]


def test_the_death_of_the_driver_breaks_it():
    code = (
        "import sys; from framework.engine.spark.stop_channel import StopChannel\n"
        "print(*StopChannel('127.0.0.1', '127.0.0.1').address, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        broken = threading.Event()
        host, port, token = driver.stdout.readline().decode().split()
        with held((host, int(port), token), broken.set):
            driver.kill()
            assert broken.wait(SECONDS)


def test_without_a_port_there_is_no_line(caplog):
    conf = {"spark.driver.host": "nowhere.invalid", "spark.driver.bindAddress": "203.0.113.1"}  # not of this machine
    assert StopChannel.of(SimpleNamespace(master="spark://nowhere.invalid", getConf=lambda: conf)) is None
    assert "a stop kills them" in caplog.text


def test_a_stranger_on_the_port_changes_nothing(channel):
    broken = threading.Event()
    with socket.create_connection(channel.address[:2]) as stranger, held(channel.address, broken.set):
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not broken.is_set()
        channel.close()
        assert broken.wait(SECONDS)


def test_strangers_are_dropped_and_take_no_descriptors(channel):
    broken = threading.Event()
    with contextlib.ExitStack() as stack, held(channel.address, broken.set):
        wrong = stack.enter_context(socket.create_connection(channel.address[:2], timeout=SECONDS))
        wrong.sendall(b"x" * TOKEN_BYTES)
        assert wrong.recv(1) == b""
        silent = [
            stack.enter_context(socket.create_connection(channel.address[:2], timeout=SECONDS)) for _ in range(200)
        ]
        assert silent[0].recv(1) == b"", "the oldest is dropped at once"
        wait_until(lambda: len(channel.clients) <= MAX_STRANGERS)
        assert silent[-1].recv(1) == b"", "and the last one after some seconds"
        assert not broken.is_set()
        channel.close()
        assert broken.wait(SECONDS)


def test_a_job_that_has_ended_is_not_kept(channel):
    for _ in range(5):
        with held(channel.address, lambda: None):
            deadline = time.monotonic() + SECONDS
            while not channel.held and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(channel.held) == 1
        while channel.held and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not channel.held
