import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.iggy.embedded import batch
from tests.support.iggy_batches import assemble, decode_batches, encode_batch, frame

payloads = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12)


@given(payloads, st.binary(max_size=20))
def test_a_batch_from_a_client_is_verified_and_its_fields_read(messages, headers):
    data = encode_batch(messages, headers=headers, origin=77)
    header, checksums = batch.verify(memoryview(data))
    assert (header.count, header.length, header.origin_timestamp) == (len(messages), len(data), 77)
    assert len(checksums) == 8 * len(messages)


@given(payloads, st.data())
def test_any_flipped_bit_is_noticed(messages, data):
    raw = encode_batch(messages)
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(batch.DamagedBatchError):
        batch.verify(memoryview(raw))


@given(payloads, st.data())
def test_a_batch_cut_short_or_with_more_behind_it_is_refused(messages, data):
    raw = encode_batch(messages)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(batch.DamagedBatchError):
        batch.verify(memoryview(raw[:cut]))
    with pytest.raises(batch.DamagedBatchError):
        batch.verify(memoryview(raw + b"\0"))


@given(payloads, st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(0, 2**63))
def test_a_stamped_batch_is_sound_and_carries_the_stamp(messages, partition, offset, timestamp):
    data = memoryview(encode_batch(messages))
    header, checksums = batch.verify(data)
    batch.stamp(data, header, checksums, partition=partition, offset=offset, timestamp=timestamp)
    stamped, _ = batch.verify(data)
    assert stamped[:3] == (partition, offset, timestamp)
    assert stamped[3:5] == header[3:5]
    assert decode_batches(data) == [(offset + i, payload) for i, payload in enumerate(messages)]


@given(payloads, st.data())
def test_a_cut_serves_exactly_the_messages_asked_for_with_their_offsets(messages, data):
    raw = memoryview(encode_batch(messages))
    header, checksums = batch.verify(raw)
    batch.stamp(raw, header, checksums, partition=1, offset=1000, timestamp=5)
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    head, frames = batch.cut(raw, start, stop)
    assert decode_batches(head + bytes(frames)) == [(1000 + i, messages[i]) for i in range(start, stop)]
    assert batch.read_header(head).length == 256 + len(frames)


@pytest.mark.parametrize(
    "wrong",
    [
        assemble([frame(0, b"a"), frame(2, b"b")]),
        assemble([frame(1, b"a")]),
        assemble([frame(0, b"a")], behind=b"hidden"),
        assemble([frame(0, b"a")[:-1]]),
    ],
    ids=["a number skipped", "not from zero", "bytes behind", "payload cut"],
)
def test_a_wrong_layout_with_right_checksums_is_refused(wrong):
    with pytest.raises(batch.DamagedBatchError):
        batch.verify(memoryview(wrong))


def test_a_header_that_cannot_be_is_refused():
    for length, count in ((0, 1), (256, 0), (256 + 48, 2), (2**40, 1)):
        raw = encode_batch([b"x"])
        struct.pack_into("<Q", raw, 32, length)
        struct.pack_into("<I", raw, 48, count)
        with pytest.raises(batch.DamagedBatchError):
            batch.read_header(raw)
