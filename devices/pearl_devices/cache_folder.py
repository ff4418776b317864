"""The user's cache folder: files that are made once and kept between runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pearl_devices.system import host_system


def cache_folder() -> Path:
    """Return PEARL_CACHE_DIR, or the user's cache folder. The folder need not exist."""
    if given := os.environ.get("PEARL_CACHE_DIR"):
        return Path(given)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("pearl", appauthor=False))


def doubts(folder: Path) -> str:
    """The reason why another user may have written the content of `folder`; empty if only this user
    or root can have written it.

    Raises:
        OSError: the folder does not exist.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "it is no folder"
    if found.st_uid not in (0, host_system.find_user()):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & 0o022:
        return "others may write it (`chmod 700` ends that)"
    return ""
