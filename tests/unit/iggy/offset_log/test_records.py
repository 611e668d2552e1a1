"""Claims and the clients that a server lists."""

import pytest

from framework.iggy.offset_log.records import Claim, connected
from framework.iggy.values import ConnectedClient

CLAIM = Claim(
    epoch=19,
    host="vm",
    process=2310,
    leader=True,
    token="t",
    client=(2, "127.0.0.1:36544"),
    sending=(3, "127.0.0.1:36548"),
)


@pytest.mark.parametrize(
    ("clients", "is_connected"),
    [
        ([(1, "127.0.0.1:40000"), (2, "127.0.0.1:36544"), (3, "127.0.0.1:36548")], True),
        ([(2, "127.0.0.1:36544")], True),
        ([(3, "127.0.0.1:36548")], True),
        ([(1, "127.0.0.1:36544"), (4, "127.0.0.1:36548")], False),
        ([], False),
        # The server has restarted: a foreign connection has the number and the port of an earlier one.
        ([(2, "127.0.0.1:36544"), (3, "127.0.0.1:51000")], False),
        ([(2, "127.0.0.1:51000"), (3, "127.0.0.1:36548")], False),
    ],
)
def test_a_claim_is_connected_while_the_server_that_it_was_made_on_lists_it(clients, is_connected):
    listed = [ConnectedClient(client_id=number, address=address) for number, address in clients]
    assert connected([CLAIM], listed) == [CLAIM] * is_connected
