"""The conformance kit on `examples/shelf.py`: a source of about 35 lines keeps the laws."""

import pytest
from shelf import ShelfStore, ShelfTask

from framework.errors import BucketNotFoundError, ObjectChangedError, ObjectNotFoundError
from framework.testing.kit import ConformanceLaws
from framework.testing.options import source_config
from framework.testing.rig import Capability
from tests.conformance.test_local_folder import FolderRig
from transformers import LocalFileInput


class ShelfRig(FolderRig):
    capabilities = frozenset(
        {
            Capability.ORDER,
            Capability.PAGES,
            Capability.SPLITS,
            Capability.BAD_RECORDS,
            Capability.HANDLES,
            Capability.PROCESSES,
        }
    )

    def task_maker(self):
        return ShelfTask

    def make_task(self, options):
        return ShelfTask(), source_config(ShelfTask.config_class, path=str(self.folder), **options)


class TestShelf(ConformanceLaws):
    cannot = {  # noqa: RUF012
        "E1": "a folder has no calls that fail for a while",
        "E2": "a folder has no vendor",
        "L5": "a listing of a folder does not stand still",
        "T2": "streams that end early are tried on the other example, over the same reader of files",
    }

    @pytest.fixture
    def rig(self, tmp_path):
        return ShelfRig(tmp_path)


def test_a_folder_that_is_missing_is_not_an_empty_one(tmp_path):
    with pytest.raises(BucketNotFoundError):
        ShelfStore(tmp_path / "unmounted").list_page()


def test_a_file_that_is_deleted_while_it_is_listed_is_not_shown(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(b"1\n")
    find = ShelfStore.find

    def find_later(self, key):
        (tmp_path / "a").unlink(missing_ok=True)
        return find(self, key)

    monkeypatch.setattr(ShelfStore, "find", find_later)
    assert [native.key for native in ShelfStore(tmp_path).list_page().objects] == ["b"]


@pytest.mark.parametrize("left", [None, b"another\n"], ids=["deleted", "replaced"])
def test_a_file_that_goes_as_it_is_opened_is_not_read(tmp_path, monkeypatch, left):
    path = tmp_path / "a"
    path.write_bytes(b"1\n")
    store = ShelfStore(tmp_path)
    (native,) = store.list_page().objects
    whole = LocalFileInput.open

    def open_late(self, start=0, end=None):
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        return whole(self, start, end)

    monkeypatch.setattr(LocalFileInput, "open", open_late)
    with pytest.raises(ObjectNotFoundError if left is None else ObjectChangedError):
        store.open(native)
