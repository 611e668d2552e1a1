"""Ports for servers that are told where to listen."""

import socket
from pathlib import Path

import pytest

from framework.errors import FatalError
from framework.testing.servers import ports
from framework.testing.servers.ports import free_port


@pytest.mark.parametrize("above", [0, 10_000])
def test_a_free_port_can_be_bound_and_no_outgoing_connection_gets_it(above):
    port = free_port(also_above=above)
    for one in {port, port + above}:
        with socket.socket() as found:
            found.bind(("127.0.0.1", one))
    place = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if place.exists():
        first, last = map(int, place.read_text().split())
        assert not {port, port + above} & set(range(first, last + 1))


def test_a_port_in_use_is_not_given(monkeypatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        monkeypatch.setattr(ports._CHANCE, "randrange", lambda *_: busy.getsockname()[1])
        with pytest.raises(FatalError, match="no free TCP port"):
            free_port()


def test_the_port_above_counts_too(monkeypatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        monkeypatch.setattr(ports._CHANCE, "randrange", lambda *_: busy.getsockname()[1] - 7)
        with pytest.raises(FatalError, match="no free TCP port"):
            free_port(also_above=7)
