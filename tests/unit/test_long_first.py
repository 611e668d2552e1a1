"""The order of tests: what takes longest first, the others as they come."""

import pytest

from tests.support.long_first import pytest_collection_modifyitems


class Item:
    def __init__(self, *marks):
        self.marks = marks

    def get_closest_marker(self, name):
        return pytest.mark.long if name in self.marks else None


def test_long_tests_come_first_and_the_others_keep_their_order():
    items = [Item(), Item("long"), Item("flaky"), Item("long"), Item()]
    expected = [items[number] for number in (1, 3, 0, 2, 4)]
    pytest_collection_modifyitems(items)
    assert items == expected
