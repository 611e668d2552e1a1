"""The kit on the store in memory: the reference, on which every exhibit of the museum is built."""

import pytest

from framework.testing.kit import ConformanceLaws
from tests.conformance.rigs import MemoryRig


class TestMemoryStore(ConformanceLaws):
    @pytest.fixture
    def rig(self):
        return MemoryRig()
