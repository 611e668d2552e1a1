"""The feed of an iterator is made once, whoever asks first."""

import threading

from framework.testing.fakes.memory_store import MemoryStore
from tests.support.core import iterator_over


def test_two_threads_that_ask_at_once_get_the_same_feed():
    """The reader takes from it while somebody shows its figures: a second feed would hand every object out again."""
    iterator = iterator_over(MemoryStore())
    make, made, second = iterator.create_feed, [], threading.Event()

    def slow():
        made.append(1)
        if len(made) == 1:
            second.wait(0.2)  # time for the other one to come in here too
        else:
            second.set()
        return make()

    iterator.create_feed = slow
    found = []
    threads = [threading.Thread(target=lambda: found.append(iterator.feed)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    iterator.close()
    assert len(made) == 1
    assert found[0] is found[1] is iterator.feed
