"""What the local engine makes of a configuration before it runs."""

import time

from framework.discovery.filters import FilterReason, Selector
from framework.engine.local import with_moment
from framework.model.objects import NativeObject
from framework.testing.options import source_config


def test_an_object_of_the_second_of_the_start_is_not_too_old_for_now():
    before = int(time.time()) - 1
    selector = Selector(with_moment(source_config(modified_after="now")))
    listed = int(time.time())  # a store rounds last-modified down to seconds

    def decide(seconds):
        return selector.decide(NativeObject(bucket="b", key="k", size=1, version="v", modified_ms=1000 * seconds))

    assert decide(listed) is not FilterReason.TOO_OLD
    assert decide(before) is FilterReason.TOO_OLD
