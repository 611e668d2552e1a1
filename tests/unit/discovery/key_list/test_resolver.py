"""Discovery mode `keys`: which objects a supplied list makes a source read, and what each of them costs."""

import errno
import gc
import gzip
import io
import json
import logging
import os
import tempfile
import threading
import time
from collections import Counter

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.discovery.key_list.resolver import KeyListResolver
from framework.discovery.object_feed import FeedCounts
from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    FatalError,
    KeyListError,
    ObjectNotFoundError,
    ReaderFailedError,
    StoreContractError,
    StoreUnavailableError,
    ThrottledError,
)
from framework.model.objects import ObjectState
from framework.model.positions import OffsetManagerKey
from framework.offsets.manager import OffsetManager, StartFacts
from framework.store import ObjectStore
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import FIRST_TIME_MS, MemoryStore
from tests.support.core import (
    commit,
    drain,
    iterator_over,
    lines,
    next_pass,
    payloads,
    poll_all,
    put_lines,
    started,
    store_of,
)
from tests.support.examples import examples
from tests.support.inventory import Line, line_of, moment, write_inventory
from tests.support.stopwatch import Stopwatch

ODD = [
    "a b",
    "a+b",
    "a%2Fb",
    "a%20b",
    'quote"',
    "it's",
    "line\nbreak",
    "cr\r",
    "日本",
    "\uffff",
    "\U0001f6eb",
    "x,y",
    "é//ü",
]


@pytest.fixture
def store():
    return MemoryStore("lake")


class Reports(MemoryStore):
    """Another bucket, where lists lie."""

    def __init__(self):
        super().__init__("reports")


class Rig:
    """A source over `store` whose list lies in another bucket, in a file, or wherever `keys` says."""

    def __init__(self, store, tmp_path=None, **options):
        self.store = store
        self.reports = Reports()
        self.offsets = OffsetManager()
        self.options = {"mode": "keys", "keys": "memory://reports/keys.txt", "list_concurrency": 3, **options}
        self.iterator = None

    def write(self, content, key="keys.txt"):
        self.reports.put(key, content if isinstance(content, bytes) else content.encode())

    def inventory(self, some, **more):
        key = write_inventory(self.reports.put, some, source=self.store.bucket, destination=self.reports.bucket, **more)
        self.options["keys"] = f"memory://reports/{key}"

    def open(self, *, once=False, prefixes=("",), **changed):
        """A new iterator over the same positions: the source was started again."""
        self.close()
        task = MemorySourceTask(self.store, buckets=[self.reports], prefixes=prefixes)
        options = {name: value for name, value in (self.options | changed).items() if value is not None}
        self.iterator = iterator_over(self.store, self.offsets, once=once, task=task, **options)
        return self

    def read(self, *, saved=True):
        """Key -> payloads of one pass."""
        batches = drain(self.iterator)
        if saved:
            commit(self.offsets, batches)
        return payloads(batches)

    def next_pass(self):
        """The next pass, however long its wait is."""
        next_pass(self.iterator)
        return self.read()

    def requests(self):
        """What the bucket was asked since the last time."""
        counted = Counter(call.name for call in self.store.calls if call.name != "read")
        self.store.calls.clear()
        return dict(counted)

    def list_requests(self):
        counted = Counter(call.name for call in self.reports.calls if call.name != "read")
        self.reports.calls.clear()
        return dict(counted)

    @property
    def counts(self) -> FeedCounts:
        return self.iterator.feed_counts

    def close(self):
        if self.iterator is not None:
            self.iterator.close()


@pytest.fixture
def rig(store):
    made = Rig(store)
    yield made
    made.close()


# ---- which objects


def test_only_what_the_list_names_is_read_in_its_order(rig, store):
    for name in "abcde":
        put_lines(store, name, 3)
    rig.write("d\nb\nc\n")
    found = rig.open().read()
    assert list(found) == ["d", "b", "c"]
    assert found["b"] == lines("b", 3)
    assert rig.requests() == {"stat": 3, "open": 3}  # and no listing


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_an_inventory_costs_no_request_but_the_reading(rig, store, form):
    natives = [store.put(key, b'{"n":1}\n{"n":2}\n') for key in ODD]
    rig.inventory([line_of(native) for native in natives], form=form, parts=3)
    assert {key: len(found) for key, found in rig.open().read().items()} == dict.fromkeys(ODD, 2)
    assert rig.requests() == {"open": len(ODD)}
    assert rig.list_requests() == {"stat": 4, "open": 4}  # the manifest and three data files
    assert rig.iterator.statistics.list_requests == 4
    assert rig.open().read() == {}
    assert rig.requests() == {}


class FullDisk(io.BytesIO):
    """A file on a full disk, as Python writes it: what it did not take it tries again when it is closed."""

    def write(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self):
        super().close()
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("when", ["made", "written"])
def test_a_disk_without_room_for_a_data_file_is_an_error_with_a_way_out(rig, store, monkeypatch, when):
    def full():
        if when == "made":
            raise OSError(errno.ENOSPC, "No space left on device")
        return FullDisk()

    rig.inventory([line_of(store.put("a", b'{"n":1}\n'))])
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(tempfile, "tempdir", "/small")
    said = r"memory://reports/.*: cannot be copied into a temporary file in /small \(No space left on device\);.*TMPDIR"
    with pytest.raises(FatalError, match=said):
        rig.open().read()


def test_odd_keys_of_a_csv_are_read(rig, store):
    for key in ODD:
        store.put(key, b'{"n":1}\n{"n":2}\n')
    rig.options["keys"] = "memory://reports/keys.csv"
    rig.write("key\n" + "".join('"' + key.replace('"', '""') + '"\n' for key in ODD), "keys.csv")
    assert sorted(rig.open().read()) == sorted(ODD)


