"""Folders that others may write, and links in them."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.model.private_files import ForeignFolderError, make_private, open_draft, open_lock


def test_others_may_not_write_to_a_folder_any_more(tmp_path):
    tmp_path.chmod(0o777)
    make_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("owner", "user", "shared"), [(0, 7, True), (5, 7, False), (5, 0, True)])
def test_a_folder_of_another_user_is_refused_unless_one_of_them_is_root_and_it_may_be_shared(
    owner, user, shared, monkeypatch
):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_uid=owner, st_mode=0o40777))
    with pytest.raises(
        ForeignFolderError, match=rf"/data belongs to another user \(uid {owner}, not {user}\): name a folder"
    ):
        make_private(Path("/data"))
    with contextlib.nullcontext() if shared else pytest.raises(ForeignFolderError):
        make_private(Path("/data"), may_be_shared=True)


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
