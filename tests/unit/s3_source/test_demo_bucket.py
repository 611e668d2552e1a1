"""The demo's bucket: on a server of its own, whatever the user's AWS settings say."""

import uuid

from s3_source.demo_bucket import fill_bucket


def test_a_profile_of_the_user_has_no_say(moto_server, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nothing")
    (tmp_path / "a").write_bytes(b"1")
    name, keys = f"demo-{uuid.uuid4().hex[:8]}", ("access", "secret")
    assert fill_bucket(moto_server.endpoint, *keys, bucket=name, files={"a": tmp_path / "a"}) == 1
    assert fill_bucket(moto_server.endpoint, *keys, bucket=name, files={"a": tmp_path / "a"}) == 0
