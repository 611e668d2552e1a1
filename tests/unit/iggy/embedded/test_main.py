"""The command line of the embedded server."""

import socket
import subprocess
import sys

import pytest

from framework.iggy.embedded.__main__ import main


@pytest.mark.parametrize(
    ("port", "said"), [("65536", "65536 is no port: 0 to 65535"), ("-1", "-1 is no port"), ("many", "'many'")]
)
def test_a_port_that_is_none_is_a_mistake_of_the_command_line(tmp_path, capsys, port, said):
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "data"), "--port", port])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_names_the_option(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "framework.iggy.embedded", str(tmp_path / "data"), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("; --port names another")
