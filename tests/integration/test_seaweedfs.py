"""The local S3 server as a user starts it."""

import shutil
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from framework.errors import FatalError
from framework.testing.servers import seaweedfs
from framework.testing.servers.seaweedfs import SeaweedFs


def test_it_starts_in_a_folder_that_is_named_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SeaweedFs.start("s3-data") as server:
        assert server.endpoint.startswith("http://127.0.0.1:")
    assert (tmp_path / "s3-data" / "data").is_dir()


def test_a_folder_that_cannot_be_made_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["seaweedfs", str(tmp_path / "file")])
    assert seaweedfs.main() == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: the server's folder {tmp_path / 'file'} cannot be used: ")
    assert said.count("\n") == 1


def test_a_disk_with_too_little_room_is_named_at_the_start(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(seaweedfs.shutil, "disk_usage", lambda _: usage._replace(free=63 << 20))
    with pytest.raises(FatalError, match="on a disk with 63 MiB free, and the server writes nothing with less than 64"):
        SeaweedFs.start(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "usage: python -m framework.testing.servers.seaweedfs FOLDER\n"),
        (["--help"], 2, "usage: python -m framework.testing.servers.seaweedfs FOLDER\n"),
        (["data"], 3, "error: no server\n"),
    ],
)
def test_a_wrong_start_is_one_line(monkeypatch, capsys, arguments, code, said):
    def missing():
        raise FatalError("no server")

    monkeypatch.setattr(seaweedfs, "weed_binary", missing)
    monkeypatch.setattr(sys, "argv", ["seaweedfs", *arguments])
    assert seaweedfs.main() == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_server_ends_with_its_program(tmp_path, number):
    command = [sys.executable, "-m", "framework.testing.servers.seaweedfs", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        address = urlsplit(program.stdout.readline().split()[0])
        program.send_signal(number)
        assert program.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port), 5)
