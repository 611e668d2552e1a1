"""Positions as Kafka Connect's API names them: each has a partition of its own."""

import pytest

from framework.cli.offsets_commands import as_row
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.runtime.api_documents import OffsetPartition
from framework.runtime.worker import _offset


@pytest.mark.parametrize(
    ("split_size", "name"), [(0, None), (64, "share"), (-3, "part")], ids=["whole", "split", "part"]
)
def test_each_position_of_an_object_has_a_partition_of_its_own(split_size, name):
    numbers = (1, 2, 3) if split_size else (0,)
    rows = [
        as_row(
            OffsetManagerEntry(
                bucket="b",
                key="k",
                version="v",
                topic_partition=TopicPartition("t", 0),
                split_number=number,
                split_size=split_size,
            )
        )
        for number in numbers
    ]
    found = [_offset(row)["partition"] for row in rows]
    assert found == [{"bucket": "b", "key": "k", **({name: number} if name else {})} for number in numbers]
    assert [OffsetPartition(**one).key for one in found] == ["k"] * len(numbers)
