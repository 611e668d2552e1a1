"""Examples in the documentation that need a server: run beside the embedded one, with the official client."""

import os
import shutil
import sys

import pytest

from framework.config.loading import structure
from framework.engine.local import LocalEngine
from framework.iggy.embedded.launcher import EmbeddedServer
from tests.support.docs import ROOT, blocks, pages, run_blocks

INFO = "python run iggy"
PAGES = [page for page in pages() if any(block.info == INFO for block in blocks(page))]


@pytest.fixture
def address(tmp_path, monkeypatch):
    """A server of its own whose topic "files" holds what examples/local_folder.toml sends; yields `host:port`."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "examples"), *sys.path])
    monkeypatch.delitem(sys.modules, "local_folder", raising=False)
    from local_folder import FolderConfig, FolderTask

    with EmbeddedServer.start(tmp_path / "iggy", password="iggy") as server:  # as a new Iggy server has it
        sections = {
            "source": {"name": "local-folder"},
            "folder": {"path": os.fspath(tmp_path / "examples" / "data")},
            "input": {"format": "auto"},
            "iggy": {"url": server.url, "stream": "local", "topic": "files", "partitions": 2},
        }
        figures = LocalEngine(FolderTask, structure(sections, FolderConfig), once=True).run()
        assert figures.records > 0
        yield f"{server.host}:{server.port}"
    sys.modules.pop("local_folder", None)


def test_there_are_such_examples():
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run_against_a_server(page, address, capsys):
    assert run_blocks(page, INFO, replace=[("127.0.0.1:8090", address)]) > 0
    assert capsys.readouterr().out.count("\n") > 1 or page.stem != "read-the-topic"
