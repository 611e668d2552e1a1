"""The command `demo`: what it says when something of it is away."""

import errno
import json
import sys
from types import SimpleNamespace

import pytest

from framework import InputOptions, make_transformer
from framework.cli.demo import run as demo_run
from framework.cli.demo.data import load, prepare, prepared_rows
from framework.cli.demo.result import Demo, again
from framework.errors import FatalError, IggyUnavailableError, StoreUnavailableError
from s3_source.demo import S3DemoStore
from transformers import LocalFileInput


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """Runs the demo, which ends with an error at once."""

    def run(error):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(demo_run, "_run", fail)
        demo_run.demo_command(S3DemoStore())(folder=tmp_path / "demo", engine="local")

    return run


@pytest.mark.parametrize("kind", [IggyUnavailableError, StoreUnavailableError])
def test_a_server_that_is_away_is_not_taken_for_a_folder_that_cannot_be_used(demo, kind):
    with pytest.raises(kind, match=r"^no answer$"):
        demo(kind("no answer"))


def test_a_folder_that_cannot_be_used_is_named(demo, tmp_path):
    with pytest.raises(FatalError, match=f"the demo's folder {tmp_path / 'demo'} cannot be used: .*No space left"):
        demo(OSError(errno.ENOSPC, "No space left on device"))


def test_the_demo_writes_to_its_own_server_whatever_the_variables_say(tmp_path, monkeypatch):
    demo = Demo(store=S3DemoStore(), folder=tmp_path, rows=1)
    server = SimpleNamespace(endpoint="http://127.0.0.1:1", access_key="a", secret_key="b")
    demo_run._write_configs(demo, server)
    monkeypatch.setenv("IGGY_SOURCE__IGGY__URL", "iggy://iggy:iggy@production:8090")
    monkeypatch.setenv("IGGY_SOURCE__S3__BUCKET", "production")
    config = demo_run._read_config(demo, "csv")
    assert (config.s3.bucket, config.iggy.url) == ("flights", f"embedded:{tmp_path}/iggy")


@pytest.mark.parametrize("on_path", [True, False])
def test_the_commands_to_go_on_with_start_the_interpreter_that_has_the_package(tmp_path, monkeypatch, on_path):
    """As in the guide, which calls /opt/source/bin/python: the python of the shell does not know the package."""
    (tmp_path / "opt" / "bin").mkdir(parents=True)
    python = tmp_path / "opt" / "bin" / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PATH", str(python.parent) if on_path else "/nowhere")
    demo = Demo(store=S3DemoStore(), folder=tmp_path, rows=1)
    assert again(demo).startswith(f"{'python' if on_path else python} -m s3_source demo ")


class Server:
    """A server of the demo, dead or alive."""

    endpoint, host, port = "http://127.0.0.1:1", "127.0.0.1", 2

    def __init__(self, *, ended):
        self.ended = ended

    def has_ended(self):
        return self.ended


@pytest.mark.parametrize(
    ("store", "iggy", "kind", "said"),
    [
        (True, False, StoreUnavailableError, "the demo's S3 server (SeaweedFS) at http://127.0.0.1:1 has ended: run"),
        (False, True, IggyUnavailableError, "the demo's Iggy server at 127.0.0.1:2 has ended: run"),
    ],
)
def test_with_keep_the_demo_ends_when_a_server_has_ended(tmp_path, store, iggy, kind, said):
    demo = Demo(store=S3DemoStore(), folder=tmp_path, rows=1)
    with pytest.raises(kind) as caught:
        demo_run._wait(demo, Server(ended=store), Server(ended=iggy))
    assert str(caught.value).startswith(said)
    assert "--keep" in str(caught.value)


def test_the_objects_of_each_format_hold_the_same_flights(tmp_path):
    prepare(tmp_path / "objects", 6200)  # two weeks
    assert prepared_rows(tmp_path / "objects") == 6200
    flights = {}
    for name, files in load(tmp_path / "objects").items():
        assert [file.name.partition(".")[0] for file in files] == ["2013-week-01", "2013-week-02"]
        transformer = make_transformer(InputOptions(format=name))
        batches = [batch for file in files for batch in transformer.read(LocalFileInput(file))]
        flights[name] = [json.loads(bytes(payload)) for batch in batches for payload in batch.payloads]
    first = flights["jsonl"][0]
    assert (first["tailnum"], first["arr_delay"], first["time_hour"]) == ("N14228", 11.0, "2013-01-01T10:00:00Z")
    for flight in (*flights["avro"], *flights["parquet"]):
        flight["time_hour"] = flight["time_hour"].replace(".000Z", "Z")
    for flight in flights["csv"]:
        flight |= {name: float(flight[name]) if flight[name] else None for name in first if is_number(name)}
        flight["tailnum"] = flight["tailnum"] or None
    assert flights["avro"] == flights["parquet"] == flights["csv"] == flights["jsonl"]


def is_number(name):
    return name not in {"carrier", "tailnum", "origin", "dest", "time_hour"}
