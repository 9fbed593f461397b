"""What the head's services for MPI programs share: the answer to a daemon's `ask`, and the limit of those that wait."""

from __future__ import annotations

from typing import Any

from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.wire.frames import WireError

MAX_REQUESTS = 10_000
"""Requests of each kind that may wait for an answer."""


def answer(link: NodeLink, ask: dict[str, Any], **fields: Any) -> None:
    """Answer what a daemon asked for; without an `error` among the fields, it has succeeded."""
    link.send({"type": "answer", "id": ask["id"], "error": "", **fields})


def check_base64(data: Any) -> None:
    """Raise WireError unless this is base64, as data of a PMIx library is passed on."""
    from base64 import b64decode  # few launches come here

    try:
        b64decode(data, validate=True)
    except (ValueError, TypeError):
        raise WireError("data that is not base64") from None
