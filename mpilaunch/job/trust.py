"""Trust in files by owner and mode, decided on the stat of a file, a link or a directory. Nothing here opens a file.

Only root and the user who runs mpilaunch are trusted. In a directory that every user may write, only the sticky bit protects
files. Group write permission on a directory is accepted: its owner chose the group.
"""

from __future__ import annotations

import os
import stat


def is_foreign(status: os.stat_result) -> bool:
    """Return whether the owner is neither root nor the user who runs mpilaunch."""
    return status.st_uid not in (0, os.geteuid())


def is_public(directory: os.stat_result) -> bool:
    """Return whether every user may create files in a directory."""
    return bool(directory.st_mode & stat.S_IWOTH)


def is_unprotected(directory: os.stat_result) -> bool:
    """Return whether every user may also rename and remove the files of others in a directory."""
    return is_public(directory) and not directory.st_mode & stat.S_ISVTX


def owner_of(status: os.stat_result) -> str:
    """Return the owner's name and uid, for a message."""
    import pwd  # for messages only

    try:
        return f"{pwd.getpwuid(status.st_uid).pw_name} (uid {status.st_uid})"
    except KeyError:
        return f"uid {status.st_uid}"


def why_config_untrusted(status: os.stat_result, *, named: bool) -> str | None:
    """Return why a file that can name commands must not be read, or None: OpenSSH's rule for ~/.ssh/config.

    If the user named its path on the command line, it is refused only if every user may write it.
    """
    if stat.S_ISCHR(status.st_mode):
        return None  # only root makes devices, and what every user writes to /dev/null is not read back
    if named:
        return "every user may write it" if status.st_mode & stat.S_IWOTH else None
    if is_foreign(status):
        return f"it belongs to {owner_of(status)}"
    return "others may write it" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
