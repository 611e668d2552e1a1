"""The kit on the example source: what an author of a source writes to use it."""

import contextlib
import io
from pathlib import Path

import pytest
from local_folder import FolderConfig, FolderInput, FolderTask

from framework import NativeObject
from framework.errors import ObjectChangedError, ObjectNotFoundError
from framework.testing.kit import ConformanceLaws
from framework.testing.options import source_config
from framework.testing.rig import Capability, SourceRig
from tests.conformance.rigs import bad_line, json_lines
from transformers import LocalFileInput


class FolderRig(SourceRig):
    capabilities = frozenset(
        {
            Capability.ORDER,
            Capability.CUT,
            Capability.SPLITS,
            Capability.BAD_RECORDS,
            Capability.HANDLES,
            Capability.PROCESSES,
        }
    )

    def __init__(self, folder):
        self.folder = folder
        self.cuts = {}

    def put(self, key, data):
        """Moved into place whole, as the example asks for: one that is written while it is read has no one content."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        elsewhere = self.folder.with_suffix(".writing")
        elsewhere.write_bytes(data)
        elsewhere.replace(path)

    def delete(self, key):
        (self.folder / key).unlink()

    def cannot_hold(self, key):
        parts = key.split("/")
        if key == "a":  # L3 has other keys below it
            return "a file and a folder cannot have one name"
        if "" in parts or {".", ".."} & set(parts):
            return "a file system has no empty parts, and takes . and .. for folders"
        return "a name of a file has at most 255 bytes" if max(len(part.encode()) for part in parts) > 255 else ""

    def open_handles(self):
        here = str(self.folder.resolve())
        return sum(where.startswith(here) for where in open_files())

    def task_maker(self):
        return FolderTask

    def encode(self, records):
        return json_lines(records)

    def bad_record(self, key, number):
        return bad_line(key, number)

    def make_task(self, options):
        return CutFolderTask(self.cuts), source_config(FolderConfig, path=str(self.folder), **options)

    def cut(self, key, at):
        self.cuts[key] = at


def open_files():
    """Paths of the files that this process has open."""
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield str(number.readlink())


class CutFolderTask(FolderTask):
    """The example over a disk whose files end early although their size says otherwise."""

    def __init__(self, cuts):
        super().__init__()
        self.cuts = cuts

    def get_iterator(self, context):
        iterator = super().get_iterator(context)
        get_input_stream = iterator.get_input_stream

        def cut_input_stream(native):
            source = get_input_stream(native)
            whole, at = source.open, self.cuts.get(native.key)

            def open_cut(start=0, end=None):
                stream = whole(start, end)
                if at is not None:
                    with stream._raw:
                        stream._raw = io.BytesIO(stream._raw.read(max(0, at - start)))
                return stream

            source.open = open_cut
            return source

        iterator.get_input_stream = cut_input_stream
        return iterator


class TestLocalFolder(ConformanceLaws):
    cannot = {  # noqa: RUF012
        "E1": "a folder has no calls that fail for a while",
        "E2": "a folder has no vendor",
        "L5": "a folder is listed in one go, without pages",
    }

    @pytest.fixture
    def rig(self, tmp_path):
        return FolderRig(tmp_path)


@pytest.mark.parametrize("left", [None, b"another"], ids=["deleted", "replaced"])
def test_a_file_that_goes_as_it_is_opened_is_not_left_open(tmp_path, monkeypatch, left):
    path, opened = tmp_path / "a", []
    path.write_bytes(b"1\n")
    native = NativeObject(bucket=str(tmp_path), key="a", size=2, version=LocalFileInput(path).version)
    whole, open_file = LocalFileInput.open, Path.open

    def lose_and_open(self, start=0, end=None):
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        monkeypatch.setattr(Path, "open", lambda self, mode: opened.append(open_file(self, mode)) or opened[-1])
        return whole(self, start, end)

    monkeypatch.setattr(LocalFileInput, "open", lose_and_open)
    with pytest.raises(ObjectNotFoundError if left is None else ObjectChangedError):
        FolderInput(tmp_path, native).open()
    assert [file.closed for file in opened] == ([] if left is None else [True])