def test_order_is_kept_however_long_lookups_take(rig, store):
    names = [f"{number:03d}" for number in range(50)]
    for name in names:
        put_lines(store, name, 1)

    def slow(call):
        if call.name == "stat":
            time.sleep(0.0001 * (int(call.key) * 7 % 5))

    store.on_call = slow
    rig.write("\n".join(names))
    assert list(rig.open().read()) == names


def test_lookups_are_bounded(rig, store):
    """At most `list_concurrency` at once, and not far ahead of the reader, also when one of them is slow."""
    names = [f"{number:03d}" for number in range(200)]
    for name in names:
        put_lines(store, name, 1)
    at_once, most, lock, too_far = [0], [0], threading.Lock(), threading.Event()
    inner = store.stat

    def stat(key):
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            if store.count("stat") > 4 * 3 + 3:
                too_far.set()
        try:
            if key == names[0]:
                too_far.wait(0.3)
            return inner(key)
        finally:
            with lock:
                at_once[0] -= 1

    store.stat = stat
    rig.write("\n".join(names))
    rig.open(prefetch_objects=1)
    rig.iterator.next_batch()
    assert not too_far.is_set()
    assert len(rig.read()) > 190
    assert 1 <= most[0] <= 3


def test_rows_that_name_no_object_to_read_are_left_out_and_counted(rig, store):
    native = put_lines(store, "in/now", 2)
    put_lines(store, "out/now", 2)
    rig.inventory(
        [
            line_of(native, version_id="v2", latest=True, delete_marker=False),
            line_of(native, etag="older", version_id="v1", latest=False),
            Line(key="in/deleted", version_id="v3", latest=True, delete_marker=True),
            Line(key="in/deleted", version_id="v2", latest=False, size=3, etag="x", modified_ms=5),
            Line(key="out/now"),
            Line(key="in/missing"),
        ]
    )
    assert list(rig.open(prefixes=("in/",)).read()) == ["in/now"]
    assert rig.counts.filtered == {
        "delete marker": 1,
        "not the latest version": 2,
        "outside the prefix": 1,
        "missing": 1,
    }
    assert rig.counts.listed == 1


def test_filters_and_the_start_key_hold_for_a_list_too(rig, store):
    for name in ("a.jsonl", "b.jsonl", "b.csv", "_SUCCESS", "c.jsonl"):
        put_lines(store, name, 1)
    rig.write("_SUCCESS\na.jsonl\nb.csv\nb.jsonl\nc.jsonl\n")
    task = MemorySourceTask(store, buckets=[rig.reports], start_key="a.jsonl")
    rig.iterator = iterator_over(store, task=task, include=["*.jsonl"], exclude=["c*"], **rig.options)
    assert list(rig.read()) == ["b.jsonl"]
    assert rig.counts.filtered == {"outside the prefix": 2, "not included": 1, "excluded": 1}


def test_an_object_that_the_list_names_twice_is_read_once(rig, store):
    first, second = put_lines(store, "a", 2), put_lines(store, "b", 2)
    rig.write("a\nb\na\n\nb\na")
    assert rig.open().read() == {"a": lines("a", 2), "b": lines("b", 2)}
    rig.offsets = OffsetManager()
    rig.inventory([line_of(one) for one in (first, second, first, first, second)])
    assert rig.open().read() == {"a": lines("a", 2), "b": lines("b", 2)}


def test_a_list_names_two_versions_of_an_object(rig, store):
    """The older one is found stale by the read, the newer one is put off until then."""
    old = put_lines(store, "a", 2)
    new = put_lines(store, "a", 5)
    for order in ([old, new], [new, old]):
        rig.offsets = OffsetManager()
        rig.inventory([line_of(one) for one in order], parts=1)
        rig.open(once=True)
        found = rig.read()
        while not rig.iterator.finished:
            found |= rig.next_pass()
        assert found == {"a": lines("a", 5)}
        assert [entry.records_done for entry in rig.offsets.table.entries()] == [5]


def test_a_list_that_is_empty_says_so(rig, caplog):
    rig.write("")
    assert rig.open(once=True).read() == {}
    assert rig.iterator.finished
    assert "names nothing" in caplog.text


# ---- where it lies


