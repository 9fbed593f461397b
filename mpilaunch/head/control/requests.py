"""The protocol of a head's socket: one request for each connection, as JSON in a frame of `mpilaunch.relay`, then its answer.

Each request is one row: what it must have, and what its answer has. Pure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mpilaunch.wire import messages
from mpilaunch.wire.messages import both, flag, having, listed, maybe, row, seconds, text, whole

if TYPE_CHECKING:
    from mpilaunch.wire.messages import Check

REQUEST, ANSWER, REFUSED = 32, 33, 34
"""The frames; that of a request that is refused has the reason in place of the answer."""
LONGEST_REQUEST = 1 << 20
LONGEST_ANSWER = 1 << 28
"""Bytes."""


class BadMessage(ValueError):
    """A request or an answer that does not fit its row."""


class Row(NamedTuple):
    """One request: its members, and those of its answer."""

    takes: Check
    answers: Check


_calls = listed(row(text, whole, text))
_process = having(pid=whole, steady=flag, threads=listed(_calls))
_native = having(error=text, threads=listed(row(text, _calls)))
_ranges = maybe(listed(row(whole, whole)))
_rank = having(
    rank=whole, host=text, how=text, alive=flag, silent=maybe(seconds), last_line=text, gpus=listed(text), pid=maybe(whole),
    cpus=maybe(seconds), cpu_seconds=maybe(seconds), memory=maybe(whole),
)  # fmt: skip
REQUESTS = {
    "job": Row(
        having(),
        having(
            id=text, name=text, program=listed(text), state=text, ranks=whole, nodes=listed(text), began=seconds, age=seconds,
            silent=maybe(seconds), pid=whole, restart=whole, version=text, stop_seconds=seconds,
        ),
    ),
    "ranks": Row(having(), having(ranks=listed(_rank))),
    "stacks": Row(
        having(ranks=_ranges, native=flag, nccl=flag),
        having(ranks=listed(both(_rank, having(processes=listed(_process), native=maybe(_native)))), nccl=text),
    ),
    "signal": Row(having(signal=messages.signal, ranks=_ranges), having(ranks=listed(whole))),
    "end": Row(having(), having(exit_code=whole, cause=text)),
    "stop": Row(having(now=flag), having(exit_code=whole, cause=text, lost=listed(text), swept=flag)),
}
"""`ranks` of a request are first and last ones of ranges, null for all; those of the answer to a signal got it. docs/jobs.md
describes the answers to `job`, `ranks` and `stacks`."""


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


def decode_request(data: bytes) -> dict[str, Any]:
    """Return a request; raises BadMessage."""
    message = _decode(data)
    name = message.get("request")
    known = REQUESTS.get(name) if type(name) is str else None
    if known is None or not known.takes(message):
        raise BadMessage("a request that it does not know")
    return message


def decode_answer(request: str, data: bytes) -> dict[str, Any]:
    """Return the answer to a request; raises BadMessage."""
    message = _decode(data)
    if not REQUESTS[request].answers(message):
        raise BadMessage("an answer that does not fit the request")
    return message


def decode_refusal(data: bytes) -> str:
    """Return why a request is refused; raises BadMessage."""
    reason = _decode(data).get("error")
    if type(reason) is not str:
        raise BadMessage("a refusal without a reason")
    return reason


def _decode(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if type(message) is not dict:
        raise BadMessage("not a message")
    return message
