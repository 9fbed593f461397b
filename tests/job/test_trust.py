"""Trust in files by owner and mode."""

from __future__ import annotations

import os
import stat

import pytest

from mpilaunch.job.trust import is_foreign, is_public, is_unprotected, owner_of, why_config_untrusted

STRANGER = 65_533 if os.geteuid() != 65_533 else 65_532


def status(mode: int, owner: int = 0) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))


def test_only_root_and_the_user_are_no_strangers() -> None:
    assert not is_foreign(status(0o600)) and not is_foreign(status(0o600, os.geteuid()))
    assert is_foreign(status(0o600, STRANGER))
    assert owner_of(status(0o600)) == "root (uid 0)" and owner_of(status(0o600, STRANGER)) == f"uid {STRANGER}"


@pytest.mark.parametrize(
    ("mode", "public", "unprotected"),
    [(0o755, False, False), (0o775, False, False), (0o777, True, True), (0o1777, True, False)],
)
def test_directories(mode: int, public: bool, unprotected: bool) -> None:
    assert (is_public(status(stat.S_IFDIR | mode)), is_unprotected(status(stat.S_IFDIR | mode))) == (public, unprotected)


@pytest.mark.parametrize(
    ("mode", "owner", "named", "found"),
    [
        (0o644, 0, None, None),
        (0o664, 0, None, "others may write it"),
        (0o664, STRANGER, "every user may write it", f"it belongs to uid {STRANGER}"),
        (0o666, 0, "every user may write it", "others may write it"),
    ],
)
def test_config_files(mode: int, owner: int, named: str | None, found: str | None) -> None:
    of_file = status(stat.S_IFREG | mode, owner)
    assert why_config_untrusted(of_file, named=True) == (named if mode & stat.S_IWOTH else None)
    assert why_config_untrusted(of_file, named=False) == found


def test_a_device_is_no_config_that_others_have_written() -> None:
    assert why_config_untrusted(status(stat.S_IFCHR | 0o666), named=False) is None
