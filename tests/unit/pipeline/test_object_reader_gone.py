"""Objects that go or change in the middle of a read: what was skipped before has its dead letters."""

import pytest

from framework.errors import ObjectChangedError, ObjectNotFoundError
from framework.testing.kit.crash import Bench, CrashPoint
from tests.conformance.rigs import MemoryRig


@pytest.mark.parametrize("error", [ObjectNotFoundError("gone"), ObjectChangedError("changed")])
def test_a_bad_record_before_the_end_of_the_object_has_its_dead_letter(error):
    """After the object is gone, that is the only copy."""
    rig = MemoryRig()
    rig.store.put("a", b'{"n":1}\nbad\n' + b"".join(b'{"n":%d}\n' % number for number in range(2, 400)))
    rig.store.put("b", b'{"n":1}\n')
    rig.store.fail("read", error, key="a", at=12)
    rig.store.largest_read = 12
    bench = Bench(rig, tolerance="skip_record", dead_letter_topic="dead")
    bench.live(CrashPoint())
    assert [letter.payload for letter in bench.dead_letters()] == [b"bad"]
    assert [payload for _, payload in bench.stored()["a"]][:1] == [b'{"n":1}']
