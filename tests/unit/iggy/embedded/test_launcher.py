"""Which server the launcher joins: one of the same user, on this machine."""

import fcntl
import json
import os
import socket

import pytest

from framework.iggy.embedded.launcher import EmbeddedServer, EmbeddedServerError


@pytest.fixture
def stranger():
    """What listens on this machine, and must not be asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.fixture
def served(tmp_path, stranger):
    """A folder whose lock is held, and whose address is the stranger's."""
    address = {"pid": os.getpid(), "host": "127.0.0.1", "port": stranger.getsockname()[1]}
    (tmp_path / "server.json").write_text(json.dumps({**address, "username": "iggy", "password": "p"}))
    with (tmp_path / "lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


@pytest.mark.parametrize("name", ["", "server.json", "lock"])
def test_a_server_in_a_folder_of_another_user_is_not_joined(served, monkeypatch, name):
    """It would get all records and positions, and decide which objects are read."""
    foreign, fstat = (served / name).stat().st_ino, os.fstat

    def status(descriptor):
        found = fstat(descriptor)
        return os.stat_result((*found[:4], 12345, *found[5:])) if found.st_ino == foreign else found

    monkeypatch.setattr(os, "fstat", status)
    said = rf"{served / name} belongs to another user \(uid 12345, not {os.geteuid()}\): name a folder of your own"
    with pytest.raises(EmbeddedServerError, match=said):
        EmbeddedServer.start(served)


@pytest.mark.parametrize("name", ["server.json", "lock"])
def test_a_link_or_a_pipe_names_no_server(served, name):
    path = served / name
    elsewhere = path.rename(served / "elsewhere")
    for make in (lambda: path.symlink_to(elsewhere), lambda: os.mkfifo(path)):
        make()
        assert EmbeddedServer(served, "iggy", None)._address() is None
        path.unlink()


@pytest.mark.parametrize("host", ["10.0.0.1", "iggy.example", ""])
def test_a_server_of_another_machine_is_not_joined(served, host):
    path = served / "server.json"
    assert EmbeddedServer(served, "iggy", None)._address() is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": host}))
    assert EmbeddedServer(served, "iggy", None)._address() is None


def test_a_folder_behind_a_link_of_ones_own_may_be_used(served):
    link = served / "link"
    link.symlink_to(served)
    assert EmbeddedServer(link, "iggy", None)._address() is not None
