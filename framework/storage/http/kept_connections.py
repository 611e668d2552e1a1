"""Connections that are kept for the next request, and what came on them unasked.

What a proxy sends once too often would be taken for the answer to the next request, and each later answer for that of the
request behind it. libcurl looks for it only on a connection that was idle for more than a second.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable


class KeptConnections:
    """The connections of a loop by their local ports; only its thread uses it.

    libcurl before 8.22 does not tell the socket of a connection that was kept, but always its port.
    """

    def __init__(self) -> None:
        self._polls: dict[int, select.poll] = {}
        self._ports: dict[int, int] = {}
        self.unproven: set[int] = set()
        """Ports of connections that may speak HTTP/2, where frames come unasked, and each answer names its request."""

    def add(self, port: int, fds: Iterable[int], *, may_share: bool) -> None:
        """Note a new connection.

        Args:
            port: its local port.
            fds: the sockets that were opened for it; the others have lost.
            may_share: whether it may turn out to speak HTTP/2: it is not judged before `prove`.
        """
        for fd in fds:
            if _port_of(fd) == port:
                self._polls.pop(self._ports.get(fd, 0), None)  # a connection that had this number, and was closed
                self._ports[fd] = port
                self._polls[port] = look = select.poll()
                look.register(fd, select.POLLIN)
        self.unproven.discard(port)
        if may_share:
            self.unproven.add(port)

    def prove(self, port: int) -> None:
        """Note that a connection speaks HTTP/1.1."""
        self.unproven.discard(port)

    def is_spoilt(self, port: int) -> bool:
        """Return whether something came on an idle connection, or its end. Takes a microsecond."""
        look = self._polls.get(port)
        if look is None or port in self.unproven:
            return False
        for fd, event in look.poll(0):
            if event & select.POLLNVAL or _port_of(fd) != port:  # closed; the number may be another file's by now
                self._polls.pop(port, None)
                return False
            return True
        return False


def _port_of(fd: int) -> int | None:
    """Return the local port of a socket; None when there is none."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            name = connection.getsockname()
    except OSError:
        return None
    return name[1] if isinstance(name, tuple) else None
