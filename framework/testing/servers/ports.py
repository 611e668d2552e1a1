"""Ports for servers that need a fixed port, and that return to the same port after a kill."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from framework.errors import FatalError

LOWEST = 15_000
LAST = 65_535
_CHANCE = random.SystemRandom()
"""Tests begin with the same seed, also those that run side by side: of it they would all get the same ports."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(*, also_above: int = 0) -> int:
    """A TCP port of 127.0.0.1 that is free, and that no outgoing connection is given before a server listens there.

    A port that the kernel picks (`bind` to 0) comes from the same range as those of outgoing connections: between the look
    and the server's start, or while the server is down, any of them may get it.

    Args:
        also_above: the port that many above must be free, too; 0: no other one.

    Raises:
        FatalError: none was found.
    """
    for _ in range(1000):
        port = _CHANCE.randrange(LOWEST, max(LOWEST + 1000, _first_of_connections() - also_above))
        if all(_is_free(wanted) for wanted in {port, port + also_above}):
            return port
    raise FatalError("no free TCP port was found on 127.0.0.1")


def _first_of_connections() -> int:
    """The lowest port that outgoing connections get."""
    with suppress(OSError, ValueError, IndexError):
        return int(_RANGE.read_text().split()[0])
    return LAST + 1


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
