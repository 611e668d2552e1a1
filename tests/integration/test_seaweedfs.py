"""The local S3 server as a user starts it."""

from framework.testing.servers.seaweedfs import SeaweedFs


def test_it_starts_in_a_folder_that_is_named_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SeaweedFs.start("s3-data") as server:
        assert server.endpoint.startswith("http://127.0.0.1:")
    assert (tmp_path / "s3-data" / "data").is_dir()
