"""Which of many prefixes a key begins with."""

from hypothesis import given
from hypothesis import strategies as st

from framework.model.key_range import prefix_of
from framework.offsets.watermark import CoveredRange, Watermark

TEXTS = st.text("a/\x00é\U0001f600", max_size=4)


@given(st.sets(TEXTS), st.lists(TEXTS))
def test_of_prefixes_of_which_none_begins_with_another_a_key_begins_with_one_or_none(names, keys):
    prefixes = sorted(name for name in names if not any(name != other and name.startswith(other) for other in names))
    for key in (*keys, *names):
        assert prefix_of(prefixes, key) == next((name for name in prefixes if key.startswith(name)), None)


class Key(str):
    __slots__ = ("asked",)

    def startswith(self, *args):
        self.asked = getattr(self, "asked", 0) + 1
        return super().startswith(*args)


def test_the_price_of_a_key_does_not_grow_with_the_number_of_prefixes():
    """Each listed object of a source with 1,000 prefixes asked the watermark whether it begins with each of them."""
    ranges = (CoveredRange("", None, 10),)
    watermark = Watermark(bucket="b", prefixes={f"{number:04}/": ranges for number in reversed(range(1000))})
    key = Key("0777/a")
    assert watermark.place_of(key) == ("0777/", ranges[0])
    assert key.asked == 1
