import errno
import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.iggy.embedded import batch, fields
from framework.iggy.embedded.catalog import Catalog
from framework.iggy.embedded.fields import STRING_KIND, RefusedError
from framework.iggy.embedded.files import FileOps
from framework.iggy.embedded.options import admit
from framework.iggy.embedded.partition import Partition
from framework.iggy.embedded.segment import DamagedSegmentError, Segment
from tests.support.iggy_batches import decode_batches, encode_batch

NO_SYNC = FileOps(sync=False)


def open_partition(folder, *, segment_size=1 << 20, files=NO_SYNC, clock=None):
    ticks = itertools.count(10_000, 10)
    partition = Partition(0, folder, segment_size, files, created_at=1, clock=clock or (lambda: next(ticks)))
    partition.open()
    return partition


def append(partition, payloads):
    data = memoryview(encode_batch(payloads))
    header, checksums = batch.verify(data)
    return partition.append(data, header, checksums)


def messages(partition, offset=0, count=10**9):
    parts, taken, _ = partition.read(offset, count)
    found = decode_batches(b"".join(parts))
    assert len(found) == taken
    return found


class FailingDisk(FileOps):
    """Refuses once when told to, after writing `allowed` bytes."""

    def __init__(self):
        super().__init__(sync=True)
        self.allowed = None
        self.fail_flush = False

    def write(self, fd, data, position):
        if self.allowed is None:
            return super().write(fd, data, position)
        if not self.allowed:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(fd, data[: self.allowed], position)
        self.allowed -= written
        return written

    def flush(self, fd):
        if self.fail_flush:
            raise OSError(errno.EIO, "Input/output error")


def test_a_tail_torn_at_any_byte_is_cut_and_all_before_it_stays(tmp_path):
    partition = open_partition(tmp_path / "p")
    append(partition, [b"a", b"bb"])
    append(partition, [b"ccc"])
    partition.close()
    kept = messages(partition)
    path = next((tmp_path / "p").glob("*.log"))
    sound = path.stat().st_size
    last = memoryview(encode_batch([b"torn", b"away"]))
    header, checksums = batch.verify(last)
    batch.stamp(last, header, checksums, partition=0, offset=3, timestamp=10_020)
    whole = path.read_bytes() + last
    for size in range(sound, len(whole)):
        path.write_bytes(whole[:size])
        again = open_partition(tmp_path / "p")
        assert messages(again) == kept
        assert (again.end_offset, path.stat().st_size) == (3, sound)
        assert append(again, [b"next"]) == 3
        again.close()
    path.write_bytes(whole)
    assert messages(open_partition(tmp_path / "p")) == [*kept, (3, b"torn"), (4, b"away")]


def test_a_tail_of_zeros_or_with_any_byte_changed_is_cut(tmp_path):
    partition = open_partition(tmp_path / "p")
    append(partition, [b"a", b"bb"])
    partition.close()
    path = next((tmp_path / "p").glob("*.log"))
    sound = path.read_bytes()
    append(partition := open_partition(tmp_path / "p"), [b"last", b"one"])
    partition.close()
    whole = path.read_bytes()
    for position in range(len(sound), len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        partition = open_partition(tmp_path / "p")
        assert partition.end_offset == 2, position
        partition.close()
    path.write_bytes(sound + bytes(5000))
    assert open_partition(tmp_path / "p").end_offset == 2
    assert path.read_bytes() == sound


def test_damage_in_the_middle_is_refused_not_cut(tmp_path):
    partition = open_partition(tmp_path / "p")
    for payloads in ([b"first"], [b"x" * 300, b"\0" * 700], [b"third"]):
        append(partition, payloads)
    partition.close()
    path = next((tmp_path / "p").glob("*.log"))
    whole = path.read_bytes()
    second = 256 + 48 + 5
    for position in (second + 8, second + 32, second + 33, second + 100):  # offset, length, reserved
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(DamagedSegmentError, match="sound data behind it"):
            open_partition(tmp_path / "p")
        assert path.read_bytes() == damaged, "nothing was cut"


def test_a_sealed_segment_that_is_short_or_gone_is_refused(tmp_path):
    partition = open_partition(tmp_path / "p", segment_size=600)
    for number in range(6):
        append(partition, [b"%d" % number * 200])
    partition.close()
    paths = sorted((tmp_path / "p").glob("*.log"))
    assert len(paths) == 3
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-1])
    with pytest.raises(DamagedSegmentError):
        open_partition(tmp_path / "p", segment_size=600)
    paths[1].unlink()
    with pytest.raises(DamagedSegmentError, match="missing before"):
        open_partition(tmp_path / "p", segment_size=600)


