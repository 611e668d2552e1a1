"""How many messages a poll asks for after polls that failed, and what a confirmation has to say."""

import itertools

import pytest

from framework.config.iggy_address import IggyAddress
from framework.errors import IggyUnavailableError, UnknownOutcomeError
from framework.iggy.connection import IggyConnection

_ports = itertools.count(1)


class Client:
    """A client that answers at most so many messages within the time limit."""

    def __init__(self, *, most=10**9, end=False, cause=TimeoutError):
        self.cause = cause()
        self.asked = []
        self.most = most
        self.end = end

    def poll_messages(self, *_, count, **__):
        self.asked.append(count)
        if count > self.most:
            raise IggyUnavailableError("no answer within 15 s") from self.cause
        return [] if self.end else [object()]


@pytest.fixture
def poll(monkeypatch):
    """Poll through a new connection to one server, as after a break; return the messages."""
    address = IggyAddress.parse(f"iggy://iggy:iggy@127.0.0.1:{next(_ports)}")

    def polled(client, count, partition=0):
        connection = IggyConnection(address)
        monkeypatch.setattr(connection, "_call", lambda _what, start, _finish: start(client))
        return connection.poll("s", "t", partition, offset=0, count=count)

    return polled


def test_each_poll_after_one_that_failed_asks_for_half_as_many_until_it_is_answered(poll):
    client = Client(most=70)
    for _ in range(2):
        with pytest.raises(IggyUnavailableError):
            poll(client, 256)
    for count in (8, 256, 128, 1):
        assert poll(client, count)
    assert client.asked == [256, 128, 8, 64, 64, 1]


def test_a_connection_that_broke_says_nothing_of_large_answers(poll):
    with pytest.raises(IggyUnavailableError):
        poll(Client(most=70, cause=ConnectionError), 256)
    client = Client()
    poll(client, 256)
    assert client.asked == [256]


def test_other_partitions_are_not_concerned_and_the_end_of_a_reading_ends_it(poll):
    with pytest.raises(IggyUnavailableError):
        poll(Client(most=70), 256)
    client = Client(end=True)
    poll(client, 256, partition=1)
    poll(client, 256)
    poll(client, 256)
    assert client.asked == [256, 128, 256]


def test_a_poll_asks_for_one_message_at_least_and_one_that_fails_says_nothing_of_large_answers(poll):
    broken, whole = Client(most=0), Client()
    with pytest.raises(IggyUnavailableError):
        poll(broken, 1)
    poll(whole, 256)
    for _ in range(4):
        with pytest.raises(IggyUnavailableError):
            poll(broken, 3)
    poll(whole, 256)
    assert broken.asked == [1, 3, 1, 1, 1]
    assert whole.asked == [256, 1]


def test_a_confirmation_without_a_place_is_none():
    connection = IggyConnection(IggyAddress.parse("iggy://iggy:iggy@127.0.0.1:1"))
    with pytest.raises(UnknownOutcomeError, match=r"send to topic .*127\.0\.0\.1:1 does not say where it stored it"):
        connection._offset_of('send to topic "t"', bytes(4))
