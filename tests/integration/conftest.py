"""A server for the integration tests: the real one that IGGY_TEST_URL names, else a fresh embedded one."""

import os
import re
import uuid

import pytest

from framework.iggy.embedded.launcher import EmbeddedServer
from framework.iggy.offset_log import fencing


@pytest.fixture(scope="session")
def iggy_url(tmp_path_factory):
    """Yield `iggy://user:password@host:port` of a running server."""
    given = os.environ.get("IGGY_TEST_URL")
    if given:
        yield given
        return
    with EmbeddedServer.start(tmp_path_factory.mktemp("iggy"), password="iggy") as server:
        yield server.url


@pytest.fixture
def stream_name(request):
    """Return a stream name that no other test and no earlier run has used."""
    return f"{re.sub('[^a-z0-9]+', '-', request.node.name.lower())[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def short_look(monkeypatch):
    """A command of this process takes an instance for running when it is seen for a second, and not for ten.

    That a start waits for `LOOK_SECONDS`, and why, is in tests/unit/iggy/offset_log/test_fencing.py.
    """
    monkeypatch.setattr(fencing, "LOOK_SECONDS", 1.0)