@pytest.mark.parametrize("allowed", [0, 1, 255, 256, 300])
def test_a_full_disk_refuses_the_batch_and_keeps_the_rest(tmp_path, allowed):
    disk = FailingDisk()
    partition = open_partition(tmp_path / "p", files=disk)
    append(partition, [b"kept"])
    disk.allowed = allowed
    with pytest.raises(RefusedError) as refused:
        append(partition, [b"x" * 500])
    assert refused.value.status == fields.CANNOT_APPEND
    path = next((tmp_path / "p").glob("*.log"))
    assert path.stat().st_size == 256 + 48 + 4, "the partial write was cut back"
    disk.allowed = None
    assert append(partition, [b"later"]) == 1
    partition.close()
    assert messages(open_partition(tmp_path / "p")) == [(0, b"kept"), (1, b"later")]


def test_a_failing_flush_confirms_nothing_and_leaves_nothing(tmp_path):
    disk = FailingDisk()
    partition = open_partition(tmp_path / "p", files=disk)
    append(partition, [b"kept"])
    disk.fail_flush = True
    with pytest.raises(RefusedError):
        append(partition, [b"unsure"])
    assert messages(partition) == [(0, b"kept")]
    partition.close()
    assert messages(open_partition(tmp_path / "p")) == [(0, b"kept")]


def test_a_full_disk_leaves_catalog_and_offsets_as_they_were(tmp_path):
    disk = FailingDisk()
    catalog = Catalog(tmp_path, disk)
    catalog.open()
    catalog.create_stream("s", [])
    catalog.create_topic("s", "t", 2, [])
    partition = catalog.partition("s", "t", 0)
    append(partition, [b"m"])
    partition.store_offset("1:1", 0)
    disk.allowed = 3
    changes = [
        lambda: catalog.create_stream("s2", []),
        lambda: catalog.update_stream("s", "other", []),
        lambda: catalog.create_topic("s", "t2", 1, []),
        lambda: catalog.update_topic("s", "t", "other", []),
        lambda: catalog.delete_topic("s", "t"),
        lambda: catalog.purge_topic("s", "t"),
        lambda: catalog.purge_stream("s"),
        lambda: catalog.create_partitions("s", "t", 1),
        lambda: catalog.delete_partitions("s", "t", 1),
        lambda: catalog.delete_stream("s"),
        lambda: partition.delete_offset("1:1"),
        lambda: partition.store_offset("1:2", 0),
    ]
    for change in changes:
        with pytest.raises(RefusedError) as refused:
            change()
        assert refused.value.status == fields.CANNOT_WRITE_FILE
    for view in (catalog, reopened(tmp_path)):
        assert [s.name for s in view.streams.values()] == ["s"]
        assert [t.name for t in view.stream("s").topics.values()] == ["t"]
        assert len(view.topic("s", "t").partitions) == 2
        kept = view.partition("s", "t", 0)
        assert messages(kept) == [(0, b"m")]
        assert (kept.stored_offset("1:1"), kept.stored_offset("1:2")) == (0, None)


def reopened(folder):
    catalog = Catalog(folder, NO_SYNC)
    catalog.open()
    return catalog