def test_a_list_may_be_a_file_of_this_machine(rig, store, tmp_path, monkeypatch):
    put_lines(store, "a", 2)
    (tmp_path / "keys.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    for place in (str(tmp_path / "keys.txt"), "keys.txt"):
        rig.offsets = OffsetManager()
        assert list(rig.open(keys=place).read()) == ["a"]


def test_a_list_may_lie_in_the_source_s_own_bucket(rig, store):
    put_lines(store, "a", 2)
    store.put("lists/keys.txt", b"a\n")
    assert list(rig.open(keys="memory://lake/lists/keys.txt").read()) == ["a"]


@pytest.mark.parametrize("name", ["keys.txt", "keys.csv", "keys.txt.gz", "keys.csv.gz", "KEYS.CSV.GZ"])
def test_files_are_closed_however_far_they_are_read(rig, store, tmp_path, name):
    """An open file would warn, and a warning is an error here."""
    for key in ("key", "a"):
        put_lines(store, key, 2)
    content = b"key\na\n" if ".csv" in name.lower() else b"a\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.lower().endswith("gz") else content)
    assert list(rig.open(keys=str(tmp_path / name)).read()) == ["a"]
    rig.open(keys=str(tmp_path / name), prefetch_objects=1)
    stream = rig.iterator.get_native_item_stream(None)
    next(stream)
    del stream
    gc.collect()


@pytest.mark.parametrize("layout", ["as in the bucket", "flat", "data beside", "as synced"])
def test_an_inventory_may_be_copied_to_this_machine(rig, store, tmp_path, layout):
    native = put_lines(store, "a", 2)
    folder = tmp_path / "run" / "day"

    def put(key, data):
        name = key.rpartition("/")[2]
        is_manifest = name == "manifest.json"
        path = {
            "as in the bucket": folder / (name if is_manifest else key),
            "flat": folder / name,
            "data beside": folder / (name if is_manifest else f"data/{name}"),
            "as synced": folder / name if is_manifest else folder.parent / "data" / name,
        }[layout]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    write_inventory(put, [line_of(native)], source="lake", destination="reports")
    assert list(rig.open(keys=str(folder / "manifest.json")).read()) == ["a"]
    next(iter(tmp_path.rglob("part-0.csv.gz"))).unlink()
    rig.offsets = OffsetManager()
    with pytest.raises(KeyListError, match=r"part-0\.csv\.gz lies neither beside it nor"):
        rig.open(keys=str(folder / "manifest.json")).read()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("x" * 300, r"the data file x{300} cannot be read \(File name too long\)"),
        ("a\ud800b", r"manifest\.json: no JSON"),
    ],
)
def test_a_data_file_whose_name_cannot_be(rig, tmp_path, key, said):
    manifest = {"sourceBucket": "lake", "fileFormat": "CSV", "fileSchema": "Bucket, Key", "files": [{"key": key}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(KeyListError, match=said):
        rig.open(keys=str(tmp_path / "manifest.json")).read()


def test_a_manifest_may_be_compressed(rig, store):
    native = put_lines(store, "a", 2)
    rig.inventory([line_of(native)])
    key = rig.options["keys"].removeprefix("memory://reports/")
    rig.write(gzip.compress(rig.reports._objects[key].data), f"{key}.gz")
    assert list(rig.open(keys=f"memory://reports/{key}.gz").read()) == ["a"]


def test_an_object_that_was_empty_when_the_list_was_made_is_looked_up(rig, store):
    was = store.put("a", b"")
    store.put("b", b"")
    rig.inventory([line_of(was), line_of(store.stat("b"))])
    put_lines(store, "a", 2)
    assert list(rig.open().read()) == ["a"]
    assert rig.counts.filtered == {"empty": 1}


def test_a_manifest_cannot_name_a_bucket_to_read_with_our_credentials(rig, store):
    native = put_lines(store, "a", 2)
    rig.inventory([line_of(native)], destinationBucket="arn:aws:s3:::secrets")
    assert list(rig.open().read()) == ["a"]
    for key in [key for key in rig.reports._objects if "part-0" in key]:
        rig.reports.delete(key)
    rig.offsets = OffsetManager()
    with pytest.raises(KeyListError, match=r"memory://reports/.*part-0.* are read from the bucket of its manifest"):
        rig.open().read()


def test_a_manifest_cannot_name_files_outside_its_folder(rig, tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"x")
    told = {
        "sourceBucket": "lake",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key",
        "files": [{"key": "../../secret"}],
    }
    (folder / "manifest.json").write_text(json.dumps(told))
    with pytest.raises(KeyListError, match="lies neither beside it"):
        rig.open(keys=str(folder / "manifest.json")).read()


@pytest.mark.parametrize("keys", ["s3://lake/keys.txt", "memory://lake", "memory:///keys.txt", "file:///keys.txt"])
def test_an_address_of_another_kind_of_store_is_a_mistake(rig, keys):
    with pytest.raises(ConfigError, match="must be a path of this machine, or an object as memory://bucket/key"):
        rig.open(keys=keys)


def test_a_source_without_other_buckets_says_so(store):
    task = MemorySourceTask(store)
    iterator = iterator_over(store, task=task, mode="keys", keys="memory://reports/keys.txt")
    iterator._lookups._open_bucket = None
    with pytest.raises(ConfigError, match=r"memory://reports/: this source can only look into its own bucket, lake"):
        iterator.next_batch()
    iterator.close()


# ---- what is wrong with it


def read_until(iterator, kind, said):
    """The batches before the failure."""
    batches = []
    with pytest.raises(kind, match=said):  # noqa: PT012 - what comes before it is wanted
        while True:
            batches.append(iterator.next_batch())
    return batches


def failure_of(rig, kind=KeyListError):
    with pytest.raises(kind) as caught:
        rig.open().read()
    return str(caught.value)


def test_no_list_is_an_error_that_names_the_place(rig, tmp_path):
    assert failure_of(rig) == "memory://reports/keys.txt: there is no such list of keys; check [discovery] keys"
    rig.options["keys"] = str(tmp_path / "nothing.txt")
    assert "nothing.txt: the list of keys cannot be read (No such file" in failure_of(rig)
    rig.options["keys"] = str(tmp_path)
    assert "Is a directory" in failure_of(rig)
    rig.options["keys"] = "a\0b"
    with pytest.raises(ConfigError, match="has a null byte"):
        rig.open()
    os.mkfifo(tmp_path / "pipe.txt")
    rig.options["keys"] = str(tmp_path / "pipe.txt")
    assert "pipe.txt: the list of keys cannot be read (it is a pipe, not a file)" in failure_of(rig)


def test_a_manifest_that_is_too_long_is_an_error_before_it_is_parsed(rig, tmp_path):
    (tmp_path / "manifest.json").write_bytes(b'{"files":[' + b"[]," * (6 << 20) + b"[]]}")
    rig.options["keys"] = str(tmp_path / "manifest.json")
    assert "manifest.json: longer than the manifest of an inventory can be" in failure_of(rig)


def test_another_bucket_is_an_error_that_names_both_and_the_row(rig, store):
    put_lines(store, "a", 2)
    rig.options["keys"] = "memory://reports/keys.csv"
    rig.write("bucket,key\nlake,a\npond,b\n", "keys.csv")
    assert failure_of(rig, ConfigError).startswith(
        "memory://reports/keys.csv, row 3: is about the bucket pond, but this source reads lake"
    )
    rig.write("pond,b\n", "keys.csv")
    assert "keys.csv, row 1: is about the bucket pond" in failure_of(rig, ConfigError)
    rig.inventory([Line(key="a")], sourceBucket="pond")
    assert "manifest.json, sourceBucket: is about the bucket pond, but this source reads lake" in failure_of(
        rig, ConfigError
    )
    rig.inventory([Line(key="a"), Line(key="b", bucket="pond")], parts=1)
    assert "part-0.csv.gz, row 2: is about the bucket pond" in failure_of(rig, ConfigError)


def test_what_stood_before_a_bad_row_is_read_and_nothing_behind_it_is_lost(rig, store):
    for name in "abc":
        put_lines(store, name, 2)
    rig.options["keys"] = "memory://reports/keys.csv"
    rig.write("key,size\na,\nb,senseless\nc,\n", "keys.csv")
    batches = read_until(rig.open().iterator, KeyListError, "row 3: its size is no number of bytes")
    assert [batch.native.key for batch in batches] == ["a"]
    commit(rig.offsets, batches)
    rig.write("key,size\na,\nb,\nc,\n", "keys.csv")
    assert list(rig.open().read()) == ["b", "c"]


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_of_a_data_file_that_is_not_whole_nothing_is_used(rig, store, form):
    natives = [put_lines(store, f"{number:02d}", 1) for number in range(30)]
    rig.inventory([line_of(native) for native in natives], form=form)
    (name,) = [key for key in rig.reports._objects if "part-1" in key]
    whole = rig.reports._objects[name].data
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for content, said in ((whole[:-1], "the manifest says"), (bytes(changed), "its MD5 is not that of the manifest")):
        rig.offsets = OffsetManager()
        rig.reports.put(name, content)
        batches = read_until(rig.open().iterator, KeyListError, f"part-1.*{said}")
        assert [batch.native.key for batch in batches] == [native.key for native in natives[::2]]
    rig.reports.delete(name)
    rig.offsets = OffsetManager()
    assert "part-1" in failure_of(rig)
    rig.reports.put(name, whole)
    rig.offsets = OffsetManager()
    assert len(rig.open().read()) == 30


def test_a_manifest_cut_short_is_an_error(rig, store):
    native = put_lines(store, "a", 1)
    rig.inventory([line_of(native)])
    (name,) = [key for key in rig.reports._objects if "manifest" in key]
    rig.reports.put(name, rig.reports._objects[name].data[:-2])
    assert "manifest.json: no JSON" in failure_of(rig)


def test_a_store_that_returns_no_object_is_named_and_no_object_counts_as_missing(rig, store):
    put_lines(store, "a", 1)
    rig.write("a\n")
    store.stat = lambda key: None
    with pytest.raises(StoreContractError, match=r"^memory://lake/a: MemoryStore.stat returned NoneType, not a Nat"):
        rig.open().read()


def test_a_missing_object_is_left_out_and_named(rig, store, caplog):
    put_lines(store, "a", 2)
    rig.write("".join(f"missing-{number}\n" for number in range(20)) + "a\n")
    assert list(rig.open(once=True).read()) == ["a"]
    assert rig.iterator.finished
    assert rig.counts.filtered == {"missing": 20}
    named = [line for line in caplog.messages if "the object does not exist" in line]
    assert len(named) == 5
    assert named[0].startswith("memory://lake/missing-0: skipped")


def test_an_inventory_that_names_what_is_gone_ends(rig, store):
    gone = put_lines(store, "gone", 2)
    kept = put_lines(store, "kept", 2)
    store.delete("gone")
    rig.inventory([line_of(gone), line_of(kept)])
    assert list(rig.open(once=True).read()) == ["kept"]
    assert rig.iterator.finished
    assert rig.iterator.statistics.vanished == 1
    assert rig.requests() == {"open": 2}


# ---- again and again


def test_a_list_that_was_not_rewritten_costs_one_look(rig, store):
    put_lines(store, "a", 2)
    rig.write("a\nmissing\n")
    rig.open().read()
    rig.requests(), rig.list_requests()
    for _ in range(3):
        assert rig.next_pass() == {}
        assert rig.requests() == {}
        assert rig.list_requests() == {"stat": 1}
    assert rig.counts.listings == 4
    assert rig.counts.filtered == {"missing": 1}  # what the last look at the whole list showed


def test_a_file_that_was_not_rewritten_costs_one_look(rig, store, tmp_path):
    put_lines(store, "a", 2)
    path = tmp_path / "keys.txt"
    path.write_text("a\n")
    rig.open(keys=str(path)).read()
    rig.requests()
    assert rig.next_pass() == {}
    assert rig.requests() == {}
    put_lines(store, "b", 2)
    path.write_text("a\nb\n")
    assert list(rig.next_pass()) == ["b"]
    os.utime(path, ns=(1, 1))  # the same length, another time
    rig.requests()
    assert rig.next_pass() == {}
    assert rig.requests() == {"stat": 2}


def test_a_rewritten_list_is_read_again(rig, store):
    put_lines(store, "a", 2)
    rig.write("a\nb\n")
    assert list(rig.open().read()) == ["a"]
    put_lines(store, "b", 3)
    assert rig.next_pass() == {}  # the list is the same: it is not asked about again
    rig.write("a\nb\n")
    assert rig.next_pass() == {"b": lines("b", 3)}
    put_lines(store, "a", 4)
    rig.write("b\na\n")
    assert rig.next_pass() == {"a": lines("a", 4)}


def test_a_list_that_is_rewritten_while_it_is_read_is_begun_again(rig, store, caplog):
    natives = [put_lines(store, f"{number:04d}", 1) for number in range(300)]
    keys = "".join(f"{native.key}\n" for native in natives).encode()
    rig.reports.largest_read = 97
    rig.write(keys)
    rewrites = [3]

    def rewrite(call):
        if call.name == "read" and rewrites and rig.reports.count("read") % 3 == 2:
            rewrites.pop()
            rig.reports.on_call = None
            rig.write(keys)
            rig.reports.fail("read", StoreUnavailableError("broken"), at=1)  # so that it has to be opened again

    rig.reports.on_call = rewrite
    assert len(rig.open().read()) == 300
    assert "rewritten while it was read" in caplog.text


def test_a_list_that_never_holds_still_is_an_error(rig, store):
    put_lines(store, "a", 1)
    rig.write("a\n" * 1000)

    def rewrite(call):
        if call.name == "open":
            rig.reports.on_call = None
            rig.write("a\n" * 1000)
            rig.reports.on_call = rewrite

    rig.reports.on_call = rewrite
    assert "rewritten 5 times while it was read" in failure_of(rig)


def test_finished_objects_of_a_text_list_are_looked_up_again_or_trusted(rig, store):
    put_lines(store, "a", 2)
    put_lines(store, "b", 2)
    rig.write("a\nb\n")
    rig.open().read()
    put_lines(store, "a", 3)
    rig.requests()
    assert rig.open(keys_recheck=False).read() == {}
    assert rig.requests() == {}
    assert rig.open().read() == {"a": lines("a", 3)}
    assert rig.requests() == {"stat": 2, "open": 1}


def test_an_unfinished_object_is_looked_up_also_when_finished_ones_are_trusted(rig, store):
    put_lines(store, "a", 9)
    rig.write("a\n")
    rig.open(batch_length=4)
    commit(rig.offsets, [rig.iterator.next_batch()])
    assert rig.open(keys_recheck=False).read() == {"a": lines("a", 9)[4:]}


def test_a_source_changes_from_a_listing_to_a_list_and_back_without_reading_again(rig, store):
    natives = [put_lines(store, name, 2) for name in "abc"]
    assert len(rig.open(mode="list", keys=None).read()) == 3
    rig.inventory([line_of(native) for native in natives])
    assert rig.open().read() == {}
    rig.write("a\nb\nc\n")
    assert rig.open(keys="memory://reports/keys.txt").read() == {}
    rig.offsets = OffsetManager()
    assert len(rig.open().read()) == 3
    assert rig.open(mode="list", keys=None).read() == {}


# ---- where the list is older than the store


def test_an_outdated_row_behind_another_one_of_its_object_is_looked_up_not_read(rig, store, monkeypatch):
    """The list is read ahead of the lookups: the position begins when the outdated row was read already."""
    old = put_lines(store, "a", 2)
    put_lines(store, "a", 3)
    for name in "bcd":
        put_lines(store, name, 1)
    behind, believe, stat = threading.Event(), KeyListResolver._believed, store.stat

    def believed(resolver, row):
        wanted = believe(resolver, row)
        if row.etag:
            behind.set()
        return wanted

    monkeypatch.setattr(KeyListResolver, "_believed", believed)
    monkeypatch.setattr(store, "stat", lambda key: behind.wait(10) and stat(key))
    line = line_of(old)
    rig.write(
        f"key,size,etag,last_modified\na,,,\nb,,,\nc,,,\nd,,,\na,{old.size},{line.etag},{moment(old.modified_ms)}\n",
        "keys.csv",
    )
    rig.options["keys"] = "memory://reports/keys.csv"
    rig.open(once=True, prefetch_objects=1)
    found = []
    while not rig.iterator.finished:
        rig.iterator.feed._due = 0.0
        while (batch := rig.iterator.next_batch()) is not None:
            commit(rig.offsets, [batch])
            found.append(batch)
    assert payloads(found)["a"] == lines("a", 3)


def overwritten(rig, store, *, parts=1):
    """An inventory of 3 objects, of which the second was overwritten since."""
    natives = [put_lines(store, name, 2) for name in "abc"]
    rig.inventory([line_of(native) for native in natives], parts=parts)
    put_lines(store, "b", 5)


def test_an_object_overwritten_since_is_noticed_and_looked_up(rig, store):
    overwritten(rig, store)
    rig.open(once=True)
    found = rig.read()
    assert found == {"a": lines("a", 2), "c": lines("c", 2), "b": lines("b", 5)}
    assert rig.iterator.finished
    assert rig.requests() == {"open": 4, "stat": 1}
    assert rig.iterator.statistics.changed == 1


def test_and_the_stale_row_is_not_tried_for_ever(rig, store):
    overwritten(rig, store)
    rig.open().read()
    rig.next_pass()
    rig.requests(), rig.list_requests()
    for _ in range(3):
        assert rig.next_pass() == {}
    assert rig.requests() == {}
    assert rig.list_requests() == {"stat": 3}
    # after a restart the position says that the row cannot be right: one lookup, and no read
    assert rig.open().read() == {}
    assert rig.requests() == {"stat": 1}


def test_a_row_that_is_older_than_the_position_is_looked_up_not_read(rig, store):
    old = put_lines(store, "a", 2)
    put_lines(store, "a", 3)
    assert rig.open(mode="list", keys=None).read() == {"a": lines("a", 3)}
    rig.inventory([line_of(old)])
    rig.requests()
    assert rig.open().read() == {}
    assert rig.requests() == {"stat": 1}


def test_an_object_overwritten_in_the_middle_of_its_reading_goes_on_as_its_new_version(rig, store):
    native = put_lines(store, "a", 9)
    rig.inventory([line_of(native)])
    rig.open(batch_length=4)
    commit(rig.offsets, [rig.iterator.next_batch()])
    put_lines(store, "a", 11)
    rig.requests()
    # the position has the version of the row, and the row is wrong: noticed by one read, then looked up
    assert rig.open(once=True).read() == {"a": lines("a", 11)}
    assert rig.requests() == {"open": 2, "stat": 1}
    (entry,) = rig.offsets.table.entries()
    assert (entry.records_done, entry.state, entry.generation) == (11, ObjectState.DONE, 2)


def test_when_too_many_rows_are_wrong_none_is_believed(rig, store, monkeypatch):
    monkeypatch.setattr("framework.discovery.key_list.resolver.MAX_REMEMBERED", 4)
    natives = [put_lines(store, f"{number:02d}", 2) for number in range(30)]
    right, wrong = natives[:10], natives[10:]
    rig.inventory([line_of(native) for native in natives], parts=1)
    for native in wrong:
        put_lines(store, native.key, 3)
    rig.open(once=True)
    found = {}
    while not rig.iterator.finished:
        batch = rig.iterator.next_batch()
        found |= payloads([batch] if batch else [])
        commit(rig.offsets, [batch] if batch else [])
    assert found == {one.key: lines(one.key, 2) for one in right} | {one.key: lines(one.key, 3) for one in wrong}
    assert [store.count("stat", one.key) for one in right] == [0] * 10  # finished as the list says: nothing to doubt
    counted = rig.requests()
    assert 30 < counted["open"] < 50  # the doubt begins in the middle of the first pass
    assert counted["stat"] <= 60


def test_a_rewritten_list_is_believed_again(rig, store):
    rig.inventory([line_of(put_lines(store, "a", 2))])
    store.delete("a")
    assert rig.open().read() == {}
    rig.offsets.remove_entry(OffsetManagerKey.of_object("lake", "a"))
    rig.inventory([line_of(put_lines(store, "a", 3))])
    rig.requests()
    assert list(rig.next_pass()) == ["a"]
    assert rig.requests() == {"open": 1}


def test_a_row_of_another_version_than_the_one_that_was_begun_is_looked_up(rig, store):
    rig.inventory([line_of(put_lines(store, "a", 2))])
    store.delete("a")
    assert rig.open().read() == {}
    rig.inventory([line_of(put_lines(store, "a", 3))])
    rig.requests()
    assert list(rig.next_pass()) == ["a"]
    assert rig.requests() == {"open": 1, "stat": 1}


def test_of_a_split_object_one_finished_split_is_not_all(rig, store):
    put_lines(store, "a", 300)
    rig.write("a\n")
    rig.open(split_size=1024, prefetch_objects=1)
    first = rig.iterator.next_batch()
    assert first.entry.split_number == 1
    commit(rig.offsets, [first])
    assert first.entry.finished
    found = rig.open(split_size=1024, keys_recheck=False).read()
    assert sorted([*first.payloads, *found["a"]]) == sorted(lines("a", 300))


def test_a_version_that_comes_while_the_older_one_is_read_is_not_forgotten(rig, store):
    put_lines(store, "a", 9)
    rig.write("a\n")
    rig.open(batch_length=4)
    first = rig.iterator.next_batch()
    put_lines(store, "a", 5)
    rig.write("a\n")  # rewritten while `a` is being read: the new version has to wait
    commit(rig.offsets, [first, *drain(rig.iterator)])
    found = {}
    for _ in range(3):
        found |= rig.next_pass()
    assert found == {"a": lines("a", 5)}
    rig.requests()
    assert rig.next_pass() == {}
    assert rig.requests() == {}


def test_what_is_too_young_is_looked_at_again_though_the_list_is_the_same(rig, store):
    now = [FIRST_TIME_MS / 1000 + 10.0]
    native = store.put("a", b"{}\n", modified_ms=FIRST_TIME_MS)
    rig.inventory([line_of(native)])
    rig.open(min_age=60)
    rig.iterator.store_clock = lambda: now[0]
    assert rig.read() == {}
    assert rig.counts.filtered == {"too young": 1}
    now[0] += 100
    assert rig.next_pass() == {"a": [b"{}"]}


def test_a_topic_that_is_usable_again_has_the_whole_list_read_again(rig, store):
    """Its objects were skipped, and without it they would wait for a restart: no listing shows them."""
    refused, asked = {"closed": "has 1 partition", "shut": "has 1 partition"}, []
    rig.offsets = OffsetManager(facts=StartFacts(topic_refusal=lambda topic: asked.append(topic) or refused.get(topic)))
    rig.inventory([line_of(put_lines(store, key, 1)) for key in ("closed/a", "closed/b", "open/a", "shut/a")])
    rig.open(template="{{topic}}/{{key}}", topic="{{topic}}", tolerance="skip_record")
    assert sorted(rig.read()) == ["open/a"]
    assert rig.counts.filtered == {"refused for its name": 3}
    rig.requests()
    for _ in range(3):
        asked.clear()
        assert rig.next_pass() == {}
        assert asked == ["closed", "shut"]  # one question for each topic, and none about an object
        assert rig.requests() == {}
    del refused["closed"]
    assert sorted(rig.next_pass()) == ["closed/a", "closed/b"]
    assert rig.counts.filtered == {"refused for its name": 1}
    assert rig.next_pass() == {}


def test_a_row_without_parts_of_a_second_is_believed_only_where_the_store_lists_none(rig, store):
    native = put_lines(store, "a", 2)
    rig.inventory([line_of(native)])
    store.lists_milliseconds = True
    assert len(rig.open().read()) == 1
    assert rig.requests() == {"stat": 1, "open": 1}
    assert rig.open().read() == {}
    assert rig.requests() == {}  # its position has that version: nothing to ask
    rig.offsets = OffsetManager()
    native = store.put("a", b"{}\n", modified_ms=native.modified_ms + 1)
    rig.inventory([line_of(native)])
    assert len(rig.open().read()) == 1
    assert rig.requests() == {"open": 1}


# ---- a store that fails


def test_lookups_are_tried_again_and_counted(rig, store):
    put_lines(store, "a", 2)
    rig.write("a\n")
    store.fail("stat", ThrottledError("slow down"), times=2)
    rig.reports.fail("stat", StoreUnavailableError("away"), times=1)
    assert list(rig.open().read()) == ["a"]
    assert rig.iterator.statistics.retries == 3
    assert rig.iterator.statistics.list_requests == 2


def test_a_store_that_stays_away_or_refuses_ends_the_run(rig, store):
    put_lines(store, "a", 2)
    rig.write("a\n")
    for error in (StoreUnavailableError("away"), AccessDeniedError("memory://lake/a: no")):
        fault = store.fail("stat", error, times=None)
        with pytest.raises(type(error)):
            rig.open().read()
        store._faults.remove(fault)
    rig.reports.fail("stat", BucketNotFoundError("memory://reports: there is no such bucket"))
    assert "there is no such bucket" in failure_of(rig, BucketNotFoundError)


def test_a_lookup_that_fails_leaves_the_list_closed_while_its_error_is_kept(rig, store):
    put_lines(store, "a", 1)
    rig.write("a\nb\n" * 100)
    store.fail("stat", AccessDeniedError("not yours"))
    stream = rig.open().iterator.get_native_item_stream(None)
    with pytest.raises(AccessDeniedError) as kept:
        list(stream)
    assert kept.value.__traceback__ is not None
    assert rig.reports.open_streams == 0


def test_a_failed_listing_is_begun_again_from_the_first_row(rig, store):
    for name in "abc":
        put_lines(store, name, 1)
    rig.write("a\nb\nc\n")
    store.fail("stat", AccessDeniedError("memory://lake/b: no"), key="b")
    commit(rig.offsets, read_until(rig.open().iterator, AccessDeniedError, "lake/b: no"))
    assert list(rig.next_pass()) == ["b", "c"]


def test_closing_ends_a_wait_for_a_lookup(store):
    put_lines(store, "a", 1)
    reports = Reports()
    reports.put("keys.txt", b"a\n")
    waiting, go_on = threading.Event(), threading.Event()

    def hang(call):
        if call.name == "stat":
            waiting.set()
            go_on.wait(60)

    store.on_call = hang
    task = MemorySourceTask(store, buckets=[reports])
    with started(store, task=task, mode="keys", keys="memory://reports/keys.txt"):
        assert waiting.wait(60)
        before = Stopwatch()
    assert before.seconds < 5
    go_on.set()


def test_the_task_raises_what_is_wrong_with_a_list(store):
    with (
        started(store, mode="keys", keys="nowhere/keys.txt") as running,
        pytest.raises(ReaderFailedError) as caught,
    ):
        poll_all(running)
    assert isinstance(caught.value.__cause__, KeyListError)


# ---- the contract


class OnlyListing(MemoryStore):
    """A store that has nothing of its own for one object."""

    stat = ObjectStore.stat
    listed_version = ObjectStore.listed_version


@pytest.mark.parametrize("ordered", [True, False])
def test_by_default_an_object_is_looked_up_by_a_listing(ordered):
    store = OnlyListing()
    store.ordered = ordered
    natives = {key: store.put(key, b"x") for key in ("a", "a/b", "ab", "b")}
    for key, native in natives.items():
        assert store.stat(key) == native
    with pytest.raises(ObjectNotFoundError, match="memory://bucket/a/: there is no such object"):
        store.stat("a/")
    assert store.listed_version(etag="x", modified_ms=1) is None


def test_without_versions_by_etag_every_row_is_looked_up():
    store = OnlyListing("lake")
    rig = Rig(store)
    native = put_lines(store, "a", 2)
    rig.inventory([line_of(native)])
    assert list(rig.open().read()) == ["a"]
    assert store.count("list_page") == 1
    rig.close()


def test_a_look_up_of_an_iterator_is_the_store_s():
    store = store_of(a=2)
    iterator = iterator_over(store)
    native = store.stat("a")
    stale = attrs.evolve(native, version="v0")
    assert iterator.look_up(stale) == native
    store.delete("a")
    assert iterator.look_up(stale) is None
    iterator.close()


def test_the_log_says_which_list_is_read(rig, store, caplog):
    caplog.set_level(logging.INFO)
    put_lines(store, "a", 1)
    rig.write("a\n")
    rig.open().read()
    rig.next_pass()
    assert [line for line in caplog.messages if "reading the list" in line] == [
        "reading the list of keys memory://reports/keys.txt"
    ]


def test_what_waits_for_another_version_or_is_too_young_is_looked_at_alone(rig, store):
    """Not the whole list again, until too much waits."""
    now = [FIRST_TIME_MS / 1000 + 10.0]
    natives = [store.put(f"{number}", b"{}\n", modified_ms=FIRST_TIME_MS + number) for number in range(5)]
    natives += [store.put("old", b"{}\n", modified_ms=FIRST_TIME_MS - 99_000)]
    rig.inventory([line_of(native) for native in natives])
    rig.open(min_age=60)
    rig.iterator.store_clock = lambda: now[0]
    assert list(rig.read()) == ["old"]
    rig.requests(), rig.list_requests()
    assert rig.next_pass() == {}
    assert rig.requests() == {"stat": 5}
    assert rig.list_requests() == {"stat": 1}
    assert rig.counts.filtered == {"too young": 5}
    now[0] += 100
    assert len(rig.next_pass()) == 5
    assert rig.counts.filtered == {}


def test_when_too_much_waits_the_whole_list_is_read_again(rig, store, monkeypatch):
    monkeypatch.setattr("framework.discovery.key_list.resolver.MAX_REMEMBERED", 2)
    now = [FIRST_TIME_MS / 1000 + 10.0]
    natives = [store.put(f"{number}", b"{}\n", modified_ms=FIRST_TIME_MS + number) for number in range(5)]
    rig.inventory([line_of(native) for native in natives])
    rig.open(min_age=60)
    rig.iterator.store_clock = lambda: now[0]
    assert rig.read() == {}
    rig.requests()
    now[0] += 100
    assert len(rig.next_pass()) == 5
    assert rig.requests() == {"open": 5}


def test_a_split_object_of_which_splits_come_back_is_read_in_its_new_version(rig, store):
    native = put_lines(store, "a", 300)
    rig.inventory([line_of(native)])
    rig.open(once=True, split_size=1024, batch_length=4, prefetch_objects=1)
    batches = [rig.iterator.next_batch()]
    put_lines(store, "a", 280)
    for _ in range(20):
        batches += drain(rig.iterator)
        commit(rig.offsets, batches)
        if rig.iterator.finished:
            break
        next_pass(rig.iterator)
    assert rig.iterator.finished
    new = store.stat("a").version
    found = [payload for batch in batches if batch.native.version == new for payload in batch.payloads]
    assert sorted(found) == sorted(lines("a", 280))


# ---- all of it together

NAMES = ["a", "b", "c", "d"]
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from(NAMES)),
    st.tuples(st.just("name"), st.lists(st.sampled_from([*NAMES, "missing"]), max_size=6)),
    st.tuples(st.just("name as it was"), st.lists(st.sampled_from(NAMES), max_size=6)),
    st.tuples(st.sampled_from(["read some", "pass", "restart"]), st.just("")),
)


