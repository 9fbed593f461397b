"""Variables as tests of forwarding draw them, and the errors of those that are refused."""

from __future__ import annotations

import string

import pytest
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.job.environment.forwarded import forwarded_environment

NAMES = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=20).map(lambda text: "V" + text)
VALUES = st.binary(max_size=200).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))


def refused(exports: list[str], environ: dict[str, str] | None = None, file: str | None = None) -> UsageError:
    """Return the error of -x, or of the text of an env file called job.env."""
    with pytest.raises(UsageError) as caught:
        forwarded_environment(environ or {}, exports, [("job.env", file)] if file is not None else [])
    assert caught.value.exit_code == 2
    return caught.value
