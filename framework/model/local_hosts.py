"""Hosts that are this machine: what is sent there stays here, and what listens there answers no other machine."""

from __future__ import annotations

from ipaddress import ip_address


def is_this_machine(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address; no other name is, whatever it resolves to."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
