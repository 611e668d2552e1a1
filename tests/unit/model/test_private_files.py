"""Folders that others may write, and links in them."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.model.private_files import ForeignFolderError, make_private, open_draft, open_lock


def test_others_may_not_write_to_a_folder_any_more(tmp_path):
    tmp_path.chmod(0o777)
    make_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("owner", [0, 5])
def test_a_folder_of_another_user_is_refused_unless_it_may_be_of_root(owner, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_uid=owner, st_mode=0o40777))
    with pytest.raises(
        ForeignFolderError, match=rf"/data belongs to another user \(uid {owner}, not 7\): name a folder"
    ):
        make_private(Path("/data"))
    if owner:
        with pytest.raises(ForeignFolderError):
            make_private(Path("/data"), may_be_of_root=True)
    else:
        make_private(Path("/data"), may_be_of_root=True)


def test_a_draft_takes_the_place_of_a_link_and_a_lock_refuses_it(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for link in (os.symlink, os.link):
        link(victim, tmp_path / "draft")
        os.close(open_draft(tmp_path / "draft"))
        assert victim.read_text() == "mine"
        assert (tmp_path / "draft").stat().st_mode & 0o777 == 0o600
        (tmp_path / "draft").unlink()
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        open_lock(tmp_path / "lock")