def test_everything_named_is_there_after_a_restart(tmp_path):
    catalog = Catalog(tmp_path, NO_SYNC)
    catalog.open()
    for name in ("a", "b", "c"):
        catalog.create_stream(name, [])
    catalog.delete_stream("b")
    given = [("segment_size", fields.STRING_KIND, b"2 MiB"), ("messages_required_to_save", 11, b"\1\0\0\0")]
    catalog.create_topic("c", "t", 3, given)
    catalog.update_topic("c", "t", "renamed", [("message_expiry", fields.STRING_KIND, b"7 days")])
    append(catalog.partition("c", "renamed", 2), [b"m"])
    catalog.close()
    again = reopened(tmp_path)
    assert {s.number: s.name for s in again.streams.values()} == {0: "a", 2: "c"}
    topic = again.topic(2, "renamed")
    assert topic.options == [
        ("message_expiry", fields.STRING_KIND, b"7 days"),
        ("messages_required_to_save", fields.UINT32_KIND, b"\1\0\0\0"),
        ("segment_size", fields.UINT64_KIND, fields.U64.pack(2 << 20)),
    ]
    assert [messages(p) for p in topic.partitions] == [[], [], [(0, b"m")]]
    assert again.create_stream("d", []).number == 1, "the lowest free number, as in Iggy"


def test_a_purge_starts_at_zero_again_and_keeps_number_and_creation_time(tmp_path):
    catalog = Catalog(tmp_path, NO_SYNC)
    catalog.open()
    catalog.create_stream("s", [])
    _, topic = catalog.create_topic("s", "t", 1, [])
    old = topic.partitions[0]
    append(old, [b"a", b"b"])
    old.store_offset("1:1", 1)
    created = (topic.number, topic.created_at, old.created_at)
    catalog.purge_topic("s", "t")
    with pytest.raises(RefusedError):
        append(old, [b"too late"])
    for view in (catalog, reopened(tmp_path)):
        after = view.topic("s", "t")
        assert (after.number, after.created_at, after.partitions[0].created_at) == created
        assert (after.partitions[0].end_offset, after.partitions[0].stored_offset("1:1")) == (0, None)
    assert append(topic.partitions[0], [b"new"]) == 0


def test_a_folder_that_nothing_names_is_removed_at_the_next_start(tmp_path):
    catalog = Catalog(tmp_path, NO_SYNC)
    catalog.open()
    catalog.create_stream("s", [])
    catalog.create_topic("s", "t", 1, [])
    append(catalog.partition("s", "t", 0), [b"m"])
    left_over = tmp_path / "logs" / "99"
    left_over.mkdir()
    (left_over / "00000000000000000000.log").write_bytes(b"of a deleted topic")
    again = reopened(tmp_path)
    assert not left_over.exists()
    assert messages(again.partition("s", "t", 0)) == [(0, b"m")]


