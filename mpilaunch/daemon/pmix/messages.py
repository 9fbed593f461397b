"""The messages between the daemon and its PMIx helper, in rows like those of `wire.messages`.

A message of the helper has exactly the members of its row, which become the arguments of the handler. Those with data get
`data` too. Ranks are any numbers here: the handlers know the worlds.
"""

from __future__ import annotations

from mpilaunch.wire.messages import anything, code, exactly, flag, having, listed, maybe, named, row, text, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mpilaunch.wire.messages import Table

SERVING = "serving"
"""The only state of either side."""


def integer(value: Any) -> bool:
    """A number that a rank chose."""
    return type(value) is int


_app = exactly(
    program=text, arguments=listed(text), count=integer, environment=named(text), wdir=text, info=named(anything)
)  # fmt: skip

HELPER_SENDS: Table = {
    "registered": (SERVING, exactly(world=text, environments=listed(row(integer, named(text)))), "registered"),
    "connected": (SERVING, exactly(world=text, rank=integer), "connected"),
    "finalized": (SERVING, exactly(world=text, rank=integer, token=integer), "finalized"),
    "abort": (SERVING, exactly(world=text, rank=integer, code=code), "abort"),
    "collective": (
        SERVING, exactly(kind=text, members=listed(row(text, integer)), ranks=integer, token=integer), "collective"
    ),
    "modex": (SERVING, exactly(world=text, rank=integer, token=integer), "modex"),
    "modex_ready": (SERVING, exactly(token=integer, found=flag), "modex_ready"),
    "publish": (
        SERVING, exactly(world=text, rank=integer, values=named(row(integer, anything)), token=integer), "publish"
    ),
    "lookup": (SERVING, exactly(world=text, rank=integer, keys=listed(text), wait=flag, token=integer), "lookup"),
    "unpublish": (SERVING, exactly(world=text, rank=integer, keys=listed(text), token=integer), "unpublish"),
    "spawn": (SERVING, exactly(world=text, rank=integer, apps=listed(_app), token=integer), "spawn"),
    "failed": (SERVING, exactly(reason=text), "_note_failure"),
}  # fmt: skip
"""Messages of the helper. The handlers are methods of `PmixEvents`; `failed` is reported after the helper's end."""

DAEMON_SENDS: Table = {
    "register": (SERVING, having(world=having(name=text, node=maybe(whole))), "_register"),
    "answer": (SERVING, having(token=whole, error=text), "_answer"),
    "modex_request": (SERVING, having(world=text, rank=integer, token=whole), "_request_modex"),
}
"""Messages of the daemon. The handlers are methods of `server.Helper`."""
