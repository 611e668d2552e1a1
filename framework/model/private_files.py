"""Folders and files of one user: no other user may have a file overwritten through a link that stands there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class ForeignFolderError(PermissionError):
    """A folder of another user."""


def make_private(folder: Path, *, may_be_shared: bool = False) -> None:
    """Keep other users from writing to the folder: one who may could put links to files of this user there.

    Args:
        folder: the folder.
        may_be_shared: whether a folder of root, or of another user when this one is root, is left as it is: so are
            volumes of Kubernetes, and folders of the host in a container.

    Raises:
        ForeignFolderError: it belongs to another user.
        OSError: it cannot be looked at, or its mode cannot be changed.
    """
    status, user = folder.stat(), os.geteuid()
    if status.st_uid != user:
        if may_be_shared and 0 in {status.st_uid, user}:
            return
        raise ForeignFolderError(
            f"{folder} belongs to another user (uid {status.st_uid}, not {user}): name a folder of your own"
        )
    if status.st_mode & 0o022:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)


def open_lock(path: Path) -> int:
    """Return a descriptor of a file to lock, which is made when it is missing; a link is an `OSError`."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def open_draft(path: Path) -> int:
    """Return a descriptor of a new file for this user alone; what had its name, a link too, is removed first."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
