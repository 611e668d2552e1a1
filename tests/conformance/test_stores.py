"""The kit on the sources that ship, over every store of `tests.support.stores`."""

import pytest

from framework.testing.kit import ConformanceLaws, check
from tests.conformance.store_rigs import LiveRig, StoreRig, UnorderedRig
from tests.support.live import LIVE

CUT = "an answer that ends early is a broken connection here, and the object is read on from there"


class TestStores(ConformanceLaws):
    """Every law, on the stores that take every key and list in strict order."""

    cannot = {"T2": CUT}  # noqa: RUF012

    @pytest.fixture
    def rig(self, plain_bucket):
        return StoreRig(plain_bucket)


ABOUT_THE_STORE = ["L1", "L3", "L4", "L5", "L6", "I1", "I4", "I5", "I6", "D1", "E1", "S1", "H1"]
"""Laws of which the store decides something. The others are about our own code, which is the same over every store; L2 asks for
an order that SeaweedFS does not list in."""


@pytest.mark.parametrize("law", ABOUT_THE_STORE)
def test_seaweedfs(law, seaweedfs_bucket):
    rig = UnorderedRig(seaweedfs_bucket)
    try:
        assert check(law, rig).comparisons > 0
    finally:
        rig.close()


def test_a_listing_behind_a_key_is_left_out_where_there_is_no_order(seaweedfs_bucket):
    rig = UnorderedRig(seaweedfs_bucket)
    try:
        assert "in the order of the keys' bytes" in check("L2", rig).skipped
    finally:
        rig.close()


if LIVE:

    class TestLiveStores(ConformanceLaws):
        """Every law that needs no broken connection, on the buckets of this run."""

        cannot = {  # noqa: RUF012
            "T2": CUT,
            "L5": "nothing can make a cloud stand still",
            "E1": "nothing can make a cloud fail",
            "S1": "a process elsewhere would not know the place in the bucket",
        }

        @pytest.fixture(params=LIVE)
        def rig(self, request, bucket_of):
            return LiveRig(bucket_of(request.param))
