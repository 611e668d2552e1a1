"""The kit on the example source: what an author of a source writes to use it."""

import io

import pytest
from local_folder import FolderConfig, FolderTask

from framework.testing.kit import ConformanceLaws
from framework.testing.options import source_config
from framework.testing.rig import Capability, SourceRig
from tests.conformance.rigs import json_lines


class FolderRig(SourceRig):
    capabilities = frozenset({Capability.CUT, Capability.SHARES})

    def __init__(self, folder):
        self.folder = folder
        self.cuts = {}

    def put(self, key, data):
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, key):
        (self.folder / key).unlink()

    def encode(self, records):
        return json_lines(records)

    def make_task(self, options):
        return CutFolderTask(self.cuts), source_config(FolderConfig, path=str(self.folder), **options)

    def cut(self, key, at):
        self.cuts[key] = at


class CutFolderTask(FolderTask):
    """The example over a disk whose files end early although their size says otherwise."""

    def __init__(self, cuts):
        super().__init__()
        self.cuts = cuts

    def get_iterator(self, backoff_config):
        iterator = super().get_iterator(backoff_config)
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
    cannot = {"E1": "a folder has no calls that fail for a while"}  # noqa: RUF012

    @pytest.fixture
    def rig(self, tmp_path):
        return FolderRig(tmp_path)