def test_a_catalog_of_another_format_is_refused_with_advice(tmp_path):
    (tmp_path / "catalog.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match="another folder"):
        reopened(tmp_path)


def test_deleted_segments_are_the_oldest_sealed_ones_and_stay_deleted(tmp_path):
    partition = open_partition(tmp_path / "p", segment_size=600)
    for number in range(7):
        append(partition, [b"%d" % number * 200])
    assert partition.segments == 4
    partition.delete_segments(2)
    assert [offset for offset, _ in messages(partition)] == [4, 5, 6]
    assert (partition.messages, partition.first_offset, partition.current_offset) == (3, 4, 6)
    assert partition.resolve(fields.STRATEGY_OFFSET, 0, 10, "1:1") == 4
    partition.store_offset("1:1", 4)
    partition.delete_segments(9)
    assert partition.first_offset == 4, "a consumer still has to read them"
    partition.delete_offset("1:1")
    partition.delete_segments(9)
    assert partition.first_offset == 6, "the active segment stays"
    partition.close()
    again = open_partition(tmp_path / "p", segment_size=600)
    assert [offset for offset, _ in messages(again)] == [6]
    assert append(again, [b"next"]) == 7


def test_deleting_every_sealed_segment_keeps_the_next_offset(tmp_path):
    partition = open_partition(tmp_path / "p", segment_size=100)
    append(partition, [b"a"])
    partition.delete_segments(1)
    partition.close()
    again = open_partition(tmp_path / "p", segment_size=100)
    assert (again.messages, again.end_offset, messages(again)) == (0, 1, [])
    assert append(again, [b"b"]) == 1


def test_polls_by_time_begin_at_the_first_batch_stored_then_or_later(tmp_path):
    times = iter([100, 200, 150, 300])
    partition = open_partition(tmp_path / "p", segment_size=600, clock=lambda: next(times))
    for number in range(4):
        append(partition, [b"%d" % number * 100] * 2)
    begins = {t: partition.resolve(fields.STRATEGY_TIMESTAMP, t, 1, "1:1") for t in (0, 100, 101, 200, 201, 300, 301)}
    parts, _, _ = partition.read(0, 8)
    assert [batch.read_header(part).base_timestamp for part in parts] == [100, 200, 200, 300]
    # The clock stepped back to 150; the third batch counts as stored at 200, so that times never go back.
    assert begins == {0: 0, 100: 0, 101: 2, 200: 2, 201: 6, 300: 6, 301: 8}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=90), min_size=1, max_size=5), max_size=12),
    st.integers(300, 2000),
    st.integers(0, 70),
    st.integers(1, 70),
)
def test_any_window_reads_the_same_as_a_list(tmp_path_factory, batches, segment_size, offset, count):
    folder = tmp_path_factory.mktemp("any") / "p"
    partition = open_partition(folder, segment_size=segment_size)
    for payloads in batches:
        append(partition, payloads)
    everything = list(enumerate(payload for payloads in batches for payload in payloads))
    partition.close()
    for view in (partition, open_partition(folder, segment_size=segment_size)):
        assert messages(view, offset, count) == everything[offset : offset + count]
        assert (view.messages, view.end_offset) == (len(everything), len(everything))


def test_a_reader_beside_a_writer_sees_whole_batches_only(tmp_path):
    partition, total = open_partition(tmp_path / "p", segment_size=3000), 600
    writer = threading.Thread(target=lambda: [append(partition, [b"a" * 50, b"b" * 30]) for _ in range(total // 2)])
    writer.start()
    seen = 0
    while seen < total:
        end = partition.end_offset
        found = messages(partition, max(end - 9, 0))
        assert [offset for offset, _ in found] == list(range(max(end - 9, 0), max(end - 9, 0) + len(found)))
        assert len(found) >= min(end, 9)
        assert all(payload == (b"b" * 30 if offset % 2 else b"a" * 50) for offset, payload in found)
        seen = end
    writer.join()


def test_a_small_file_is_replaced_whole_or_not_at_all(tmp_path):
    disk, path = FailingDisk(), tmp_path / "small"
    disk.replace(path, b"before")
    disk.allowed = 2
    with pytest.raises(OSError, match="No space left"):
        disk.replace(path, b"afterwards")
    disk.allowed, disk.fail_flush = None, True
    with pytest.raises(OSError, match="Input/output"):
        disk.replace(path, b"afterwards")
    assert path.read_bytes() == b"before"


def test_an_index_walk_over_many_small_and_big_batches_finds_each(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    sizes, offset, content = [1, 40_000, 1, 1, 300_000, 1], 0, b""
    for size in sizes * 3:
        data = memoryview(encode_batch([b"x" * size]))
        header, checksums = batch.verify(data)
        batch.stamp(data, header, checksums, partition=0, offset=offset, timestamp=offset)
        content, offset = content + data, offset + 1
    path.write_bytes(content)
    segment = Segment(path, 0, NO_SYNC)
    assert segment.recover(last=True) == 0
    assert (segment.batches, segment.end_offset, segment.size) == (18, 18, path.stat().st_size)


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 21, "٣", "1" * 25 + " MiB"])
def test_an_option_of_too_many_digits_is_refused(text):
    with pytest.raises(RefusedError):
        admit([("segment_size", STRING_KIND, text.encode())])
