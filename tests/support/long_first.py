"""The longest tests run first: one that a worker begins last has all the others wait for it.

Marked `long`: those that take half a minute and more on two cores. With `--dist=worksteal` the first worker begins with
them, and the others take the rest of its tests.
"""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
