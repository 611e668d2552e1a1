"""The conformance kit on `examples/shelf.py`: a source of under 60 lines keeps the laws."""

import pytest
from shelf import ShelfSourceConfig, ShelfTask

from framework.testing.kit import ConformanceLaws
from framework.testing.options import source_config
from framework.testing.rig import Capability
from tests.conformance.test_local_folder import FolderRig


class ShelfRig(FolderRig):
    capabilities = frozenset(
        {Capability.ORDER, Capability.PAGES, Capability.SPLITS, Capability.HANDLES, Capability.PROCESSES}
    )

    def task_maker(self):
        return ShelfTask

    def make_task(self, options):
        return ShelfTask(), source_config(ShelfSourceConfig, path=str(self.folder), **options)


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
