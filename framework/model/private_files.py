"""Folders and files of one user: no other user may have a file overwritten through a link that stands there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class ForeignFolderError(PermissionError):
    """A folder of another user, or a file in it."""


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
    status = folder.stat()
    if may_be_shared and status.st_uid != os.geteuid() and 0 in {status.st_uid, os.geteuid()}:
        return
    _check_owner(folder, status)
    if status.st_mode & 0o022:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)


def open_own(path: Path, flags: int = os.O_NOFOLLOW) -> int:
    """Return a descriptor to read a file or folder of this user; no process can exchange what it names.

    Args:
        path: its path.
        flags: more flags of `open`; by default a link is an `OSError`.

    Raises:
        ForeignFolderError: it belongs to another user.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)  # a pipe is not waited for
    try:
        _check_owner(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise ForeignFolderError(
            f"{path} belongs to another user (uid {status.st_uid}, not {os.geteuid()}): name a folder of your own"
        )


def open_lock(path: Path) -> int:
    """Return a descriptor of a file to lock, which is made when it is missing; a link is an `OSError`."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def open_draft(path: Path) -> int:
    """Return a descriptor of a new file for this user alone; what had its name, a link too, is removed first."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
