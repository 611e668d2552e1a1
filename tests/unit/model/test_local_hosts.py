"""Which hosts are this machine: what a check allows in the clear, or without a key, rests on it."""

import pytest

from framework.model.local_hosts import is_this_machine


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_machine(host):
    assert is_this_machine(host)


@pytest.mark.parametrize(
    "host", ["", "localhost.example.com", "127.0.0.1.example.com", "iggy", "0.0.0.0", "::", "10.0.0.1", "[::1]"]
)
def test_another_machine_or_a_name_that_may_be_one(host):
    assert not is_this_machine(host)