@settings(max_examples=examples(150), deadline=None)
@given(actions=st.lists(ACTIONS, max_size=30))
@example(
    actions=[
        ("put", "a"),
        ("name", ["a"]),
        ("read some", ""),
        ("put", "a"),
        ("read some", ""),
        ("name as it was", ["a"]),
        ("read some", ""),
    ]
)
@example(actions=[("put", "a"), ("name as it was", ["a"]), ("put", "a"), ("pass", ""), ("restart", "")])
def test_whatever_happens_each_version_is_read_once_and_the_last_one_is_read(actions):
    """Objects and lists change at any moment. In the end what the list names and the store has was read, once each."""
    store, history = MemoryStore("lake"), {}
    rig = Rig(store, batch_length=2, prefetch_objects=2, keys="memory://reports/keys.csv")
    done, begun, ever_named, first = Counter(), set(), set(), {}

    def write(rows):
        rig.write("key,size,etag,last_modified\n" + "".join(f"{row}\n" for row in rows), "keys.csv")

    def handle(batches):
        commit(rig.offsets, batches)
        for batch in batches:
            assert batch.native.key in ever_named
            begun.add((batch.native.key, batch.native.version))
            if batch.entry.finished:
                done[batch.native.key, batch.native.version] += 1

    write(named := [])
    rig.open()
    for action, about in [*actions, ("restart", "")]:
        if action == "put":
            history.setdefault(about, []).append(put_lines(store, about, 5))
        elif action == "delete":
            store.delete(about)
        elif action in {"name", "name as it was"}:
            named = about
            ever_named.update(named)
            first = {key: history.get(key, [None])[0] for key in named} if action == "name as it was" else {}
            write(
                f"{key},{one.size},{one.version},{moment(one.modified_ms)}" if (one := first.get(key)) else f"{key},,,"
                for key in named
            )
        elif action == "read some":
            batch = rig.iterator.next_batch()
            handle([batch] if batch is not None else [])
        elif action == "pass":
            handle(drain(rig.iterator))
            next_pass(rig.iterator)
        else:
            rig.open()
    for _ in range(4):  # a stale row takes two
        handle(drain(rig.iterator))
        next_pass(rig.iterator)
    rig.requests()
    handle(drain(rig.iterator))
    assert rig.requests() == {}
    there = {native.key: native for native in store.list_all()}
    for key in named:
        if key in there:
            # a list that says of a finished version that it is the last one is believed, while nobody saw the later one
            last = key, there[key].version
            believed = (one := first.get(key)) is not None and done[key, one.version] == 1 and last not in begun
            assert believed or done[last] == 1
    assert all(count == 1 for count in done.values())
    rig.close()
