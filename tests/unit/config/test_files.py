"""Files and pipes are read whole, up to a limit, and none is waited for without end."""

import os
import threading

import pytest

from framework.config import files
from framework.config.files import read_file
from framework.config.layers import file_layers
from framework.config.substitution import Substitution
from framework.errors import ConfigError


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.05)
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)
    return path


@pytest.fixture
def written(pipe, monkeypatch):
    """A pipe into which something is written."""
    threads = []

    def write(content):
        monkeypatch.setattr(files, "PIPE_SECONDS", 60.0)
        threads.append(threading.Thread(target=pipe.write_bytes, args=(content,)))
        threads[-1].start()
        return pipe

    yield write
    for thread in threads:
        thread.join(60)


def test_a_pipe_is_read_to_its_end(written):
    content = bytes(range(256)) * 1000
    assert read_file(written(content), 1 << 20) == content


def test_a_configuration_may_come_through_a_pipe(written):
    (layer,) = file_layers(written(b'[store]\nbucket = "lake"\n'))
    assert layer.values == {"store": {"bucket": "lake"}}


def test_a_long_file_is_an_error(tmp_path):
    (tmp_path / "long").write_bytes(bytes((1 << 20) + 1))
    assert len(read_file(tmp_path / "long", (1 << 20) + 1)) == (1 << 20) + 1
    with pytest.raises(OSError, match="it is longer than 1 MiB"):
        read_file(tmp_path / "long", 1 << 20)


def test_a_pipe_without_a_writer_is_an_error(pipe):
    with pytest.raises(ConfigError, match=r"cannot be read: it is a pipe, and nothing came within 0\.05 seconds"):
        file_layers(pipe)
    told = []
    assert Substitution({}).apply(f"${{file:{pipe}}}", told.append) is None
    assert told == [f"the file {pipe} cannot be read: it is a pipe, and nothing came within 0.05 seconds"]


def test_a_pipe_is_not_included(pipe, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_SECONDS", 600.0)
    main = tmp_path / "main.toml"
    main.write_text('include = ["pipe.toml"]\n')
    read = []
    with pytest.raises(
        ConfigError, match=r"cannot be read: it is a pipe, not a file, and is read more than once \(included by"
    ):
        file_layers(main, read)
    assert read == [main, pipe]


@pytest.mark.parametrize("kind", ["a pipe", "a terminal"])
def test_what_is_not_waited_for_is_refused_at_once(pipe, monkeypatch, kind):
    monkeypatch.setattr(files, "PIPE_SECONDS", 600.0)
    ends = os.openpty()
    try:
        path, told = (pipe if kind == "a pipe" else os.ttyname(ends[1])), []
        assert Substitution({}, may_wait=False).apply(f"${{file:{path}}}", told.append) is None
    finally:
        for end in ends:
            os.close(end)
    assert told == [f"the file {path} cannot be read: it is {kind}, not a file, and is read more than once"]


def test_of_countless_included_files_some_are_read(tmp_path):
    main = tmp_path / "main.toml"
    main.write_text(f"include = {[f'{number}.toml' for number in range(200)]}\n")
    for number in range(200):
        (tmp_path / f"{number}.toml").touch()
    read = []
    with pytest.raises(ConfigError, match="more than 100 files"):
        file_layers(main, read)
    assert read[:3] == [main, tmp_path / "0.toml", tmp_path / "1.toml"]
    assert len(read) == 100
